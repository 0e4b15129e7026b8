"""Importers: models in files or frameworks to graph modules."""
