"""Quantized models against ONNX Runtime and OpenVINO, and against our own f32.

    python bench/int8.py [--json FILE] [--zoo FOLDER] [--only NAME ...] [--kinds static dynamic]
                         [--threads 1 2] [--peers NAME ...] [--seconds S]

Models of bench/models.py are quantized once by ONNX Runtime's quantizers, calibrated on their own
inputs: `static` writes quantizations around f32 operators (u8 by i8, weights per channel),
`dynamic` integer products whose scales the run finds. Each contender is a process of its own and
they take turns; the figure is the best peer's median over ours. BENCH_TARGET names another target
for ours, such as `cpu -mattr=-amx-tile`; limit OpenVINO alike by ONEDNN_MAX_CPU_ISA.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
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

from tilewright.driver.compare import difference

MODELS = ("resnet50", "mobilenet_v2", "minilm6", "bert_base")
STATIC, DYNAMIC = "static", "dynamic"
RIVALS = ("onnxruntime", "openvino")
F32 = "tilewright f32"
MEAN, LEAST, OVER_F32 = 1.1, 0.95, 1.8  # what is asked: of the best peer, of ours in f32
ROUNDS = 6  # turns of all contenders
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
    case: zoo.Case, plain: zoo.Case, kind: str, threads: int, rivals: list[str], seconds: float
) -> Result:
    """All contenders on one model, in turns."""
    result = Result(case.name, kind, threads)
    running: dict[str, peers.Contender] = {}
    entries = [*((name, name, case, "int8") for name in rivals), (zoo.OURS, zoo.OURS, case, "int8")]
    entries.append((F32, zoo.OURS, plain, "f32"))
    try:
        for label, peer, of, precision in entries:
            try:
                running[label] = peers.Contender(
                    peer, of.model, of.inputs, threads, BENCH_PRECISION=precision
                )
            except RuntimeError as error:
                result.failed[label] = str(error)
        result.wrong = _differences({k: v for k, v in running.items() if k != F32})
        result.times = {label: [] for label in running}
        for _ in range(ROUNDS):
            for label, contender in running.items():
                result.times[label] += contender.ask(f"run {seconds / ROUNDS}")["times_ms"]
    finally:
        for contender in running.values():
            contender.stop()
    return result


def _differences(running: dict[str, peers.Contender]) -> dict[str, float]:
    """How far each contender's outputs are from the first's, of the largest output."""
    found: dict[str, float] = {}
    first: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for at, (label, contender) in enumerate(running.items()):
            path = Path(folder) / f"{at}.npz"
            contender.ask(f"outputs {path}")
            with np.load(path) as stored:
                outputs = [stored[key] for key in stored.files]
            first = first or outputs
            pairs = list(zip(outputs, first, strict=False))
            found[label] = max(difference(a.reshape(b.shape), b) for a, b in pairs)
    return found


def show(results: list[Result]) -> None:
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


def figures(results: list[Result]) -> list[Figure]:
    found: list[Figure] = []
    for each in results:
        if not math.isnan(each.ratio):
            found.append(report.at_least(f"{each.title}: of best peer", each.ratio, "x", LEAST))
        found.append(report.at_least(f"{each.title}: of f32", each.over_f32, "x", OVER_F32))
        wrong = each.wrong.get(zoo.OURS, math.inf)
        found.append(report.at_most(f"{each.title}: off by", wrong, "of largest", TOLERANCE))
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
