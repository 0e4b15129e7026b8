"""Sketches against TVM MetaSchedule on convolutions of ResNet-18, with equal budgets.

    python bench/tune_tvm.py [--json FILE] [--minutes 3] [--only "resnet18 5" ...] [--threads 2]
                             [--processor-time]

TVM (`apache-tvm`, `cloudpickle`, `psutil`, no dependencies of ours; version 0.27 crashes with
`apache-tvm-ffi` 0.1.15 on Arm, 0.1.14.post0 works) tunes each convolution in a process of its own,
which is ended when the minutes are over; what it has measured by then it keeps, and its best
schedule is compiled. Our sketches, which have no rule to start from, get as many minutes. Then both
kernels run in turns on the same inputs, TVM's in its process, and are compared with each other. A
convolution that TVM finds no schedule for in time, or whose search crashes, is told, and not
counted. On a machine with other work, one thread each can be compared by the processor's time
instead of the clock's.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import report
import tune_cases
from report import Figure
from tune_shapes import CLOCKS, PROCESSOR, RESNET18, WALL

from tilewright.base import tolerances
from tilewright.base.host import host_processor
from tilewright.codegen.build import build
from tilewright.tune.budget import Budget
from tilewright.tune.functions import tune_function
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.stats import Paired, geometric_mean

WANTED = 2.0
PAIRS = 21
LOAD_S = 600.0  # to import TVM and start its processes, at most
SERVE_S = 600.0  # to compile TVM's best schedule, and to time it
SIDE = Path(__file__).with_name("tune_tvm_side.py")

Seconds = Callable[[], float]  # of one run


@contextmanager
def tvm_process(
    what: str, folder: Path, shape: tuple[int, ...], threads: int, clock: str = WALL
) -> Iterator[Any]:
    """TVM in a process group of its own, which is gone at the end with all that it started."""
    sizes = "x".join(map(str, shape))
    arguments = [what, str(folder), sizes, str(threads), host_processor(), clock]
    with (folder / f"{what}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(SIDE), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if what == "serve" else log,
            stderr=log,
            text=True,
            start_new_session=True,
            env={**os.environ, "TVM_NUM_THREADS": str(threads)},
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # it may have ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def tuned_by_tvm(folder: Path, shape: tuple[int, ...], minutes: float, threads: int) -> bool:
    """Search with TVM until the time is up, which counts from when it has loaded; whether it has
    searched for all of it."""
    with tvm_process("tune", folder, shape, threads) as process:
        loaded, latest = folder / "loaded", time.monotonic() + LOAD_S
        while not loaded.exists() and process.poll() is None and time.monotonic() < latest:
            time.sleep(0.1)
        try:
            process.wait(60.0 * minutes)
        except subprocess.TimeoutExpired:
            return True
        print((folder / "tune.log").read_text()[-2000:], flush=True)
        print(f"TVM's search has ended by itself, with {process.returncode}", flush=True)
        return False


@contextmanager
def served_by_tvm(
    folder: Path, shape: tuple[int, ...], threads: int, clock: str
) -> Iterator[Seconds | None]:
    """TVM's best kernel: how long a run takes, each time it is asked; None where there is none."""
    with tvm_process("serve", folder, shape, threads, clock) as process:
        overdue = _ended_after(process, SERVE_S)
        trials = process.stdout.readline()
        if not trials:
            print((folder / "serve.log").read_text()[-2000:], flush=True)
            yield None
            return
        print(f"  {trials.strip()} candidates of TVM", flush=True)

        def seconds() -> float:
            process.stdin.write("run\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield seconds
        overdue.cancel()


def _ended_after(process: Any, seconds: float) -> threading.Timer:
    """A process that answers no more is ended, so that its pipe ends, too."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    return timer


def by_sketches(
    shape: tuple[int, ...], arrays: list[Any], minutes: float, threads: int, clock: str
) -> Seconds:
    """The best sketch of the same convolution."""
    now = CLOCKS[clock]
    fn = tune_cases.convolution(*shape)
    space = SketchSpace(fn, threads=threads, with_rules=False)
    found = tune_function(space, threads=threads, budget=Budget(minutes))
    run = build(found.schedule.function)
    print(f"  {len(found.trials)} sketches tried: {found.choice}", flush=True)

    def seconds() -> float:
        run(*arrays, threads=threads)  # caches and threads are as the kernel itself leaves them
        begin = now()
        run(*arrays, threads=threads)
        return now() - begin

    return seconds


def in_turns(first: Seconds, second: Seconds) -> Paired:
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(PAIRS):
        sides = ((0, first), (1, second))
        for side, run in sides if pair % 2 else sides[::-1]:
            times[side].append(run())
    return Paired(tuple(times[0]), tuple(times[1]))


def compared(name: str, shape: tuple[int, ...], options: argparse.Namespace) -> float | None:
    """TVM's time by ours; None where TVM has no kernel."""
    channels, outputs, size, kernel, step = shape
    side = (size - 1) * step + kernel
    random = np.random.default_rng(16)
    sizes = ((1, channels, side, side), (outputs, channels, kernel, kernel))
    x, k = (report.aligned(random.uniform(0.05, 1.0, each).astype("f4")) for each in sizes)
    y = report.aligned(np.zeros((1, outputs, size, size), "f4"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.savez(folder / "inputs.npz", x=x, k=k, y=y)
        if not tuned_by_tvm(folder, shape, options.minutes, options.threads):
            return None
        ours = by_sketches(shape, [x, k, y], options.minutes, options.threads, options.clock)
        with served_by_tvm(folder, shape, options.threads, options.clock) as theirs:
            if theirs is None:
                print(f"{name}: TVM found no schedule in {options.minutes:g} minutes", flush=True)
                print((folder / "tune.log").read_text()[-2000:], flush=True)
                return None
            ours()
            allowed = tolerances.relative("float32", channels * kernel * kernel)
            if not np.allclose(y, np.load(folder / "result.npy"), rtol=allowed, atol=0):
                raise SystemExit(f"{name}: TVM computes something else")
            pair = in_turns(theirs, ours)
    tvm_ms, our_ms = (1e3 * report.median(times) for times in (pair.first, pair.second))
    print(f"{name}: TVM {tvm_ms:.3f} ms, sketches {our_ms:.3f} ms, {pair.gain:.2f}x", flush=True)
    return pair.gain


def measure(options: argparse.Namespace) -> list[Figure]:
    if options.clock == PROCESSOR and options.threads > 1:
        raise SystemExit("the processor's time is that of one thread: --threads 1")
    gains: dict[str, float] = {}
    for at, shape in enumerate(RESNET18):
        name = f"resnet18 {at}"
        if options.only and name not in options.only:
            continue
        gain = compared(name, shape, options)
        if gain is not None:
            gains[name] = gain
    figures = [Figure(f"{name}, TVM's time by ours", gain, "x") for name, gain in gains.items()]
    figures.append(report.at_least("convolutions compared", len(gains), "", 1))
    if gains:
        mean = geometric_mean(list(gains.values()))
        figures.append(report.at_least("geometric mean, TVM's time by ours", mean, "x", WANTED))
    return figures


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=3.0, help="of either, per convolution")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", help='"resnet18 5" ...')
    parser.add_argument(
        "--processor-time", dest="clock", action="store_const", const=PROCESSOR, default=WALL
    )


if __name__ == "__main__":
    report.run(__doc__, measure, options_of)
