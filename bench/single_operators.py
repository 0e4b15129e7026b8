"""Models of one operator against ONNX Runtime, on one thread.

    python bench/single_operators.py [--json FILE] [--only REGEX] [--seconds S]

Those of bench/single_operator_cases.py, in NCHW as ONNX has them, sizes static and dynamic; what a
network would fuse or lay out otherwise is counted. Both are called in turns within one process, in
random order; the figure is the ratio of least times. Worst first.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import report
import single_operator_cases
from report import Figure
from single_operator_cases import Case

import tilewright as tw

LEAST = 0.9
CALLS = 5  # at least
TOLERANCE = 1e-3
Run = Callable[[], Any]


def ours(case: Case, model: bytes) -> Run:
    given = list(case.arrays().values())
    compiled = tw.compile(model, threads=1)
    return lambda: compiled(*given)


def theirs(case: Case, model: bytes) -> Run:
    given, options = case.arrays(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    return lambda: session.run(None, given)


def least_s(runs: list[Run], seconds: float) -> list[float]:
    """The least time of each."""
    best, end, calls = [float("inf")] * len(runs), time.perf_counter() + seconds, 0
    order = list(range(len(runs)))
    while calls < CALLS or time.perf_counter() < end:
        random.shuffle(order)
        for at in order:
            begun = time.perf_counter()
            runs[at]()
            best[at] = min(best[at], time.perf_counter() - begun)
        calls += 1
    return best


def difference(runs: list[Run]) -> float:
    """Of ours from theirs: of numbers, and the share of integers and bits that differ, bytes by
    more than one: what is rounded there may be nearly equal."""
    pairs = list(zip(*[map(np.asarray, run()) for run in runs], strict=True))
    floats = [(a, b) for a, b in pairs if b.dtype.kind == "f"]
    error = report.error_of([a for a, _ in floats], [b for _, b in floats])
    for a, b in pairs:
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if b.dtype.kind != "f" and b.size:
            apart = 1 if b.dtype.itemsize == 1 and b.dtype.kind != "b" else 0
            error = max(error, float(np.mean(abs(a.astype(float) - b.astype(float)) > apart)))
    return error


def measure(options: argparse.Namespace) -> list[Figure]:
    ratios: dict[str, float] = {}
    figures = []
    for case in single_operator_cases.cases():
        if not re.search(options.only, case.name):
            continue
        model = case.model()
        runs = [ours(case, model), theirs(case, model)]
        error = difference(runs)
        mine, other = least_s(runs, options.seconds)
        ratios[case.name] = other / mine
        print(f"{case.name}: {other / mine:.2f} ({mine * 1e6:.1f} us)", flush=True)
        figures.append(report.at_most(f"{case.name}: difference", error, "", TOLERANCE))
    ranked = sorted(ratios, key=lambda name: ratios[name])
    shown = [report.at_least(f"{name}: speedup", ratios[name], "x", LEAST) for name in ranked]
    if ratios:
        mean = statistics.geometric_mean(ratios.values())
        shown.append(Figure(f"geometric mean of {len(ratios)}", mean, "x"))
    return shown + figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="a regular expression on names")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each operator")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
