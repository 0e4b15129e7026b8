"""What every benchmark script shares: figures, a table for people, JSON for machines.

A script computes figures and hands them over:

    if __name__ == "__main__":
        report.run(__doc__, measure)          # measure(options) -> list[Figure]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

try:
    from rich.console import Console
    from rich.table import Table
except ImportError:  # machines with a GPU where nothing can be installed
    Console = None  # type: ignore[assignment,misc]  # a plain table does

LINE_BYTES = 64


@dataclass(frozen=True)
class Figure:
    """One number a benchmark is there to show; `ok` is None where nothing is asked of it."""

    name: str
    value: float
    unit: str
    want: str = ""
    ok: bool | None = None


def at_most(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, value, unit, f"<= {limit:g}", bool(value <= limit))


def at_least(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, value, unit, f">= {limit:g}", bool(value >= limit))


def seconds(run: Callable[[], object], *, budget_s: float = 0.5, least: int = 3) -> list[float]:
    """Times of single calls, warmed up, for about `budget_s`."""
    run()
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < least or time.perf_counter() - begun < budget_s:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def interleaved(
    runs: dict[str, Callable[[], object]], *, rounds: int = 15, budget_s: float = 0.05
) -> dict[str, float]:
    """The least time of each contender in seconds, measured in turns: noise hits all alike."""
    for run in runs.values():
        run()
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], *seconds(run, budget_s=budget_s, least=2))
    return best


def aligned(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that begins with a line of the cache, as frameworks allocate their tensors."""
    memory = np.empty(values.nbytes + LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    made = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def run(
    doc: str | None,
    measure: Callable[[argparse.Namespace], list[Figure]],
    arguments: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Parse the command line, measure, print the table, write the JSON.

    Ends the process with status 1 if a figure falls short of what is asked of it.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    if arguments is not None:
        arguments(parser)
    options = parser.parse_args()
    figures = measure(options)
    if figures:
        show(figures)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    if any(figure.ok is not None and not figure.ok for figure in figures):
        sys.exit(1)


def show(figures: Sequence[Figure]) -> None:
    if Console is None:
        for figure in figures:
            mark = {True: "ok", False: "SHORT", None: ""}[figure.ok]
            print(f"{figure.name:60} {figure.value:10.4g} {figure.unit:8} {figure.want:10} {mark}")
        return
    table = Table("what", "value", "unit", "want", "")
    for figure in figures:
        mark = {True: "[green]ok", False: "[red]short", None: ""}[figure.ok]
        table.add_row(figure.name, f"{figure.value:.4g}", figure.unit, figure.want, mark)
    Console().print(table)
