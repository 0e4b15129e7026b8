"""tilewright demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import common
from tilewright.cli.common import Json, Threads

TEXT = "Tilewright compiled this."


@common.command
def demo(
    text: Annotated[str, typer.Option(help="The text to draw and recognize.")] = TEXT,
    model: Annotated[Path | None, typer.Option(help="Another model, run on random inputs.")] = None,
    threads: Threads = 0,
    seconds: Annotated[float, typer.Option(min=0, help="Measuring time.")] = 3.0,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write a report about the model.")
    ] = None,
    json: Json = False,
) -> None:
    """Compile a trained text recognition model and run it on a drawn line of text."""
    from tilewright.cli.demo_model import run_demo

    if not run_demo(text, model, threads, seconds, report, json):
        raise typer.Exit(1)
