"""tilewright worker"""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli import common


@common.command
def worker(
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="A tag of this machine, which tasks may require."),
    ] = None,
    memory_gb: Annotated[float, typer.Option(help="Memory limit in GB.")] = 64.0,
) -> None:
    """Measure candidates for a tuner on another machine, by tasks on standard input and results on
    standard output.

    No port is opened: `tilewright tune MODEL --fleet "ssh host tilewright worker"` starts it. With
    TILEWRIGHT_FLEET_TOKEN in its environment, clients must authenticate with the token.
    """
    from tilewright.driver.tuning.model_worker import HANDLERS
    from tilewright.tune.fleet.worker import serve_here

    serve_here(HANDLERS, tag or (), memory_gb)
