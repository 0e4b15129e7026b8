"""The features of a sketch's points, for learned cost models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.tune.features import RELATION_NAMES, log2
from tilewright.tune.sketch.formulas import LEVEL_NAMES
from tilewright.tune.sketch.structure import BLOCKS, DOT, FOLLOW, PARTS, PLAIN, ROWS, TILE, UNDER
from tilewright.tune.space import Column

KINDS = (PLAIN, TILE, BLOCKS, ROWS, PARTS, DOT, UNDER, FOLLOW)
TERMS = ("compute", "l2", "l3", "memory", "results", "turns", "dispatch", "imbalance", "wake")
SHAPE = (
    "tile vectors",
    "registers used",
    "loads per operation",
    "unrolled operations",
    "tail waste",
    "idle lanes",
    "chunks",
    "chunks per thread",
    "packed operands",
)

FEATURE_NAMES = (
    *(f"log {name}" for name in TERMS),
    *SHAPE,
    *(f"bytes of a {name}" for name in LEVEL_NAMES),
    *(f"reuse in a {name}" for name in LEVEL_NAMES),
    *(f"trips of a {name}" for name in LEVEL_NAMES),
    *RELATION_NAMES,
    *(f"stages {kind}" for kind in KINDS),
)

# The features of each level, innermost first, by which TreeGRU finds them.
LEVEL_FEATURES = tuple(
    tuple(f"{kind} {name}" for kind in ("bytes of a", "reuse in a", "trips of a"))
    for name in LEVEL_NAMES
)


@dataclass(frozen=True)
class Described:
    """For many points: cycles by cause, and features of the nest."""

    terms: Mapping[str, Any]
    shape: Mapping[str, Any] = field(default_factory=dict)
    touched: Mapping[str, Any] = field(default_factory=dict)  # bytes of all buffers, by level
    reuse: Mapping[str, Any] = field(default_factory=dict)  # operations per byte, by level
    trips: Mapping[str, Any] = field(default_factory=dict)  # by level
    curve: Column | None = None


def features(terms: Mapping[str, Any], main: Described, kinds: Sequence[str], rows: int) -> Column:
    """The features of a nest: all its stages' cycles and kinds, and its main stage."""
    made = np.empty((rows, len(FEATURE_NAMES)), np.float32)
    at = 0
    for name in TERMS:
        made[:, at] = log2(terms[name])
        at += 1
    for name in SHAPE:
        made[:, at] = main.shape.get(name, 0.0)
        at += 1
    for source in (main.touched, main.reuse, main.trips):
        for name in LEVEL_NAMES:
            made[:, at] = log2(source.get(name, 1.0))
            at += 1
    width = len(RELATION_NAMES)
    made[:, at : at + width] = 0.0 if main.curve is None else main.curve
    at += width
    for kind in KINDS:
        made[:, at] = kinds.count(kind)
        at += 1
    return made
