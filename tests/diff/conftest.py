"""What differential tests share: the one table of tolerances, and native code against it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.build import build
from tilewright.tensor import Function, parse
from tilewright.tensor.interp import interpret

# Units in the last place that two correct evaluations may differ by, for values of a reduction
# of length 1; a longer one loses in proportion to the square root of its length.
ULPS = {"float64": 4, "float32": 4, "float16": 2, "bfloat16": 2}
MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


def check_close(got: Any, want: Any, reduction: int = 1) -> None:
    """Integers equal; floats equal up to the table's tolerance, NaN where NaN is."""
    kind = np.asarray(got).dtype.name
    if kind not in ULPS:
        same = (got == want) | ((got != got) & (want != want))
        assert np.all(same), f"{got[~same][:8]} instead of {want[~same][:8]}"
        return
    relative = ULPS[kind] * 2.0 ** -MANTISSA[kind] * np.sqrt(reduction)
    least = 1e-37 if kind in ("float32", "bfloat16", "float64") else 1e-7
    exact = np.asarray(want, np.float64)
    if reduction > 1:  # terms may cancel: measure against the largest result
        finite = np.abs(exact[np.isfinite(exact)])
        least = max(least, relative * np.max(finite, initial=0.0))
    np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=relative, atol=least)


@pytest.fixture
def agree() -> Callable[..., None]:
    """Runs a program natively and in the interpreter and compares all its arrays."""

    def check(program: str | Function, *args: Any, reduction: int = 1, target: str = "cpu") -> None:
        fn = parse(program) if isinstance(program, str) else program
        native = [np.copy(arg) for arg in args]
        reference = [np.copy(arg) for arg in args]
        build(fn, target)(*native)
        interpret(fn, *reference)
        for got, want in zip(native, reference, strict=True):
            check_close(got, want, reduction)

    return check


@pytest.fixture
def close() -> Callable[..., None]:
    """The comparison by the table of tolerances."""
    return check_close
