"""GEMM on an NVIDIA GPU against cuBLAS, device times in one run.

    python bench/gpu_gemm.py [--json FILE] [--only bf16 f16 f32]

C = A B^T, both operands with k contiguous. Ours and cuBLAS's launches are captured in CUDA graphs
of 20, over operands that rotate so that none is warm in L2, and take turns; medians of several.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import report
import torch

import tilewright as tw
from tilewright import te
from tilewright.rules import schedule
from tilewright.runtime import cuda
from tilewright.tensor.ir import Function

LAUNCHES, ROUNDS, COPIES = 20, 5, 4
CASES = {
    "bf16": {(2048,) * 3: 1.0, (4096,) * 3: 1.0, (4096, 4096, 512): 1.0, (8192,) * 3: 0.98,
             (128, 4096, 4096): 1.0},
    "f16": {(4096,) * 3: 1.0},
    "f32": {(1024,) * 3: 0.9, (4096,) * 3: 0.9},
}  # fmt: skip
TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ERRORS = {"bf16": 4e-3, "f16": 5e-4, "f32": 1e-5}


def gemm(m: int, n: int, k: int, dtype: str) -> Function:
    A = te.placeholder((m, k), dtype, name="A")
    B = te.placeholder((n, k), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")
    if dtype == "f32":
        C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[j, r], axis=r), name="C")
        return te.function([A, B, C], name="gemm")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(A[i, r], "f32") * te.cast(B[j, r], "f32"), axis=r),
        name="C",
    )
    D = te.compute((m, n), lambda i, j: te.cast(C[i, j], dtype), name="D")
    return te.function([A, B, D], name="gemm")


def seconds(graph: Callable[[], object]) -> float:
    timer = cuda.Timer()
    timer.start()
    graph()
    return timer.stop() / 1e3 / LAUNCHES


def figures_of(dtype: str, sizes: tuple[int, int, int], want: float) -> list[report.Figure]:
    m, n, k = sizes
    made = schedule(gemm(m, n, k, dtype), "cuda -arch=sm_90a")
    run = tw.build(made.schedule.function, "cuda -arch=sm_90a")
    copies = COPIES if m * k < 1 << 25 else 1
    lefts = [torch.randn(m, k, device="cuda").to(TORCH[dtype]) for _ in range(copies)]
    rights = [torch.randn(n, k, device="cuda").to(TORCH[dtype]) for _ in range(copies)]
    out = torch.full((m, n), float("nan"), device="cuda", dtype=TORCH[dtype])
    theirs = torch.empty_like(out)
    torch.cuda.synchronize()
    run(lefts[0], rights[0], out)
    torch.cuda.synchronize()
    exact = (lefts[0].double() @ rights[0].double().t()).float()
    error = float((out.float() - exact).norm() / exact.norm())

    def ours(stream: int) -> None:
        for at in range(LAUNCHES):
            run(lefts[at % copies], rights[at % copies], out, stream=stream)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.matmul(lefts[0], rights[0].t(), out=theirs)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for at in range(LAUNCHES):
            torch.matmul(lefts[at % copies], rights[at % copies].t(), out=theirs)
    graph = cuda.Graph(ours)
    times: dict[str, list[float]] = {"ours": [], "cuBLAS": []}
    for _ in range(ROUNDS):
        times["ours"].append(seconds(lambda: graph.launch(0)))
        times["cuBLAS"].append(seconds(captured.replay))
    mine, other = (statistics.median(found) for found in times.values())
    name = f"{dtype} {m}x{n}x{k}"
    for decision in made.decisions:
        print(name, decision.rule, decision.plan, f"predicted {decision.predicted_ns / 1e3:.1f} us")
    return [
        report.at_most(f"{name}: error", error, "", ERRORS[dtype]),
        report.Figure(f"{name}: ours", 2 * m * n * k / mine / 1e12, "TFLOP/s"),
        report.Figure(f"{name}: cuBLAS", 2 * m * n * k / other / 1e12, "TFLOP/s"),
        report.at_least(f"{name}: against cuBLAS", other / mine, "x", want),
    ]


def measure(options: argparse.Namespace) -> list[report.Figure]:
    if not cuda.is_available():
        print("skipped: no NVIDIA GPU can be used here")
        return []
    torch.backends.cuda.matmul.allow_tf32 = False
    figures: list[report.Figure] = []
    for dtype in options.only or CASES:
        for sizes, want in CASES[dtype].items():
            figures += figures_of(dtype, sizes, want)
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*", choices=list(CASES))


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
