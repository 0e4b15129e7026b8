"""Semantics of scalar operations: constants, conversions, number representations.

A value of type `index` is a Python integer. Any other scalar is a NumPy scalar of its type, so that
every operation rounds, and wraps, to that type. Vectors are NumPy arrays. The functions here take
both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import F16, F32, F64, INDEX, DType
from tilewright.sym import Const, Expr, Var


def number(value: Any, of: DType) -> Any:
    """A Python number as a value of a scalar type; integers wrap around."""
    if of is INDEX:
        return int(value)
    return np.asarray(value).astype(of.numpy)[()]


def constant(expr: Const) -> Any:
    return number(expr.value, expr.dtype)


def broadcast(value: Any, lanes: int) -> Any:
    """A short vector of equal elements per row."""
    rows = len(value) if isinstance(value, np.ndarray) else 1
    return np.broadcast_to(value, (rows, lanes))


def plain_conversion(source: DType, target: DType) -> str:
    """The Python type by way of which a scalar is converted exactly and fast, if there is one."""
    if target in (F64, F32, F16) or (target.is_float and source in (F32, F16)):
        # No rounding on the way; positions and sizes stay far below 2**53.
        is_double = source.is_float or source.bits <= 32 or source is INDEX
        return "float" if is_double else ""
    fits = source.is_int and target.min <= source.min and source.max <= target.max
    return "int" if fits and target.is_int else ""


def convert(value: Any, source: DType, target: DType) -> Any:
    """Conversion by value. Float to integer truncates and saturates, NaN gives 0; integers wrap."""
    if isinstance(value, np.ndarray):
        return _convert_array(value, source, target)
    if target.is_bool:
        return np.bool_(value != 0)
    if source.is_float and target.is_int:
        whole = _truncated(float(value), target)
        return whole if target.scalar is INDEX else target.numpy.type(whole)
    result = _convert_array(np.asarray(value), source, target)[()]
    return int(result) if target.scalar is INDEX else result


def _truncated(value: float, target: DType) -> int:
    if value != value:
        return 0
    if not target.min < value < target.max:
        return int(target.max if value > 0 else target.min)
    return int(value)


def _convert_array(value: Any, source: DType, target: DType) -> Any:
    if target.is_bool:
        return value != 0
    if source.is_float and target.is_int:
        wide = np.nan_to_num(np.trunc(value.astype(np.float64)), nan=0.0)
        # The limits of 64-bit types are no doubles: clip to the doubles next to them inside.
        low, high = float(target.min), float(target.max)
        result = np.clip(wide, low, np.nextafter(high, 0) if int(high) > target.max else high)
        exact = result.astype(np.uint64 if target.kind == "uint" else np.int64)
        exact = np.where(wide >= high, np.asarray(target.max, exact.dtype), exact)
        return exact.astype(target.numpy)
    return value.astype(target.numpy)


def evaluate(expr: Expr, env: Mapping[Var, Any]) -> Any:
    """The value of an expression over variables alone: shapes, requirements."""
    return sym.fold(expr, lambda node, args: _evaluate_node(node, args, env))


def _evaluate_node(node: Expr, args: tuple[Any, ...], env: Mapping[Var, Any]) -> Any:
    if isinstance(node, Var):
        return env[node]
    if isinstance(node, Const):
        return constant(node)
    if isinstance(node, sym.Cast):
        return convert(args[0], node.value.dtype, node.dtype)
    if isinstance(node, sym.Select):
        return args[1] if args[0] else args[2]
    return _OPERATORS[type(node)](*args)


_OPERATORS: dict[type[Expr], Any] = {
    sym.Add: lambda a, b: a + b,
    sym.Sub: lambda a, b: a - b,
    sym.Mul: lambda a, b: a * b,
    sym.Div: lambda a, b: a / b,
    sym.FloorDiv: lambda a, b: a // b if b else 0,
    sym.FloorMod: lambda a, b: a % b if b else 0,
    sym.Min: lambda a, b: a if a <= b or a != a else b,
    sym.Max: lambda a, b: a if a >= b or a != a else b,
    sym.Eq: lambda a, b: a == b,
    sym.Ne: lambda a, b: a != b,
    sym.Lt: lambda a, b: a < b,
    sym.Le: lambda a, b: a <= b,
    sym.And: lambda a, b: a and b,
    sym.Or: lambda a, b: a or b,
    sym.Not: lambda a: not a,
}
