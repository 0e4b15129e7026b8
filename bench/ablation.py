"""The effect of each optimization: models with one switched off at a time.

    python bench/ablation.py [--json FILE] [--zoo FOLDER] [--only NAME ...] [--threads N]
                             [--without NAME ...] [--all] [--seconds S] [--in-front]

A variant leaves out a pass by its name (`fuse`; `assign_layout`: images channels last;
`choose_winograd`; `recognize_attention`: scores by tiles), `packing`: weights as kernels read them,
`in_place`: results in the memory of operands, or `schedule`: kernels stay as lowering makes them.
With --all, every pass that can be left out. All variants of a model run in turns. A factor above 1
is what the optimization brings; below 1 it does harm; `=` is the very same code. A variant that is
faster is measured once more for longer before it counts. With --in-front variants run before all
other work of the machine while timed.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

import peers
import report
import zoo
from report import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tilewright.base.passes import pass_name
from tilewright.base.target import CPU
from tilewright.driver.pipelines import PIPELINES

# Without these there is no model to compile, or nothing changes but the time to compile.
NEEDED = {"infer_shapes", "remove_dead_nodes", "fuse_single_nodes", "canonicalize", "decompose"}
NOISE = 0.97  # factors this close to 1 are no loss
ROUNDS = 6
SAME = 0.0  # in place of a time: the code is that of the whole compiler
NAMED = (
    "fuse",
    "assign_layout",
    "packing",
    "choose_winograd",
    "recognize_attention",
    "in_place",
)


def optimizations() -> list[str]:
    names = dict.fromkeys(pass_name(step) for step in PIPELINES[CPU, "f32"])
    return [*(name for name in names if name not in NEEDED), *peers.SWITCHES]


def variants(case: zoo.Case, names: list[str], threads: int) -> dict[str, Any]:
    """A contender for each variant, the whole compiler first; those that fail are texts."""
    running: dict[str, Any] = {}
    for name in ("", *names):
        try:
            running[name] = peers.Contender(
                "tilewright", case.model, case.inputs, threads, BENCH_WITHOUT=name
            )
        except RuntimeError as error:
            running[name] = str(error)
    return running


def ablate(case: zoo.Case, names: list[str], options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds without each optimization; under "" with all."""
    running = variants(case, names, options.threads)
    live = {name: one for name, one in running.items() if not isinstance(one, str)}
    for name, reason in running.items():
        if isinstance(reason, str):
            Console().print(f"{case.name} without {name}: {reason}", markup=False)
    best = dict.fromkeys(live, math.inf)
    try:
        if "" in live:
            for name in same_code(live):
                live.pop(name).stop()
                best[name] = SAME
            turns(live, best, options.seconds, options.in_front)
            close = {n: live[n] for n in live if n == "" or best[n] < best[""]}
            if len(close) > 1:  # noise, or harm: a longer look tells
                turns(close, best, 2 * options.seconds, options.in_front)
    finally:
        for contender in live.values():
            contender.stop()
    return best


def same_code(live: dict[str, Any]) -> list[str]:
    """The variants that are what they are without leaving anything out."""
    programs = {name: contender.ask("program")["program"] for name, contender in live.items()}
    return [name for name in live if name and programs[name] == programs[""]]


def turns(live: dict[str, Any], best: dict[str, float], seconds: float, in_front: bool) -> None:
    """Let all run in turns, and keep the least times."""
    for _ in range(ROUNDS):
        for name, contender in live.items():
            contender.in_front(in_front)
            best[name] = min(best[name], *contender.ask(f"run {seconds / ROUNDS}")["times_ms"])
            contender.in_front(False)


def measure(options: argparse.Namespace) -> list[Figure]:
    zoo.ensure_models(options.zoo, options.only)
    names = options.without or (optimizations() if options.all else list(NAMED))
    results: dict[str, dict[str, float]] = {}
    cases = zoo.cases_of(options.zoo, options.only)
    for case in track(cases, "measuring", console=Console(stderr=True)):
        found = ablate(case, names, options)
        if "" in found:
            results[case.name] = found
    _show(results, names)
    return _figures(results, names)


def _show(results: dict[str, dict[str, float]], names: list[str]) -> None:
    table = Table("without", *results)
    table.add_row("nothing, ms", *(f"{found['']:.3g}" for found in results.values()))
    for name in names:
        cells = []
        for found in results.values():
            if found.get(name) == SAME:
                cells.append("=")
                continue
            factor = found[name] / found[""] if name in found else math.nan
            colour = "red" if factor < NOISE else "green" if factor > 1.03 else ""
            cells.append(f"[{colour}]{factor:.2f}[/]" if colour else f"{factor:.2f}")
        table.add_row(name, *cells)
    Console(width=200).print(table, "factors: time without / time with")


def _figures(results: dict[str, dict[str, float]], names: list[str]) -> list[Figure]:
    figures = []
    for name in names:
        factors = {
            model: found[name] / found[""] if found[name] != SAME else 1.0
            for model, found in results.items()
            if name in found
        }
        if not factors:
            continue
        mean = math.exp(statistics.fmean(math.log(factor) for factor in factors.values()))
        figures.append(Figure(f"{name}: mean factor", mean, "x"))
        worst = min(factors, key=lambda model: factors[model])
        figures.append(report.at_least(f"{name}: least, {worst}", factors[worst], "x", NOISE))
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", type=Path, default=zoo.DEFAULT, help="a folder of models")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without", nargs="*", help="passes and switches")
    parser.add_argument("--all", action="store_true", help="all that can be left out")
    parser.add_argument("--in-front", action="store_true", help="before all other work")
    parser.add_argument("--seconds", type=float, default=1.5, help="per variant and model")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
