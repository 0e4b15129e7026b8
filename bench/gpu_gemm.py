"""GEMM on an NVIDIA GPU against cuBLAS, device times in one run.

    python bench/gpu_gemm.py [--json FILE] [--search N]
                             [--only bf16 edges rows epilogue kn tn odd f16 tf32 fp8 int8 f32
                                     tokens]

C = A B^T, both operands with k contiguous (`kn`: C = A B, both as they are written; `tn`: A as
[k, m] too; `odd`: rows of k that no bulk copy reads). Ours and cuBLAS's launches are captured in
CUDA graphs of 20, over operands that rotate so that none is warm in L2, and take turns; medians of
several. `edges` are sizes that no tile divides. `rows` are few rows with weights cold, and told to
be weights as in models: a launch copies them before the one it follows has ended. `epilogue` is a
bias, GELU and a residual against torch.compile; `fp8` is e4m3 with results in bf16, `int8` bytes
with sums of i32; `tokens` are layers of transformers in f32, C = A B. With --search the N plans
that are priced lowest are timed, and each is printed beside its price.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import report
import torch
from gpu_turns import Run, captured, cheapest, copies_of, print_plans, recorded, seconds_of

import tilewright as tw
from tilewright import te
from tilewright.rules import Scheduled, schedule
from tilewright.tensor.dependent_launch import WEIGHTS
from tilewright.tensor.ir import Function, annotated

CASES = {
    "bf16": {(2048,) * 3: 1.0, (4096,) * 3: 1.0, (4096, 4096, 512): 1.0, (8192,) * 3: 0.98},
    "edges": {(1000,) * 3: 0.95, (4000,) * 3: 0.95},
    "rows": {(1, 4096, 4096): 1.3, (16, 4096, 4096): 1.3, (64, 4096, 4096): 1.3,
             (128, 4096, 4096): 1.3},
    "epilogue": {(4096,) * 3: 1.15},
    "kn": {(4096,) * 3: 0.95},
    "tn": {(4096,) * 3: 0.8},
    "odd": {(4096, 4096, 4001): 0.8},
    "f16": {(4096,) * 3: 1.0},
    "tf32": {(4096,) * 3: 0.95},
    "fp8": {(8192,) * 3: 0.9},
    "int8": {(4096,) * 3: 1.0},
    "f32": {(1024,) * 3: 0.9, (4096,) * 3: 0.9},
    "tokens": {(128, 3072, 768): 1.0, (256, 2816, 1024): 1.0, (256, 1024, 2816): 1.0,
               (197, 1536, 384): 1.0, (784, 768, 192): 1.0, (1024, 1536, 384): 1.0},
}  # fmt: skip
TORCH = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "tf32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
ERRORS = {"bf16": 4e-3, "f16": 5e-4, "f32": 1e-5, "tf32": 1e-3, "fp8": 4e-3, "int8": 0.0}
TARGET = "cuda -arch=sm_90a"


def gemm(
    m: int,
    n: int,
    k: int,
    dtype: str,
    epilogue: bool,
    along_n: bool = False,
    along_m: bool = False,
) -> Function:
    kind = {"tf32": "f32", "fp8": "f8e4m3", "int8": "i8"}.get(dtype, dtype)
    sums = "i32" if dtype == "int8" else "f32"
    A = te.placeholder((k, m) if along_m else (m, k), kind, name="A")
    B = te.placeholder((k, n) if along_n else (n, k), kind, name="B")
    r = te.reduce_axis((0, k), name="r")

    def left(i: te.Expr) -> te.Expr:
        return A[r, i] if along_m else A[i, r]

    def right(j: te.Expr) -> te.Expr:
        return B[r, j] if along_n else B[j, r]

    if kind == "f32":
        read = te.round_tf32 if dtype == "tf32" else (lambda x: x)
        C = te.compute(
            (m, n), lambda i, j: te.sum(read(left(i)) * read(right(j)), axis=r), name="C"
        )
        return te.function([A, B, C], name="gemm")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(left(i), sums) * te.cast(right(j), sums), axis=r),
        name="C",
    )
    if dtype == "int8":
        return te.function([A, B, C], name="gemm")
    if not epilogue:
        result = "bf16" if dtype == "fp8" else dtype
        D = te.compute((m, n), lambda i, j: te.cast(C[i, j], result), name="D")
        return te.function([A, B, D], name="gemm")
    bias = te.placeholder((n,), dtype, name="bias")
    residual = te.placeholder((m, n), dtype, name="residual")

    def finished(i: te.Expr, j: te.Expr) -> te.Expr:
        x = C[i, j] + te.cast(bias[j], "f32")
        gelu = x * 0.5 * (1.0 + te.erf(x * te.const(0.5**0.5, "f32")))
        return te.cast(gelu + te.cast(residual[i, j], "f32"), dtype)

    D = te.compute((m, n), finished, name="D")
    return te.function([A, B, bias, residual, D], name="gemm")


def torch_epilogue(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(a, b, bias)) + residual


class Operands:
    """Matrices that take turns, so that none is warm."""

    def __init__(
        self,
        dtype: str,
        sizes: tuple[int, int, int],
        epilogue: bool,
        along_n: bool,
        along_m: bool,
    ) -> None:
        m, n, k = sizes
        self.along_n, self.along_m = along_n, along_m
        kind = TORCH[dtype]
        self.count = copies_of((m + n) * k * kind.itemsize)
        shape = (k, n) if along_n else (n, k)
        rows = (k, m) if along_m else (m, k)
        self.lefts = [self._like(*rows, kind) for _ in range(self.count)]
        self.rights = [self._like(*shape, kind) for _ in range(self.count)]
        self.more = []
        if epilogue:
            self.more = [torch.randn(n, device="cuda").to(kind), self._like(m, n, kind)]
        made = {"fp8": torch.bfloat16, "int8": torch.int32}.get(dtype, kind)
        self.out = torch.zeros((m, n), device="cuda", dtype=made)
        self.one = torch.ones((), device="cuda")

    @staticmethod
    def _like(m: int, n: int, kind: torch.dtype) -> torch.Tensor:
        if kind is torch.int8:
            return torch.randint(-128, 128, (m, n), device="cuda").to(kind)
        return torch.randn(m, n, device="cuda").to(kind)

    def at(self, turn: int) -> tuple[torch.Tensor, ...]:
        turn %= self.count
        return (self.lefts[turn], self.rights[turn], *self.more)

    def exact(self) -> torch.Tensor:
        left, right = self.lefts[0].double(), self.rights[0].double()
        found = (left.t() if self.along_m else left) @ (right if self.along_n else right.t())
        if self.more:
            found = torch.nn.functional.gelu(found + self.more[0].double()) + self.more[1].double()
        return found.float()


def ours_of(made: Scheduled, operands: Operands) -> tuple[Run, float]:
    """Our launches as a graph, and the error of the result."""
    run = tw.build(made.schedule.function, TARGET)
    operands.out.fill_(12345)
    torch.cuda.synchronize()
    run(*operands.at(0), operands.out)
    torch.cuda.synchronize()
    exact = operands.exact()
    error = float((operands.out.float() - exact).norm() / exact.norm())
    ours = recorded(lambda turn, stream: run(*operands.at(turn), operands.out, stream=stream))
    return ours, error


def theirs_of(operands: Operands) -> Run:
    """cuBLAS, or torch.compile where something follows, as a graph."""
    theirs = torch.empty_like(operands.out)
    compiled = torch.compile(torch_epilogue, mode="max-autotune-no-cudagraphs")

    def once(turn: int) -> None:
        if operands.more:
            compiled(*operands.at(turn))
        else:
            left, right = operands.at(turn)
            left = left.t() if operands.along_m else left
            right = right if operands.along_n else right.t()
            if left.dtype is torch.float8_e4m3fn:
                torch._scaled_mm(left, right, operands.one, operands.one, out_dtype=theirs.dtype)
            elif left.dtype is torch.int8:
                torch._int_mm(left, right, out=theirs)
            else:
                torch.matmul(left, right, out=theirs)

    return captured(once)


def figures_of(
    case: str, sizes: tuple[int, int, int], want: float, search: int
) -> list[report.Figure]:
    m, n, k = sizes
    dtype = "f32" if case == "tokens" else case if case in TORCH else "bf16"
    form = case == "epilogue", case in ("kn", "tn", "tokens"), case == "tn"
    fn = gemm(m, n, k, dtype, *form)
    if case == "rows":
        fn = replace(fn, attrs=annotated(fn.attrs, WEIGHTS, (1,)))
    made = schedule(fn, TARGET)
    operands = Operands(dtype, sizes, *form)
    ours, error = ours_of(made, operands)
    mine, other = seconds_of({"ours": ours, "theirs": theirs_of(operands)}).values()
    name, rival = f"{case} {m}x{n}x{k}", "torch.compile" if case == "epilogue" else "cuBLAS"
    for decision in made.decisions:
        print(name, decision.rule, decision.plan, f"predicted {decision.predicted_ns / 1e3:.1f} us")
    print_plans(
        name,
        cheapest(made, search, alike=("slots", "span", "stages", "block_k", "run_k")),
        lambda choice: ours_of(schedule(fn, TARGET, choices={"C": choice}), operands),
    )
    return [
        report.at_most(f"{name}: error", error, "", ERRORS[dtype]),
        report.Figure(f"{name}: ours", 1e6 * mine, "us"),
        report.Figure(f"{name}: {rival}", 1e6 * other, "us"),
        report.Figure(f"{name}: ours", 2 * m * n * k / mine / 1e12, "TFLOP/s"),
        report.at_least(f"{name}: against {rival}", other / mine, "x", want),
    ]


@report.on_gpu
def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures: list[report.Figure] = []
    for case in options.only or CASES:
        torch.backends.cuda.matmul.allow_tf32 = case == "tf32"
        for sizes, want in CASES[case].items():
            figures += figures_of(case, sizes, want, options.search)
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*", choices=list(CASES))
    parser.add_argument("--search", type=int, default=0, help="plans to time besides")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
