"""Layered layout of the graph's boxes, from top to bottom with few crossings.

Layers and their order are computed by the package `fast-sugiyama`; here boxes are spaced so that
they do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import Unsupported

WIDTH, HEIGHT = 200.0, 44.0  # of a box
GAP_X, GAP_Y = 28.0, 46.0
SPACING = 10  # between neighbours, in units of the layout


@dataclass(frozen=True)
class Layout:
    """The centre of each box, and the total size."""

    places: tuple[tuple[float, float], ...]
    width: float
    height: float


def layered(count: int, edges: Iterable[tuple[int, int]]) -> Layout:
    """Compute positions for `count` boxes."""
    unique = [pair for pair in dict.fromkeys(edges) if pair[0] != pair[1]]
    found: dict[int, tuple[float, float]] = {}
    right = 0.0
    for component in _components(unique):
        inside = {at: place for at, place in component if at < count}
        spread = _spread(inside)
        left = min(x for x, _ in spread.values())
        found |= {at: (x - left + right, y) for at, (x, y) in spread.items()}
        right = max(x for x, _ in found.values()) + WIDTH + GAP_X
    for at in range(count):  # boxes without edges
        if at not in found:
            found[at] = (right, 0.0)
            right += WIDTH + GAP_X
    places = tuple(
        (found[at][0] + WIDTH / 2 + GAP_X, found[at][1] + HEIGHT / 2 + GAP_Y) for at in range(count)
    )
    width = max((x for x, _ in places), default=0.0) + WIDTH / 2 + GAP_X
    height = max((y for _, y in places), default=0.0) + HEIGHT / 2 + GAP_Y
    return Layout(places, width, height)


def _components(edges: Sequence[tuple[int, int]]) -> Iterable[Iterable[tuple[Any, Any]]]:
    """The vertices and positions of each connected component."""
    if not edges:
        return ()
    try:
        from fast_sugiyama import from_edges
    except ImportError as error:
        raise Unsupported(
            "TW9001",
            "reports need the package fast-sugiyama",
            help="pip install 'tilewright[report]'",
        ) from error
    return [part[0] for part in from_edges(edges, vertex_spacing=SPACING, dummy_vertices=True)]


def _spread(places: dict[int, tuple[float, float]]) -> dict[int, tuple[float, float]]:
    """Keep the order from left to right and top to bottom, with distances that fit the boxes."""
    levels = sorted({y for _, y in places.values()}, reverse=_is_upside_down(places))
    row = {y: at for at, y in enumerate(levels)}
    scale = (WIDTH + GAP_X) / SPACING
    return {at: (x * scale, row[y] * (HEIGHT + GAP_Y)) for at, (x, y) in places.items()}


def _is_upside_down(places: dict[int, tuple[float, float]]) -> bool:
    """Boxes are numbered in execution order: the first belongs on top."""
    ordered = sorted(places)
    return places[ordered[0]][1] > places[ordered[-1]][1]
