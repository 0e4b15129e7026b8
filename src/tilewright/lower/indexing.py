"""Elements picked and placed by index. Indices from memory are kept inside the tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym, te
from tilewright.base.dtype import INDEX
from tilewright.graph.ops.indexing import neutral
from tilewright.lower.base import (
    Lowering,
    Use,
    counted,
    front_axis,
    placed,
    read_at,
    static,
    wide_type,
)
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import Expr
from tilewright.te import Tensor
from tilewright.tensor.ir import Stmt


def _gather(use: Use, x: Tensor, indices: Tensor) -> Tensor:
    axis, rank = front_axis(use["axis"], x.ndim), indices.ndim

    def element(*index: Expr) -> Expr:
        at = counted(indices[tuple(index[axis : axis + rank])], x.shape[axis])
        return read_at(x, (*index[:axis], at, *index[axis + rank :]), axis)

    return te.compute(use.shape, element, name=use.name)


def _gather_elements(use: Use, x: Tensor, indices: Tensor) -> Tensor:
    axis = front_axis(use["axis"], x.ndim)

    def element(*index: Expr) -> Expr:
        at = counted(indices[tuple(index)], x.shape[axis])
        return read_at(x, placed(index, axis, at), axis)

    return te.compute(use.shape, element, name=use.name)


def _gather_nd(use: Use, x: Tensor, indices: Tensor) -> Tensor:
    batch, depth, lead = use["batch_dims"], static(indices.shape[-1]), indices.ndim - 1
    assert depth is not None
    named = range(batch, batch + depth)

    def element(*index: Expr) -> Expr:
        row = tuple(index[:lead])
        where = [counted(indices[(*row, at)], x.shape[batch + at]) for at in range(depth)]
        return read_at(x, (*index[:batch], *where, *index[lead:]), *named)

    return te.compute(use.shape, element, name=use.name)


# ------------------------------------------------------------------------------------ scatter


def _combined(reduction: str, old: Expr, new: Expr) -> Expr:
    """What an update makes of the element in its place."""
    if old.dtype.is_bool:
        return {"add": te.any, "max": te.any, "mul": te.all, "min": te.all}[reduction](old, new)
    return {
        "add": lambda: old + new,
        "mul": lambda: old * new,
        "max": lambda: te.max(old, new),
        "min": lambda: te.min(old, new),
    }[reduction]()


def _scatter(
    use: Use,
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    place: Callable[[te.BufferView, tuple[Expr, ...]], Sequence[Expr]],
    from_memory: Sequence[int],
) -> Tensor:
    """x, then updates one after another, each at its place."""
    plain = use["reduction"] == "none"
    of = x.dtype if plain else wide_type(x.dtype)
    doubtful = [sym.lt(0, x.shape[axis]) for axis in from_memory if static(x.shape[axis]) is None]
    never = any(static(x.shape[axis]) == 0 for axis in from_memory)

    def body(ins: list[te.BufferView], outs: list[te.BufferView]) -> Stmt:
        (source, where, added), (out,) = ins, outs

        def update(*index: Expr) -> Stmt:
            at, new = tuple(place(where, index)), te.cast(added[index], of)
            return store(out, at, new if plain else _combined(use["reduction"], out[at], new))

        copy = loops(x.shape, lambda *index: store(out, index, te.cast(source[index], of)))
        changes = when(doubtful, loops(updates.shape, update, "u"))
        return copy if never else seq(copy, changes)

    name = use.name if of is use.dtype else f"{use.name}_wide"
    (made,) = procedure([x.shape], [x, indices, updates], body, name, [of])
    if of is use.dtype:
        return made
    return te.compute(x.shape, lambda *index: te.cast(made[index], use.dtype), name=use.name)


def _scatter_elements(use: Use, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = front_axis(use["axis"], x.ndim)

    def place(where: te.BufferView, index: tuple[Expr, ...]) -> Sequence[Expr]:
        return placed(index, axis, counted(where[index], x.shape[axis]))

    return _scatter(use, x, indices, updates, place, [axis])


def _scatter_nd(use: Use, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth, lead = static(indices.shape[-1]), indices.ndim - 1
    assert depth is not None

    def place(where: te.BufferView, index: tuple[Expr, ...]) -> Sequence[Expr]:
        row = index[:lead]
        found = [counted(where[(*row, at)], x.shape[at]) for at in range(depth)]
        return (*found, *index[lead:])

    return _scatter(use, x, indices, updates, place, range(depth))


def _segment_reduce(use: Use, x: Tensor, segments: Tensor, count: Tensor | None) -> Tensor:
    """A row for each segment that starts neutral, then rows of x one after another."""
    of, reduction, rows = wide_type(x.dtype), use["reduction"], use.shape[0]
    start = te.const(neutral(reduction, x.dtype), of)

    def body(ins: list[te.BufferView], outs: list[te.BufferView]) -> Stmt:
        (source, where), (out,) = ins, outs

        def update(row: Expr, *index: Expr) -> Stmt:
            segment = te.cast(where[(row,)], INDEX)
            at, new = (segment, *index), te.cast(source[(row, *index)], of)
            joined = store(out, at, _combined(reduction, out[at], new))
            return when([sym.le(0, segment), sym.lt(segment, rows)], joined)

        begin = loops(use.shape, lambda *index: store(out, index, start))
        return seq(begin, loops(x.shape, update, "u"))

    name = use.name if of is use.dtype else f"{use.name}_wide"
    (made,) = procedure([use.shape], [x, segments], body, name, [of])
    if of is use.dtype:
        return made
    return te.compute(use.shape, lambda *index: te.cast(made[index], use.dtype), name=use.name)


LOWERINGS: dict[str, Lowering] = {
    "segment_reduce": _segment_reduce,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
}
