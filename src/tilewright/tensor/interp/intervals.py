"""What an index can be at most and at least, from the extents of the loops around.

Loops and blocks of constant extents: checks that always hold are left out of the code. This is the
interpreter's own arithmetic, so that what it says of a program rests on nothing that made it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.sym import ZERO, Const, Expr, Var
from tilewright.tensor import ir

Interval = tuple[int, int]  # the least and the greatest value
Extents = Mapping[Var, Expr]  # variables that lie in 0..extent


def interval(expr: Expr, extents: Extents) -> Interval | None:
    """Bounds of an index, None where they are not known."""
    if expr.dtype is not INDEX:
        return None
    if isinstance(expr, Const):
        return int(expr.value), int(expr.value)
    if isinstance(expr, Var):
        extent = extents.get(expr)
        return (0, int(extent.value) - 1) if isinstance(extent, Const) else None
    if not isinstance(expr, sym.Binary):
        return None
    a, b = interval(expr.a, extents), interval(expr.b, extents)
    if b is None or a is None:
        return None
    match expr:
        case sym.Add():
            return a[0] + b[0], a[1] + b[1]
        case sym.Sub():
            return a[0] - b[1], a[1] - b[0]
        case sym.Mul():
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case sym.FloorDiv() if b[0] == b[1] > 0:
            return a[0] // b[0], a[1] // b[0]
        case sym.FloorMod() if b[0] == b[1] > 0:
            return a if a[0] >= 0 and a[1] < b[0] else (0, b[0] - 1)
    return None


def lies_below(index: Expr, extent: Expr | None, extents: Extents) -> bool:
    """Whether an index is in 0..extent in any case."""
    found = interval(index, extents) if isinstance(extent, Const) else None
    if found is None or not isinstance(extent, Const):
        return False
    return found[0] >= 0 and found[1] < int(extent.value)


def lies_in(index: Expr, r: ir.Range, extents: Extents) -> bool:
    """Whether an index is in a range in any case: from how far it is behind the start."""
    if index is r.start:
        behind: Expr = ZERO
    elif isinstance(index, sym.Add) and r.start in (index.a, index.b):
        behind = index.b if r.start is index.a else index.a
    else:
        behind = sym.sub(index, r.start)
    return lies_below(behind, r.extent, extents)
