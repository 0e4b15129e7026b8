"""Common entry point of all importers; determines a model's kind without importing frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from os import PathLike
from os.path import splitext
from typing import Any

from tilewright.base.errors import UserError
from tilewright.graph import ir
from tilewright.runtime.module import Module

GRAPH, ONNX, TORCH = "graph", "onnx", "torch"
_SUFFIXES = {".pt2": TORCH}
# Formats of others: what they are, and how their models get here.
_PICKLED = (
    "PyTorch's weights or TorchScript",
    "compile the model itself, or write it with torch.export.save(program, 'model.pt2')",
)
_KERAS = "a Keras model", "export it: model.export('model.onnx', format='onnx')"
_WEIGHTS = "weights without a model", "compile the model that loads them"
_FOREIGN = {
    ".tflite": (
        "a TensorFlow Lite model",
        "convert it: python -m tf2onnx.convert --tflite model.tflite --output model.onnx",
    ),
    **dict.fromkeys((".keras", ".h5", ".hdf5"), _KERAS),
    **dict.fromkeys((".pt", ".pth"), _PICKLED),
    **dict.fromkeys((".safetensors", ".gguf"), _WEIGHTS),
}
_EXTRAS = {TORCH: ("PyTorch", "torch")}  # framework's name, and the extra that installs it


@dataclass(frozen=True)
class Opened:
    """An imported model: graph, known sizes, and the type of its results."""

    graph: ir.Module
    dynamic: Mapping[str, int | tuple[int, int]] | None = None
    wrap: Callable[[Module], Module] = field(default=lambda module: module)


def kind_of(model: Any) -> str:
    """The importer of a model."""
    if isinstance(model, ir.Module):
        return GRAPH
    if isinstance(model, (str, PathLike)):
        check_format(model)
        return next((k for suffix, k in _SUFFIXES.items() if str(model).endswith(suffix)), ONNX)
    roots = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    return TORCH if "torch" in roots else ONNX


def open_model(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Any = None,
    again: Callable[..., Module] | None = None,
) -> Opened:
    """Import a model of any kind; `args` and `kwargs` are example inputs for tracing.

    `again` compiles further graphs of the model with the same options.
    """
    kind = kind_of(model)
    if kind == TORCH:
        check_installed(kind, model)
        from tilewright.frontends.torch import import_program  # torch takes seconds to import

        imported = import_program(model, args, kwargs, dynamic, again)
        return Opened(imported.module, imported.ranges, imported.wrap)
    if args is not None or kwargs is not None:
        raise UserError("TW1126", "example inputs are for models that must be traced")
    if isinstance(dynamic, bool) or any(isinstance(x, Mapping) for x in (dynamic or {}).values()):
        raise UserError(
            "TW6005", "this model names its own sizes", help='dynamic={"batch": (1, 64)}'
        )
    if kind == GRAPH:
        return Opened(model, dynamic)
    from tilewright.frontends.onnx import import_model  # onnx is slow to import

    return Opened(import_model(model), dynamic)


def check_format(path: str | PathLike[str]) -> None:
    """Check that a file is not of a known format that no importer reads."""
    what = _FOREIGN.get(splitext(path)[1].lower())
    if what is not None:
        raise UserError(
            "TW1128",
            f"{path} is {what[0]}; ONNX (.onnx, .ort) and PyTorch (.pt2) models are read",
            help=what[1],
        )


def check_installed(kind: str, model: Any) -> None:
    """Check that the framework of a kind is installed."""
    name, extra = _EXTRAS[kind]
    if find_spec(extra) is None:
        raise UserError(
            "TW1127",
            f"reading {model if isinstance(model, (str, PathLike)) else type(model).__name__} "
            f"needs {name}",
            help=f"pip install 'tilewright[{extra}]'",
        )
