"""Models outside the zoo against ONNX Runtime and OpenVINO.

    python bench/breadth.py [--json FILE] [--models FOLDER] [--only NAME ...] [--threads 2]
                            [--draw SEED] [--count 24]
                            [--peers NAME ...] [--seconds S] [--precisions f32 int8]
                            [--jobs N] [--journal FILE] [--stop-after SECONDS]

Convolutional networks of every family, segmentation, text recognition of any height and width,
speech, encoders and decoders, mixture of experts: exported once with random weights (needs torch,
timm, torchvision and transformers), some also quantized by ONNX Runtime, statically and
dynamically. Each contender is a process of its own and they take turns. Models are shown worst
first; of those that lose to a peer, the kernels that take longest. `--jobs` measures several cases
side by side, each on cores of its own, which is as fair to all contenders but not as quiet. What a
journal has is shown with the rest and not measured again. With `--draw` a seed chooses others of
the three libraries instead; those that torch cannot export are passed over.
"""

from __future__ import annotations

import argparse
import math
import os
import queue
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import breadth_models
import int8
import journal
import peers
import report
import zoo
from report import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

DEFAULT = Path(__file__).parent / "models" / "breadth"
EXPORT_S = 600  # for one model
F32 = "f32"
QUANTIZER = "quantizer"
KINDS = {F32: (F32,), "int8": (int8.STATIC, int8.DYNAMIC)}
MEAN = {F32: 1.3, "int8": 1.1}
LEAST = 0.95
KERNELS = 4  # shown of a model that loses


def export(names: list[str], folder: Path) -> dict[str, str]:
    """Write the models that are missing, each by a process of its own; why some could not be."""
    folder.mkdir(parents=True, exist_ok=True)
    script, failed = Path(__file__).with_name("breadth_models.py"), {}
    missing = [name for name in names if not (folder / f"{name}.onnx").exists()]
    for name in track(missing, "exporting", console=Console(stderr=True)):
        command = [sys.executable, str(script), name, str(folder)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=EXPORT_S, check=False
            )
        except subprocess.TimeoutExpired:
            failed[name] = f"took over {EXPORT_S} s"
            continue
        if done.returncode:
            (folder / f"{name}.onnx").unlink(missing_ok=True)
            failed[name] = (done.stderr.strip().splitlines() or ["it ended"])[-1][:160]
    return failed


@dataclass(frozen=True)
class Job:
    """A case in one precision."""

    case: zoo.Case
    kind: str  # f32, or how it is quantized

    @property
    def name(self) -> str:
        return f"{self.case.name}, {self.kind}"


def jobs_of(options: argparse.Namespace, names: list[str]) -> list[Job]:
    cases = {name: zoo.cases_of(options.models, [name]) for name in names}
    found = []
    if F32 in options.precisions:
        found += [Job(case, F32) for name in names for case in cases[name]]
    if "int8" in options.precisions:
        chosen = [cases[name][0] for name in breadth_models.QUANTIZED if name in names]
        found += [Job(case, kind) for case in chosen for kind in KINDS["int8"]]
    return found


