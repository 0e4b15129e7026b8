"""The one table of tolerances: by element type and length of the reduction."""

from __future__ import annotations

import math

# Units in the last place that two correct evaluations may differ by, for values of a reduction
# of length 1; a longer one loses in proportion to the square root of its length.
ULPS = {"float64": 4, "float32": 4, "float16": 2, "bfloat16": 2}
MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


def relative(kind: str, reduction: int = 1) -> float:
    """By what part of a value two correct evaluations may differ; 0 for what is exact."""
    return ULPS[kind] * 2.0 ** -MANTISSA[kind] * math.sqrt(reduction) if kind in ULPS else 0.0
