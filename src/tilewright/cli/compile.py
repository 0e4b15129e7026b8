"""tilewright compile MODEL -o model.so"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from tilewright.base.target import CUDA
from tilewright.base.target import Target as Machine
from tilewright.cli import common
from tilewright.cli.common import Json, Precision, Source, Target, Threads, Without


@common.command
def compile(
    model: Source,
    out: Annotated[Path, typer.Option("-o", "--output", help="model.so, model.o or model.h")],
    target: Target = "cpu",
    threads: Threads = 0,
    precision: Precision = "f32",
    without: Without = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE,SIZE", help="Values of a dynamic size to save for, on a GPU."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compile a model to a shared library, an object file or a C header."""
    from tilewright.codegen.artifact import check_path
    from tilewright.driver.compiled import SUFFIXES

    check_path(out, SUFFIXES)  # before compiling
    options: dict[str, Any] = {"sizes": _values(sizes)} if sizes else {}
    if options and Machine.parse(target).kind != CUDA:
        raise typer.BadParameter(
            "only libraries for GPUs are saved for given sizes", param_hint="--sizes"
        )
    begun = time.perf_counter()
    module = common.read_module(model, target, threads, precision, without)
    compiled = time.perf_counter()
    with common.progress(f"writing {out}"):
        path = module.save(out, **options)
    written = time.perf_counter()
    report = {
        "model": str(model),
        "output": str(path),
        "bytes": path.stat().st_size,
        "compile_s": compiled - begun,
        "write_s": written - compiled,
        "inputs": common.describe(module.inputs),
        "outputs": common.describe(module.outputs),
        "fallbacks": list(module.fallbacks),
    }
    if json:
        common.print_json(report)
        return
    table = Table(show_header=False, box=None)
    table.add_row("inputs", escape("\n".join(map(str, module.inputs))))
    table.add_row("outputs", escape("\n".join(map(str, module.outputs))))
    table.add_row("compiled", f"{compiled - begun:.2f} s")
    table.add_row("written", f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    common.output().print(table)


def _values(sizes: list[str] | None) -> dict[str, list[int]]:
    """`batch=1,8` as {"batch": [1, 8]}."""
    found = {}
    for text in sizes or ():
        name, _, values = text.partition("=")
        try:
            found[name] = [int(value) for value in values.split(",")]
        except ValueError:
            message = f"{text!r} is not NAME=SIZE,SIZE"
            raise typer.BadParameter(message, param_hint="--sizes") from None
    return found
