"""Correctness check of a candidate against the reference, with tolerances.

A candidate sums in another order than the reference, so results may differ as two correct
evaluations do, relative to the largest element of the result; a single element that is off by more
fails the candidate. Integers must be equal, except for rounded bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.tolerances import ULPS, relative

Array = np.ndarray[Any, Any]
STEPS = 8  # roundings that a fused kernel may add to those of its sum
ACCUMULATOR = "float32"  # accumulation type of narrow floats


def tolerance(kind: str, reduction: int) -> float:
    """The difference allowed between correct kernels, relative to the largest element."""
    if kind not in ULPS:
        return 0.0
    if kind == "float64":
        return STEPS * relative(kind, reduction)
    sums = STEPS * relative(ACCUMULATOR, reduction)
    return sums if kind == ACCUMULATOR else sums + relative(kind)


def wrong(got: Array, want: Array, reduction: int = 1) -> str:
    """What is wrong with a result, in words; "" if nothing."""
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
    if got.dtype.itemsize < 8:  # the difference of two bytes does not fit a byte
        return int(np.abs(got.astype(np.int64) - want.astype(np.int64)).max())
    is_above, a, b = got > want, got.view(np.uint64), want.view(np.uint64)
    return int(np.where(is_above, a - b, b - a).max())  # exact: modulo 2**64
