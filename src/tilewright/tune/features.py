"""Formulas over decisions: derived once per structure, evaluated over thousands of points at a
time.

    i, j = sym.var("i"), sym.var("j")
    both = Formulas({"area": i * j, "rows": sym.ceildiv(100, i)})
    both.columns({"i": np.array([2, 3]), "j": np.array([5, 5])})      area: 10, 15; rows: 50, 34

A formula is a `sym` expression, so it prints; common subexpressions of several formulas are
computed once. `levels` derives those of a tiled nest: trips of each level, and bytes of each buffer
it touches. `relation` turns them into features that transfer between structures and shapes: the
reuse attainable within so many bytes, as in AutoTVM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.sym import ONE, Add, Const, Expr, FloorDiv, FloorMod, Max, Min, Mul, Sub, Var
from tilewright.tune.space import Column, Columns

RELATION_BYTES = tuple(1 << exponent for exponent in range(7, 26, 2))  # 128 bytes to 32 MB


def _floor_quotient(a: Any, b: Any) -> Any:
    return np.floor(a / b)


_STEPS: dict[type[Expr], Callable[[Any, Any], Any]] = {
    Add: np.add,
    Sub: np.subtract,
    Mul: np.multiply,
    FloorDiv: _floor_quotient,
    FloorMod: np.mod,
    Min: np.minimum,
    Max: np.maximum,
}


class Formulas:
    """Several expressions as one straight-line program over columns of float64."""

    def __init__(self, formulas: Mapping[str, Expr]) -> None:
        self.formulas = dict(formulas)
        self._slots: dict[Expr, int] = {}
        self._inputs: list[tuple[str, int]] = []
        self._constants: list[tuple[float, int]] = []
        self._steps: list[tuple[Callable[[Any, Any], Any], int, int, int]] = []
        for expr in self.formulas.values():
            self._compile(expr)
        self._outputs = [(name, self._slots[expr]) for name, expr in self.formulas.items()]

    def _compile(self, root: Expr) -> None:
        stack = [root]
        while stack:
            expr = stack[-1]
            if expr in self._slots:
                stack.pop()
                continue
            missing = [child for child in expr.children() if child not in self._slots]
            if missing:
                stack.extend(missing)
                continue
            slot = len(self._slots)
            if isinstance(expr, Var):
                self._inputs.append((expr.name, slot))
            elif isinstance(expr, Const):
                self._constants.append((float(expr.value), slot))
            else:
                a, b = (self._slots[child] for child in expr.children())
                self._steps.append((_STEPS[type(expr)], a, b, slot))
            self._slots[expr] = slot
            stack.pop()

    def columns(self, given: Columns) -> dict[str, Column]:
        """The value of every formula, row by row; constants stay numbers."""
        slots: list[Any] = [None] * len(self._slots)
        for name, slot in self._inputs:
            slots[slot] = given[name].astype(np.float64)
        for value, slot in self._constants:
            slots[slot] = value
        for step, a, b, slot in self._steps:
            slots[slot] = step(slots[a], slots[b])
        return {name: slots[slot] for name, slot in self._outputs}

    def __str__(self) -> str:
        return "\n".join(f"{name} = {expr}" for name, expr in self.formulas.items())


# --------------------------------------------------------------------------- nests of tiles


@dataclass(frozen=True)
class Access:
    """A buffer as accessed by a nest: the step of each axis in every dimension, as in a `Stage`."""

    name: str
    element_bytes: int
    shape: tuple[int, ...]
    dims: tuple[Mapping[int, int] | None, ...]
    spans: tuple[int, ...]
    line_bytes: int


def touched_bytes(access: Access, tiles: Mapping[int, Expr]) -> Expr:
    """Bytes of the box that a tile touches. A row that is not the whole buffer's counts in cache
    lines."""
    box: list[Expr] = []
    for size, dim, span in zip(access.shape, access.dims, access.spans, strict=True):
        if dim is None:
            box.append(sym.const(size))
            continue
        reach: Expr = sym.const(1 + span)
        for axis, step in dim.items():
            reach = sym.add(reach, sym.mul(abs(step), sym.sub(tiles.get(axis, ONE), 1)))
        box.append(sym.minimum(reach, size))
    if not box:
        return sym.const(access.element_bytes)
    *outer, last = box
    row = sym.mul(last, access.element_bytes)
    whole = access.shape[-1] * access.element_bytes
    if outer and whole > access.line_bytes:
        row = sym.maximum(row, access.line_bytes)
    total = row
    for each in outer:
        total = sym.mul(total, each)
    return total


def levels(
    accesses: Sequence[Access], tiles: Mapping[str, Mapping[int, Expr]], extents: Mapping[int, int]
) -> dict[str, Expr]:
    """`trips/LEVEL`, how often a level runs; `bytes/LEVEL/BUFFER`, what one run of it touches."""
    found: dict[str, Expr] = {}
    for level, sizes in tiles.items():
        trips: Expr = ONE
        for axis, extent in extents.items():
            trips = sym.mul(trips, sym.ceildiv(extent, sizes.get(axis, ONE)))
        found[f"trips/{level}"] = trips
        for at, access in enumerate(accesses):
            found[f"bytes/{level}/{at}"] = touched_bytes(access, sizes)
    return found


# --------------------------------------------------------------------------- features


def log2(value: Any) -> Column:
    """Logarithm of counts and bytes; 0 below 1."""
    found: Column = np.log2(np.maximum(value, 1.0))
    return found


def relation(touched: Sequence[Any], reuse: Sequence[Any], rows: int) -> Column:
    """For each size of RELATION_BYTES: the best reuse (log2) of any buffer at any level that
    touches no more. Curves of this kind compare nests of any depth."""
    bytes_of = np.stack([np.broadcast_to(np.asarray(each, np.float32), rows) for each in touched])
    reuse_of = np.stack([np.broadcast_to(np.asarray(each, np.float32), rows) for each in reuse])
    logs = np.log2(np.maximum(reuse_of, 1.0))
    curve = [np.where(bytes_of <= limit, logs, 0.0).max(axis=0) for limit in RELATION_BYTES]
    return np.stack(curve, axis=1)


RELATION_NAMES = tuple(f"reuse within 2^{int(math.log2(size))}" for size in RELATION_BYTES)
