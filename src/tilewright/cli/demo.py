"""tilewright demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import common
from tilewright.cli.common import Json, Threads


@common.command
def demo(
    model: Annotated[Path | None, typer.Option(help="Another model than the one fetched.")] = None,
    threads: Threads = 0,
    seconds: Annotated[float, typer.Option(min=0, help="How long to measure.")] = 3.0,
    json: Json = False,
) -> None:
    """Fetch a small trained model, compile it, check it and time it."""
    from tilewright.cli.demo_model import run_demo

    if not run_demo(model, threads, seconds, json):
        raise typer.Exit(1)
