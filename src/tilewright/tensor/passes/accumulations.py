"""Stores that combine a value with what is there: sums, maxima, minima."""

from __future__ import annotations

import math

from tilewright.sym import Add, Const, Expr, Max, Min, Select
from tilewright.tensor.ir import Load, Store


def added_value(stmt: Store) -> Expr | None:
    """The value that a store adds to its element, or takes the maximum or minimum with."""
    value = stmt.value
    if not isinstance(value, (Add, Max, Min)):
        return None
    place = value.a
    if not isinstance(place, Load) or (place.buffer, place.index) != (stmt.buffer, stmt.index):
        return None
    return value.b


def adds_nothing(stmt: Store) -> bool:
    """Whether the value is the identity."""
    added = added_value(stmt)
    return added is not None and _is_identity(stmt, added)


def adds_where(stmt: Store) -> Expr | None:
    """The condition under which the value is not the identity."""
    added = added_value(stmt)
    if not isinstance(added, Select) or not _is_identity(stmt, added.b):
        return None
    return added.cond


def _is_identity(stmt: Store, value: Expr) -> bool:
    if not isinstance(value, Const):
        return False
    if isinstance(stmt.value, Add):
        return value.value == 0
    return value.value == (-math.inf if isinstance(stmt.value, Max) else math.inf)
