"""The table of tolerances, by element type and reduction length."""

from __future__ import annotations

import math

# The difference in ULPs between two correct evaluations, for a reduction of length 1; it grows with
# the square root of the length.
ULPS = {"float64": 4, "float32": 4, "float16": 2, "bfloat16": 2}
MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


def relative(kind: str, reduction: int = 1) -> float:
    """The relative difference that two correct evaluations may have; 0 for exact types."""
    return ULPS[kind] * 2.0 ** -MANTISSA[kind] * math.sqrt(reduction) if kind in ULPS else 0.0
