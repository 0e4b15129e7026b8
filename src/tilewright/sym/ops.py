"""Construct expressions: type checks, conversion of Python numbers, constant folding.

Only exact identities are applied: integers are folded freely, floats only if both operands are
constant. Simplification with bounds or normal forms is left to `simplify`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.dtype import BOOL, INDEX, DType, dtype
from tilewright.base.errors import UserTypeError
from tilewright.sym import expr as e
from tilewright.sym.expr import FALSE, TRUE, Const, Expr, const

ExprLike = Expr | int | float | bool


def as_expr(value: Any, of: DType = INDEX) -> Expr:
    """Convert a value: expressions are returned, numbers become constants of type `of`."""
    if isinstance(value, Expr):
        return value
    if hasattr(value, "as_expr"):  # tensor expressions that represent a value
        made: Expr = value.as_expr()
        return made
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (int, float)):
        raise UserTypeError("TW0101", f"cannot use {type(value).__name__} as an expression")
    if isinstance(value, float) and not of.is_float:
        raise UserTypeError(
            "TW0102",
            f"the number {value} does not fit type {of}",
            help="cast the other operand to a float type",
        )
    if isinstance(value, bool) and of is INDEX:
        return const(value, BOOL)
    return const(value, of)


def _pair(symbol: str, a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    """Convert both operands to expressions of one type; vectors are broadcast by the vectorizer
    only."""
    if isinstance(a, Expr):
        left, right = a, b if isinstance(b, Expr) else as_expr(b, a.dtype.scalar)
    else:
        right = as_expr(b)
        left = as_expr(a, right.dtype.scalar)
    if left.dtype is not right.dtype:
        raise UserTypeError(
            "TW0103",
            f"{left} {symbol} {right} has operands of types {left.dtype} and {right.dtype}",
            help="insert a cast: te.cast(x, dtype)",
        )
    return left, right


def add(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("+", a, b)
    if isinstance(y, Const):
        if isinstance(x, Const):
            return _fold(x.value + y.value, x.dtype)
        if y.value == 0 and x.dtype.is_int:
            return x
    elif isinstance(x, Const) and x.value == 0 and x.dtype.is_int:
        return y
    return e.Add(x, y)


def sub(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("-", a, b)
    if isinstance(y, Const):
        if isinstance(x, Const):
            return _fold(x.value - y.value, x.dtype)
        if y.value == 0 and x.dtype.is_int:
            return x
    if x is y and x.dtype.is_int and not x.dtype.is_vector:
        return const(0, x.dtype)
    return e.Sub(x, y)


def mul(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("*", a, b)
    if isinstance(x, Const) and isinstance(y, Const):
        return _fold(x.value * y.value, x.dtype)
    if x.dtype.is_int:
        for one, other in ((x, y), (y, x)):
            if isinstance(one, Const):
                if one.value == 1:
                    return other
                if one.value == 0:
                    return one
    return e.Mul(x, y)


def div(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("/", a, b)
    if not x.dtype.is_float:
        raise UserTypeError(
            "TW0104", f"/ is for floats, got {x.dtype}", help="use // for integers, or cast"
        )
    if isinstance(x, Const) and isinstance(y, Const) and y.value != 0:
        return const(x.value / y.value, x.dtype)
    return e.Div(x, y)


def _check_divisor(y: Expr) -> None:
    if not y.dtype.is_int:
        raise UserTypeError("TW0105", f"// and % are for integers, got {y.dtype}")
    if isinstance(y, Const) and y.value == 0:
        raise UserTypeError("TW0106", "division by the constant zero")


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("//", a, b)
    _check_divisor(y)
    if isinstance(y, Const):
        if isinstance(x, Const):
            return _fold(x.value // y.value, x.dtype)
        if y.value == 1:
            return x
    if isinstance(x, Const) and x.value == 0:
        return x
    return e.FloorDiv(x, y)


def floormod(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("%", a, b)
    _check_divisor(y)
    if isinstance(y, Const):
        if isinstance(x, Const):
            return _fold(x.value % y.value, x.dtype)
        if y.value == 1:
            return const(0, x.dtype)
    if isinstance(x, Const) and x.value == 0:
        return x
    return e.FloorMod(x, y)


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """Division that rounds up, for b > 0: (a + b - 1) // b."""
    return floordiv(add(a, sub(b, 1)), b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("min", a, b)
    if x is y:
        return x
    if isinstance(x, Const) and isinstance(y, Const) and x.dtype.is_int:
        return x if x.value <= y.value else y
    return e.Min(x, y)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("max", a, b)
    if x is y:
        return x
    if isinstance(x, Const) and isinstance(y, Const) and x.dtype.is_int:
        return x if x.value >= y.value else y
    return e.Max(x, y)


def _compare(
    node: type[e.Compare], test: Callable[[Any, Any], bool], a: ExprLike, b: ExprLike
) -> Expr:
    x, y = _pair(node.symbol, a, b)
    if isinstance(x, Const) and isinstance(y, Const):
        return const(test(x.value, y.value), BOOL)
    if x is y and x.dtype.is_int and not x.dtype.is_vector:
        return const(test(0, 0), BOOL)
    return node(x, y)


def eq(a: ExprLike, b: ExprLike) -> Expr:
    return _compare(e.Eq, lambda x, y: x == y, a, b)


def ne(a: ExprLike, b: ExprLike) -> Expr:
    return _compare(e.Ne, lambda x, y: x != y, a, b)


def lt(a: ExprLike, b: ExprLike) -> Expr:
    return _compare(e.Lt, lambda x, y: x < y, a, b)


def le(a: ExprLike, b: ExprLike) -> Expr:
    return _compare(e.Le, lambda x, y: x <= y, a, b)


def logical_and(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("and", a, b)
    if x is y or y is TRUE or x is FALSE:
        return x
    if x is TRUE or y is FALSE:
        return y
    return e.And(x, y)


def logical_or(a: ExprLike, b: ExprLike) -> Expr:
    x, y = _pair("or", a, b)
    if x is y or y is FALSE or x is TRUE:
        return x
    if x is FALSE or y is TRUE:
        return y
    return e.Or(x, y)


def logical_not(a: ExprLike) -> Expr:
    x = as_expr(a, BOOL)
    if isinstance(x, Const):
        return const(not x.value, BOOL)
    return x.a if isinstance(x, e.Not) else e.Not(x)


def all_of(*conditions: ExprLike) -> Expr:
    """The conjunction; true if empty."""
    result: Expr = TRUE
    for condition in conditions:
        result = logical_and(result, condition)
    return result


def any_of(*conditions: ExprLike) -> Expr:
    """The disjunction; false if empty."""
    result: Expr = FALSE
    for condition in conditions:
        result = logical_or(result, condition)
    return result


def select(cond: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    test = as_expr(cond, BOOL)
    x, y = _pair("select", a, b)
    if x is y:
        return x
    if isinstance(test, Const):
        return x if test.value else y
    return e.Select(test, x, y)


def cast(value: ExprLike, to: str | DType) -> Expr:
    """`value` converted to type `to` (keeping its lanes)."""
    target = dtype(to)
    x = as_expr(value, target)
    if x.dtype.lanes != target.lanes and not target.is_vector:
        target = target.with_lanes(x.dtype.lanes)
    if x.dtype is target:
        return x
    if isinstance(x, Const) and x.dtype.is_int and (target.is_int or target.is_float):
        return _fold(x.value, target)
    return e.Cast(x, target)


def _fold(value: int | float, of: DType) -> Const:
    """The constant of a computed value, wrapped as by the machine."""
    if of.is_int and of is not INDEX:
        value = int(value) & ((1 << of.bits) - 1)
        if of.kind == "int" and value >> (of.bits - 1):
            value -= 1 << of.bits
    return const(value, of)


_BUILDERS: dict[type[Expr], Callable[..., Expr]] = {
    e.Add: add,
    e.Sub: sub,
    e.Mul: mul,
    e.Div: div,
    e.FloorDiv: floordiv,
    e.FloorMod: floormod,
    e.Min: minimum,
    e.Max: maximum,
    e.Eq: eq,
    e.Ne: ne,
    e.Lt: lt,
    e.Le: le,
    e.And: logical_and,
    e.Or: logical_or,
    e.Not: logical_not,
    e.Select: select,
}


def rebuild(node: Expr) -> Expr:
    """Rebuild a node by its operator: constants are folded after a substitution."""
    if isinstance(node, e.Cast):
        return cast(node.value, node.dtype)
    build = _BUILDERS.get(type(node))
    return node if build is None else build(*node.children())


def rebuilt(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """Rebuild a node with other operands by its operator."""
    build = _BUILDERS.get(type(node))
    if build is not None:
        return build(*children)
    return rebuild(node.with_children(children))


def _install_operators() -> None:
    table: dict[str, Callable[[Any, Any], Expr]] = {
        "add": add,
        "sub": sub,
        "mul": mul,
        "truediv": div,
        "floordiv": floordiv,
        "mod": floormod,
    }
    for name, build in table.items():
        setattr(Expr, f"__{name}__", build)
        setattr(Expr, f"__r{name}__", _reflected(build))
    setattr(Expr, "__lt__", lt)
    setattr(Expr, "__le__", le)
    setattr(Expr, "__gt__", lambda a, b: lt(b, a))
    setattr(Expr, "__ge__", lambda a, b: le(b, a))
    setattr(Expr, "__neg__", lambda a: mul(a, -1))


def _reflected(build: Callable[[Any, Any], Expr]) -> Callable[[Any, Any], Expr]:
    return lambda b, a: build(a, b)


_install_operators()
