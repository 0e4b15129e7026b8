"""The public names, by page of the API reference. Every one has an executed example."""

from __future__ import annotations

import importlib

# page -> (title, what it says first, module, names or None for the module's __all__)
PARTS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "models": (
        "Whole models",
        "From a file to native code, and back from a saved library.",
        "tilewright",
        ("compile", "load", "Module", "profile", "set_threads", "to_onnx"),
    ),
    "arrays": (
        "Arrays",
        "What models return: memory that NumPy and DLPack share without a copy.",
        "tilewright",
        ("Array", "array", "empty", "from_dlpack"),
    ),
    "session": (
        "InferenceSession",
        "The interface of ONNX Runtime.",
        "tilewright",
        (),  # whatever of the package lives in tilewright.session
    ),
    "te": (
        "Tensor expressions",
        "What a computation is: `from tilewright import te`.",
        "tilewright.te",
        (),
    ),
    "schedule": (
        "Schedules and programs",
        "How a computation runs, its native code and its reference semantics.",
        "tilewright",
        ("Schedule", "Trace", "build", "CompiledFunction", "interpret", "Target"),
    ),
    "tensor": ("The loop IR", "`from tilewright import tensor`.", "tilewright.tensor", ()),
    "graph": ("The graph IR", "`from tilewright import graph`.", "tilewright.graph", ()),
    "intrin": ("Tensor intrinsics", "`from tilewright import intrin`.", "tilewright.intrin", ()),
    "tune": (
        "Tuning",
        "`tw.tune`; [a guide](../../guides/tuning.md) tells how it is used.",
        "tilewright.tune",
        (),
    ),
    "errors": (
        "Errors",
        "What is raised; every code has [a page](../../errors/index.md).",
        "tilewright.base.errors",
        ("TilewrightError", "UserError", "Unsupported", "CompilerBug"),
    ),
}


def names_of(part: str) -> tuple[str, ...]:
    """The names on a page: those listed, or all that the module offers."""
    _, _, module, names = PARTS[part]
    if names:
        return names
    loaded = importlib.import_module(module)
    if part == "session":
        return tuple(n for n in loaded.__all__ if loaded._HOMES.get(n) == "ort")
    listed = getattr(loaded, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, value in vars(loaded).items()
            if not name.startswith("_")
            and str(getattr(value, "__module__", "")).startswith("tilewright")
            and (isinstance(value, type) or callable(value))
        ]
    return tuple(sorted(listed, key=str.lower))
