"""Legality analyses of primitives, one per file: positions, regions, dependences, concurrency."""
