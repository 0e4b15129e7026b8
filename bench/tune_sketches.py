"""Kernels that no rule matches, tuned by sketches, against parallel, vectorized loops.

    python bench/tune_sketches.py [--json FILE] [--minutes 3] [--threads 2] [--workers 1] [--only X]

A bilinear form with a reducer of its own (noisy-or), a convolution of 2-bit activations and 1-bit
weights (popcounts of planes), and a stencil of 81 points on an image of
three colours. The baseline has lanes
along the innermost dimension and threads along the outermost, as the program says it; so has what
the schedule rules make of it, which is shown besides. Ratios are of the middle of runs in turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

import report

from tilewright import te
from tilewright.tensor.ir import Function
from tilewright.tune.budget import Budget
from tilewright.tune.fleet import Fleet
from tilewright.tune.functions import Measured, TunedFunction, local_fleet, tune_function
from tilewright.tune.sketch import SketchSpace

WANTED = 5.0
FINAL_PAIRS = 15


def bilinear(rows: int = 96, left: int = 96, right: int = 96, outputs: int = 256) -> Function:
    """out[m, n] = 1 - product over i, j of (1 - x[m, i] w[n, i, j] z[m, j])."""
    x, z = te.placeholder((rows, left), name="x"), te.placeholder((rows, right), name="z")
    w = te.placeholder((outputs, left, right), name="w")  # as torch.nn.Bilinear has it
    either = te.comm_reducer(lambda p, q: p + q - p * q, lambda t: te.const(0, t), name="either")
    i, j = te.reduce_axis((0, left), name="i"), te.reduce_axis((0, right), name="j")
    out = te.compute(
        (rows, outputs),
        lambda m, n: either(x[m, i] * w[n, i, j] * z[m, j], axis=(i, j)),
        name="out",
    )
    return te.function([x, z, w, out], name="bilinear")


def bit_convolution(size: int = 28, words: int = 8, outputs: int = 128) -> Function:
    """Two planes of activations, words of 32 channels, 3 x 3 positions."""
    x = te.placeholder((2, size + 2, size + 2, words), "u32", name="x")
    k = te.placeholder((outputs, 3, 3, words), "u32", name="k")  # as TensorFlow Lite has it
    plane, word = te.reduce_axis((0, 2), name="plane"), te.reduce_axis((0, words), name="word")
    dy, dx = te.reduce_axis((0, 3), name="dy"), te.reduce_axis((0, 3), name="dx")

    def element(row: te.Expr, column: te.Expr, out: te.Expr) -> te.Expr:
        both = te.bitwise_and(x[plane, row + dy, column + dx, word], k[out, dy, dx, word])
        count = te.cast(te.popcount(both), "i32")
        return te.sum(te.shift_left(count, te.cast(plane, "i32")), axis=(plane, dy, dx, word))

    y = te.compute((size, size, outputs), element, name="y")
    return te.function([x, k, y], name="bit_convolution")


def stencil(size: int = 512, colours: int = 3, radius: int = 4) -> Function:
    """Each colour of a pixel by the 81 pixels around it; colours lie side by side."""
    span = 2 * radius + 1
    x = te.placeholder((size + 2 * radius, size + 2 * radius, colours), name="x")
    k = te.placeholder((span, span), name="k")
    dy, dx = te.reduce_axis((0, span), name="dy"), te.reduce_axis((0, span), name="dx")
    y = te.compute(
        (size, size, colours),
        lambda row, column, c: te.sum(k[dy, dx] * x[row + dy, column + dx, c], axis=(dy, dx)),
        name="y",
    )
    return te.function([x, k, y], name="stencil")


CASES: dict[str, Callable[[], Function]] = {
    "bilinear": bilinear,
    "bit_convolution": bit_convolution,
    "stencil": stencil,
}


def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures = []
    for name, make in CASES.items():
        if options.only not in name:
            continue
        space = SketchSpace(make(), threads=options.threads)
        with local_fleet(options.workers) as fleet:
            found = tune_function(
                space,
                threads=options.threads,
                budget=Budget(options.minutes),
                fleet=fleet,
                model=options.model,
                report=lambda trial, space=space: _log(options.log, space, trial),
            )
            plain, ratio = _against(space, found, fleet, _plain(space), options.threads)
            rules, _ = _against(space, found, fleet, "rules", options.threads)
        failed = sum(bool(trial.error) for trial in found.trials)
        print(
            f"{name}: plain loops {plain / 1e6:.2f} ms, rules {rules / 1e6:.2f}, "
            f"tuned {plain / ratio / 1e6:.2f}; {len(found.trials)} trials ({failed} failed) "
            f"in {found.seconds:.0f} s by {found.model}: {found.choice}",
            flush=True,
        )
        figures.append(report.at_least(f"{name} over plain loops", ratio, "x", WANTED))
        figures.append(report.Figure(f"{name} over rules", rules / plain * ratio, "x"))
    return figures


def _log(path: Path | None, space: SketchSpace, trial: Measured) -> None:
    if path is not None:
        point = space.point(trial.choice)
        estimate = 0.0 if point is None else float(space.estimate(point)[0])
        told = {"function": space.name, **asdict(trial), "estimate_ns": estimate}
        with path.open("a") as file:
            file.write(json.dumps(told) + "\n")


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=3.0, help="per kernel")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="processes that measure")
    parser.add_argument("--only", default="")
    parser.add_argument("--model", default="", help="cost model: trees, gaussian, ...")
    parser.add_argument("--log", type=Path, help="append every trial to this file, as JSON lines")


def _plain(space: SketchSpace) -> str:
    """The parallel, vectorized loops of the program."""
    for grid in space.grids[1:]:
        if all(part.endswith(":plain") for part in grid.name.split(";")):
            return grid.text([0] * len(grid.fields))
    raise AssertionError("every function has plain loops")


def _against(
    space: SketchSpace, found: TunedFunction, fleet: Fleet, other: str, threads: int
) -> tuple[float, float]:
    """Nanoseconds of another schedule, and how many times the tuned one is faster, in turns."""
    message = {
        "kind": "measure",
        "function": str(space.function),
        "target": "cpu",
        "threads": threads,
        "trace": str(found.schedule.trace),
        "against": str(space.schedule(other).trace),
        "pairs": FINAL_PAIRS,
        "seconds": 8.0,
        "lease_s": 120.0,
    }
    (result,) = fleet.submit([message])
    if result.error:
        raise SystemExit(f"{found.choice}: {result.error}")
    tuned, against = result.value["ns"], result.value["against"]
    ratios = [b / a for a, b in zip(tuned, against, strict=True)]
    return median(against), median(ratios)


if __name__ == "__main__":
    report.run(__doc__, measure, options_of)
