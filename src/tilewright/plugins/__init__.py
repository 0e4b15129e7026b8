"""Tilewright inside of other frameworks: what they call, and what calls the driver for them."""
