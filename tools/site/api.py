"""The API reference: one page per part, every public name, from the docstrings."""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from pathlib import Path

import griffe

SOURCES = Path(__file__).resolve().parents[2] / "src"
# page -> (title, what it says first, module, names or None for the module's __all__)
PARTS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "models": (
        "Whole models",
        "From a file to native code, and back from a saved library.",
        "tilewright",
        ("compile", "load", "Module", "profile", "set_threads"),
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
    "errors": (
        "Errors",
        "What is raised; every code has [a page](../../errors/index.md).",
        "tilewright.base.errors",
        ("TilewrightError", "UserError", "Unsupported", "CompilerBug"),
    ),
}


def nav() -> list[object]:
    return ["reference/api/index.md", *({PARTS[p][0]: f"reference/api/{p}.md"} for p in PARTS)]


def pages() -> dict[str, str | bytes]:
    """The pages; every public name of the package is on one of them."""
    made: dict[str, str | bytes] = {"reference/api/index.md": _index()}
    shown: set[str] = set()
    for part, (title, first, module, _) in PARTS.items():
        names = names_of(part)
        shown.update(names)
        blocks = "\n\n".join(_entry(module, name) for name in names)
        made[f"reference/api/{part}.md"] = f"# {title}\n\n{first}\n\n{blocks}\n"
    front = importlib.import_module("tilewright")
    modules = {"te", "tensor", "intrin", "tune", "ort"}
    missing = [n for n in front.__all__ if n not in shown | modules]
    if missing:
        raise RuntimeError(f"public names on no page of the API reference: {', '.join(missing)}")
    return made


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


@cache
def _package() -> griffe.Module:
    loaded = griffe.load("tilewright", search_paths=[str(SOURCES)])
    assert isinstance(loaded, griffe.Module)
    return loaded


def _entry(module: str, name: str) -> str:
    """What documents a name: its definition, or what it is at run time where it is computed."""
    value = getattr(importlib.import_module(module), name)
    home = getattr(value, "__module__", module)
    try:
        found = _package()[f"{home}.{name}".removeprefix("tilewright.")]
        if found.docstring is not None:
            return f"::: {home}.{name}"
    except (KeyError, griffe.AliasResolutionError):
        pass
    text = inspect.getdoc(value) or ""
    if not text and not home.startswith("tilewright.ort"):
        raise RuntimeError(f"{module}.{name} has no docstring")
    signature = ""
    if callable(value) and not isinstance(value, type):
        signature = str(inspect.signature(value)).replace("'", "")
    return f"## `{name}`\n\n```python\n{name}{signature}\n```\n\n{text}\n"


def _index() -> str:
    front = importlib.import_module("tilewright")
    places = {
        name: part
        for part, (_, _, module, _) in PARTS.items()
        for name in (names_of(part) if module == "tilewright" else ())
    }
    rows = "\n".join(
        f"| [`tw.{name}`]({places[name]}.md) | {_first_line(getattr(front, name))} |"
        for name in front.__all__
        if name in places
    )
    others = "\n".join(
        f"| [`{module}`]({part}.md) | {first} |"
        for part, (_, first, module, _) in PARTS.items()
        if module != "tilewright"
    ).replace("../../errors/index.md", "../../errors/index.md")
    return (
        "# API\n\n`import tilewright as tw`. Names are loaded when they are first used.\n\n"
        f"| name | |\n|---|---|\n{rows}\n\n| module | |\n|---|---|\n{others}\n"
    )


def _first_line(value: object) -> str:
    lines = (value.__doc__ or "").strip().splitlines() or [""]
    return lines[0].replace("|", "\\|")
