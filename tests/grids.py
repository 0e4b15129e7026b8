"""Small grids of parameters: not every combination, but every pair of values of two parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any


def every_pair(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows with a value of each axis, so that any two values of two axes stand in one of them.

    A fault of one value, or of two that meet, is found as by the whole product, which has several
    times as many rows. The rows are the same in every run.
    """
    left = list(product(*(range(len(axis)) for axis in axes)))
    wanted = {pair for row in left for pair in _pairs(row)}
    chosen = []
    while wanted:
        row = max(left, key=lambda row: sum(pair in wanted for pair in _pairs(row)))
        wanted.difference_update(_pairs(row))
        chosen.append(row)
    return [tuple(axis[at] for axis, at in zip(axes, row, strict=True)) for row in sorted(chosen)]


def _pairs(row: tuple[int, ...]) -> Iterable[Any]:
    return combinations(enumerate(row), 2)


def sample(cases: Sequence[tuple[Any, ...]]) -> set[int]:
    """Which of the cases, rows with a value of each parameter: with two parameters every
    value of both stands in one, with more every pair of values. Values take turns."""
    joint = dict.fromkeys(zip(*cases, strict=True))  # parameters of one list of tuples are one
    rows = list(zip(*(column for column in joint if len(set(column)) > 1), strict=True))
    if not rows or len(rows[0]) < 2:
        return set(range(len(cases)))
    size = min(len(rows[0]) - 1, 2)
    parts = [set(combinations(enumerate(row), size)) for row in rows]
    wanted, used = set().union(*parts), Counter[Any]()
    chosen: set[int] = set()
    while wanted:
        at = max(
            range(len(rows)),
            key=lambda at: (len(parts[at] & wanted), -sum(used[v] for v in enumerate(rows[at]))),
        )
        wanted -= parts[at]
        used.update(enumerate(rows[at]))
        chosen.add(at)
    return chosen
