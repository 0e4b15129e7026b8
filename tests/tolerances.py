"""Whether two evaluations agree, by the package's one table of tolerances."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.tolerances import ULPS, relative


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
