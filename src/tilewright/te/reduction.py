"""Reductions: built-in ones, and custom ones made with `comm_reducer`.

    te.sum(A[i, k] * B[k, j], axis=k)
    te.max(A[i, k], axis=k, where=k < n)
    position, value = te.argmax(A[i, k], axis=k)

A reduction called with plain values instead of an axis combines them: `te.max(x, 0.0)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, overload

from tilewright import sym
from tilewright.base.dtype import I64, DType
from tilewright.sym import TRUE, Expr, var
from tilewright.te.axis import IterVar
from tilewright.te.operation import Read, Reduce, Tensor
from tilewright.te.scalar import DTypeLike, condition, value_of
from tilewright.te.scalar import cast as cast_to
from tilewright.te.source import clean_name, type_error, value_error
from tilewright.tensor.ir import REDUCE, Reducer
from tilewright.tensor.reducers import builtin

Value = Expr | Tensor | int | float | bool
Axes = IterVar | Sequence[IterVar]


class Reduction:
    """A commutative and associative reduction, applied along axes.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((8, 4), name="A")
        >>> k = te.reduce_axis((0, 4), name="k")
        >>> te.compute((8,), lambda i: te.sum(A[i, k], axis=k), name="total")
        <Tensor total: f32[8]>
        >>> te.compute((8,), lambda i: te.max(A[i, k], axis=k, where=k < 2), name="largest")
        <Tensor largest: f32[8]>
    """

    def __init__(self, name: str, make: Callable[[tuple[DType, ...]], Reducer]) -> None:
        self.name = name
        self._make = make
        self._made: dict[tuple[DType, ...], Reducer] = {}

    def reducer(self, *dtypes: DType) -> Reducer:
        """The reducer for values of these types; unique."""
        found = self._made.get(dtypes)
        if found is None:
            found = self._made[dtypes] = self._make(dtypes)
        return found

    @overload
    def __call__(
        self, expr: tuple[Value, ...], axis: Any, where: Any = None, init: Any = None, *rest: Any
    ) -> tuple[Expr, ...]: ...
    @overload
    def __call__(
        self, expr: Value, axis: Any, where: Any = None, init: Any = None, *rest: Any
    ) -> Expr: ...
    def __call__(
        self, expr: Any, axis: Any, where: Any = None, init: Any = None, *rest: Any
    ) -> Any:
        """Reduce `expr` over `axis`; without an axis, combine plain values."""
        if not _is_axes(axis):
            values = [expr, axis, *(v for v in (where, init, *rest) if v is not None)]
            return self._combined(values)
        sources = (
            [value_of(v) for v in expr] if isinstance(expr, (tuple, list)) else [value_of(expr)]
        )
        axes = _checked_axes(self.name, axis, sources)
        test = TRUE if where is None else condition(where, f"where of te.{self.name}")
        reducer = self.reducer(*(source.dtype for source in sources))
        inits = _inits(self.name, init, sources)
        first = Reduce(reducer, tuple(sources), axes, test, inits, 0)
        if not isinstance(expr, (tuple, list)):
            return first
        return tuple([first.component(k) for k in range(len(sources))])

    def _combined(self, values: list[Any]) -> Any:
        if isinstance(values[0], (tuple, list)):
            raise type_error("TW2410", f"te.{self.name} of tuples needs an axis")
        typed = next((v for v in values if isinstance(v, (Expr, Tensor))), None)
        of = None if typed is None else value_of(typed).dtype
        exprs = [value_of(v) if of is None else sym.as_expr(v, of) for v in values]
        reducer = self.reducer(exprs[0].dtype)
        if any(expr.dtype is not exprs[0].dtype for expr in exprs):
            types = ", ".join(str(expr.dtype) for expr in exprs)
            raise type_error(
                "TW2410",
                f"te.{self.name} combines values of types {types}",
                help="insert a cast: te.cast(x, dtype)",
            )

        def combine(a: Expr, b: Expr) -> Expr:
            return sym.substitute(reducer.result[0], {reducer.lhs[0]: a, reducer.rhs[0]: b})

        return reduce(combine, exprs)

    def __repr__(self) -> str:
        return f"<reduction te.{self.name}>"


def _is_axes(axis: Any) -> bool:
    if isinstance(axis, (list, tuple)):
        return True
    return isinstance(axis, IterVar) and axis.kind == REDUCE


def _checked_axes(name: str, axis: Any, sources: list[Expr]) -> tuple[IterVar, ...]:
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)
    if not axes:
        raise value_error("TW2410", f"te.{name} needs at least one axis")
    for one in axes:
        if not isinstance(one, IterVar) or one.kind != REDUCE:
            raise type_error(
                "TW2410",
                f"te.{name} reduces over {one}, which is not a reduce axis",
                help="make one: k = te.reduce_axis((0, n), name='k')",
            )
    for one in axes:
        if axes.count(one) > 1:
            raise value_error("TW2410", f"te.{name} reduces over {one} twice")
    for part in sym.walk(*sources):
        if isinstance(part, Reduce):
            for one in part.axes:
                if one in axes:
                    raise value_error(
                        "TW2410",
                        f"te.{name} reduces over {one}, which a reduction inside it has used",
                        help="give each reduction an axis of its own",
                    )
    return axes


def _inits(name: str, init: Any, sources: list[Expr]) -> tuple[Expr, ...]:
    if init is None:
        return ()
    values = tuple(init) if isinstance(init, (tuple, list)) else (init,)
    if len(values) != len(sources):
        raise value_error(
            "TW2410", f"te.{name} reduces {len(sources)} values but init gives {len(values)}"
        )
    exprs = tuple([sym.as_expr(v, s.dtype) for v, s in zip(values, sources, strict=True)])
    for expr, source in zip(exprs, sources, strict=True):
        if expr.dtype is not source.dtype:
            raise type_error(
                "TW2410", f"init of te.{name} has type {expr.dtype}, its values {source.dtype}"
            )
    return exprs


def _built_in(name: str) -> Reduction:
    def make(dtypes: tuple[DType, ...]) -> Reducer:
        count = 2 if name.startswith("arg") else 1
        if len(dtypes) != count:
            raise value_error("TW2410", f"te.{name} reduces {count} values, got {len(dtypes)}")
        if dtypes[-1].is_bool:
            raise type_error(
                "TW2410", f"te.{name} does not take bool", help="cast to an integer type first"
            )
        return builtin(name, *dtypes)

    return Reduction(name, make)


sum, prod = _built_in("sum"), _built_in("prod")
max, min = _built_in("max"), _built_in("min")
_argmax, _argmin = _built_in("argmax"), _built_in("argmin")


def argmax(expr: Any, axis: Axes, where: Any = None, dtype: DTypeLike = I64) -> tuple[Expr, Expr]:
    """The position and value of the maximum; the first one in case of ties.

    `expr` is a value, whose position is counted along the axes in row-major order from their
    starts; or a pair (position, value).

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> A = te.placeholder((4,), name="A")
        >>> k = te.reduce_axis((0, 4), name="k")
        >>> at, largest = te.compute((), lambda: te.argmax(A[k], axis=k), name="found")
        >>> where, value = np.zeros((), np.int64), np.zeros((), np.float32)
        >>> a = np.array([3, 1, 4, 2], np.float32)
        >>> tw.interpret(te.function([A, at, largest]), a, where, value)
        >>> int(where), float(value)
        (2, 4.0)
    """
    return _positioned(_argmax, expr, axis, where, dtype)


def argmin(expr: Any, axis: Axes, where: Any = None, dtype: DTypeLike = I64) -> tuple[Expr, Expr]:
    """The position and value of the minimum; the first one in case of ties.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((4,), name="A")
        >>> k = te.reduce_axis((0, 4), name="k")
        >>> at, least = te.compute((), lambda: te.argmin(A[k], axis=k), name="found")
        >>> at.dtype, least.dtype
        (dtype('i64'), dtype('f32'))
    """
    return _positioned(_argmin, expr, axis, where, dtype)


def _positioned(
    reduction: Reduction, expr: Any, axis: Any, where: Any, dtype: DTypeLike
) -> tuple[Expr, Expr]:
    if not _is_axes(axis):
        raise type_error(
            "TW2410",
            f"te.{reduction.name} reduces over {axis}, which is not a reduce axis",
            help="make one: k = te.reduce_axis((0, n), name='k')",
        )
    if not isinstance(expr, (tuple, list)):
        axes = _checked_axes(reduction.name, axis, [value_of(expr)])
        place: Expr = sym.ZERO
        for one in axes:
            place = place * one.extent + (one - one.start)
        expr = (cast_to(place, dtype), expr)
    position, value = reduction(tuple(expr), axis, where)
    return position, value


def comm_reducer(
    fcombine: Callable[[Any, Any], Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Reduction:
    """Make a custom reduction, of single values or of tuples.

    `fcombine(x, y)` combines two values (or two tuples); it must be commutative and associative.
    `fidentity(dtype, ...)` is its identity element.

    Examples:
        >>> from tilewright import te
        >>> both = te.comm_reducer(
        ...     lambda x, y: (x[0] + y[0], x[1] * y[1]),
        ...     lambda a, b: (te.const(0, a), te.const(1, b)),
        ...     name="sum_and_product",
        ... )
    """
    name = clean_name(name)

    def make(dtypes: tuple[DType, ...]) -> Reducer:
        lhs = tuple([var(f"x{k}" if len(dtypes) > 1 else "x", of) for k, of in enumerate(dtypes)])
        rhs = tuple([var(f"y{k}" if len(dtypes) > 1 else "y", of) for k, of in enumerate(dtypes)])
        single = len(dtypes) == 1
        combined = fcombine(lhs[0], rhs[0]) if single else fcombine(lhs, rhs)
        result = _as_values("fcombine", name, combined, dtypes)
        identity = _as_values("fidentity", name, fidentity(*dtypes), dtypes)
        _check_closed(name, result, {*lhs, *rhs})
        _check_closed(name, identity, set())
        return Reducer(name, lhs, rhs, result, identity)

    return Reduction(name, make)


def _as_values(what: str, name: str, given: Any, dtypes: tuple[DType, ...]) -> tuple[Expr, ...]:
    values = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if len(values) != len(dtypes):
        raise value_error(
            "TW2411",
            f"{what} of reduction {name} gives {len(values)} values for {len(dtypes)}",
        )
    exprs = tuple([sym.as_expr(v, of) for v, of in zip(values, dtypes, strict=True)])
    for expr, of in zip(exprs, dtypes, strict=True):
        if expr.dtype is not of:
            raise type_error(
                "TW2411",
                f"{what} of reduction {name} gives {expr} of type {expr.dtype}, expected {of}",
            )
    return exprs


def _check_closed(name: str, exprs: tuple[Expr, ...], known: set[Expr]) -> None:
    for part in sym.walk(*exprs):
        if isinstance(part, Read) or (isinstance(part, sym.Var) and part not in known):
            raise value_error(
                "TW2411",
                f"reduction {name} uses {part}",
                help="a combination may use its operands and constants only",
            )
