"""GEMM on an NVIDIA GPU by schedules written in this file.

    python bench/gpu.py [--json FILE]          says so and measures nothing where there is no GPU

A cooperative f32 product (shared tiles, barriers put in by the compiler) and a bf16 product by
Hopper's warpgroup instructions, each at 1024 cubed and at a size no tile divides, checked against
a product in float64. No speed is asked for yet; what is reached is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import report

from tilewright.codegen.cuda import CudaFunction, build_cuda
from tilewright.runtime import cuda
from tilewright.tensor.ir import Function

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import gpu_matmul
import gpu_wgmma

SIZES = (1024, 1000)


def seconds(run: Callable[[], None], times: int = 20) -> float:
    """Time of one run on the GPU, the mean of several in a row."""
    for _ in range(3):
        run()
    timer = cuda.Timer()
    timer.start()
    for _ in range(times):
        run()
    return timer.stop() / times / 1e3


def figure(name: str, fn: Function, a: np.ndarray, b: np.ndarray) -> list[report.Figure]:
    n = a.shape[0]
    kernel: CudaFunction = build_cuda(fn)
    left, right = cuda.to_device(a), cuda.to_device(b)
    out = cuda.to_device(np.full((n, n), np.nan, np.float32))
    kernel(left, right, out)
    want = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(cuda.to_host(out) - want) / np.linalg.norm(want)
    tflops = 2 * n**3 / seconds(lambda: kernel(left, right, out)) / 1e12
    return [
        report.at_most(f"{name} {n} cubed: relative error", float(error), "", 1e-5),
        report.Figure(f"{name} {n} cubed", tflops, "TFLOP/s"),
    ]


@report.on_gpu
def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures: list[report.Figure] = []
    random = np.random.default_rng(0)
    for n in SIZES:
        a = random.standard_normal((n, n), dtype=np.float32)
        b = random.standard_normal((n, n), dtype=np.float32)
        figures += figure("f32", gpu_matmul.cooperative(gpu_matmul.matmul(n)).function, a, b)
        a, b = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
        figures += figure("bf16", gpu_wgmma.scheduled(gpu_wgmma.matmul(n)).function, a, b)
    return figures


if __name__ == "__main__":
    report.run(__doc__, measure)
