"""What every benchmark script shares: figures, a table for people, JSON for machines.

A script computes figures and hands them over:

    if __name__ == "__main__":
        report.run(__doc__, measure)          # measure(options) -> list[Figure]

With `--record` they go into bench/RESULTS.json, of which `make results` makes RESULTS.md and the
chart of README.md.
"""

from __future__ import annotations

import argparse
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
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--record", action="store_true", help="put the figures into RESULTS.json")
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
        told = " ".join(word for word in given if word != "--record")
        command = f"python bench/{Path(script).name} {told}".rstrip()
        RESULTS.write_text(as_json(recorded(read_results(), command, machine(), figures)))
    if any(figure.ok is not None and not figure.ok for figure in figures):
        sys.exit(1)


def machine() -> str:
    """The machine that figures are of, for people."""
    return f"{os.cpu_count()} cores of {described_machine().name}"


def read_results() -> dict[str, Any]:
    """What was recorded: `about`, and sections of text, tables and figures."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def recorded(
    results: dict[str, Any], command: str, where: str, figures: Sequence[Figure]
) -> dict[str, Any]:
    """The results with figures: in place of older ones of the command, else beside its script's."""
    new = {"command": command, "machine": where, "figures": [asdict(f) for f in figures]}
    script = command.split()[1]
    sections = [dict(section, parts=list(section["parts"])) for section in results["sections"]]
    for section in sections:
        for at, part in enumerate(section["parts"]):
            if isinstance(part, dict) and part.get("command") == command:
                section["parts"][at] = new
                return results | {"sections": sections}
    home = next((each for each in sections if script in each["title"]), None)
    if home is None:
        home = {"title": f"{Path(script).stem}: `{command}`", "parts": []}
        sections.append(home)
    home["parts"].append(new)
    return results | {"sections": sections}


def as_json(results: dict[str, Any]) -> str:
    """The results as text in which every row and every figure is a line."""

    def part(value: Any) -> str:
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        items = []
        for key, inside in value.items():
            if key in ("rows", "figures"):
                lines = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in inside)
                items.append(f'"{key}": [\n    {lines}]')
            else:
                items.append(f'"{key}": {json.dumps(inside, ensure_ascii=False)}')
        return "{" + ", ".join(items) + "}"

    sections = ",\n".join(
        f' {{"title": {json.dumps(each["title"], ensure_ascii=False)}, "parts": [\n  '
        + ",\n  ".join(map(part, each["parts"]))
        + "]}"
        for each in results["sections"]
    )
    about = json.dumps(results["about"], ensure_ascii=False)
    return f'{{"about": {about},\n"sections": [\n{sections}]}}\n'


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