def outcome(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """What a job took each contender: median and least milliseconds; what failed, and why."""
    rivals = [name for name in options.peers if peers.installed(name)]
    if job.kind == F32:
        made, tolerance = job.case, zoo.TOLERANCES[F32]
        contenders = [*rivals, zoo.OURS]
        result: Any = zoo.compete(
            made, options.threads, contenders, options.seconds, options.rounds, roofs=False
        )
    else:
        try:
            made, tolerance = int8.quantized(job.case, job.kind, options.models), int8.TOLERANCE
        except Exception as error:  # the quantizer's own faults are its own
            return {"times_ms": {}, "failed": {QUANTIZER: str(error)[:200]}}
        result = int8.compete(made, None, job.kind, options.threads, rivals, options.seconds)
    told: dict[str, Any] = {
        "times_ms": {
            peer: [statistics.median(times), min(times)] for peer, times in result.times.items()
        },
        "failed": dict(result.failed),
        "fell_back": result.fell_back,
        "wrong": result.wrong.get(zoo.OURS, math.nan),
        "tolerance": tolerance,
    }
    if ratio(told) < LEAST:
        told["kernels"] = longest_kernels(made, options.threads)
    return told


def ratio(told: dict[str, Any], which: int = 0) -> float:
    """The best peer's time over ours: medians, or least times."""
    times = {peer: each[which] for peer, each in told["times_ms"].items()}
    ours = times.pop(zoo.OURS, math.nan)
    return float(min(times.values(), default=math.nan) / ours)


def longest_kernels(case: zoo.Case, threads: int) -> list[str]:
    contender = peers.Contender(zoo.OURS, case.model, case.inputs, threads)
    try:
        kernels = contender.ask("profile")["kernels"]
    finally:
        contender.stop()
    total = sum(each["ms"] for each in kernels) or 1.0
    worst = sorted(kernels, key=lambda each: -each["ms"])[:KERNELS]
    return [
        f"{each['kernel']}: {each['ms']:.3f} ms, {each['ms'] / total:.0%}, "
        f"{each['flops'] / max(each['ms'], 1e-6) / 1e6:.0f} GFLOP/s"
        for each in worst
    ]


def outcomes(todo: list[Job], options: argparse.Namespace) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Of all jobs as they end, several at a time on cores of their own."""
    cores = sorted(os.sched_getaffinity(0))
    if options.jobs * options.threads > len(cores):
        sys.exit(f"{options.jobs} jobs of {options.threads} threads need more cores: {len(cores)}")
    left: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in todo:
        left.put(job)
    done: queue.SimpleQueue[tuple[Job, dict[str, Any]]] = queue.SimpleQueue()

    def work(at: int) -> None:
        if options.jobs > 1:  # of this thread, which contenders inherit
            os.sched_setaffinity(0, cores[at * options.threads : (at + 1) * options.threads])
        while True:
            try:
                job = left.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((job, outcome(job, options)))
            except Exception as error:  # of one case: the others go on
                done.put((job, {"times_ms": {}, "failed": {"all": str(error)[:200]}}))

    for at in range(options.jobs):
        threading.Thread(target=work, args=(at,), daemon=True).start()
    for _ in todo:
        yield done.get()


# --------------------------------------------------------------------------- figures


def show(found: dict[str, dict[str, Any]], contenders: list[str]) -> None:
    """Worst first."""
    table = Table("case", *(f"{name} ms" for name in contenders), "best peer / ours", "least")
    ranked = sorted(found, key=lambda name: _rank(found[name]))
    for name in ranked:
        told = found[name]
        cells = [
            f"{told['times_ms'][peer][0]:.3g} ({told['times_ms'][peer][1]:.3g})"
            if peer in told["times_ms"]
            else "failed"
            for peer in contenders
        ]
        table.add_row(name, *cells, f"{ratio(told):.2f}", f"{ratio(told, 1):.2f}")
    console = Console(width=160)
    console.print(table, "medians, least times in brackets")
    for name in ranked:
        for peer, why in found[name]["failed"].items():
            console.print(f"{name}: {peer}: {why}", markup=False)
        for why in found[name].get("fell_back", ()):
            console.print(f"{name}: no rule: {why}", markup=False)
        for line in found[name].get("kernels", ()):
            console.print(f"{name}: {line}", markup=False)


def _rank(told: dict[str, Any]) -> float:
    value = ratio(told)
    return -1.0 if math.isnan(value) else value


def figures(found: dict[str, dict[str, Any]], precision: str) -> list[Figure]:
    made = []
    kinds = KINDS[precision]
    mine = {name: told for name, told in found.items() if name.rpartition(", ")[2] in kinds}
    ratios = {name: ratio(told) for name, told in mine.items()}
    for name in sorted(mine, key=lambda name: _rank(mine[name])):
        if QUANTIZER in mine[name]["failed"]:  # there is no model to run
            continue
        if zoo.OURS not in mine[name]["times_ms"]:
            made.append(report.at_least(f"{name}: runs", 0, "", 1))
        elif not math.isnan(ratios[name]):
            made.append(report.at_least(f"{name}: best peer / ours", ratios[name], "x", LEAST))
            wrong, most = mine[name]["wrong"], mine[name]["tolerance"]
            made.append(report.at_most(f"{name}: difference", wrong, "", most))
    if any(zoo.OURS in told["times_ms"] for told in mine.values()):
        fallen = sum(len(told.get("fell_back", ())) for told in mine.values())
        made.append(report.at_most(f"kernels that no rule took, {precision}", fallen, "", 0))
    told = [value for value in ratios.values() if not math.isnan(value)]
    if told:
        label = f"geometric mean of {len(told)} cases, {precision}, best peer / ours"
        value = statistics.geometric_mean(told)
        made.append(report.at_least(label, value, "x", MEAN[precision]))
    return made


def measure(options: argparse.Namespace) -> list[Figure]:
    asked = options.only or list(breadth_models.NAMES)
    if options.draw is not None:
        asked = breadth_models.drawn(options.draw, options.count)
    failed = export(asked, options.models)
    for name, why in failed.items():
        print(f"{name}: not exported: {why}")
    names = [name for name in asked if name not in failed]
    kept, jobs = journal.Journal.of(options), jobs_of(options, names)
    todo = [job for job in jobs if job.name not in kept.found]
    for job, told in kept.limited(
        track(outcomes(todo, options), "measuring", len(todo), console=Console(stderr=True))
    ):
        kept.add(job.name, **told)
        print(f"{job.name}: {ratio(told):.2f} ({ratio(told, 1):.2f})", flush=True)
    found = {job.name: kept.found[job.name] for job in jobs if job.name in kept.found}
    show(found, [name for name in (*options.peers, zoo.OURS) if peers.installed(name)])
    all_of_them = not options.only and options.draw is None
    made = [report.at_least("models exported", len(names), "", 60 if all_of_them else 0)]
    return made + [each for kind in options.precisions for each in figures(found, kind)]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", type=Path, default=DEFAULT, help="a folder of models")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--draw", type=int, metavar="SEED", help="models that a seed chooses")
    parser.add_argument("--count", type=int, default=24, help="of these")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--peers", nargs="*", default=["onnxruntime", "openvino"], choices=list(peers.PEERS)
    )
    parser.add_argument("--precisions", nargs="+", default=list(MEAN), choices=list(MEAN))
    parser.add_argument("--seconds", type=float, default=2.0, help="per contender and case")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1, help="cases measured at a time")
    journal.arguments(parser)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
