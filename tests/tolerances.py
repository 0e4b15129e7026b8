"""The one table of tolerances: by element type and length of the reduction."""

from __future__ import annotations

from typing import Any

import numpy as np

# Units in the last place that two correct evaluations may differ by, for values of a reduction
# of length 1; a longer one loses in proportion to the square root of its length.
ULPS = {"float64": 4, "float32": 4, "float16": 2, "bfloat16": 2}
MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


def relative(kind: str, reduction: int = 1) -> float:
    """By what part of a value two correct evaluations may differ; 0 for what is exact."""
    return float(ULPS[kind] * 2.0 ** -MANTISSA[kind] * np.sqrt(reduction)) if kind in ULPS else 0.0


def check_close(got: Any, want: Any, reduction: int = 1) -> None:
    """Integers equal; floats equal up to the table's tolerance, NaN where NaN is."""
    kind = np.asarray(got).dtype.name
    if kind not in ULPS:
        same = (got == want) | ((got != got) & (want != want))
        assert np.all(same), f"{got[~same][:8]} instead of {want[~same][:8]}"
        return
    part = relative(kind, reduction)
    least = 1e-37 if kind in ("float32", "bfloat16", "float64") else 1e-7
    exact = np.asarray(want, np.float64)
    if reduction > 1:  # terms may cancel: measure against the largest result
        finite = np.abs(exact[np.isfinite(exact)])
        least = max(least, part * np.max(finite, initial=0.0))
    np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=part, atol=least)
