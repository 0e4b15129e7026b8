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
    text: Annotated[str, typer.Option(help="What is drawn, and read again.")] = TEXT,
    model: Annotated[
        Path | None, typer.Option(help="Another model than the one fetched, on random inputs.")
    ] = None,
    threads: Threads = 0,
    seconds: Annotated[float, typer.Option(min=0, help="How long to measure.")] = 3.0,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a page about the model here, too.")
    ] = None,
    json: Json = False,
) -> None:
    """Draw a line of text, and let a trained model that was just compiled read it."""
    from tilewright.cli.demo_model import run_demo

    if not run_demo(text, model, threads, seconds, report, json):
        raise typer.Exit(1)
