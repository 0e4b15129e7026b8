"""The types that operations of tensor programs take; `verify` reports what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.sym import Const, Expr
from tilewright.tensor import ir
from tilewright.tensor.ir import MaskedLoad


def type_fault(expr: Expr) -> str:
    """What is wrong with the types of a node's operands, or nothing."""
    check = _CHECKS.get(type(expr))
    return "" if check is None else check(expr)


def _same_types(expr: sym.Binary) -> str:
    if expr.a.dtype is not expr.b.dtype:
        return f"operands have types {expr.a.dtype} and {expr.b.dtype}"
    return ""


def _arithmetic(expr: sym.Binary) -> str:
    return _same_types(expr) or (f"operands are {BOOL}" if expr.dtype.is_bool else "")


def _of_floats(expr: sym.Binary) -> str:
    return _same_types(expr) or ("" if expr.dtype.is_float else f"/ divides {expr.dtype}")


def _of_integers(expr: sym.Binary) -> str:
    wrong = "" if expr.dtype.is_int else f"{expr.symbol} divides {expr.dtype}"
    zero = isinstance(expr.b, Const) and expr.b.value == 0
    return _same_types(expr) or wrong or ("the divisor is zero" if zero else "")


def _logical(expr: sym.Binary) -> str:
    return _same_types(expr) or ("" if expr.dtype.is_bool else f"operands are {expr.dtype}")


def _negation(expr: sym.Not) -> str:
    return "" if expr.dtype.is_bool else f"the operand is {expr.dtype}"


def _select(expr: sym.Select) -> str:
    if not expr.cond.dtype.is_bool or expr.cond.dtype.lanes not in (1, expr.dtype.lanes):
        return f"the condition has type {expr.cond.dtype}"
    if expr.a.dtype is not expr.b.dtype:
        return f"the arms have types {expr.a.dtype} and {expr.b.dtype}"
    return ""


def _cast(expr: sym.Cast) -> str:
    if expr.dtype.lanes != expr.value.dtype.lanes:
        return f"{expr.value.dtype} becomes {expr.dtype}"
    return ""


def _masked_load(expr: MaskedLoad) -> str:
    want = BOOL.with_lanes(expr.dtype.lanes)
    return "" if expr.mask.dtype is want else f"the mask has type {expr.mask.dtype}, not {want}"


def _ramp(expr: ir.Ramp) -> str:
    if expr.base.dtype is not expr.stride.dtype or expr.base.dtype.is_vector:
        return f"base and stride have types {expr.base.dtype} and {expr.stride.dtype}"
    return "" if expr.lanes > 1 else "a vector has more than one lane"


def _broadcast(expr: ir.Broadcast) -> str:
    if expr.value.dtype.is_vector:
        return f"the value has type {expr.value.dtype}"
    return "" if expr.lanes > 1 else "a vector has more than one lane"


_CHECKS: dict[type[Expr], Callable[[Any], str]] = {
    sym.Add: _arithmetic,
    sym.Sub: _arithmetic,
    sym.Mul: _arithmetic,
    sym.Div: _of_floats,
    sym.FloorDiv: _of_integers,
    sym.FloorMod: _of_integers,
    sym.Min: _arithmetic,
    sym.Max: _arithmetic,
    sym.Eq: _same_types,
    sym.Ne: _same_types,
    sym.Lt: _same_types,
    sym.Le: _same_types,
    sym.And: _logical,
    sym.Or: _logical,
    sym.Not: _negation,
    sym.Select: _select,
    sym.Cast: _cast,
    MaskedLoad: _masked_load,
    ir.Ramp: _ramp,
    ir.Broadcast: _broadcast,
}
