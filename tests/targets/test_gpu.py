"""Kernels on an NVIDIA GPU: `make test-gpu`."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.rules import schedule
from tilewright.runtime import cuda

pytestmark = pytest.mark.gpu
EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = [1024, 1000]  # whole tiles, and a size that no tile divides


@pytest.fixture(autouse=True)
def _gpu():
    if not cuda.is_available():
        pytest.skip("no NVIDIA GPU can be reached")


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def operands(n, dtype):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n)).astype(dtype) for _ in "ab")
    return a, b, np.full((n, n), np.nan, np.float32)


def check(c, a, b):
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(c - want) <= 1e-5 * np.linalg.norm(want)


@pytest.mark.parametrize("n", SIZES)
def test_a_cooperative_product_is_right(n):
    made = example("gpu_matmul")
    run = tw.build(made.cooperative(made.matmul(n)).function, target="cuda")
    a, b, c = operands(n, np.float32)
    run(a, b, c)
    check(c, a, b)


@pytest.mark.parametrize("n", SIZES)
def test_a_product_by_warpgroups_is_right(n):
    made = example("gpu_wgmma")
    run = tw.build(made.scheduled(made.matmul(n)).function, target="cuda -arch=sm_90a")
    a, b, c = operands(n, ml_dtypes.bfloat16)
    run(a, b, c)
    check(c, a, b)


def test_one_kernel_serves_every_size():
    made = example("gpu_matmul")
    run = tw.build(made.cooperative(made.matmul(te.var("n"))).function, target="cuda")
    for n in (1, 16, 100, 257):
        a, b, c = operands(n, np.float32)
        run(a, b, c)
        check(c, a, b)


def test_arrays_on_the_gpu_stay_there():
    made = example("gpu_matmul")
    run = tw.build(made.cooperative(made.matmul(128)).function, target="cuda")
    a, b, c = operands(128, np.float32)
    out = cuda.to_device(c)
    run(cuda.to_device(a), cuda.to_device(b), out)
    check(cuda.to_host(out), a, b)
    assert np.isnan(c).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_product_by_warps_is_right(n, dtype):
    """Code of sm_80, which later GPUs run too."""
    A, B = (te.placeholder((n, n), dtype, name=name) for name in "AB")
    r = te.reduce_axis((0, n), name="r")
    C = te.compute(
        (n, n),
        lambda i, j: te.sum(te.cast(A[i, r], "f32") * te.cast(B[j, r], "f32"), axis=r),
        name="C",
    )
    made = schedule(te.function([A, B, C], name="gemm"), "cuda -arch=sm_80")
    assert made.decisions[0].rule == "gemm_ampere"
    run = tw.build(made.schedule.function, target="cuda -arch=sm_80")
    a, b, c = operands(n, ml_dtypes.bfloat16 if dtype == "bf16" else np.float16)
    run(a, b, c)
    check(c, a, b.T)
