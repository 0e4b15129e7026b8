"""Dynamic sizes against static ones: one module for all, and one compiled for each.

    python bench/dynamic.py [--json FILE] [--zoo FOLDER] [--only NAME ...] [--sizes N ...]
                            [--threads 1 2] [--seconds S] [--in-front] [--tuned] [--minutes M]

For each model whose inputs leave a size open, at five sizes: the least time of the module compiled
once, over that of a module compiled for the size, run in turns, each in a process of its own.
Asked: at most 1.15. With --in-front both run before all other work of the machine while timed.

With --tuned both are tuned first, the one module at all five sizes and the others each at its own,
for as many minutes per size. Asked: at most 1.05.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, replace
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

LIMIT, TUNED_LIMIT = 1.15, 1.05
ROUNDS = 12


@dataclass(frozen=True)
class Open:
    """A model with a size left open, and sizes to try."""

    model: str
    axis: int  # of every input
    sizes: tuple[int, ...]


OPEN = (
    Open("resnet18_dyn", 0, (1, 2, 3, 5, 8)),
    Open("bert_base_dyn", 1, (16, 50, 77, 128, 200)),
)


@dataclass(frozen=True)
class Row:
    """Milliseconds at one size."""

    model: str
    size: int
    threads: int
    open_ms: float
    fixed_ms: float

    @property
    def ratio(self) -> float:
        return self.open_ms / self.fixed_ms


def resized(inputs: Path, axis: int, size: int, folder: Path) -> Path:
    """Inputs of another size, repeated from what there is."""
    with np.load(inputs) as stored:
        given = {name: stored[name] for name in stored.files}
    made = {
        name: np.take(array, np.arange(size) % array.shape[axis], axis)
        for name, array in given.items()
    }
    path = folder / f"{inputs.stem}.{size}.npz"
    np.savez(path, **made)
    return path


def size_name(model: Path, axis: int) -> str:
    """What the model calls the size."""
    import onnx

    loaded = onnx.load(model, load_external_data=False)
    return str(loaded.graph.input[0].type.tensor_type.shape.dim[axis].dim_param)


def tuned(of: Open, threads: int, folder: Path, options: argparse.Namespace) -> Path:
    """Records of a model with its size open, and at each of its sizes."""
    import tilewright as tw
    from tilewright.tune import Budget

    case = zoo.cases_of(options.zoo, [of.model])[0]
    name = size_name(case.model, of.axis)
    path = folder / f"{of.model}.{threads}.sqlite"
    given: list[dict[str, Any]] = [{"sizes": {name: list(of.sizes)}}]
    given += [{"dynamic": {name: size}} for size in of.sizes]
    for at, more in enumerate(given):
        minutes = options.minutes * (len(of.sizes) if at == 0 else 1)
        budget = Budget(minutes=minutes)
        made: Any = tw.compile(case.model, threads=threads, tune=budget, database=path, **more)
        gain = made.tuning.gain
        told = next(iter(more.values()))
        print(f"{of.model}, {threads} threads, {told}: {gain:.3f}x by tuning", flush=True)
    return path


def compare(
    of: Open,
    size: int,
    threads: int,
    folder: Path,
    options: argparse.Namespace,
    records: str = "",
) -> Row:
    """Both modules in turns; `records` is what they are compiled with."""
    case = zoo.cases_of(options.zoo, [of.model])[0]
    inputs = resized(case.inputs, of.axis, size, folder)
    fixed = json.dumps({size_name(case.model, of.axis): size})
    with_records = {"TILEWRIGHT_TUNING_DB": records}
    running = [
        peers.Contender("tilewright", case.model, inputs, threads, **with_records, **more)
        for more in ({}, {"BENCH_SIZES": fixed})
    ]
    best = [float("inf")] * len(running)
    try:
        for _ in range(ROUNDS):
            for at, contender in enumerate(running):
                contender.in_front(options.in_front)
                told = contender.ask(f"run {options.seconds / ROUNDS}")["times_ms"]
                contender.in_front(False)
                best[at] = min(best[at], *told)
    finally:
        for contender in running:
            contender.stop()
    return Row(of.model, size, threads, *best)


def measure(options: argparse.Namespace) -> list[Figure]:
    wanted = [of for of in OPEN if not options.only or of.model in options.only]
    wanted = [replace(of, sizes=tuple(options.sizes) or of.sizes) for of in wanted]
    zoo.ensure_models(options.zoo, [of.model for of in wanted])
    runs = [(of, size, t) for t in options.threads for of in wanted for size in of.sizes]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        known: dict[tuple[Open, int], str] = {}
        for of, size, threads in track(runs, "measuring", console=Console(stderr=True)):
            if options.tuned and (of, threads) not in known:
                known[of, threads] = str(tuned(of, threads, Path(folder), options))
            records = known.get((of, threads), "")
            rows.append(compare(of, size, threads, Path(folder), options, records))
    limit = TUNED_LIMIT if options.tuned else LIMIT
    table = Table("model", "size", "threads", "open ms", "fixed ms", "ratio")
    for row in rows:
        colour = "red" if row.ratio > limit else "green"
        cells = [row.model, str(row.size), str(row.threads)]
        cells += [f"{row.open_ms:.2f}", f"{row.fixed_ms:.2f}", f"[{colour}]{row.ratio:.3f}[/]"]
        table.add_row(*cells)
    Console().print(table)
    return [
        report.at_most(
            f"{r.model} at {r.size}, {r.threads} threads: open / fixed", r.ratio, "x", limit
        )
        for r in rows
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", type=Path, default=zoo.DEFAULT, help="a folder of models")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--sizes", type=int, nargs="*", default=[], help="other ones to try")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=4, help="per module and size")
    parser.add_argument("--in-front", action="store_true", help="before all other work")
    parser.add_argument("--tuned", action="store_true", help="tune all modules first")
    parser.add_argument("--minutes", type=float, default=2, help="of tuning, per size")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
