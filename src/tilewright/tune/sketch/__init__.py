"""Automatic schedules for what no rule knows: sketches, their decisions, and what they cost."""

from tilewright.tune.sketch.space import SKETCH, Sketched, SketchSpace, sketched
