"""tilewright tune MODEL --budget 5m"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from tilewright.base.errors import UserError
from tilewright.cli import common
from tilewright.cli.common import Json, Precision, Source, Target, Threads, Without
from tilewright.cli.records import skipped_note

if TYPE_CHECKING:  # imported lazily: loading the tuner would slow down every command
    from tilewright.tune.fleet import Fleet
    from tilewright.tune.outcome import Outcome, Snapshot

SHOWN = 16  # kernels in the table of progress
RAY = "ray://"
TUNED = "tuned"  # the run whose results are kept, beside those of --compare


@common.command
def tune(
    model: Source,
    budget: Annotated[str, typer.Option(help="Time limit: 90s, 5m, 1h.")] = "5m",
    target: Target = "cpu",
    threads: Threads = 0,
    precision: Precision = "f32",
    without: Without = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim", metavar="NAME=SIZE,...", help="Dynamic sizes to measure at (default: 1)."
        ),
    ] = None,
    db: Annotated[
        Path | None, typer.Option("--db", help="The database file; default: the user's.")
    ] = None,
    allow_blas: Annotated[
        bool,
        typer.Option("--allow-blas", help="Include BLAS calls, for modules compiled with it."),
    ] = False,
    fleet: Annotated[
        list[str] | None,
        typer.Option(
            "--fleet",
            metavar="COMMAND",
            help="Measure on other machines: a command that runs `tilewright worker` there "
            '("ssh host tilewright worker"), several times for several; or one cluster, '
            "ray://HOST:PORT?workers=4&cores=2 (default: as many workers as fit, with as "
            "many cores as threads).",
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="SEARCH",
            help="Also tune with this search, from scratch and with the same budget, and print "
            "curves: ranked, evolution, annealing, random, grid.",
        ),
    ] = None,
    cost_model: Annotated[
        str,
        typer.Option(
            "--cost-model",
            help="The cost model: trees, rank (pairwise ranking trees), gaussian, treegru, "
            "estimate (analytical only); default: the best one installed.",
        ),
    ] = "",
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with curves, choices, rooflines.")
    ] = None,
    json: Json = False,
) -> None:
    """Search for faster schedules of a model's kernels, and store them for later compilations.

    Every candidate is checked, and timed inside of the whole model in alternation with the best so
    far. Ctrl-C ends the search and keeps its results; the same command continues.
    """
    from tilewright.tune.budget import Budget
    from tilewright.tune.database import default_path

    allowed = Budget.parse(budget)
    _check_output(compare, html)
    asked = {
        "threads": threads,
        "precision": precision,
        "without": tuple(without or ()),
        "tune": allowed,
        "sizes": sizes_of(dim),
        "cost_model": cost_model,
        "allow_blas": allow_blas,
    }
    source = checked_source(model)
    database = db if db is not None else default_path()
    with (
        reporting_interrupts(database),
        opened_fleet(fleet, threads) as machines,
        _live(quiet=json) as show,
    ):
        asked |= {"fleet": machines, "tuning": show}
        runs = _tuned(source, target, asked, database, compare or ())
    if html is not None:
        _write_page(html, model.name, runs, target, threads)
    if json:
        common.print_json(_described(runs, database))
    else:
        _show(runs, database, allowed.seconds)


def _check_output(compare: list[str] | None, html: Path | None) -> None:
    """Reject, before tuning, unknown searches, and a page that cannot be written."""
    from tilewright.tune.search import strategy

    for name in compare or ():
        strategy(name)
    if html is not None:
        from tilewright.report import check_charts

        common.check_folder(html)
        check_charts()


def _tuned(
    source: Any, target: str, asked: dict[str, Any], database: Path | None, compare: Sequence[str]
) -> dict[str, Outcome]:
    """The outcome of tuning, and those of other searches from scratch."""
    from tilewright.driver.compile import compile
    from tilewright.tune.database import Database
    from tilewright.tune.outcome import INTERRUPTED

    def tuned(search: str, records: Any) -> Outcome:
        module: Any = compile(source, target, search=search, database=records, **asked)
        made: Outcome = module.tuning
        return made

    runs = {TUNED: tuned("ranked", "" if database is None else database)}
    for name in compare if runs[TUNED].stopped != INTERRUPTED else ():
        with Database() as empty:
            runs[name] = tuned(name, empty)
    return runs


@contextmanager
def reporting_interrupts(database: Path | None) -> Iterator[None]:
    """Handle Ctrl-C outside of the tuner: measurements are stored as they are made."""
    try:
        yield
    except KeyboardInterrupt:
        where = database or "memory only, and lost"
        common.console.print(f"interrupted; the records so far are in {where}")
        raise typer.Exit(130) from None


@contextmanager
def opened_fleet(commands: list[str] | None, threads: int) -> Iterator[Fleet | None]:
    """Workers started by commands, or on a cluster with `threads` cores each; None if no fleet is
    given."""
    if not commands:
        yield None
        return
    from tilewright.tune.fleet import Fleet

    clusters = [each for each in commands if each.startswith(RAY)]
    if clusters and len(commands) > 1:
        raise typer.BadParameter(
            "a cluster cannot be combined with other workers", param_hint="--fleet"
        )
    if clusters:
        from tilewright.driver.tuning.model_worker import ModelActor
        from tilewright.runtime.pool import threads as default_threads
        from tilewright.tune.fleet.cluster import ray_fleet

        address, cores = clusters[0].removeprefix(RAY), threads or default_threads()
        fleet: Fleet = ray_fleet(address, cores=cores, kind=ModelActor)
    else:
        fleet = Fleet.from_commands([shlex.split(each) for each in commands])
    with fleet:
        yield fleet


def _write_page(
    path: Path, name: str, runs: Mapping[str, Outcome], target: str, threads: int
) -> None:
    from tilewright.base.target import Target as Parsed
    from tilewright.report import write_tuning_page
    from tilewright.runtime.pool import threads as default_threads

    with common.writing(path):
        write_tuning_page(path, name, runs, Parsed.parse(target), threads or default_threads())


def _described(runs: Mapping[str, Outcome], database: Path | None) -> dict[str, Any]:
    """All runs for JSON."""
    report = describe(runs[TUNED]) | {"database": str(database or "")}
    if len(runs) > 1:
        report["compared"] = {name: list(each.curve) for name, each in runs.items()}
    return report


def _show(runs: Mapping[str, Outcome], database: Path | None, budget_s: float) -> None:
    out, outcome = common.output(), runs[TUNED]
    out.print(_table(outcome.tasks, len(outcome.tasks)))
    if len(runs) > 1:
        out.print(curves_table(runs, budget_s))
    _summary(outcome, database)


def curves_table(runs: Mapping[str, Outcome], budget_s: float) -> Table:
    """The speedup of every search at fractions of the budget."""
    shares = (0.1, 0.25, 0.5, 0.75, 1.0)
    table = Table("search", *(f"{share * budget_s:.0f} s" for share in shares), "trials")
    for name, outcome in runs.items():
        gains = [
            max([gain for at, gain in outcome.curve if at <= share * budget_s], default=1.0)
            for share in shares
        ]
        table.add_row(name, *(f"{gain:.3f}" for gain in gains), str(outcome.trials))
    return table


def checked_source(model: Path) -> Any:
    """The model to tune, which must not be a compiled library."""
    if model.suffix in common.LIBRARIES:
        raise UserError(
            "TW5012", f"{model} is compiled already", help="tune the model it was made from"
        )
    return common.source_of(model)


def sizes_of(dims: list[str] | None) -> dict[str, list[int]]:
    """Parse sizes by name, from `--dim NAME=SIZE,SIZE`."""
    found: dict[str, list[int]] = {}
    for text in dims or ():
        name, _, sizes = text.partition("=")
        if not all(each.isdecimal() for each in sizes.split(",")):
            raise typer.BadParameter(f"{text!r} is not NAME=SIZE,...", param_hint="--dim")
        found[name] = [int(each) for each in sizes.split(",")]
    return found


@contextmanager
def _live(quiet: bool) -> Iterator[Any]:
    """A live table of the tuner's progress."""
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
    if outcome.winners or outcome.graph_gain > 1.0:
        sure = f"at least {outcome.least_gain:.2f}x with 95% confidence"
        out.print(f"the whole model runs {outcome.gain:.2f}x as fast ({sure})")
        if outcome.graph_gain > 1.0:
            out.print(f"graph choices alone make it {outcome.graph_gain:.2f}x as fast")
        out.print(f"{len(outcome.winners)} kernels are kept in {database or 'memory only'}")
    else:
        out.print("nothing faster than the default was found")
    for note in filter(None, [*outcome.notes, skipped_note(database)]):
        out.print(note, style="yellow", markup=False)


def describe(outcome: Outcome) -> dict[str, Any]:
    """The outcome for JSON."""
    return {
        "gain": outcome.gain,
        "least_gain": outcome.least_gain,
        "graph_gain": outcome.graph_gain,
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
