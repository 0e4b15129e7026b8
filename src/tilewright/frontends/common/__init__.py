"""Shared by all importers: emitting nodes, and a joint report of unsupported features."""
