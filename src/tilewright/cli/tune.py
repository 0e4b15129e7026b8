"""tilewright tune MODEL --budget 5m"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from tilewright.base.errors import UserError
from tilewright.cli import common
from tilewright.cli.common import Json, Model, Precision, Target, Threads, Without
from tilewright.tune.budget import Budget
from tilewright.tune.database import default_path
from tilewright.tune.tuner import Outcome, Snapshot

SHOWN = 16  # kernels in the table while it goes on


@common.command
def tune(
    model: Model,
    budget: Annotated[str, typer.Option(help="How long it may take: 90s, 5m, 1h.")] = "5m",
    target: Target = "cpu",
    threads: Threads = 0,
    precision: Precision = "f32",
    without: Without = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim", metavar="NAME=SIZE,...", help="Dynamic sizes to measure at, in turn (else 1)."
        ),
    ] = None,
    db: Annotated[
        Path | None, typer.Option("--db", help="The file of records; the user's otherwise.")
    ] = None,
    json: Json = False,
) -> None:
    """Find faster schedules for a model's kernels, and keep them for every later compilation.

    Every candidate is checked and timed inside the whole model, in turns with the best so far.
    Ctrl-C ends it and keeps what was found; the same command goes on from there.
    """
    allowed = Budget.parse(budget)
    from tilewright.driver.compile import compile

    source = checked_source(model)
    database = db if db is not None else default_path()
    with _live(quiet=json) as show:
        module = compile(
            source,
            target,
            threads=threads,
            precision=precision,
            without=tuple(without or ()),
            tune=allowed,
            database="" if database is None else database,
            sizes=sizes_of(dim),
            tuning=show,
        )
    inside: Any = module
    outcome: Outcome = inside.inside.tuning
    told = describe(outcome) | {"database": str(database or "")}
    if json:
        common.print_json(told)
        return
    out = common.output()
    out.print(_table(outcome.tasks, len(outcome.tasks)))
    _summary(outcome, database)


def checked_source(model: Path) -> Any:
    """What is compiled: a model, and no library."""
    if model.suffix in common.LIBRARIES:
        raise UserError(
            "TW5012", f"{model} is compiled already", help="tune the model it was made from"
        )
    return common.read_graph(model) if model.suffix == ".tw" else model


def sizes_of(dims: list[str] | None) -> dict[str, list[int]]:
    """Sizes by name, from `--dim NAME=SIZE,SIZE`."""
    found: dict[str, list[int]] = {}
    for text in dims or ():
        name, _, sizes = text.partition("=")
        if not all(each.isdigit() for each in sizes.split(",")):
            raise typer.BadParameter(f"{text!r} is not NAME=SIZE,...", param_hint="--dim")
        found[name] = [int(each) for each in sizes.split(",")]
    return found


@contextmanager
def _live(quiet: bool) -> Iterator[Any]:
    """A table on the terminal that follows what the tuner tells."""
    if quiet:
        yield lambda snapshot: None
        return
    with Live(console=common.console, transient=True, refresh_per_second=4) as live:

        def show(snapshot: Snapshot) -> None:
            table = _table(snapshot.tasks, SHOWN)
            spent = f"{snapshot.seconds:.0f} of {snapshot.budget_s:.0f} s"
            room = f", {snapshot.left:.1%} may be left to gain" if snapshot.tasks else ""
            table.title = f"{snapshot.stage} ({spent}{room})"
            live.update(table)

        yield show


def _table(tasks: Any, count: int) -> Table:
    table = Table("kernel", "us", "tuned", "gain", "trials", "failed", title_justify="left")
    for each in sorted(tasks, key=lambda task: -task.baseline_ns)[:count]:
        table.add_row(
            each.label,
            f"{each.baseline_ns / 1e3:.1f}",
            f"{each.best_ns / 1e3:.1f}",
            f"{each.gain:.2f}x" if each.wins else "",
            str(each.trials),
            str(each.failed),
        )
    return table


def _summary(outcome: Outcome, database: Path | None) -> None:
    out = common.output()
    tried = f"{outcome.trials} candidates ({outcome.failed} failed) in {outcome.seconds:.0f} s"
    out.print(f"{tried}, cost model: {outcome.model or 'none'}; {outcome.stopped}")
    if outcome.winners:
        sure = f"at least {outcome.least_gain:.2f}x with 95% confidence"
        out.print(f"the whole model runs {outcome.gain:.2f}x as fast ({sure})")
        out.print(f"{len(outcome.winners)} kernels are kept in {database or 'memory alone'}")
    else:
        out.print("nothing faster than the default was found")
    for note in outcome.notes:
        out.print(note, style="yellow", markup=False)


def describe(outcome: Outcome) -> dict[str, Any]:
    """All of it for JSON."""
    return {
        "gain": outcome.gain,
        "least_gain": outcome.least_gain,
        "seconds": outcome.seconds,
        "trials": outcome.trials,
        "failed": outcome.failed,
        "model": outcome.model,
        "stopped": outcome.stopped,
        "notes": list(outcome.notes),
        "kernels": [
            {
                "kernel": each.name,
                "label": each.label,
                "untuned_us": each.baseline_ns / 1e3,
                "tuned_us": each.best_ns / 1e3,
                "trials": each.trials,
                "failed": each.failed,
                "choices": dict(outcome.winners[each.name].choices)
                if each.name in outcome.winners
                else {},
            }
            for each in outcome.tasks
        ],
    }
