"""tilewright bisect MODEL"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from tilewright.base.passes import pass_name
from tilewright.base.target import CPU, CUDA
from tilewright.base.target import Target as Machine
from tilewright.cli import common
from tilewright.cli.common import Dims, Inputs, Json, Precision, Seed, Source, Target, Threads
from tilewright.runtime.cuda import is_available


@common.command
def bisect(
    model: Source,
    inputs: Inputs = None,
    dim: Dims = None,
    seed: Seed = 0,
    target: Target = "cpu",
    threads: Threads = 0,
    precision: Precision = "f32",
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="File of the reduced model (.tw).")
    ] = None,
    trials: Annotated[int, typer.Option(min=0, help="Number of reductions to try.")] = 300,
    json: Json = False,
) -> None:
    """Find the first pass that changes a model's results, and reduce the model to a small example.

    Exit code 1 if a pass is found.
    """
    from tilewright.codegen.build import can_run
    from tilewright.driver import bisect as driver
    from tilewright.driver.build import build_module, spec_of
    from tilewright.driver.compile import check_target
    from tilewright.driver.optimize import pass_context
    from tilewright.driver.options import Options
    from tilewright.driver.pipelines import passes_of

    common.check_folder(out)
    machine = Machine.parse(target)
    check_target(machine, precision)
    passes = passes_of(machine, precision)
    runs = is_available() if machine.kind == CUDA else machine.kind == CPU and can_run(machine)
    graph = common.read_graph(model)
    specs = [spec_of(value, value.name) for value in graph.given]
    arrays = common.make_inputs(specs, inputs, dim, seed)

    options = Options(threads=threads, precision=precision)

    def native(schedule: bool) -> driver.Run:
        def run(part: Any, given: Any) -> list[Any]:
            made = build_module(part, machine, replace(options, schedule=schedule))(*given)
            return [np.asarray(v) if hasattr(v, "__array__") else v for v in made]

        return run

    with common.progress("bisecting") as move:
        found = driver.bisect(
            graph,
            arrays,
            passes,
            native=native(True) if runs else None,
            plain=native(False) if runs else None,
            ctx=lambda: pass_context(machine, options),
            trials=trials,
            report=move,
        )
    written = _write(found, out or Path(f"{model.stem}.bisect.tw"), [pass_name(p) for p in passes])
    if json:
        common.print_json(_report(found, written) | {"native": runs})
    else:
        _show(found, written, "" if runs else f"{machine} is not run here")
    if found.culprit:
        raise typer.Exit(1)


def _write(found: Any, path: Path, passes: list[str]) -> Path | None:
    """Write the reduced model as text, and its inputs."""
    if found.reproducer is None:
        return None
    if found.culprit in passes:
        passes = passes[: passes.index(found.culprit) + 1]
    with common.writing(path):
        path.write_text(f"// passes: {','.join(passes)}\n{found.reproducer}\n")
    names = [value.name for value in found.reproducer.main.params]
    common.write_arrays(path.with_suffix(".npz"), names, found.inputs)
    return path


def _report(found: Any, written: Path | None) -> dict[str, Any]:
    small = found.reproducer
    return {
        "culprit": found.culprit,
        "difference": found.difference,
        "reason": found.reason,
        "steps": [{"pass": name, "difference": off} for name, off in found.steps],
        "triggers": list(found.triggers),
        "reproducer": None if written is None else str(written),
        "nodes": None if small is None else len(small.main.nodes),
    }


def _show(found: Any, written: Path | None, not_run: str) -> None:
    out = common.output()
    table = Table("after pass", "difference")
    for name, off in found.steps:
        table.add_row(name, f"{off:.3g}")
    out.print(table)
    if not found.culprit:
        native = f"native code: {not_run or format(found.difference, '.3g')}"
        out.print(f"[green]no pass changes the answer[/]; {native}")
        return
    word = {"code": "code generation", "schedule": "a schedule"}.get(found.culprit, "")
    out.print(f"[red]the answer changes in {word or 'the pass ' + found.culprit}[/] {found.reason}")
    if found.triggers:
        out.print(f"the answer is right without any of: {', '.join(found.triggers)}")
    if written is not None:
        out.print(f"{written} shows it with {len(found.reproducer.main.nodes)} nodes")
