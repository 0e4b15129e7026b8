"""Quantized models against ONNX Runtime and OpenVINO, and against our own f32.

    python bench/int8.py [--json FILE] [--zoo FOLDER] [--only NAME ...] [--kinds static dynamic]
                         [--threads 1 2] [--peers NAME ...] [--seconds S]

Models of bench/models.py are quantized once by ONNX Runtime's quantizers, calibrated on their own
inputs: `static` writes quantizations around f32 operators (u8 by i8, weights per channel),
`dynamic` integer products whose scales the run finds. Each contender is a process of its own and
they take turns; the figure is the best peer's median over ours, which is compiled by default.
BENCH_TARGET names another target for ours, such as `cpu -mattr=-amx-tile`; BENCH_HIDES=amx limits
the peers alike. Of models that lose, the longest kernels are shown beside the peak: dot products
of registers, as many as the machine does in a second.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import peers
import report
import zoo
from report import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tilewright import tensor
from tilewright.base.dots import dots_of
from tilewright.base.target import Target
from tilewright.codegen.build import build

MODELS = ("resnet50", "mobilenet_v2", "minilm6", "bert_base")
STATIC, DYNAMIC = "static", "dynamic"
RIVALS = ("onnxruntime", "openvino")
F32 = "tilewright f32"
MEAN, LEAST, OVER_F32 = 1.1, 0.95, 1.8  # what is asked: of the best peer, of ours in f32
ROUNDS = 6  # turns of all contenders
KERNELS = 6  # shown of a model that loses
ACCUMULATORS = 12  # of the kernel that measures the peak: a register file has 16 at least
TOLERANCE = 0.2  # of the largest output, between two ways to round a deep model


@dataclass
class Result:
    """What a quantized model took each contender, in milliseconds."""

    name: str
    kind: str
    threads: int
    times: dict[str, list[float]] = field(default_factory=dict)
    wrong: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    fell_back: list[str] = field(default_factory=list)  # kernels of ours that no rule took

    @property
    def title(self) -> str:
        return f"{self.name} {self.kind}, {self.threads} threads"

    def median(self, contender: str) -> float:
        times = self.times.get(contender)
        return statistics.median(times) if times else math.nan

    @property
    def ratio(self) -> float:
        """The best peer's median over ours."""
        rivals = [self.median(peer) for peer in self.times if peer in RIVALS]
        return min(rivals, default=math.nan) / self.median(zoo.OURS)

    @property
    def over_f32(self) -> float:
        return self.median(F32) / self.median(zoo.OURS)


