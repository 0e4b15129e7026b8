"""Tuning: search spaces, cost models, search strategies, measurement, and the database of results.

A space gives points, with estimates and features for thousands of points at a time; a cost model
learns the ratio of measurement to estimate; search proposes batches; `measure` checks results; the
database keeps everything. Building and running of candidates is passed in: nothing here depends on
the driver.

Names are imported on first use: a fleet's worker needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.tune.budget import Budget
    from tilewright.tune.database import Database
    from tilewright.tune.fleet import Fleet
    from tilewright.tune.functions import TunedFunction, tune_function
    from tilewright.tune.outcome import Outcome, Snapshot
    from tilewright.tune.record import TaskKey, Trial, Winner
    from tilewright.tune.sketch import SketchSpace
    from tilewright.tune.templates import template
    from tilewright.tune.traces import TraceSpace

_HOMES = {
    "Budget": "budget",
    "Database": "database",
    "Fleet": "fleet",
    "Outcome": "outcome",
    "SketchSpace": "sketch",
    "Snapshot": "outcome",
    "TaskKey": "record",
    "TraceSpace": "traces",
    "Trial": "record",
    "TunedFunction": "functions",
    "Winner": "record",
    "template": "templates",
    "tune_function": "functions",
}
__all__ = [
    "Budget",
    "Database",
    "Fleet",
    "Outcome",
    "SketchSpace",
    "Snapshot",
    "TaskKey",
    "TraceSpace",
    "Trial",
    "TunedFunction",
    "Winner",
    "template",
    "tune_function",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
