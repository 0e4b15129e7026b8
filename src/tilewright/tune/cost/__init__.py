"""Cost models: learn the ratio of measurement to analytical estimate."""