def dynamically_quantized(case: zoo.Case, folder: Path) -> zoo.Case:
    """The case with weights in bytes, and activations that become bytes on the way, once."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    made = folder / case.model.name
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepared = folder / f"{case.model.stem}.prepared.onnx"
        quant_pre_process(str(case.model), str(prepared), skip_symbolic_shape=True)
        quantize_dynamic(str(prepared), str(made), weight_type=QuantType.QInt8)
    return zoo.Case(case.name, made, case.inputs)


def quantized(case: zoo.Case, kind: str, folder: Path) -> zoo.Case:
    if kind == STATIC:
        return zoo.quantized(case, folder / "int8")
    return dynamically_quantized(case, folder / "int8_dynamic")


def compete(
    case: zoo.Case,
    plain: zoo.Case | None,
    kind: str,
    threads: int,
    rivals: list[str],
    seconds: float,
) -> Result:
    """All contenders on one model, in turns, ours on the plain one too where it is given."""
    result = Result(case.name, kind, threads)
    running: dict[str, peers.Contender] = {}
    entries = [*((name, name, case, "int8") for name in rivals), (zoo.OURS, zoo.OURS, case, "f32")]
    if plain is not None:
        entries.append((F32, zoo.OURS, plain, "f32"))
    try:
        for label, peer, of, precision in entries:
            try:
                running[label] = peers.Contender(
                    peer, of.model, of.inputs, threads, BENCH_PRECISION=precision
                )
            except RuntimeError as error:
                result.failed[label] = str(error)
        if zoo.OURS in running:
            result.fell_back = running[zoo.OURS].loaded["fell_back"]
        result.wrong = zoo.differences({k: v for k, v in running.items() if k != F32})
        result.times = {label: [] for label in running}
        for _ in range(ROUNDS):
            for label, contender in running.items():
                result.times[label] += contender.ask(f"run {seconds / ROUNDS}")["times_ms"]
        if zoo.OURS in running:
            result.kernels = running[zoo.OURS].ask("profile")["kernels"]
    finally:
        for contender in running.values():
            contender.stop()
    return result


def peak_gops(threads: int) -> float:
    """10^9 operations in a second of dot products that stay in registers; 0 where a machine has
    none that add to their lanes."""
    target = Target.parse(os.environ.get("BENCH_TARGET", "cpu"))
    types = (("u8", "i8"), ("i8", "i8"))
    found = [dot for a, b in types for dot in dots_of(target, a, b, "i32") if dot.adds]
    dot = next((each for each in found if each.groups == 1), None)
    if dot is None:
        return 0.0
    lanes, size = dot.lanes, dot.lanes * dot.group
    rows = [f"ramp({at * lanes}, 1, {lanes})" for at in range(ACCUMULATORS)]
    clear = "\n".join(f"%t[{row}] = broadcast(0, {lanes})" for row in rows)
    step = "\n".join(f"%t[{row}] = {dot.llvm}:i32x{lanes}(%t[{row}], %x, %y)" for row in rows)
    out = "\n".join(
        f"%C[ramp(%i * {ACCUMULATORS * lanes} + {at * lanes}, 1, {lanes})] = %t[{row}]"
        for at, row in enumerate(rows)
    )
    kernel = build(
        tensor.parse(
            f"""
            func @peak(%A: {dot.a}[{size}], %B: {dot.b}[{size}], %N: f32[n],
                       %C: i32[p, {ACCUMULATORS * lanes}]) stage flat {{
              for %i in parallel 0..p {{
                alloc %t: i32[{ACCUMULATORS * lanes}] in local
                let %x: {dot.a}x{size} = %A[ramp(0, 1, {size})]
                let %y: {dot.b}x{size} = %B[ramp(0, 1, {size})]
                {clear}
                for %r in 0..n {{
                  {step}
                }}
                {out}
              }}
            }}
            """
        ),
        target,
    )
    a, b = (np.ones(size, np.uint8 if of == "u8" else np.int8) for of in (dot.a, dot.b))
    n, c = np.zeros(200_000, np.float32), np.zeros((threads, ACCUMULATORS * lanes), np.int32)
    taken = min(report.seconds(lambda: kernel(a, b, n, c, threads=threads), budget_s=0.3))
    return 2.0 * dot.group * c.size * n.size / taken / 1e9


def show_kernels(results: list[Result]) -> None:
    """The longest kernels of models that lose, and what they reach of the peak."""
    for each in results:
        if not (each.ratio < MEAN or each.over_f32 < OVER_F32) or not each.kernels:
            continue
        peak, total = peak_gops(each.threads), sum(one["ms"] for one in each.kernels)
        print(f"{each.title}, peak {peak:.0f} GOP/s:")
        for one in sorted(each.kernels, key=lambda one: -one["ms"])[:KERNELS]:
            speed = one["flops"] / max(one["ms"], 1e-6) / 1e6
            share = f"{one['ms'] / max(total, 1e-6):.0%}"
            print(f"  {one['kernel']}: {one['ms']:.3f} ms, {share}, {speed:.0f} GOP/s")


def show(results: list[Result]) -> None:
    """Worst first."""
    results = sorted(results, key=lambda each: -1.0 if math.isnan(each.ratio) else each.ratio)
    labels = [zoo.OURS, F32, *RIVALS]
    table = Table("model", *[f"{label} ms" for label in labels], "of best peer", "of f32", "off by")
    for each in results:
        medians = [f"{each.median(label):.2f}" for label in labels]
        wrong = each.wrong.get(zoo.OURS, math.nan)
        table.add_row(
            each.title, *medians, f"{each.ratio:.2f}", f"{each.over_f32:.2f}", f"{wrong:.1e}"
        )
    console = Console(width=200)
    console.print(table)
    for each in results:
        for label, why in each.failed.items():
            console.print(f"{each.title}: {label} failed: {why.strip().splitlines()[-1]}")
    show_kernels(results)


def figures(results: list[Result]) -> list[Figure]:
    found: list[Figure] = []
    for each in results:
        if not math.isnan(each.ratio):
            found.append(report.at_least(f"{each.title}: of best peer", each.ratio, "x", LEAST))
        found.append(report.at_least(f"{each.title}: of f32", each.over_f32, "x", OVER_F32))
        wrong = each.wrong.get(zoo.OURS, math.inf)
        found.append(report.at_most(f"{each.title}: off by", wrong, "of largest", TOLERANCE))
    fallen = [why for each in results for why in each.fell_back]
    found.append(report.at_most("kernels that no rule took", len(fallen), "", 0))
    ratios = [each.ratio for each in results if not math.isnan(each.ratio)]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        found.append(report.at_least("geometric mean of best peer", mean, "x", MEAN))
    return found


def measure(options: argparse.Namespace) -> list[Figure]:
    zoo.ensure_models(options.zoo, options.only)
    rivals = [peer for peer in options.peers if peers.installed(peer)]
    cases = zoo.cases_of(options.zoo, options.only)
    todo = [(c, k, t) for c in cases for k in options.kinds for t in options.threads]
    results = []
    for case, kind, threads in track(todo, "measuring", console=Console(stderr=True)):
        made = quantized(case, kind, options.zoo)
        results.append(compete(made, case, kind, threads, rivals, options.seconds))
    show(results)
    return figures(results)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", type=Path, default=zoo.DEFAULT)
    parser.add_argument("--only", nargs="+", default=list(MODELS), metavar="NAME")
    parser.add_argument("--kinds", nargs="+", default=[STATIC, DYNAMIC], choices=[STATIC, DYNAMIC])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--peers", nargs="*", default=list(RIVALS))
    parser.add_argument("--seconds", type=float, default=6.0)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
