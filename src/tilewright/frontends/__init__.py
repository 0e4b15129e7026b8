"""Importers: from a model in a file or a framework to a graph module."""
