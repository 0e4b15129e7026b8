"""Whole models against ONNX Runtime, OpenVINO, torch, torch.compile, TVM and IREE, in one run.

    python bench/zoo.py [--json FILE] [--zoo FOLDER] [--only NAME ...] [--threads 1 2]
                        [--peers NAME ...] [--seconds S] [--roofline]

Models come from FOLDER (NAME.onnx with NAME.CASE.in.npz beside), which bench/models.py fills if it
is empty and torch is installed. Each contender is a process of its own and they take turns, so that
noise hits all alike; peers that are not installed, or fail on a model, are left out. The ratio is
that of the best peer's median to Tilewright's. Outputs are compared with the first peer's.

With --roofline, each kernel's time is compared with the least it could take: arithmetic at the
peak, or one pass over its operands at the bandwidth of a copy; kernels and limits take turns.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gemm
import numpy as np
import peers
import report
from report import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tilewright as tw
from tilewright import te
from tilewright.driver.compare import difference

RIVALS = ("onnxruntime", "openvino", "torch", "torch_compile", "tvm", "iree")
OURS = "tilewright"
DEFAULT = Path(__file__).parent / "models"
QUANTIZED = ("resnet50", "minilm6")  # the models that are measured in int8 unless others are named
ATTAINABLE = 0.75  # what the kernels that matter are asked to reach
PROFILES = 96  # turns of kernels and of what measures limits: the machine's phases last seconds
# Of the largest output, between evaluations of a deep model in a precision.
TOLERANCES = {"f32": 2e-3, "bf16x6": 2e-3, "bf16": 5e-2, "int8": 2e-1}


def tolerance() -> float:
    return TOLERANCES[os.environ.get("BENCH_PRECISION", "f32")]


@dataclass(frozen=True)
class Case:
    """A model and one set of inputs."""

    name: str
    model: Path
    inputs: Path


def cases_of(folder: Path, only: Iterable[str] | None) -> list[Case]:
    """The cases of a folder, in the order of the names."""
    found = []
    for model in sorted(folder.glob("*.onnx")):
        if only and model.stem not in only:
            continue
        inputs = sorted(folder.glob(f"{model.stem}.*.in.npz"))
        for path in inputs:
            case = path.name[len(model.stem) + 1 : -len(".in.npz")]
            found.append(
                Case(model.stem if case == "base" else f"{model.stem}.{case}", model, path)
            )
    return found


def ensure_models(folder: Path, only: Iterable[str] | None) -> None:
    """Export the models if there are none, and those asked for that are missing."""
    there = {model.stem for model in folder.glob("*.onnx")}
    if there and set(only or ()) <= there:
        return
    import models

    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in only or models.MODELS if name not in there]
    for name in track(missing, "exporting"):
        models.export(name, folder)


def quantized(case: Case, folder: Path) -> Case:
    """The case with its model quantized by ONNX Runtime's static quantizer, once.

    As its manual advises: prepared first, bytes without a sign times bytes with one.
    """
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Inputs(CalibrationDataReader):  # type: ignore[misc]  # of a package without types
        def __init__(self) -> None:
            self.left = [dict(np.load(case.inputs))]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    made = folder / case.model.name
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepared = folder / f"{case.model.stem}.prepared.onnx"
        quant_pre_process(str(case.model), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(made),
            Inputs(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return Case(case.name, made, case.inputs)


@dataclass
class Roof:
    """Kernels of a case, and what the machine reached while they were measured, at best."""

    kernels: list[dict[str, Any]] = field(default_factory=list)
    peak: float = 0.0  # operations per millisecond
    bandwidth: float = 0.0  # bytes per millisecond

    def floor(self, kernel: dict[str, Any]) -> float:
        """The least milliseconds that a kernel could take."""
        return float(max(kernel["flops"] / self.peak, kernel["bytes"] / self.bandwidth))

    def add(self, kernels: list[dict[str, Any]]) -> None:
        """Keep the least time of each kernel."""
        pairs = zip(self.kernels or kernels, kernels, strict=True)
        self.kernels = [min(pair, key=lambda one: float(one["ms"])) for pair in pairs]


@dataclass
class Result:
    """What a case took each contender, in milliseconds."""

    case: Case
    threads: int
    times: dict[str, list[float]] = field(default_factory=dict)
    wrong: dict[str, float] = field(default_factory=dict)
    roof: Roof | None = None
    failed: dict[str, str] = field(default_factory=dict)
    fell_back: list[str] = field(default_factory=list)  # kernels of ours that no rule took

    def median(self, peer: str) -> float:
        return statistics.median(self.times[peer])

    @property
    def rivals(self) -> list[str]:
        return [peer for peer in self.times if peer != OURS]

    @property
    def ratio(self) -> float:
        """The best peer's median over ours."""
        if OURS not in self.times or not self.rivals:
            return math.nan
        return min(map(self.median, self.rivals)) / self.median(OURS)

    @property
    def ratio_of_least(self) -> float:
        """The same of the least times, which other processes disturb less."""
        if OURS not in self.times or not self.rivals:
            return math.nan
        return min(min(self.times[peer]) for peer in self.rivals) / min(self.times[OURS])


