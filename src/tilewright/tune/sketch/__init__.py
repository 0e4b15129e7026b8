"""Sketches: automatic schedules for functions that no rule knows, their decisions, and their
costs."""

from tilewright.tune.sketch.space import SKETCH, Sketched, SketchSpace, sketched
