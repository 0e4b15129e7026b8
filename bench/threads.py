"""Scaling of GEMM and whole models over 1 to 16 threads, and on busy cores.

    python bench/threads.py [--json FILE] [--threads 1 4 8 16] [--only NAME ...] [--zoo FOLDER]
                            [--kernels]
    python bench/threads.py --busy [--peers NAME ...]

f32 GEMM is compared with torch's at each number of threads; a model of the zoo shall not get slower
with more threads, and three of them are to gain as much as the processor allows. What that is, a
loop tells that multiplies registers alone: cores that are two threads of one core gain less. With
--kernels the kernels of each model are listed that lose most, over that gain. With --busy every
core that ours and the peers run on has a spinning process beside them: what counts is how much of a
core that is taken away keeps all others waiting. Numbers of threads beyond the machine's cores are
left out.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gemm
import numpy as np
import peers
import report
import zoo
from report import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tilewright.codegen.build import build

SQUARES = (1024, 2048, 4096)
GAINS = {"resnet50": 8.0, "mobilenet_v2": 6.0, "bert_base": 10.0}  # on 16 threads over one
SLOWER = 1.05  # a model may take with more threads, over its best with fewer
BUSY_THREADS = 2
KERNELS = 12  # shown of a model


# --------------------------------------------------------------------------- GEMM


def measure_gemm(threads: list[int]) -> list[Figure]:
    """Ours and torch's in turns, one size and number of threads after the other."""
    import torch

    found = []
    for count in threads:
        torch.set_num_threads(count)
        for n in SQUARES:
            random = np.random.default_rng(0)
            a, b = (
                report.aligned(random.standard_normal((n, n), dtype=np.float32)) for _ in range(2)
            )
            c, d = (report.aligned(np.zeros((n, n), np.float32)) for _ in range(2))
            ours = build(gemm.scheduled(gemm.matmul(n, n, n), count))
            ours(a, b, c, threads=count)
            ta, tb, td = (torch.from_numpy(x) for x in (a, b, d))
            torch.matmul(ta, tb, out=td)
            np.testing.assert_allclose(c, d, rtol=1e-3, atol=1e-3)
            best = report.interleaved(
                {
                    "ours": lambda: ours(a, b, c, threads=count),  # noqa: B023 # called right here
                    "torch": lambda: torch.matmul(ta, tb, out=td),  # noqa: B023
                },
                rounds=8,
            )
            label = f"f32 GEMM {n}, {count} threads"
            found.append(Figure(label, 2 * n**3 / best["ours"] / 1e9, "GFLOP/s"))
            ratio = best["torch"] / best["ours"]
            found.append(report.at_least(f"{label}: against torch", ratio, "x", 0.95))
    return found


# --------------------------------------------------------------------------- models


def measure_peak(threads: list[int]) -> dict[int, float]:
    """What the processor itself gains over one thread: multiply-adds of registers."""
    runs = {n: gemm.peak_run(n, 50_000) for n in threads}
    best = report.interleaved({str(n): run for n, (run, _) in runs.items()}, rounds=4)
    rates = {n: flops / best[str(n)] for n, (_, flops) in runs.items()}
    return {n: rate / rates[min(threads)] for n, rate in rates.items()}


def kernel_times(contender: peers.Contender) -> dict[str, float]:
    """Milliseconds by name; kernels of one name together."""
    found: dict[str, float] = {}
    for kernel in contender.ask("profile")["kernels"]:
        found[kernel["kernel"]] = found.get(kernel["kernel"], 0.0) + kernel["ms"]
    return found


def show_kernels(title: str, few: dict[str, float], many: dict[str, float], gain: float) -> None:
    """Where time beyond an even gain goes: kernels of few and many threads, worst first."""
    lost = {name: ms - few.get(name, ms) / gain for name, ms in many.items()}
    table = Table("kernel", "ms, fewest threads", "ms, most", "gain", "lost ms", title=title)
    for name in sorted(many, key=lambda name: -lost[name])[:KERNELS]:
        one = few.get(name, math.nan)  # other threads may have led to other kernels
        row = f"{one:.3f}", f"{many[name]:.3f}", f"{one / many[name]:.1f}", f"{lost[name]:.3f}"
        table.add_row(name, *row)
    total = sum(many.values())
    late = sum(ms for ms in lost.values() if ms > 0)
    table.add_row("all", f"{sum(few.values()):.3f}", f"{total:.3f}", "", f"{late:.3f}")
    Console(width=160).print(table)