def compete(
    case: Case, threads: int, names: list[str], seconds: float, rounds: int, roofs: bool
) -> Result:
    """All contenders on one case, in turns."""
    result = Result(case, threads)
    running: dict[str, peers.Contender] = {}
    try:
        for name in names:
            try:
                running[name] = peers.Contender(name, case.model, case.inputs, threads)
            except RuntimeError as error:
                result.failed[name] = str(error)
        if OURS in running:
            result.fell_back = running[OURS].loaded["fell_back"]
        result.wrong = differences(running)
        result.times = {name: [] for name in running}
        for _ in range(rounds):
            for name, contender in running.items():
                if sum(result.times[name]) < 20e3:  # the slowest need not be known so well
                    result.times[name] += contender.ask(f"run {seconds / rounds}")["times_ms"]
        if roofs and OURS in running:
            result.roof = roof_of(running[OURS], threads, PROFILES)
    finally:
        for contender in running.values():
            contender.stop()
    return result


def differences(running: dict[str, peers.Contender]) -> dict[str, float]:
    """How far each contender's outputs are from the first's."""
    found: dict[str, float] = {}
    first: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for at, (name, contender) in enumerate(running.items()):
            path = Path(folder) / f"{at}.npz"
            contender.ask(f"outputs {path}")
            with np.load(path) as stored:
                outputs = [stored[key] for key in stored.files]
            first = first or outputs
            pairs = list(zip(outputs, first, strict=False))
            found[name] = max(difference(a.reshape(b.shape), b) for a, b in pairs)
    return found


# --------------------------------------------------------------------------- roofline


def roof_of(contender: peers.Contender, threads: int, rounds: int) -> Roof:
    """The machine's limits and the kernels take turns: both meet the same phases of the machine."""
    roof = Roof()
    run, flops = gemm.peak_run(threads, 50_000)
    elements = 8 << 20  # 64 MB there and back: beyond the private caches
    source, target = np.ones(elements, np.float32), np.empty(elements, np.float32)
    copy = _copy(elements)
    for _ in range(rounds):
        roof.peak = max(roof.peak, flops / _least_ms(run))
        moved = 2 * source.nbytes / _least_ms(lambda: copy(source, target, threads=threads))
        roof.bandwidth = max(roof.bandwidth, moved)
        roof.add(contender.ask("profile")["kernels"])
    return roof


def _least_ms(run: Callable[[], object]) -> float:
    return min(report.seconds(run, budget_s=0.05)) * 1e3


def _copy(elements: int) -> Any:
    """A copy on all threads."""
    A = te.placeholder((elements,), name="A")
    B = te.compute((elements,), lambda i: A[i], name="B")
    schedule = tw.Schedule(te.function([A, B], name="copy"))
    (loop,) = schedule.get_loops(schedule.get_block("B"))
    outer, inner = schedule.split(loop, [None, 1 << 12])
    schedule.parallel(outer)
    _, lanes = schedule.split(inner, [None, 16])
    schedule.vectorize(lanes)
    return tw.build(schedule.function)


def roofline(result: Result, roof: Roof) -> list[Figure]:
    """The kernels that make up 90% of the time, worst first."""
    total = sum(one["ms"] for one in roof.kernels) or 1.0
    table = Table("kernel", "ms", "share", "GFLOP/s", "GB/s", "of attainable")
    rows, seen = [], 0.0
    for one in sorted(roof.kernels, key=lambda one: -one["ms"]):
        if seen >= 0.9 * total:
            break
        seen += one["ms"]
        rows.append((roof.floor(one) / max(one["ms"], 1e-9), one))
    rows.sort(key=lambda row: row[0])
    for part, one in rows:
        speed = (one["flops"] / one["ms"] / 1e6, one["bytes"] / one["ms"] / 1e6)
        shown = [f"{number:.1f}" for number in speed]
        share = f"{one['ms'] / total:.1%}"
        table.add_row(one["kernel"], f"{one['ms']:.3f}", share, *shown, f"{part:.0%}")
    title = f"{result.case.name}, {result.threads} threads"
    limits = f"peak {roof.peak / 1e6:.0f} GFLOP/s, copy {roof.bandwidth / 1e6:.1f} GB/s"
    Console(width=140).print(table, f"{title}: {limits}")
    names = [(part, one, one["kernel"].split()[0]) for part, one in rows]
    heavy = [(part, one) for part, one, name in names if "conv" in name or "matmul" in name]
    if not heavy:
        return []
    reached = sum(one["ms"] for part, one in heavy if part >= ATTAINABLE)
    share = reached / sum(one["ms"] for _, one in heavy)
    return [
        report.at_least(f"{title}: worst convolution or product", heavy[0][0], "", ATTAINABLE),
        Figure(f"{title}: share of their time at {ATTAINABLE} of attainable", share, ""),
    ]


