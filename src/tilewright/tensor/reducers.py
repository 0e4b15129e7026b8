"""The built-in reductions. One object per name and types, so `is` recognises them."""

from __future__ import annotations

import copyreg
from functools import cache
from typing import Any

from tilewright.base.dtype import DType
from tilewright.sym import (
    Expr,
    add,
    const,
    eq,
    logical_and,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    select,
    var,
)
from tilewright.tensor.ir import Reducer


@cache
def _sum(of: DType) -> Reducer:
    x, y = var("x", of), var("y", of)
    return Reducer("sum", (x,), (y,), (add(x, y),), (const(0, of),))


@cache
def _prod(of: DType) -> Reducer:
    x, y = var("x", of), var("y", of)
    return Reducer("prod", (x,), (y,), (mul(x, y),), (const(1, of),))


@cache
def _max(of: DType) -> Reducer:
    x, y = var("x", of), var("y", of)
    return Reducer("max", (x,), (y,), (maximum(x, y),), (const(of.min, of),))


@cache
def _min(of: DType) -> Reducer:
    x, y = var("x", of), var("y", of)
    return Reducer("min", (x,), (y,), (minimum(x, y),), (const(of.max, of),))


@cache
def _argmax(index: DType, value: DType) -> Reducer:
    """The greatest value and the least position where it stands."""
    return _arg("argmax", index, value, const(value.min, value), greater=True)


@cache
def _argmin(index: DType, value: DType) -> Reducer:
    """The least value and the least position where it stands."""
    return _arg("argmin", index, value, const(value.max, value), greater=False)


def _arg(name: str, index: DType, value: DType, worst: Expr, *, greater: bool) -> Reducer:
    i, x = var("i", index), var("x", value)
    j, y = var("j", index), var("y", value)
    better = lt(y, x) if greater else lt(x, y)
    # Ties go to the lesser position; the identity's position (the greatest) always loses them.
    keep = logical_or(better, logical_and(eq(x, y), lt(i, j)))
    result = (select(keep, i, j), select(keep, x, y))
    return Reducer(name, (i, x), (j, y), result, (const(index.max, index), worst))


_MAKERS = {
    "sum": (_sum, 1),
    "prod": (_prod, 1),
    "max": (_max, 1),
    "min": (_min, 1),
    "argmax": (_argmax, 2),
    "argmin": (_argmin, 2),
}
NAMES = tuple(_MAKERS)


def builtin(name: str, *dtypes: DType) -> Reducer:
    """The built-in reduction `name` over values of these types."""
    make, _ = _MAKERS[name]
    return make(*dtypes)


def is_builtin(reducer: Reducer) -> bool:
    entry = _MAKERS.get(reducer.name)
    if entry is None or len(reducer.identity) != entry[1]:
        return False
    return builtin(reducer.name, *(x.dtype for x in reducer.identity)) is reducer


def _reduce(reducer: Reducer) -> tuple[Any, ...]:
    if is_builtin(reducer):
        return builtin, (reducer.name, *(x.dtype for x in reducer.identity))
    fields = (reducer.name, reducer.lhs, reducer.rhs, reducer.result, reducer.identity)
    return Reducer, fields


copyreg.pickle(Reducer, _reduce)
