"""One lane of a vector of indices that were loaded, as scalar arithmetic.

    ramp(i, 1, 16)  ->  i + 3;      at[ramp(i, 1, 16)] * broadcast(2, 16)  ->  at[i + 3] * 2

Where gathers are slow, each lane loads its index and its element.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.sym import Add, Cast, Expr, Max, Min, Mul, Sub, add, maximum, minimum, mul, sub
from tilewright.tensor.ir import Broadcast, Load, Ramp

_SCALAR: dict[type[Expr], Callable[[Expr, Expr], Expr]] = {
    Add: add,
    Sub: sub,
    Mul: mul,
    Min: minimum,
    Max: maximum,
}


def is_loaded(index: Expr) -> bool:
    """Whether an index is loaded, and nothing else but what each lane does alone as well."""
    found, stack = False, [index]
    while stack:
        node = stack.pop()
        if node.dtype.lanes == 1:
            continue
        if isinstance(node, Load):
            found = True
            if len([at for at in node.index if at.dtype.lanes > 1]) != 1:
                return False
            stack += node.index
        elif isinstance(node, (Broadcast, Ramp)):
            if node.children()[0].dtype.lanes > 1:
                return False
        elif type(node) in _SCALAR or isinstance(node, Cast):
            stack += node.children()
        else:
            return False
    return found


def lane_of(node: Expr, lane: int) -> Expr:
    """The value in one lane, of an index that `is_loaded`."""
    if node.dtype.lanes == 1:
        return node
    if isinstance(node, Broadcast):
        return node.value
    if isinstance(node, Ramp):
        return add(node.base, mul(node.stride, lane))
    parts = [lane_of(child, lane) for child in node.children()]
    if isinstance(node, Load):
        return Load(node.buffer, tuple(parts))
    if isinstance(node, Cast):
        return Cast(parts[0], node.dtype.scalar)
    return _SCALAR[type(node)](*parts)
