"""What compiling and loading cost: time, memory, the arena; against peers that compile.

    python bench/compile.py [--json FILE] [--zoo FOLDER] [--only NAME ...] [--peers NAME ...]

For each model: the time until the first answer without and with a filled cache, the peak memory of
that process, the arena against the most that is alive at once, and the peak memory of a process
that loads a saved library and runs it, against one that runs ONNX Runtime. Every figure is of a
fresh process on all cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import peers
import report
import zoo
from report import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

COMPILERS = ("torch_compile", "tvm", "iree")
LIMITS = {"resnet18": (8.0, 0.5)}  # seconds, cold and from the cache

SAVE = """
import json, sys
import tilewright as tw
module = tw.compile(sys.argv[1])
plan = module.inside.plan
module.save(sys.argv[2])
print(json.dumps({"arena": plan.arena_bytes, "floor": plan.floor_bytes()}))
"""


def first_answer(peer: str, case: zoo.Case, threads: int, **environment: str) -> dict[str, Any]:
    """Seconds to the first answer, and the most memory held, of a fresh process."""
    contender = peers.Contender(peer, case.model, case.inputs, threads, **environment)
    try:
        return contender.loaded | contender.ask("run 0")
    finally:
        contender.stop()


def save(case: zoo.Case, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", SAVE, str(case.model), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it ended"])[-1][:200])
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def measure_case(case: zoo.Case, names: list[str], threads: int) -> dict[str, Any]:
    """All figures of one model; what failed is a text."""
    row: dict[str, Any] = {"name": case.name}
    with tempfile.TemporaryDirectory() as folder:
        fresh = {"TILEWRIGHT_CACHE_DIR": folder}
        row["cold"] = first_answer("tilewright", case, threads, **fresh)
        row["cached"] = first_answer("tilewright", case, threads, **fresh)
        library = Path(folder) / f"{case.model.stem}.so"
        row["plan"] = save(case, library)
        loaded = zoo.Case(case.name, library, case.inputs)
        row["artifact"] = first_answer("tilewright_artifact", loaded, threads)
        for name in names:
            try:
                row[name] = first_answer(name, case, threads)
            except RuntimeError as error:
                row[name] = str(error)
    return row


def figures(row: dict[str, Any], names: list[str]) -> list[Figure]:
    name, plan = row["name"], row["plan"]
    cold, cached = row["cold"]["first_s"], row["cached"]["first_s"]
    limits = LIMITS.get(name)
    found = [
        report.at_most(f"{name}: cold", cold, "s", limits[0]) if limits
        else Figure(f"{name}: cold", cold, "s"),
        report.at_most(f"{name}: cached", cached, "s", limits[1]) if limits
        else Figure(f"{name}: cached", cached, "s"),
        Figure(f"{name}: peak memory, cold", row["cold"]["peak_mb"], "MB"),
    ]  # fmt: skip
    if plan["arena"] and plan["floor"]:
        ratio = plan["arena"] / plan["floor"]
        found.append(report.at_most(f"{name}: arena / lower bound", ratio, "x", 1.1))
    for peer in names:
        if isinstance(row[peer], str):
            continue
        if peer == "onnxruntime":
            mine, theirs = row["artifact"]["peak_mb"], row[peer]["peak_mb"]
            found.append(Figure(f"{name}: loaded library, peak memory", mine, "MB"))
            label = f"{name}: loaded library / onnxruntime, peak memory"
            found.append(report.at_most(label, mine / theirs, "x", 1.0))
        else:
            label = f"{name}: {peer} / ours, time to the first answer"
            found.append(report.at_least(label, row[peer]["first_s"] / cold, "x", 1.0))
    return found


def show(rows: list[dict[str, Any]], names: list[str]) -> None:
    heads = ("cold s", "cached s", "library s", "cold MB", "library MB", "arena MB", "/ bound")
    table = Table("model", *heads, *(f"{name} s (MB)" for name in names))
    for row in rows:
        plan = row["plan"]
        arena = f"{plan['arena'] / 1e6:.2f}" if plan["arena"] else "open"
        bound = f"{plan['arena'] / plan['floor']:.3f}" if plan["arena"] and plan["floor"] else ""
        cells = [f"{row[kind]['first_s']:.2f}" for kind in ("cold", "cached", "artifact")]
        cells += [f"{row[kind]['peak_mb']:.0f}" for kind in ("cold", "artifact")]
        for name in names:
            told = row[name]
            bad = isinstance(told, str)
            cells.append("failed" if bad else f"{told['first_s']:.2f} ({told['peak_mb']:.0f})")
        table.add_row(row["name"], *cells[:5], arena, bound, *cells[5:])
    Console(width=180).print(table)


def measure(options: argparse.Namespace) -> list[Figure]:
    zoo.ensure_models(options.zoo, options.only)
    names = [name for name in ("onnxruntime", *options.peers) if peers.installed(name)]
    threads = os.cpu_count() or 1
    first = {case.model: case for case in reversed(zoo.cases_of(options.zoo, options.only))}
    cases = sorted(first.values(), key=lambda case: case.name)
    rows = []
    for case in track(cases, "measuring", console=Console(stderr=True)):
        try:
            rows.append(measure_case(case, names, threads))
        except RuntimeError as error:
            Console().print(f"{case.name}: {error}", markup=False)
    show(rows, names)
    return [figure for row in rows for figure in figures(row, names)]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", type=Path, default=zoo.DEFAULT, help="a folder of models")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--peers", nargs="*", default=list(COMPILERS), choices=list(peers.PEERS))


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
