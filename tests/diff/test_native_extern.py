"""A BLAS called as an external kernel from a tensor expression."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.base.errors import TilewrightError
from tilewright.codegen.blas import find_blas, register_blas
from tilewright.codegen.build import build

Agree = Callable[..., None]
pytestmark = pytest.mark.skipif(find_blas() is None, reason="no OpenBLAS beside NumPy or SciPy")


def product_plus_one(dtype: str = "f32") -> Any:
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    A, B = te.placeholder((n, k), dtype, name="A"), te.placeholder((k, m), dtype, name="B")
    C = te.extern((n, m), [A, B], "cblas_sgemm", name="C")
    D = te.compute((n, m), lambda i, j: C[i, j] + te.const(1, dtype), name="D")
    return te.function([A, B, D], name="product_plus_one")


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 33, 12), (0, 4, 3), (4, 0, 3)])
def test_a_tensor_function_calls_sgemm(agree: Agree, shape: tuple[int, int, int]) -> None:
    register_blas()
    n, m, k = shape
    rng = np.random.default_rng(0)
    a = rng.standard_normal((n, k)).astype(np.float32)
    b = rng.standard_normal((k, m)).astype(np.float32)
    agree(product_plus_one(), a, b, np.zeros((n, m), np.float32), reduction=16 * k)


def test_the_adapter_refuses_what_sgemm_does_not_take() -> None:
    register_blas()
    run = build(product_plus_one("f64"))
    with pytest.raises(TilewrightError) as caught:
        run(np.zeros((2, 2)), np.zeros((2, 2)), np.zeros((2, 2)))
    assert caught.value.message == "cblas_sgemm: it takes f32"
