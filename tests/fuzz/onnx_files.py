"""Damaged model files: each gives a model or one error of ours, and never takes the process down.

    python tests/fuzz/onnx_files.py --files 10000 --jobs 2
    python tests/fuzz/onnx_files.py --first 4000     that run again: each prints its first seed
    python tests/fuzz/onnx_files.py --seed 4711         one of them again, with the whole story

A file that can still be imported is optimized as well; of these, one in a few is compiled and run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from onnx_mutate import damaged
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from seeds import begin, until
from workers import Lost, run_jobs

from tilewright.base.errors import CompilerBug, TilewrightError
from tilewright.base.passes import PassContext, run_passes
from tilewright.frontends.onnx import import_model
from tilewright.graph import Module
from tilewright.graph.passes import CANONICAL
from tilewright.graph.types import TensorType
from tilewright.graph.verify import verify

SECONDS = 20.0  # an idle machine needs a hundredth
MEMORY_BYTES = 8 << 30
EVERY = 10  # one in so many is compiled
BAD = ("bug", "untyped", "lost")


def one(job: tuple[int, int]) -> tuple[str, str]:
    """(what became of a file, details): read, ran, refused with a code, or something bad."""
    seed, every = job
    with tempfile.TemporaryDirectory() as folder:
        path = damaged(seed, Path(folder))
        inside = path.parent / "model" / "model.onnx"
        try:
            return used(inside if inside.exists() else path, compiled=seed % every == 0)
        except CompilerBug as error:
            return "bug", f"{error.code}: {error.message}"
        except TilewrightError as error:
            return "refused", error.code
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            return "untyped", f"{type(error).__name__} at {where}: {str(error)[:120]}"


def used(path: Path, *, compiled: bool) -> tuple[str, str]:
    """Import a model, optimize it, and compile and run it where asked for."""
    module = import_model(path)
    verify(module)
    run_passes(module, CANONICAL, PassContext())
    if not compiled:
        return "read", ""
    import tilewright

    model = tilewright.compile(module, target="cpu", threads=1)
    arguments = small_arguments(module)
    if arguments is None:
        return "compiled", ""
    model(*arguments)
    return "ran", ""


def small_arguments(module: Module) -> list[Any] | None:
    """Zeros for the parameters of a model, if these are tensors of a modest size."""
    made: list[Any] = []
    for param in module.main.params:
        of = param.type
        if not isinstance(of, TensorType) or of.shape is None or of.dtype.is_str:
            return None
        shape = [int(getattr(dim, "value", 2)) for dim in of.shape]
        if np.prod(np.array(shape, np.float64)) > 1 << 20:
            return None
        made.append(np.zeros(shape, of.dtype.numpy))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--first", type=int, help="the first seed; without it, a fresh one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin none after so long")
    parser.add_argument("--every", type=int, default=EVERY, help="compile one in so many")
    parser.add_argument("--seed", type=int, help="just this one, with the whole story")
    options = parser.parse_args()
    console = Console()
    if options.seed is not None:
        return explain(options.seed, options.every, console)
    start = time.perf_counter()
    ends: dict[int, tuple[str, str]] = {}
    bad = 0
    first = begin(options.first, options.files, console)
    jobs = [(first + at, options.every) for at in range(options.files)]
    columns = (TextColumn("{task.completed}/{task.total} files"), BarColumn())
    bar = Progress(
        *columns, TextColumn("{task.fields[bad]} bad"), TimeRemainingColumn(), console=console
    )
    with bar:
        task = bar.add_task("", total=len(jobs), bad=0)
        for job, end in run_jobs(
            "onnx_files",
            "one",
            until(jobs, options.seconds),
            workers=options.jobs,
            seconds=SECONDS,
            memory_bytes=MEMORY_BYTES,
            pinned=True,
        ):
            ends[job[0]] = ("lost", end.why) if isinstance(end, Lost) else end
            bad += ends[job[0]][0] in BAD
            bar.update(task, advance=1, bad=bad)
            if (last := ends[job[0]])[0] in BAD:  # at once: a long run may be cut off
                console.print(f"seed {job[0]}: {last[0]} {last[1]}", markup=False, soft_wrap=True)
                sys.stdout.flush()
            if not console.is_terminal and len(ends) % max(1, len(jobs) // 10) == 0:
                console.print(f"{len(ends)}/{len(jobs)} files, {bad} bad")
    report(console, ends, time.perf_counter() - start)
    return 1 if bad else 0


def report(console: Console, ends: dict[int, tuple[str, str]], seconds: float) -> None:
    console.print(f"files: {len(ends)} in {seconds:.0f} s")
    for kind, count in Counter(kind for kind, _ in ends.values()).most_common():
        console.print(f"{kind}: {count}")
        details = Counter(why for what, why in ends.values() if what == kind)
        for why, times in details.most_common():
            seeds = [str(seed) for seed in sorted(ends) if ends[seed] == (kind, why)]
            shown = f"  {times} x {why}" + (
                f": seeds {', '.join(seeds[:6])}" if kind in BAD else ""
            )
            if why:
                console.print(shown, markup=False, soft_wrap=True)


def explain(seed: int, every: int, console: Console) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = damaged(seed, Path(folder))
        inside = path.parent / "model" / "model.onnx"
        try:
            end = used(inside if inside.exists() else path, compiled=seed % every == 0)
            console.print(f"seed {seed}: {end[0]}")
        except TilewrightError as error:
            console.print(str(error), markup=False)
            return int(isinstance(error, CompilerBug))
        except Exception:
            console.print(traceback.format_exc(), markup=False)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
