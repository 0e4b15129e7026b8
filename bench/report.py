"""Shared by all benchmark scripts: figures, tables, JSON.

A script computes figures and hands them over:

    if __name__ == "__main__":
        report.run(__doc__, measure)          # measure(options) -> list[Figure]

With `--record` they go into bench/RESULTS.json, of which `make results` makes RESULTS.md and the
chart of README.md: a row for each, or a cell of a table for one named `row: column`.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.host import described_machine
from tilewright.base.tolerances import relative
from tilewright.runtime import cuda

try:
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table
except ImportError:  # machines with a GPU where nothing can be installed
    Console = None  # type: ignore[assignment,misc]  # a plain table does

LINE_BYTES = 64
# Of the largest output of a deep model: its layers together lose as one long sum does.
MODEL_TOLERANCE = {
    "f32": relative("float32", 1 << 20),
    "f16": relative("float16", 1 << 8),
    "bf16": relative("bfloat16", 1 << 6),
    "tf32": relative("float16", 1 << 8),  # significands as long as those of f16
}
RESULTS = Path(__file__).with_name("RESULTS.json")


@dataclass(frozen=True)
class Figure:
    """One number a benchmark is there to show; `ok` is None where nothing is asked of it."""

    name: str
    value: float
    unit: str
    want: str = ""
    ok: bool | None = None


Measure = Callable[[argparse.Namespace], list[Figure]]


def at_most(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, value, unit, f"<= {limit:g}", bool(value <= limit))


def at_least(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, value, unit, f">= {limit:g}", bool(value >= limit))


def error_of(outputs: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference of arrays as a part of the largest number that is wanted; infinite
    where shapes differ or something is not finite. Maxima of Python overlook NaN: none is given."""
    worst = 0.0
    for got, want in zip(outputs, wanted, strict=True):
        found, exact = np.asarray(got, np.float64), np.asarray(want, np.float64)
        if found.shape != exact.shape or not (np.isfinite(found) & np.isfinite(exact)).all():
            return float("inf")
        if exact.size:
            worst = max(worst, float(np.abs(found - exact).max() / max(1e-9, np.abs(exact).max())))
    return worst


def on_gpu(measure: Measure) -> Measure:
    """A benchmark that says so, and has no figures, where no NVIDIA GPU can be used."""

    @wraps(measure)
    def measured(options: argparse.Namespace) -> list[Figure]:
        if cuda.is_available():
            return measure(options)
        print("skipped: no NVIDIA GPU can be used here")
        return []

    return measured


def tracked(ends: Iterable[Any], what: str, total: int) -> Iterable[Any]:
    """The same, with a progress bar where people look."""
    if Console is None:
        return ends
    return track(ends, what, total=total, console=Console(stderr=True), transient=True)


Clock = Callable[[], float]


def clock(*, busy: bool) -> Clock:
    """What tells seconds: on a machine that others use too, those of this process's threads."""
    return time.process_time if busy else time.perf_counter


def seconds(
    run: Callable[[], object],
    *,
    budget_s: float = 0.5,
    least: int = 3,
    clock: Clock = time.perf_counter,
) -> list[float]:
    """Times of single calls, warmed up, for about `budget_s`."""
    run()
    times: list[float] = []
    begun = clock()
    while len(times) < least or clock() - begun < budget_s:
        start = clock()
        run()
        times.append(clock() - start)
    return times


