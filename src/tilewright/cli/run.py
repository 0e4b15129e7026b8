"""tilewright run MODEL"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from tilewright.cli import common
from tilewright.cli.common import (
    Dims,
    Inputs,
    Json,
    Model,
    Precision,
    Seed,
    Target,
    Threads,
    Without,
)
from tilewright.cli.function import run_function
from tilewright.cli.opt import MODEL


@common.command
def run(
    model: Model,
    inputs: Inputs = None,
    dim: Dims = None,
    seed: Seed = 0,
    target: Target = "cpu",
    threads: Threads = 0,
    precision: Precision = "f32",
    without: Without = None,
    interp: Annotated[bool, typer.Option("--interp", help="Interpret, don't compile.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare with the interpreter.")] = False,
    save: Annotated[Path | None, typer.Option(help="An .npz file for the outputs.")] = None,
    json: Json = False,
) -> None:
    """Run a model on random inputs or on those in a file; or a tensor function in .tw text."""
    common.check_folder(save)
    if model.suffix == ".tw" and not MODEL.search(common.read_text(model)):
        _finish(*run_function(model, inputs, dim, seed, target, threads, interp, check), save, json)
        return
    if interp or check:
        graph = common.read_graph(model)
    if interp:
        from tilewright.driver.build import spec_of

        specs = [spec_of(value, value.name) for value in graph.given]
        arrays = common.make_inputs(specs, inputs, dim, seed)
        names = list(graph.result_names[: len(graph.made)])
        made: list[Any] = list(_interpreted(graph, arrays))
    else:
        module = common.read_module(model, target, threads, precision, without)
        arrays = common.make_inputs(module.inputs, inputs, dim, seed)
        names = [spec.name for spec in module.outputs]
        made = [np.asarray(value) if hasattr(value, "__array__") else value
                for value in module(*arrays)]  # fmt: skip
    want = _interpreted(graph, arrays) if check and not interp else None
    _finish(names, made, want, save, json)


def _finish(names: list[str], made: list[Any], want: Any, save: Path | None, json: bool) -> None:
    """Print, save and check the outputs."""
    report: dict[str, Any] = {
        "outputs": [_summary(*pair) for pair in zip(names, made, strict=True)]
    }
    if want is not None:
        report["check"] = _checked(names, made, want)
    if save is not None:
        common.write_arrays(save, names, made)
    if json:
        common.print_json(report)
    else:
        _show(report)
    if any(not one["same"] for one in report.get("check", ())):
        raise typer.Exit(1)


def _interpreted(graph: Any, arrays: list[Any]) -> tuple[Any, ...]:
    from tilewright.graph.interp import interpret

    with common.progress("interpreting") as move:
        return interpret(graph, *arrays, progress=move)[: len(graph.made)]


def _checked(names: list[str], got: list[Any], want: tuple[Any, ...]) -> list[dict[str, Any]]:
    from tilewright.driver.compare import difference, is_close

    return [
        {"name": name, "difference": difference(a, b), "same": is_close(a, b)}
        for name, a, b in zip(names, got, want, strict=True)
    ]


def _summary(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS":
        return {"name": name, "type": type(value).__name__, "value": str(value)[:200]}
    summary: dict[str, Any] = {
        "name": name,
        "type": value.dtype.name,
        "shape": list(value.shape),
        "first": [item.item() for item in value.reshape(-1)[:6].astype(_plain(value))],
    }
    if value.size and value.dtype.name != "bool":
        numbers = value.astype(np.float64)
        summary |= {"min": float(numbers.min()), "max": float(numbers.max())}
        summary |= {"mean": float(numbers.mean())}
    return summary


def _plain(value: Any) -> Any:
    """Convert an element to a JSON type."""
    return value.dtype if value.dtype.kind in "biuf" else np.float64


def _show(report: dict[str, Any]) -> None:
    table = Table("output", "type", "shape", "min", "max", "mean", "first")
    for one in report["outputs"]:
        numbers = [f"{one[key]:.5g}" if key in one else "" for key in ("min", "max", "mean")]
        first = (
            ", ".join(f"{item:.5g}" for item in one["first"]) if "first" in one else one["value"]
        )
        shape = ", ".join(map(str, one.get("shape", ())))
        table.add_row(one["name"], one["type"], f"({shape})", *numbers, first)
    common.output().print(table)
    for one in report.get("check", ()):
        word = "[green]as the interpreter[/]" if one["same"] else "[red]not as the interpreter[/]"
        common.output().print(f"{one['name']}: {word}, difference {one['difference']:.3g}")
