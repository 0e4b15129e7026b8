"""tilewright report MODEL -o report.html"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import common
from tilewright.cli.common import (
    Dims,
    Inputs,
    Json,
    Precision,
    Seed,
    Source,
    Target,
    Threads,
    Without,
)


@common.command
def report(
    model: Source,
    out: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    inputs: Inputs = None,
    dim: Dims = None,
    seed: Seed = 0,
    target: Target = "cpu",
    threads: Threads = 0,
    precision: Precision = "f32",
    without: Without = None,
    against: Annotated[
        Path | None, typer.Option(help="A model to compare with; may be the same one.")
    ] = None,
    against_precision: Annotated[str, typer.Option(help="Precision of --against.")] = "",
    against_without: Annotated[
        list[str] | None, typer.Option(metavar="PASS", help="A pass to disable in --against.")
    ] = None,
    json: Json = False,
) -> None:
    """Write an HTML page about a model: graph by time, kernels at every stage, roofline, memory."""
    common.check_folder(out)
    from tilewright.report import collect, write_page

    def made(path: Path, precision: str, without: list[str] | None) -> Any:
        source = common.source_of(path)
        with common.progress(f"reporting on {path.name}") as move:
            return collect(
                source,
                lambda module: common.make_inputs(module.inputs, inputs, dim, seed),
                name=path.name,
                target=target,
                threads=threads,
                precision=precision,
                without=without or (),
                progress=move,
            )

    collected = made(model, precision, without)
    other = None
    if against is not None:
        other = made(against, against_precision or precision, against_without)
    with common.writing(out):
        write_page(collected, out, other)
    if json:
        common.print_json(
            {
                "report": str(out),
                "bytes": out.stat().st_size,
                "kernels": len(collected.stages),
                "boxes": len(collected.boxes),
            }
        )
    else:
        size = out.stat().st_size / 1e6
        common.output().print(f"{out}: {len(collected.stages)} kernels, {size:.1f} MB")