# --------------------------------------------------------------------------- figures


def show(results: list[Result], names: list[str]) -> None:
    table = Table(
        "model", "threads", *(f"{name} ms" for name in names), "best peer / ours", "least"
    )
    for result in results:
        cells = []
        for name in names:
            if name not in result.times:
                cells.append("failed" if name in result.failed else "")
                continue
            times = result.times[name]
            own_weights = name.startswith("torch")  # the same as the file's if models.py wrote it
            bad = result.wrong[name] > tolerance() and not own_weights
            wrong = " [red]wrong[/]" if bad else ""
            cells.append(f"{statistics.median(times):.3g} ({min(times):.3g}){wrong}")
        ratios = f"{result.ratio:.2f}", f"{result.ratio_of_least:.2f}"
        table.add_row(result.case.name, str(result.threads), *cells, *ratios)
    Console(width=200).print(table, "medians, least times in brackets")
    for result in results:
        for name, reason in result.failed.items():
            Console(width=200).print(f"{result.case.name}: {name}: {reason}", markup=False)
        for why in result.fell_back:
            Console(width=200).print(f"{result.case.name}: no rule: {why}", markup=False)


def figures(results: list[Result]) -> list[Figure]:
    found = []
    for result in results:
        model = result.case.name
        threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
        for name, times in result.times.items():
            found.append(Figure(f"{model}: {name}, {threads}", statistics.median(times), "ms"))
        if OURS in result.wrong:
            most = tolerance()
            found.append(
                report.at_most(f"{model}: difference, {threads}", result.wrong[OURS], "", most)
            )
        if not math.isnan(result.ratio):
            found.append(report.at_least(f"{model}: {threads}", result.ratio, "x", 1.0))
            found.append(Figure(f"{model}: {threads}, least", result.ratio_of_least, "x"))
    ratios = [result.ratio for result in results if not math.isnan(result.ratio)]
    if any(OURS in result.times for result in results):
        fallen = sum(len(result.fell_back) for result in results)
        found.append(report.at_most("kernels that no rule took", fallen, "", 0))
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        least = 1.25 if os.environ.get("BENCH_PRECISION", "f32") in ("f32", "bf16x6") else 1.0
        found.append(report.at_least("geometric mean, best peer / ours", mean, "x", least))
    return found


def measure(options: argparse.Namespace) -> list[Figure]:
    if options.precision == "int8" and not options.only:
        options.only = list(QUANTIZED)
    ensure_models(options.zoo, options.only)
    names = [name for name in (*options.peers, OURS) if peers.installed(name)]
    cases = cases_of(options.zoo, options.only)
    os.environ["BENCH_PRECISION"] = options.precision  # contenders inherit it
    if options.precision == "int8":
        cases = [quantized(case, options.zoo / "int8") for case in cases]
    work = [(case, threads) for threads in options.threads for case in cases]
    results, roofs = [], []
    for case, threads in track(work, "measuring", console=Console(stderr=True)):
        result = compete(
            case, threads, names, options.seconds, options.rounds, roofs=options.roofline
        )
        results.append(result)
        if result.roof is not None:
            roofs += roofline(result, result.roof)
    show(results, names)
    return figures(results) + roofs


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", type=Path, default=DEFAULT, help="a folder of models")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--peers", nargs="*", default=list(RIVALS), choices=list(peers.PEERS))
    parser.add_argument("--seconds", type=float, default=3.0, help="per contender and case")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--roofline", action="store_true")
    parser.add_argument(
        "--precision",
        default="f32",
        choices=list(TOLERANCES),
        help="of Tilewright and OpenVINO, which takes bf16x6 for f32; int8: models quantized by "
        "ONNX Runtime",
    )


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
