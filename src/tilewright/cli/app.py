"""The list of commands."""

from __future__ import annotations

import typer

from tilewright.cli import accel
from tilewright.cli.bench import bench
from tilewright.cli.bisect import bisect
from tilewright.cli.cache import cache
from tilewright.cli.compile import compile
from tilewright.cli.demo import demo
from tilewright.cli.doctor import doctor
from tilewright.cli.inspect import inspect
from tilewright.cli.opt import opt
from tilewright.cli.ort import ort
from tilewright.cli.records import records
from tilewright.cli.report import report
from tilewright.cli.run import run
from tilewright.cli.targets import targets
from tilewright.cli.tune import tune
from tilewright.cli.worker import worker

COMMANDS = (
    compile,
    run,
    bench,
    tune,
    records,
    worker,
    inspect,
    report,
    bisect,
    targets,
    doctor,
    cache,
    demo,
    opt,
)
# Arguments after PROGRAM are passed on unchanged.
FORWARDING = {"allow_interspersed_args": False}

app = typer.Typer(
    help="An optimizing compiler for deep learning models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in COMMANDS:
    app.command()(command)
app.command(context_settings=FORWARDING)(ort)
app.add_typer(accel.app, name="accel")


def main() -> None:
    app()
