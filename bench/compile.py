"""Costs of compiling and loading: time, memory, arena; against peers that compile.

    python bench/compile.py [--json FILE] [--zoo FOLDER] [--only NAME ...] [--peers NAME ...]
                            [--times N] [--least SECONDS]

For each model: the time until the first answer without and with a filled cache, the peak memory of
that process, the arena against the most that is alive at once, and the peak memory of a process
that loads a saved library and runs it, against one that runs ONNX Runtime. Every figure is of a
fresh process on all cores with caches of its own, imports of packages included; ours is the lesser
of two, before and after the peers. `tw.compile` alone is what the limits of a model are about.

A peer is stopped after N times what ours took (or SECONDS, if that is more) and counts as that
time; one that cannot take a model is named with its reason below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peers
import report
import zoo
from report import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tilewright.base.host import host_cores

COMPILERS = ("torch_compile", "tvm", "iree")
# Seconds of tw.compile on 2 idle cores, cold and from the cache.
LIMITS = {"resnet18": (5.0, 0.5), "mobilenet_v2": (5.0, 0.5)}

SAVE = """
import json, sys
import tilewright as tw
module = tw.compile(sys.argv[1])
plan = module.inside.plan
module.save(sys.argv[2])
print(json.dumps({"arena": plan.arena_bytes, "floor": plan.floor_bytes()}))
"""


def first_answer(
    peer: str, case: zoo.Case, threads: int, limit: float | None = None, **environment: str
) -> dict[str, Any]:
    """Seconds to the first answer, and the most memory held, of a fresh process."""
    contender = peers.Contender(peer, case.model, case.inputs, threads, limit, **environment)
    try:
        return contender.loaded | contender.ask("run 0")
    finally:
        contender.stop()


def ours(case: zoo.Case, threads: int, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Without and with a filled cache."""
    fresh = {"TILEWRIGHT_CACHE_DIR": str(folder)}
    cold = first_answer("tilewright", case, threads, None, **fresh)
    return cold, first_answer("tilewright", case, threads, None, **fresh)


def lesser(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {key: min(a[key], b[key]) for key in ("compile_s", "first_s", "peak_mb")}


def rival(
    peer: str, case: zoo.Case, threads: int, limit: float, folder: Path
) -> dict[str, Any] | str:
    """A peer's figures; or why it has none."""
    begun = time.perf_counter()
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder)}
    try:
        return first_answer(peer, case, threads, limit, **own)
    except peers.TooSlow:
        return {"first_s": time.perf_counter() - begun, "peak_mb": 0.0, "stopped": True}
    except RuntimeError as error:
        return str(error)


def save(case: zoo.Case, path: Path, cache: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", SAVE, str(case.model), str(path)]
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it ended"])[-1][:200])
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def measure_case(case: zoo.Case, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one model; what failed is a text."""
    threads = host_cores()
    row: dict[str, Any] = {"name": case.name}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        before = ours(case, threads, folder / "first")
        library = folder / f"{case.model.stem}.so"
        row["plan"] = save(case, library, folder / "first")
        loaded = zoo.Case(case.name, library, case.inputs)
        row["artifact"] = first_answer("tilewright_artifact", loaded, threads)
        limit = max(options.least, options.times * before[0]["first_s"])
        for name in names:
            row[name] = rival(name, case, threads, limit, folder / name)
        after = ours(case, threads, folder / "second")
        row["cold"], row["cached"] = map(lesser, before, after)
    return row


def figures(row: dict[str, Any], names: list[str]) -> list[Figure]:
    name, plan = row["name"], row["plan"]
    cold, cached = row["cold"], row["cached"]
    found = [
        Figure(f"{name}: first answer, cold", cold["first_s"], "s"),
        Figure(f"{name}: first answer, cached", cached["first_s"], "s"),
        Figure(f"{name}: peak memory, cold", cold["peak_mb"], "MB"),
    ]
    if name in LIMITS:
        for kind, told, limit in zip(("cold", "cached"), (cold, cached), LIMITS[name], strict=True):
            found.append(
                report.at_most(f"{name}: tw.compile, {kind}", told["compile_s"], "s", limit)
            )
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
            found.append(report.at_least(label, row[peer]["first_s"] / cold["first_s"], "x", 1.0))
    return found


def cell(told: dict[str, Any] | str) -> str:
    if isinstance(told, str):
        return "cannot"
    if "stopped" in told:
        return f"> {told['first_s']:.0f}"
    return f"{told['first_s']:.2f} ({told['peak_mb']:.0f})"


def show(rows: list[dict[str, Any]], names: list[str]) -> None:
    heads = ("cold s", "cached s", "library s", "cold MB", "library MB", "arena MB", "/ bound")
    table = Table("model", *heads, *(f"{name} s (MB)" for name in names))
    for row in rows:
        plan = row["plan"]
        arena = f"{plan['arena'] / 1e6:.2f}" if plan["arena"] else "open"
        bound = f"{plan['arena'] / plan['floor']:.3f}" if plan["arena"] and plan["floor"] else ""
        cells = [f"{row[kind]['first_s']:.2f}" for kind in ("cold", "cached", "artifact")]
        cells += [f"{row[kind]['peak_mb']:.0f}" for kind in ("cold", "artifact")]
        table.add_row(row["name"], *cells, arena, bound, *(cell(row[name]) for name in names))
    console = Console(width=180)
    console.print(table)
    for row in rows:
        for name in names:
            if isinstance(row[name], str):
                console.print(f"{row['name']}: {name} cannot: {row[name]}", markup=False)


def measure(options: argparse.Namespace) -> list[Figure]:
    zoo.ensure_models(options.zoo, options.only)
    names = [name for name in ("onnxruntime", *options.peers) if peers.installed(name)]
    first = {case.model: case for case in reversed(zoo.cases_of(options.zoo, options.only))}
    cases = sorted(first.values(), key=lambda case: case.name)
    rows = []
    progress = Console(stderr=True)
    for case in track(cases, "measuring", console=progress):
        try:
            rows.append(measure_case(case, names, options))
        except RuntimeError as error:
            Console().print(f"{case.name}: {error}", markup=False)
            continue
        theirs = ", ".join(f"{name} {cell(rows[-1][name])}" for name in names)
        progress.print(f"{case.name}: {cell(rows[-1]['cold'])}; {theirs}", markup=False)
    show(rows, names)
    return [figure for row in rows for figure in figures(row, names)]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", type=Path, default=zoo.DEFAULT, help="a folder of models")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--peers", nargs="*", default=list(COMPILERS), choices=list(peers.PEERS))
    parser.add_argument("--times", type=float, default=10, help="as long as ours peers may run")
    parser.add_argument("--least", type=float, default=30, help="seconds peers may always run")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
