"""The conditions under which subexpressions are evaluated.

`select(i < n, A[i], 0.0)` reads `A[i]` only where `i < n`: bounds checks may assume that, and a
reduction moved out of it must keep the condition.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright import sym
from tilewright.sym import TRUE, Expr, Select
from tilewright.te.operation import Reduce

Guards = tuple[Expr, ...]


def guarded(
    *roots: Expr, guards: Guards = (), into_reductions: bool = True
) -> Iterator[tuple[Expr, Guards]]:
    """Iterate over all nodes with the conditions under which they are evaluated, parents first.

    A node under several conditions is yielded once for each.
    """
    seen: set[tuple[Expr, Guards]] = set()
    stack: list[tuple[Expr, Guards]] = [(root, guards) for root in reversed(roots)]
    while stack:
        expr, conditions = stack.pop()
        if (expr, conditions) in seen:
            continue
        seen.add((expr, conditions))
        yield expr, conditions
        if isinstance(expr, Select):
            stack.append((expr.b, with_guard(conditions, sym.logical_not(expr.cond))))
            stack.append((expr.a, with_guard(conditions, expr.cond)))
            stack.append((expr.cond, conditions))
        elif isinstance(expr, Reduce):
            if into_reductions:
                inside = with_guard(conditions, expr.where)
                stack.extend((init, conditions) for init in reversed(expr.init))
                stack.extend((source, inside) for source in reversed(expr.sources))
                stack.append((expr.where, conditions))
        else:
            stack.extend((child, conditions) for child in reversed(expr.children()))


def with_guard(guards: Guards, cond: Expr) -> Guards:
    """Append a condition, unless it is redundant."""
    return guards if cond is TRUE or cond in guards else (*guards, cond)
