"""Whether two evaluations of a model agree.

Floating-point outputs are compared relative to the largest element of the whole output, since
single elements of deep models cancel. Integers, booleans and strings are compared exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Allowed relative difference of two correct evaluations of a deep model, by dtype.
TOLERANCES = {"float64": 1e-9, "float32": 5e-4, "float16": 2e-2, "bfloat16": 6e-2}


def difference(got: Any, want: Any) -> float:
    """The largest absolute difference over the largest element; infinite where shapes or dtypes
    differ."""
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return float("inf")
        return max((difference(*pair) for pair in zip(got, want, strict=True)), default=0.0)
    if want is None or isinstance(want, dict):
        return 0.0 if got == want else float("inf")
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.dtype.name not in TOLERANCES:
        return 0.0 if bool(np.all(a == b)) else float("inf")
    return _relative(a.astype(np.float64), b.astype(np.float64))


def _relative(a: Any, b: Any) -> float:
    odd = ~(np.isfinite(a) & np.isfinite(b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if bool(np.any(odd & ~same)):
        return float("inf")
    finite = ~odd
    if not bool(np.any(finite)):
        return 0.0
    scale = float(np.max(np.abs(b[finite])))
    off = float(np.max(np.abs(a[finite] - b[finite])))
    return off / max(scale, 1e-6)


def is_close(got: Any, want: Any) -> bool:
    """Whether two evaluations agree up to rounding."""
    if isinstance(want, (list, tuple)):
        same = isinstance(got, (list, tuple)) and len(got) == len(want)
        return same and all(is_close(*pair) for pair in zip(got, want, strict=True))
    name = "" if want is None or isinstance(want, dict) else np.asarray(want).dtype.name
    return difference(got, want) <= TOLERANCES.get(name, 0.0)
