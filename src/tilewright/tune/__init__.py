"""Tuning: spaces of choices, models of their cost, search, measurement, and what was found.

A space gives points, an estimate and features over thousands of points at a time; a cost model
learns how far measurements are from the estimate; search proposes batches; `measure` rejects what
is wrong and times what is right; the database keeps all of it. How a candidate is built and run is
handed in: nothing here knows the driver.
"""

from __future__ import annotations

from tilewright.tune.budget import Budget
from tilewright.tune.database import Database
from tilewright.tune.fleet import Fleet
from tilewright.tune.functions import TunedFunction, tune_function
from tilewright.tune.record import TaskKey, Trial, Winner
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.template import template
from tilewright.tune.tuner import Outcome, Snapshot

__all__ = [
    "Budget",
    "Database",
    "Fleet",
    "Outcome",
    "SketchSpace",
    "Snapshot",
    "TaskKey",
    "Trial",
    "TunedFunction",
    "Winner",
    "template",
    "tune_function",
]