def interleaved(
    runs: dict[str, Callable[[], object]],
    *,
    rounds: int = 15,
    budget_s: float = 0.05,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """The least time of each contender in seconds, measured in turns: noise hits all alike."""
    for run in runs.values():
        run()
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            times = seconds(run, budget_s=budget_s, least=2, clock=clock)
            best[name] = min(best[name], *times)
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
    recording = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    recording.add_argument("--record", action="store_true", help="put the figures in RESULTS.json")
    recording.add_argument("--machine", help="its name there, where its processor does not tell")
    parser = argparse.ArgumentParser(
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[recording],
        allow_abbrev=False,
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
    if options.record:
        script, *given = sys.argv
        where = options.machine or machine()
        told = recording.parse_known_args(given)[1]
        command = " ".join([f"python bench/{Path(script).name}", *told])
        RESULTS.write_text(as_json(recorded(read_results(), command, where, figures)))
    if any(figure.ok is not None and not figure.ok for figure in figures):
        sys.exit(1)


def machine() -> str:
    """The machine that figures are of, as RESULTS.json calls it; else its cores and processor."""
    found = described_machine()
    known = {one.get("processor"): str(one["name"]) for one in read_results()["machines"]}
    return known.get(found.name, f"{os.cpu_count()} cores of {found.name}")


def read_results() -> dict[str, Any]:
    """What was recorded: machines, and sections of rows and tables."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def recorded(
    results: dict[str, Any], command: str, where: str, figures: Sequence[Figure]
) -> dict[str, Any]:
    """The results with figures, in place of older ones of the command on the machine.

    Each is a row; those named `row: column` are columns of a table. They go beside figures of the
    command, else of its script, else to a section of their own.
    """
    results = copy.deepcopy(results)
    home = _home(results["sections"], command)
    if home is None:
        home = {"title": f"{Path(command.split()[1]).stem}: `{command}`", "rows": [], "tables": []}
        results["sections"].append(home)
    same = {"machine": where, "command": command}
    single = [one for one in figures if ": " not in one.name]
    limits = {row["figure"]: row["limit"] for row in home["rows"] if "limit" in row}
    rows = [_row(one, limits.get(one.name)) | same for one in single]
    home["rows"] = _replaced(home["rows"], rows, same)
    columns: dict[tuple[str, str], dict[str, Any]] = {}
    for one in figures:
        row, colon, name = one.name.partition(": ")
        if colon:
            begun = {"column": name, **same, "unit": one.unit, "values": {}, "wanted": {}}
            column = columns.setdefault((name, one.unit), begun)
            column["values"][row] = _rounded(one.value)
            column["wanted"] |= _present({row: one.want})
    tables = home["tables"]
    of_command = (t for t in tables if any(c.get("command") == command for c in t["columns"]))
    table = next(of_command, None)
    if columns and table is None:
        table = {"title": f"`{command}`", "of": "", "columns": []}
        tables.append(table)
    if table is not None:
        made = [_present(column) for column in columns.values()]
        table["columns"] = _replaced(table["columns"], made, same)
    return results


def _home(sections: list[dict[str, Any]], command: str) -> dict[str, Any] | None:
    """The section that has figures of the command, else the first with some of its script."""
    script = command.split()[1]
    for wanted in (f"{command}\n", script):
        for section in sections:
            columns = [column for table in section["tables"] for column in table["columns"]]
            if any(wanted in f"{one.get('command', '')}\n" for one in section["rows"] + columns):
                return section
    return None


def _replaced(
    old: list[dict[str, Any]], new: list[dict[str, Any]], same: dict[str, str]
) -> list[dict[str, Any]]:
    """The entries with new ones for those of the same machine and command, else behind the last
    of the command."""
    gone = [at for at, one in enumerate(old) if same.items() <= one.items()]
    of_command = [at for at, one in enumerate(old) if one.get("command") == same["command"]]
    place = gone[0] if gone else of_command[-1] + 1 if of_command else len(old)
    left = [one for one in old[place:] if not same.items() <= one.items()]
    return [*old[:place], *new, *left]


def _row(figure: Figure, limit: str | None) -> dict[str, Any]:
    """With what limited it before, if it is short still."""
    unit = figure.unit if figure.unit != "x" else ""
    row = {"measured": _rounded(figure.value), "unit": figure.unit}
    row |= {"wanted": f"{figure.want} {unit}".rstrip() if figure.want else ""}
    return {"figure": figure.name} | _present(row | {"limit": limit if figure.ok is False else ""})


def _rounded(value: float) -> float:
    """With as many digits as mean something."""
    return float(f"{value:.4g}")


def _present(entries: dict[str, Any]) -> dict[str, Any]:
    """Those that say something."""
    return {key: value for key, value in entries.items() if value not in (None, "", {})}


def as_json(value: Any, depth: int = 0) -> str:
    """The results as text in which every row and every column of a table is a line."""
    if isinstance(value, list) and all(isinstance(one, dict) for one in value) and value:
        indent = " " * (depth + 1)
        return "[\n" + ",\n".join(indent + as_json(one, depth + 1) for one in value) + "]"
    if isinstance(value, dict):
        items = (f"{json.dumps(key)}: {as_json(one, depth + 1)}" for key, one in value.items())
        return "{" + ", ".join(items) + "}" + ("" if depth else "\n")
    return json.dumps(value, ensure_ascii=False)


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
