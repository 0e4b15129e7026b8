"""ResNet-18's convolutions by sketches alone against TVM MetaSchedule, given the same minutes.

    python bench/tune_tvm.py [--json FILE] [--trials 64] [--only X] [--threads 2]

TVM (`apache-tvm[meta-schedule]`, no dependency of ours) tunes first; the time that it took is the
budget of our sketches, which have no rule to start from. Both kernels then run in turns in this
process on the same inputs, and are compared with each other.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import report
import tune_cases
from report import Figure

from tilewright.base import tolerances
from tilewright.base.host import host_processor
from tilewright.codegen.build import build
from tilewright.tune.budget import Budget
from tilewright.tune.functions import tune_function
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.stats import Paired, geometric_mean

WANTED = 2.0
PAIRS = 21
BATCH = 16  # candidates that TVM measures at a time

Run = Callable[[], Any]


def by_tvm(shape: tuple[int, ...], arrays: list[Any], options: argparse.Namespace) -> Run:
    """TVM's kernel for a convolution of `tune_cases.convolution`."""
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule

    program = te.create_prim_func(tune_cases.convolution_by(te, *shape))
    cores = {"num-cores": options.threads}
    target = tvm.target.Target({"kind": "llvm", "mcpu": host_processor(), **cores})
    with tempfile.TemporaryDirectory() as folder:
        found = meta_schedule.tune_tir(
            program,
            target,
            folder,
            max_trials_global=options.trials,
            num_trials_per_iter=min(BATCH, options.trials),
            num_tuning_cores=options.threads,
            seed=16,
        )
        best = meta_schedule.tir_integration.compile_tir(found, program, target)
    if best is None:
        raise SystemExit("TVM found no schedule")
    run = tvm.compile(best.mod, target)["main"]
    given = [tvm.runtime.tensor(each) for each in arrays]

    def call() -> Any:
        run(*given)
        return given[-1]

    return call


def by_sketches(shape: tuple[int, ...], arrays: list[Any], minutes: float, threads: int) -> Run:
    """The best sketch of the same convolution."""
    fn = tune_cases.convolution(*shape)
    space = SketchSpace(fn, threads=threads, with_rules=False)
    found = tune_function(space, threads=threads, budget=Budget(minutes))
    run = build(found.schedule.function)
    print(f"  {len(found.trials)} sketches tried: {found.choice}", flush=True)

    def call() -> Any:
        run(*arrays, threads=threads)
        return arrays[-1]

    return call


def in_turns(first: Run, second: Run) -> Paired:
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(PAIRS):
        sides = ((0, first), (1, second))
        for side, run in sides if pair % 2 else sides[::-1]:
            run()  # caches and threads are as the kernel itself leaves them
            begin = time.perf_counter()
            run()
            times[side].append(time.perf_counter() - begin)
    return Paired(tuple(times[0]), tuple(times[1]))


def measure(options: argparse.Namespace) -> list[Figure]:
    os.environ["TVM_NUM_THREADS"] = str(options.threads)  # read when its threads start
    figures, gains = [], []
    random = np.random.default_rng(16)
    for at, shape in enumerate(tune_cases.RESNET18):
        name = f"resnet18 {at}"
        if options.only and name not in options.only:
            continue
        channels, outputs, size, kernel, step = shape
        side = (size - 1) * step + kernel
        sizes = ((1, channels, side, side), (outputs, channels, kernel, kernel))
        inputs = [report.aligned(random.uniform(0.05, 1.0, each).astype("f4")) for each in sizes]
        result = report.aligned(np.zeros((1, outputs, size, size), "f4"))
        begin = time.monotonic()
        theirs = by_tvm(shape, [*inputs, result.copy()], options)
        minutes = (time.monotonic() - begin) / 60
        ours = by_sketches(shape, [*inputs, result], minutes, options.threads)
        allowed = tolerances.relative("float32", channels * kernel * kernel)
        if not np.allclose(ours(), theirs().numpy(), rtol=allowed, atol=0):
            raise SystemExit(f"{name}: TVM computes something else")
        pair = in_turns(theirs, ours)
        gains.append(pair.gain)
        told = f"TVM {report.median(pair.first) * 1e3:.3f} ms, {options.trials} trials"
        print(f"{name}: {told} in {minutes:.1f} min; sketches {pair.gain:.2f}x", flush=True)
        figures.append(Figure(f"{name}, TVM's time by ours", pair.gain, "x"))
    mean = geometric_mean(gains)
    return [*figures, report.at_least("geometric mean, TVM's time by ours", mean, "x", WANTED)]


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=64, help="of TVM, for each convolution")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", help='"resnet18 5" ...')


if __name__ == "__main__":
    report.run(__doc__, measure, options_of)
