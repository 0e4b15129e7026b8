"""Plugins for other frameworks, which call the driver on their behalf."""
