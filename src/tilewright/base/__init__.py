"""Foundations of every layer: data types, targets, errors, locations, text, passes."""
