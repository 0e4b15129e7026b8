"""The API reference: one page per part, every public name, from the docstrings."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from functools import cache
from pathlib import Path

import griffe
import primitives
from names import PARTS, names_of

SOURCES = Path(__file__).resolve().parents[2] / "src"


def nav() -> list[object]:
    found: list[object] = ["reference/api/index.md"]
    for part, (title, *_) in PARTS.items():
        found.append({title: f"reference/api/{part}.md"})
        if part == "schedule":
            found.append({"Schedule primitives": "reference/api/primitives.md"})
    return found


def pages() -> dict[str, str | bytes]:
    """The pages; every public name of the package is on one of them."""
    made: dict[str, str | bytes] = {"reference/api/index.md": _index()}
    shown: set[str] = set()
    for part, (title, first, module, _) in PARTS.items():
        names = names_of(part)
        shown.update(names)
        blocks = "\n\n".join(_entry(module, name) for name in names)
        made[f"reference/api/{part}.md"] = f"# {title}\n\n{first}\n\n{blocks}\n"
    made["reference/api/primitives.md"] = primitives.page()
    made["reference/api/intrin.md"] = primitives.intrinsics()
    front = importlib.import_module("tilewright")
    modules = {"te", "tensor", "intrin", "tune", "ort"}
    missing = [n for n in front.__all__ if n not in shown | modules]
    if missing:
        raise RuntimeError(f"public names on no page of the API reference: {', '.join(missing)}")
    return made


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
    text, _, example = text.partition("\nExamples:\n")
    shown = f"\n```pycon\n{textwrap.dedent(example).strip()}\n```\n" if example else ""
    return f"## `{name}`\n\n```python\n{name}{signature}\n```\n\n{text}\n{shown}"


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
