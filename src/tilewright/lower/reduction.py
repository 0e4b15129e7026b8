"""Reductions and cumulative operators along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import sym, te
from tilewright.base.dtype import F64, I32, I64, U8, DType
from tilewright.lower.base import (
    Lowering,
    Use,
    front_axis,
    number,
    placed,
    product,
    static,
    wide,
    wide_type,
)
from tilewright.lower.reduction_axes import (
    count_at_run_time,
    reduced_at_run_time,
    running_at_run_time,
)
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import Tensor


def reduced(
    x: Tensor,
    axes: Sequence[int],
    combine: te.Reduction,
    *,
    keep: bool,
    name: str,
    of: Callable[..., Any] = wide,
    where: Callable[..., Expr] | None = None,
) -> Tensor:
    """Reduce of(x[...]) along axes, in its type; an empty axis gives the identity.

    With `where`, only over elements at indices that satisfy it.
    """
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [ONE if axis in axes else x.shape[axis] for axis in range(x.ndim)]
    if not keep:
        shape = [x.shape[axis] for axis in rest]

    def element(*index: Expr) -> Expr:
        full: list[Expr] = list(index) if keep else [ONE] * x.ndim
        if not keep:
            for at, axis in zip(index, rest, strict=True):
                full[axis] = at
        if any(static(x.shape[axis]) == 0 for axis in axes):
            return combine.reducer(of(te.const(0, x.dtype)).dtype).identity[0]
        ks = [te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes]
        for axis, k in zip(axes, ks, strict=True):
            full[axis] = k
        value: Expr = of(x[tuple(full)])
        test = None if where is None else where(*full)
        return combine(value, axis=ks, where=test) if ks else value

    return te.compute(shape, element, name=name)


def _axes(use: Use, x: Tensor) -> list[int]:
    """The axes of a reduction, in order."""
    known = use.call.ints(1)
    named = range(x.ndim) if known is None else known
    return sorted(front_axis(axis, x.ndim) for axis in named)


def _reduce(combine: te.Reduction) -> Lowering:
    def rule(use: Use, x: Tensor, axes: Tensor | None) -> Tensor:
        through = _number if x.dtype.is_bool else wide
        if axes is not None:
            return _rounded(use, reduced_at_run_time(use, x, axes, combine, through))
        found = reduced(
            x, _axes(use, x), combine, keep=use["keepdims"], name=f"{use.name}_wide", of=through
        )
        return _rounded(use, found)

    return rule


def _number(value: Expr) -> Expr:
    return te.cast(value, U8)


def _rounded(use: Use, x: Tensor) -> Tensor:
    if x.dtype is use.dtype:
        return x
    return te.compute(use.shape, lambda *index: te.cast(x[index], use.dtype), name=use.name)


def _mean(use: Use, x: Tensor, axes: Tensor | None) -> Tensor:
    """For integers, the quotient truncates; sums are 64 bits."""
    of = wide_type(x.dtype) if x.dtype.is_float else I64

    def through(value: Expr) -> Expr:
        return te.cast(value, of)

    if axes is not None:
        total = reduced_at_run_time(use, x, axes, te.sum, through)
        count = count_at_run_time(use, x, axes)
    else:
        named, name = _axes(use, x), f"{use.name}_sum"
        total = reduced(x, named, te.sum, keep=use["keepdims"], name=name, of=through)
        count = product([x.shape[axis] for axis in named])

    def element(*index: Expr) -> Expr:
        if of.is_float:
            return te.cast(total[index] / number(count, of), use.dtype)
        return te.cast(te.trunc(te.cast(total[index], F64) / number(count, F64)), use.dtype)

    return te.compute(use.shape, element, name=use.name)


# ------------------------------------------------------------------------------------ arg


def best(*, greatest: bool, last: bool) -> te.Reduction:
    """(position, value) reduction: maximum or minimum, NaN above all; of equal ones the first or
    last."""

    def combine(a: Any, b: Any) -> tuple[Expr, Expr]:
        (i, x), (j, y) = a, b
        better, same = (y < x) if greatest else (x < y), te.eq(x, y)
        if x.dtype.is_float:
            neither = te.isnan(y)
            better = te.any(better, te.all(te.isnan(x), te.logical_not(neither)))
            same = te.any(same, te.all(te.isnan(x), neither))
        keep = te.any(better, te.all(same, j < i if last else i < j))
        return te.select(keep, i, j), te.select(keep, x, y)

    def identity(index: DType, value: DType) -> tuple[Expr, Expr]:
        worst = value.min if greatest else value.max
        return te.const(-1 if last else index.max, index), te.const(worst, value)

    name = f"arg{'max' if greatest else 'min'}_{'last' if last else 'first'}"
    return te.comm_reducer(combine, identity, name=name)


def _arg(*, greatest: bool) -> Lowering:
    def rule(use: Use, x: Tensor) -> Tensor:
        axis, keep = front_axis(use["axis"], x.ndim), use["keepdims"]
        choose = best(greatest=greatest, last=use["last"])

        def element(*index: Expr) -> tuple[Expr, ...]:
            full = placed(index, axis, ONE) if keep else (*index[:axis], ONE, *index[axis:])
            k = te.reduce_axis((0, x.shape[axis]), name="k")
            value = wide(x[placed(full, axis, k)])
            return choose((te.cast(k, I64), value), axis=k)

        position, _ = te.compute(use.shape, element, name=use.name)
        return position

    return rule


# ------------------------------------------------------------------------------------ running


Prefix = Callable[..., Expr]  # of a position along the axis, and an index of the others
INDEX_LIMIT = I32.max  # limit of a dynamic line length


@dataclass(frozen=True)
class Running:
    """Parameters of a cumulative operator: sum or product."""

    combine: Callable[[Expr, Expr], Expr]
    start: int
    of: DType
    rest: tuple[Expr, ...]  # the other dimensions
    piece: int  # elements per sequential piece; 0: all

    def prefixes(
        self, element: Prefix, length: Expr, name: str, reach: int = 1
    ) -> tuple[Prefix, Prefix]:
        """Exclusive and inclusive prefix results. `reach` is the number of elements represented by
        each."""
        count = static(length)
        if count is None and reach > INDEX_LIMIT:  # a single one
            return lambda *_: te.const(self.start, self.of), element
        if not self.piece or (count is not None and count <= self.piece):
            sums = self._scan(element, length, self.rest, name)
            return (
                lambda at, *index: sums[(at, *index)],
                lambda at, *index: sums[(sym.add(at, 1), *index)],
            )
        pieces = sym.ceildiv(length, self.piece)

        def inside(t: Expr, p: Expr, *index: Expr) -> Expr:
            place = sym.add(sym.mul(p, self.piece), t)
            if count is not None and count % self.piece == 0:
                return element(place, *index)
            last = sym.sub(length, 1)
            filled = element(sym.maximum(sym.minimum(place, last), 0), *index)
            return te.select(sym.lt(place, length), filled, te.const(self.start, self.of))

        own = self._scan(inside, sym.as_expr(self.piece), (pieces, *self.rest), name)
        before, _ = self.prefixes(
            lambda p, *index: own[(sym.as_expr(self.piece), p, *index)],
            pieces,
            f"{name}_pieces",
            reach * self.piece,
        )

        def prefix(further: int) -> Prefix:
            def found(at: Expr, *index: Expr) -> Expr:
                p, t = sym.floordiv(at, self.piece), sym.floormod(at, self.piece)
                return self.combine(before(p, *index), own[(sym.add(t, further), p, *index)])

            return found

        return prefix(0), prefix(1)

    def whole(self, element: Prefix, length: Expr, name: str) -> Tensor:
        """The inclusive results themselves, as a scan that starts from the first element."""
        shape = (length, *self.rest)
        state = te.placeholder(shape, self.of, name=f"{name}_state")
        begin = te.compute((1, *self.rest), lambda _, *i: element(ZERO, *i), name=f"{name}_start")
        update = te.compute(
            shape,
            lambda t, *i: self.combine(state[(t - 1, *i)], element(t, *i)),
            name=f"{name}_step",
        )
        return te.scan(begin, update, state, name=name)

    def _scan(self, element: Prefix, length: Expr, rest: tuple[Expr, ...], name: str) -> Tensor:
        """A scan whose step t is the result of the first t elements."""
        steps = sym.simplify(sym.add(length, 1))
        state = te.placeholder((steps, *rest), self.of, name=f"{name}_state")

        def step(t: Expr, *index: Expr) -> Expr:
            return self.combine(state[(t - 1, *index)], element(sym.sub(t, 1), *index))

        begin = te.compute(
            (1, *rest), lambda *_: te.const(self.start, self.of), name=f"{name}_start"
        )
        update = te.compute((steps, *rest), step, name=f"{name}_step")
        return te.scan(begin, update, state, name=f"{name}_sums")


def _running(combine: Callable[[Expr, Expr], Expr], start: int) -> Lowering:
    """A scan along the axis; or of pieces, and of their totals."""

    def rule(use: Use, x: Tensor, axis: Tensor | None) -> Tensor:
        known = use.call.ints(1)
        of = wide_type(x.dtype)
        if known is None:
            assert axis is not None
            return running_at_run_time(use, x, axis, combine, start, of)
        at = front_axis(known[0], x.ndim)
        length = x.shape[at]
        rest = tuple([dim for other, dim in enumerate(x.shape) if other != at])

        def place(t: Expr) -> Expr:
            return sym.sub(sym.sub(length, 1), t) if use["reverse"] else t

        def element(t: Expr, *index: Expr) -> Expr:
            return te.cast(x[(*index[:at], place(t), *index[at:])], of)

        running = Running(combine, start, of, rest, use["piece"])
        is_plain = not use["reverse"] and not use["exclusive"] and of is use.dtype
        count = static(length)
        if at == 0 and is_plain and count and (not use["piece"] or count <= use["piece"]):
            return running.whole(element, length, use.name)  # nothing is left to be copied
        if is_plain and count and not use["piece"]:
            states = running.whole(element, length, f"{use.name}_states")
            return te.compute(
                use.shape,
                lambda *index: states[(index[at], *index[:at], *index[at + 1 :])],
                name=use.name,
            )
        without, with_own = running.prefixes(element, length, use.name)
        found = without if use["exclusive"] else with_own

        def result(*index: Expr) -> Expr:
            others = (*index[:at], *index[at + 1 :])
            return te.cast(found(place(index[at]), *others), use.dtype)

        return te.compute(use.shape, result, name=use.name)

    return rule


LOWERINGS: dict[str, Lowering] = {
    "reduce_sum": _reduce(te.sum),
    "reduce_prod": _reduce(te.prod),
    "reduce_mean": _mean,
    "reduce_max": _reduce(te.max),
    "reduce_min": _reduce(te.min),
    "arg_max": _arg(greatest=True),
    "arg_min": _arg(greatest=False),
    "cumsum": _running(lambda a, b: a + b, 0),
    "cumprod": _running(lambda a, b: a * b, 1),
}
