"""Evaluate expressions on integers, or element-wise on NumPy arrays of integers.

evaluate(i * 8 + j, {i: 2, j: 3})                     19
evaluate(i * 8 + j, {i: np.arange(4), j: 3})          array([3, 11, 19, 27])
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.base.dtype import INDEX, DType
from tilewright.base.errors import UserTypeError
from tilewright.sym import expr as e
from tilewright.sym.expr import Const, Expr, Select, Var
from tilewright.sym.traced import least, most

_SAMPLES = 64  # of the values of a variable, to see how often a condition holds

_SCALAR: dict[type[Expr], Callable[[Any, Any], Any]] = {
    e.Add: operator.add,
    e.Sub: operator.sub,
    e.Mul: operator.mul,
    e.FloorDiv: operator.floordiv,
    e.FloorMod: operator.mod,
    e.Min: least,
    e.Max: most,
    e.Eq: operator.eq,
    e.Ne: operator.ne,
    e.Lt: operator.lt,
    e.Le: operator.le,
    e.And: operator.and_,
    e.Or: operator.or_,
}
_ARRAY: dict[type[Expr], Callable[[Any, Any], Any]] = {
    **_SCALAR,
    e.Min: np.minimum,
    e.Max: np.maximum,
}


def evaluate(expr: Expr, env: Mapping[Var, Any]) -> Any:
    """Evaluate an integer or boolean expression; `env` gives the values of variables.

    Only the selected operand of a select is evaluated, so the other may divide by zero; with
    arrays, both are computed.
    """
    done: dict[Expr, Any] = dict(env.items())
    arrays = any(isinstance(value, np.ndarray) for value in done.values())
    with np.errstate(divide="ignore") if arrays else _NOTHING:
        return _evaluate(expr, done, _ARRAY if arrays else _SCALAR)


def share_where(cond: Expr, extents: Mapping[Var, int], env: Mapping[Var, Any]) -> float:
    """The share of values of variables, each from 0 to before its extent, for which a condition
    holds, as far as samples tell; `env` gives the values of others."""
    places = [np.arange(0, n, max(1, n // _SAMPLES)) for n in extents.values()]
    grid = np.meshgrid(*places, indexing="ij")
    return float(np.mean(evaluate(cond, {**env, **dict(zip(extents, grid, strict=True))})))


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NOTHING = _Nothing()


def _evaluate(root: Expr, done: dict[Expr, Any], table: dict[type[Expr], Any]) -> Any:
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        kind = type(node)
        if kind is Const:
            done[node] = node.value  # type: ignore[attr-defined]
            continue
        needed: tuple[Expr, ...] = node.children()
        if isinstance(node, Select):
            needed = (node.cond,)
            if node.cond in done:
                needed += _arms(node, done[node.cond])
        missing = [child for child in needed if child not in done]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        done[node] = _one(node, [done[child] for child in needed], table)
    return done[root]


def _arms(node: Select, cond: Any) -> tuple[Expr, ...]:
    if isinstance(cond, np.ndarray):
        return (node.a, node.b)
    return (node.a,) if cond else (node.b,)


def _one(node: Expr, values: list[Any], table: dict[type[Expr], Any]) -> Any:
    kind = type(node)
    binary = table.get(kind)
    if binary is not None and not node.dtype.is_float:
        return _wrapped(binary(*values), node.dtype)
    if isinstance(node, Select):
        return np.where(*values) if len(values) == 3 else values[1]
    if isinstance(node, e.Not):
        return np.logical_not(values[0]) if table is _ARRAY else not values[0]
    if isinstance(node, e.Cast) and not node.value.dtype.is_float and not node.dtype.is_float:
        if node.dtype.is_bool:
            return values[0] != 0
        return _wrapped(values[0] + 0, node.dtype)
    raise UserTypeError("TW0108", f"{node} is not an integer expression of known variables")


def _wrapped(value: Any, of: DType) -> Any:
    """Wrap integers other than `index`, as the machine does."""
    if of is INDEX or not of.is_int:
        return value
    if of.bits == 64 and isinstance(value, np.ndarray):
        return value.astype(of.numpy)
    low = value & ((1 << of.bits) - 1)
    if of.kind == "uint":
        return low
    half = 1 << (of.bits - 1)
    return (low ^ half) - half
