"""The map of packages and layers, from the imports themselves."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tilewright"


def layers() -> list[list[str]]:
    """The layers as pyproject.toml fixes them, those that exist, top first."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["id"] == "layers")
    found = []
    for line in contract["layers"]:
        names = [part.strip(" ()") for part in line.split("|")]
        present = [name for name in names if (ROOT / "src" / PACKAGE / name).is_dir()]
        if present:
            found.append(present)
    return found


@cache
def imports() -> Counter[tuple[str, str]]:
    """How many imports lead from one package to another."""
    graph = grimp.build_graph(PACKAGE)
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            pair = (_package(module), _package(other))
            if pair[0] != pair[1] and all(pair):
                found[pair] += 1
    return found


def _package(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def _purpose(name: str) -> str:
    text = (ROOT / "src" / PACKAGE / name / "__init__.py").read_text(encoding="utf-8")
    lines = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split("\n")
    return " ".join(lines).replace(" |", ",")  # a bar would end a cell of the table


def _size(name: str) -> tuple[int, int]:
    files = list((ROOT / "src" / PACKAGE / name).rglob("*.py"))
    return len(files), sum(path.read_text(encoding="utf-8").count("\n") for path in files)


def page() -> str:
    found = layers()
    names = [name for layer in found for name in layer]
    lines = [
        "# Packages and layers\n",
        "A package imports only from the layers below its own; `lint-imports` holds it to that. The"
        " picture and the table are made from the imports in the sources.\n",
        f'<div class="figure">{_picture(found)}</div>\n',
        "| package | purpose | files | lines | imports from |\n|---|---|---:|---:|---|",
    ]
    for name in names:
        files, count = _size(name)
        uses = [other for other in names if imports()[name, other]]
        shown = ", ".join(f"`{other}`" for other in uses)
        lines.append(f"| `{name}` | {_purpose(name)} | {files} | {count:,} | {shown} |")
    return "\n".join(lines) + "\n"


WIDTH, HEIGHT, GAP = 680, 30, 22


def _picture(found: list[list[str]]) -> str:
    """Layers from top to bottom, a line for every pair of packages with imports between them."""
    places: dict[str, tuple[float, float, float]] = {}
    for row, layer in enumerate(found):
        width = (WIDTH - 12 * (len(layer) - 1)) / len(layer)
        for at, name in enumerate(layer):
            places[name] = (at * (width + 12), row * (HEIGHT + GAP), width)
    lines, boxes = [], []
    for (user, used), count in sorted(imports().items()):
        if user in places and used in places:
            (x, y, w), (u, v, b) = places[user], places[used]
            begin, end = (x + w / 2, y + HEIGHT), (u + b / 2, v)
            lines.append(
                f'<path d="M{begin[0]:.0f},{begin[1]:.0f} C{begin[0]:.0f},{begin[1] + 30:.0f} '
                f'{end[0]:.0f},{end[1] - 30:.0f} {end[0]:.0f},{end[1]:.0f}" fill="none" '
                f'stroke="#7986cb" stroke-opacity="0.55" '
                f'stroke-width="{min(5, 0.6 + count / 25):.1f}">'
                f"<title>{user} imports {used}: {count}</title></path>"
            )
    for name, (x, y, w) in places.items():
        boxes.append(
            f'<rect x="{x:.0f}" y="{y}" width="{w:.0f}" height="{HEIGHT}" rx="5" fill="#3f51b5"/>'
            f'<text x="{x + w / 2:.0f}" y="{y + 20}" text-anchor="middle" fill="#fff" '
            f'font-size="14">{name}</text>'
        )
    height = len(found) * (HEIGHT + GAP)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="packages by layer">{"".join(lines)}{"".join(boxes)}</svg>'
    )
