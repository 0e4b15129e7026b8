"""Whether a candidate computes what it should: against the reference, by the table of tolerances.

Sums of a candidate are in another order than those of the reference, so numbers may differ as two
correct evaluations do, seen against the largest of the whole result; a single element that is off
by more is a wrong candidate. Whole numbers are equal, but for bytes that were rounded to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.tolerances import ULPS, relative

Array = np.ndarray[Any, Any]
STEPS = 8  # roundings in a row that a fused kernel may add to those of its sum
ACCUMULATOR = "float32"  # what short floats are summed in


def tolerance(kind: str, reduction: int) -> float:
    """By what part of the largest number two correct kernels may differ."""
    if kind not in ULPS:
        return 0.0
    if kind == "float64":
        return STEPS * relative(kind, reduction)
    sums = STEPS * relative(ACCUMULATOR, reduction)
    return sums if kind == ACCUMULATOR else sums + relative(kind)


def wrong(got: Array, want: Array, reduction: int = 1) -> str:
    """What is wrong with a result, in words; "" where nothing is."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"a result is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    kind = got.dtype.name
    if kind not in ULPS:
        apart = _integers_apart(got, want)
        most = 1 if got.dtype.itemsize == 1 and got.dtype != bool else 0  # rounded to bytes
        return f"a whole number is off by {apart}" if apart > most else ""
    a, b = got.astype(np.float64), want.astype(np.float64)
    odd = ~(np.isfinite(a) & np.isfinite(b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if bool(np.any(odd & ~same)):
        return f"{int(np.sum(odd & ~same))} numbers are not finite, or should not be"
    if bool(odd.all()):
        return ""
    scale = float(np.abs(b[~odd]).max())
    off = float(np.abs(a[~odd] - b[~odd]).max())
    most_off = tolerance(kind, reduction) * scale
    if off > most_off:
        return f"off by {off:g}, results are up to {scale:g}, {most_off:.2g} is allowed"
    return ""


def _integers_apart(got: Array, want: Array) -> int:
    if got.dtype == bool or not got.size:
        return int(bool(np.any(got != want)))
    apart = np.where(got > want, got - want, want - got)
    return int(apart.max())
