"""Shared by the commands: options, errors, progress, inputs, output as tables or JSON."""

from __future__ import annotations

import ast
import functools
import json
import operator
import os
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.base.errors import TilewrightError, UserError
from tilewright.driver.load import load
from tilewright.runtime.module import Module, Spec

if TYPE_CHECKING:
    from tilewright.graph.ir import Module as GraphModule

F = TypeVar("F", bound=Callable[..., Any])
Array = np.ndarray[Any, Any]
LIBRARIES = (".so", ".dylib")

Model = Annotated[Path, typer.Argument(help="An .onnx or .pt2 file, a .tw graph, or a saved .so.")]
Source = Annotated[Path, typer.Argument(help="An .onnx or .pt2 file, or a .tw graph.")]
Target = Annotated[str, typer.Option(help="The target to compile for; see `tilewright targets`.")]
Threads = Annotated[int, typer.Option(min=0, help="Number of threads; 0: all cores.")]
Precision = Annotated[
    str, typer.Option(help="Precision: f32, bf16, int8; bf16x6 on CPUs; f16, tf32 on GPUs.")
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="PASS", help="Disable a pass; `inspect` lists them."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Inputs = Annotated[
    Path | None, typer.Option("--inputs", help="An .npz of inputs by name; default: random.")
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="A dynamic size of random inputs (else 1)."),
]
Seed = Annotated[int, typer.Option(help="Seed of random inputs.")]

console = Console(stderr=True)


def output() -> Console:
    """The console of results; tables are not truncated when redirected to a file."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)


def json_text(data: Any) -> str:
    return json.dumps(data, indent=1, default=str)


def print_json(data: Any) -> None:
    print(json_text(data))


def command(function: F) -> F:
    """Make a command report errors as messages, with exit code 1."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TilewrightError as error:
            if os.environ.get("TILEWRIGHT_TRACEBACK") == "full":
                traceback.print_exc()
            console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None

    return run  # type: ignore[return-value]


# --------------------------------------------------------------------------- progress


@contextmanager
def progress(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal, moved by `callback(stage, count, total)`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def move(stage: str, count: int, total: int) -> None:
            bar.update(task, description=f"{what}: {stage}", completed=count, total=total)

        yield move


# --------------------------------------------------------------------------- models


def read_graph(path: Path) -> GraphModule:
    """The graph of a model before any pass."""
    if path.suffix in LIBRARIES:
        raise UserError(
            "TW6033", f"{path} holds only native code", help="give the model it was made from"
        )
    if path.suffix == ".tw":
        from tilewright.graph.parser import parse

        return parse(read_text(path), path=str(path))
    from tilewright.driver.optimize import load_graph

    return load_graph(path)


def source_of(path: Path) -> GraphModule | Path:
    """What `tilewright.compile` takes for a file that is no library."""
    return read_graph(path) if path.suffix in (".tw", *LIBRARIES) else path


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("TW6030", f"cannot read {path}: {error}") from error


def check_folder(*paths: Path | None) -> None:
    """Reject files that cannot be written for want of a folder, before the work that fills them."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise UserError(
                "TW6012",
                f"cannot write {path}: there is no folder {path.parent}",
                help="name an existing folder",
            )


def write_arrays(path: Path, names: Sequence[str], arrays: Sequence[Any]) -> None:
    """An .npz file, as `numpy.savez` writes it; unlike there, an array may have any name."""
    path = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
    with writing(path), zipfile.ZipFile(path, "w") as archive:
        for name, array in zip(names, arrays, strict=True):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert OS errors of writing a file to a user error."""
    try:
        yield
    except OSError as error:
        raise UserError(
            "TW6012", f"cannot write {path}: {error.strerror}", help="name an existing folder"
        ) from error


def read_module(
    path: Path,
    target: str = "cpu",
    threads: int = 0,
    precision: str = "f32",
    without: Sequence[str] | None = None,
) -> Module:
    """Compile a model, or load it if it is a saved library; outputs are returned as a tuple."""
    if path.suffix in LIBRARIES:
        loaded = load(path)
        if not isinstance(loaded, Module):
            raise UserError("TW6021", f"{path} holds functions, not a model")
        loaded.threads = threads
        return loaded
    from tilewright.driver.compile import compile

    source = source_of(path)
    with progress(f"compiling {path.name}") as move:
        return compile(
            source,
            target,
            threads=threads,
            precision=precision,
            without=tuple(without or ()),
            progress=move,
        ).flat


# --------------------------------------------------------------------------- inputs


def make_inputs(
    specs: Sequence[Spec], file: Path | None, dims: Sequence[str] | None, seed: int
) -> list[Any]:
    """Inputs of a model: from a file, or random."""
    if file is not None:
        return _from_file(specs, file)
    from tilewright.driver.sizes import check_size_names

    sizes = _sizes(dims)
    check_size_names(sizes, [name for spec in specs for dim in spec.shape for name in _names(dim)])
    return random_inputs(specs, sizes, seed)


def random_inputs(specs: Sequence[Spec], sizes: Mapping[str, int], seed: int = 0) -> list[Array]:
    """Random input: normally distributed floats; small integers, which are valid indices in most
    models."""
    random = np.random.default_rng(seed)
    made = []
    for spec in specs:
        if spec.dtype is None or spec.kind or spec.dtype.is_str:
            raise UserError(
                "TW6031", f"there are no random inputs for {spec}", help="give --inputs"
            )
        shape = [_extent(dim, sizes) for dim in spec.shape]
        if spec.dtype.kind == "float":
            value: Array = random.standard_normal(shape).astype(spec.dtype.numpy)
        else:
            value = random.integers(0, 2, shape).astype(spec.dtype.numpy)
        made.append(value)
    return made


def _sizes(dims: Sequence[str] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in dims or ():
        name, _, size = text.partition("=")
        if not size.isdecimal():
            raise typer.BadParameter(f"{text!r} is not NAME=SIZE", param_hint="--dim")
        found[name] = int(size)
    return found


def _names(dim: int | str) -> list[str]:
    """The names in a dimension: itself, or those of an expression."""
    if isinstance(dim, int):
        return []
    try:
        found = [each.id for each in ast.walk(ast.parse(dim)) if isinstance(each, ast.Name)]
    except SyntaxError:  # an ONNX name, which may contain any characters
        found = []
    return found or [dim]


_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _extent(dim: int | str, sizes: Mapping[str, int]) -> int:
    """Evaluate a dimension; sizes that are not given are 1."""
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
                return _OPERATIONS[type(op)](value(left), value(right))
            case ast.Name(id=name):
                return sizes.get(name, 1)
            case _:
                return 1

    try:
        return max(0, value(ast.parse(dim, mode="eval").body))
    except SyntaxError:  # an ONNX name, which may contain any characters
        return 1


def _from_file(specs: Sequence[Spec], file: Path) -> list[Any]:
    try:
        with file.open("rb") as opened, np.load(opened) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError("TW6030", f"cannot read {file}: {error}") from error
    missing = [spec.name for spec in specs if spec.name not in arrays]
    if missing:
        raise UserError(
            "TW6032",
            f"{file} lacks the inputs {', '.join(missing)}",
            help=f"it has {', '.join(arrays)}",
        )
    return [arrays[spec.name] for spec in specs]


def describe(specs: Sequence[Spec]) -> list[dict[str, Any]]:
    """Describe inputs or outputs for JSON."""
    return [
        {"name": spec.name, "type": spec.kind or str(spec.dtype), "shape": list(spec.shape)}
        for spec in specs
    ]
