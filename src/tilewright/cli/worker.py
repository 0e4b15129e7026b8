"""tilewright worker"""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli import common


@common.command
def worker(
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="What this machine is, for who asks for it.")
    ] = None,
    memory_gb: Annotated[float, typer.Option(help="Memory that it may take.")] = 64.0,
) -> None:
    """Measure for a tuner on another machine: tasks come in on the input, answers go out.

    It listens on no port: `tilewright tune MODEL --fleet "ssh host tilewright worker"` starts it.
    With TILEWRIGHT_FLEET_TOKEN in its environment it serves only who knows the token.
    """
    from tilewright.driver.tuning.model_worker import HANDLERS
    from tilewright.tune.fleet.worker import serve_here

    serve_here(HANDLERS, tag or (), memory_gb)