def measure_model(
    case: zoo.Case, threads: list[int], options: argparse.Namespace, peak: dict[int, float]
) -> list[Figure]:
    """One model by us, compiled for each number of threads, in turns."""
    rounds, seconds = options.rounds, options.seconds
    running = {n: peers.Contender(zoo.OURS, case.model, case.inputs, n) for n in threads}
    times: dict[int, list[float]] = {n: [] for n in threads}
    try:
        for _ in range(rounds):
            for n, contender in running.items():
                times[n] += contender.ask(f"run {seconds / rounds}")["times_ms"]
        if options.kernels:
            few, many = (kernel_times(running[n]) for n in (min(threads), max(threads)))
            show_kernels(case.name, few, many, peak[max(threads)])
    finally:
        for contender in running.values():
            contender.stop()
    medians = {n: statistics.median(found) for n, found in times.items()}
    figures = [Figure(f"{case.name}, {n} threads", ms, "ms") for n, ms in medians.items()]
    for at, n in enumerate(threads[1:], 1):
        before = min(medians[m] for m in threads[:at])
        label = f"{case.name}, {n} threads: over the best of fewer"
        figures.append(report.at_most(label, medians[n] / before, "x", SLOWER))
    most = max(threads)
    gain = medians[min(threads)] / medians[most]
    label = f"{case.name}: gain of {most} threads over {min(threads)}"
    is_asked = (min(threads), most) == (1, 16) and case.name in GAINS
    wanted = report.at_least(label, gain, "x", GAINS.get(case.name, 1.0))
    figures.append(wanted if is_asked else Figure(label, gain, "x"))
    return figures


# --------------------------------------------------------------------------- busy cores


@contextmanager
def spinning(cores: list[int]) -> Iterator[None]:
    """A process on each core that does nothing but use it."""
    code = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    started = [subprocess.Popen([sys.executable, "-c", code, str(core)]) for core in cores]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure_busy(options: argparse.Namespace, cases: list[zoo.Case]) -> list[Figure]:
    """Medians of all contenders on cores of which each has another process to run."""
    cores = sorted(os.sched_getaffinity(0))[:BUSY_THREADS]
    os.sched_setaffinity(0, cores)  # which contenders inherit
    names = [name for name in (*options.peers, zoo.OURS) if peers.installed(name)]
    with spinning(cores):
        results = [
            zoo.compete(case, BUSY_THREADS, names, options.seconds, options.rounds, roofs=False)
            for case in track(cases, "measuring", console=Console(stderr=True))
        ]
    zoo.show(results, names)
    told = [each for each in results if not math.isnan(each.ratio)]
    figures = [
        report.at_least(f"{each.case.name}, busy cores: best peer / ours", each.ratio, "x", 0.95)
        for each in told
    ]
    if told:
        mean = math.exp(statistics.fmean(math.log(each.ratio) for each in told))
        label = "busy cores: geometric mean, best peer / ours"
        figures.append(report.at_least(label, mean, "x", 1.2))
    return figures


def measure(options: argparse.Namespace) -> list[Figure]:
    zoo.ensure_models(options.zoo, options.only)
    cases = zoo.cases_of(options.zoo, options.only)
    if options.busy:
        return measure_busy(options, cases)
    threads = sorted(n for n in options.threads if n <= len(os.sched_getaffinity(0)))
    peak = measure_peak(threads)
    figures = [Figure(f"peak, {n} threads: gain", gain, "x") for n, gain in peak.items()]
    figures += [] if options.models_only else measure_gemm(threads)
    for case in track(cases, "measuring", console=Console(stderr=True)):
        figures += measure_model(case, threads, options, peak)
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 4, 8, 16])
    parser.add_argument("--zoo", type=Path, default=zoo.DEFAULT, help="a folder of models")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--models-only", action="store_true", help="leave out GEMM")
    parser.add_argument("--kernels", action="store_true", help="list those that gain least")
    parser.add_argument("--busy", action="store_true", help="cores that other processes use too")
    parser.add_argument("--peers", nargs="*", default=list(zoo.RIVALS), choices=list(peers.PEERS))
    parser.add_argument("--seconds", type=float, default=2.0, help="per contender and case")
    parser.add_argument("--rounds", type=int, default=8)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
