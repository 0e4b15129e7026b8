"""Cost models: how far a measurement is from the analytical estimate, learned as it goes."""
