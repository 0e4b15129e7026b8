"""The commands in one list."""

from __future__ import annotations

import typer

from tilewright.cli import accel
from tilewright.cli.bench import bench
from tilewright.cli.bisect import bisect
from tilewright.cli.compile import compile
from tilewright.cli.demo import demo
from tilewright.cli.inspect import inspect
from tilewright.cli.opt import opt
from tilewright.cli.run import run
from tilewright.cli.targets import targets

COMMANDS = (compile, run, bench, inspect, bisect, targets, demo, opt)

app = typer.Typer(
    help="An optimizing compiler for deep learning models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(accel.app, name="accel")


def main() -> None:
    app()
