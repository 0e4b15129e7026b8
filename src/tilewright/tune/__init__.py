"""Tuning: spaces of choices, models of their cost, search, measurement, and what was found.

A space gives points, an estimate and features over thousands of points at a time; a cost model
learns how far measurements are from the estimate; search proposes batches; `measure` rejects what
is wrong and times what is right; the database keeps all of it. How a candidate is built and run is
handed in: nothing here knows the driver.
"""
