"""Gather and scatter. Indices from memory are clamped to the tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright import sym, te
from tilewright.base.dtype import I32, I64, INDEX, DType
from tilewright.graph.ops.indexing import neutral
from tilewright.lower.base import (
    STORED,
    Lowering,
    Requirement,
    Use,
    counted,
    flat_index,
    front_axis,
    placed,
    product,
    read_at,
    split_index,
    static,
    unless_none,
    wide_type,
)
from tilewright.lower.scatter import Lines, by_order
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import ONE, Expr
from tilewright.te import Tensor
from tilewright.tensor.ir import Stmt


def _gather(use: Use, x: Tensor, indices: Tensor) -> Tensor:
    axis, rank = front_axis(use["axis"], x.ndim), indices.ndim

    def element(*index: Expr) -> Expr:
        found = indices[tuple(index[axis : axis + rank])]
        at = counted(found, x.shape[axis], from_end=use["from_end"])
        return read_at(x, (*index[:axis], at, *index[axis + rank :]), axis)

    return te.compute(use.shape, element, name=use.name)


def _gather_elements(use: Use, x: Tensor, indices: Tensor) -> Tensor:
    axis = front_axis(use["axis"], x.ndim)

    def element(*index: Expr) -> Expr:
        at = counted(indices[tuple(index)], x.shape[axis], from_end=use["from_end"])
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
    """Combine an update with the old element."""
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
    """Copy x, then apply updates sequentially."""
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


def _combining(use: Use) -> Callable[[Expr, Expr], Expr] | None:
    reduction = use["reduction"]
    return None if reduction == "none" else partial(_combined, reduction)


@dataclass(frozen=True)
class _Owned:
    """The correspondence of updates and results, by the first `key` indices of a result."""

    key: int
    among: tuple[Expr, ...]  # extents of the candidate updates
    is_own: Callable[[Sequence[Expr], Sequence[Expr]], Expr]  # of the indices, and of an update's
    element: Callable[[Sequence[Expr], Sequence[Expr]], tuple[Expr, ...]]  # in the updates
    places: Tensor | None = None  # positions of updates that are whole rows


def _places(
    shape: Sequence[Expr], dims: Sequence[Expr], place: Callable[..., Expr], name: str
) -> Tensor:
    """Destinations of updates, stored as numbers: each is compared with many results."""
    count = static(product(dims))
    of = I32 if count is not None and count < 1 << (I32.bits - 1) else I64
    return te.compute(shape, lambda *at: te.cast(place(*at), of), name=name, attrs=STORED)


_REDUCE = {"add": te.sum, "mul": te.prod, "max": te.max, "min": te.min}


def _by_results(use: Use, x: Tensor, updates: Tensor, owned: _Owned) -> Tensor:
    """Combine every result with its own updates."""
    reduction = use["reduction"]
    if reduction != "none" and owned.places is None:
        return _of_updates(use, x, updates, owned)
    axes = _axes(owned)

    def last(*key: Expr) -> Expr:
        number = te.cast(flat_index(axes, owned.among), I64)
        own = te.if_then_else(owned.is_own(key, axes), number, te.const(-1, I64))
        return te.max(own, axis=axes)

    chosen = te.compute(x.shape[: owned.key], last, name=f"{use.name}_last")
    added = updates if reduction == "none" else _row_totals(use, updates, owned)

    def element(*at: Expr) -> Expr:
        found = te.cast(chosen[at[: owned.key]], INDEX)
        inside = sym.maximum(sym.minimum(found, sym.sub(product(owned.among), 1)), 0)
        which = owned.element(at, split_index(inside, owned.among))
        new = read_at(added, which, *range(added.ndim))
        if reduction != "none":
            new = te.cast(_combined(reduction, te.cast(x[at], added.dtype), new), x.dtype)
        return te.if_then_else(found >= 0, new, x[at])

    return te.compute(x.shape, element, name=use.name)


def _axes(owned: _Owned) -> list[te.IterVar]:
    return [te.reduce_axis((0, dim), name=f"u{at}") for at, dim in enumerate(owned.among)]


def _nothing(reduction: str, of: DType) -> Expr:
    """The identity of a reduction; -0.0 for sums, since adding 0.0 would change -0.0."""
    is_sum = reduction == "add" and of.is_float
    return te.const(-0.0 if is_sum else neutral(reduction, of), of)


def _row_totals(use: Use, updates: Tensor, owned: _Owned) -> Tensor:
    """For each row of updates, combine all updates with the same destination: there are fewer rows
    than results."""
    axes, places, reduction = _axes(owned), owned.places, use["reduction"]
    assert places is not None
    of, none = wide_type(updates.dtype), _nothing(reduction, wide_type(updates.dtype))

    def total(*at: Expr) -> Expr:
        row, inner = at[: places.ndim], at[places.ndim :]
        new = te.cast(updates[(*axes, *inner)], of)
        own = te.eq(places[row], places[tuple(axes)])
        return _REDUCE[reduction](te.if_then_else(own, new, none), axis=axes, init=none)

    return te.compute(updates.shape, total, name=f"{use.name}_totals")


def _of_updates(use: Use, x: Tensor, updates: Tensor, owned: _Owned) -> Tensor:
    """Every result searches all candidate updates."""
    of, axes, reduction = wide_type(x.dtype), _axes(owned), use["reduction"]

    def joined(*at: Expr) -> Expr:
        new = te.cast(read_at(updates, owned.element(at, axes), *range(updates.ndim)), of)
        none = _nothing(reduction, of)
        own = te.if_then_else(owned.is_own(at[: owned.key], axes), new, none)
        return _REDUCE[reduction](own, axis=axes, init=te.cast(x[at], of))

    sums = te.compute(x.shape, joined, name=use.name if of is use.dtype else f"{use.name}_wide")
    if of is use.dtype:
        return sums
    return te.compute(x.shape, lambda *at: te.cast(sums[at], use.dtype), name=use.name)


def _scatter_elements(use: Use, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = front_axis(use["axis"], x.ndim)

    def of_result(at: Sequence[Expr], update: Sequence[Expr]) -> tuple[Expr, ...]:
        ends = [sym.sub(dim, 1) for dim in updates.shape]
        return placed([sym.minimum(*each) for each in zip(at, ends, strict=True)], axis, update[0])

    if use["runs"]:

        def along(line: Sequence[Expr], at: Expr, _: Sequence[Expr] = ()) -> tuple[Expr, ...]:
            return (*line[:axis], at, *line[axis:])

        lines = Lines(
            (*updates.shape[:axis], *updates.shape[axis + 1 :]),
            updates.shape[axis],
            x.shape[axis],
            lambda line, u: counted(indices[along(line, u)], x.shape[axis]),
            (),
            along,
            along,
        )
        return by_order(use, x, updates, lines, _combining(use))
    if use["by_results"]:

        def place_of(*at: Expr) -> Expr:
            return counted(indices[at], x.shape[axis])

        places = _places(indices.shape, [x.shape[axis]], place_of, f"{use.name}_at")

        def is_own(at: Sequence[Expr], update: Sequence[Expr]) -> Expr:
            inside = [at[d] < dim for d, dim in enumerate(updates.shape) if d != axis]
            here = read_at(places, of_result(at, update), *range(x.ndim))
            return te.all(*inside, te.eq(here, te.cast(at[axis], here.dtype)))

        owned = _Owned(x.ndim, (updates.shape[axis],), is_own, of_result)
        return _by_results(use, x, updates, owned)

    def place(where: te.BufferView, index: tuple[Expr, ...]) -> Sequence[Expr]:
        return placed(index, axis, counted(where[index], x.shape[axis]))

    return _scatter(use, x, indices, updates, place, [axis])


def _scatter_nd(use: Use, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth, lead = static(indices.shape[-1]), indices.ndim - 1
    assert depth is not None
    among, keys = tuple(updates.shape[:lead]) or (ONE,), x.shape[:depth]

    def place_of(*update: Expr) -> Expr:
        where = [counted(indices[(*update[:lead], at)], x.shape[at]) for at in range(depth)]
        return flat_index(where, keys)

    if use["runs"]:
        lines = Lines(
            (),
            product(among),
            product(keys),
            lambda _, u: place_of(*split_index(u, among)),
            x.shape[depth:],
            lambda _, place, inner: (*split_index(place, keys), *inner),
            lambda _, u, inner: (*split_index(u, among)[:lead], *inner),
        )
        return by_order(use, x, updates, lines, _combining(use))
    if use["by_results"]:
        places = _places(among, keys, place_of, f"{use.name}_at")

        def is_own(key: Sequence[Expr], update: Sequence[Expr]) -> Expr:
            here = places[tuple(update)]
            return te.eq(here, te.cast(flat_index(key, keys), here.dtype))

        few, many = static(product(among)), static(product(keys))
        has_totals = lead > 0 and (few is None or many is None or few <= many)
        owned = _Owned(
            depth,
            among,
            is_own,
            lambda at, update: (*update[:lead], *at[depth:]),
            places if has_totals else None,
        )
        return _by_results(use, x, updates, owned)

    def place(where: te.BufferView, index: tuple[Expr, ...]) -> Sequence[Expr]:
        row = index[:lead]
        found = [counted(where[(*row, at)], x.shape[at]) for at in range(depth)]
        return (*found, *index[lead:])

    return _scatter(use, x, indices, updates, place, range(depth))


def _segment_reduce(use: Use, x: Tensor, segments: Tensor, count: Tensor | None) -> Tensor:
    """A row per segment, initialized to the identity, then rows of x are combined sequentially."""
    of, reduction, rows = wide_type(x.dtype), use["reduction"], use.shape[0]
    start = te.const(neutral(reduction, x.dtype), of)
    if use["runs"]:

        def segment_of(_: Sequence[Expr], row: Expr) -> Expr:
            """Rows without a segment are sorted last."""
            found = te.cast(segments[(row,)], INDEX)
            return te.select(te.all(sym.le(0, found), sym.lt(found, rows)), found, rows)

        def row(_: Sequence[Expr], at: Expr, inner: Sequence[Expr]) -> tuple[Expr, ...]:
            return (at, *inner)

        lines = Lines((), x.shape[0], rows, segment_of, x.shape[1:], row, row)
        none = te.const(neutral(reduction, x.dtype), x.dtype)
        begin = te.compute(use.shape, lambda *_: none, name=f"{use.name}_begin")
        return by_order(use, begin, x, lines, partial(_combined, reduction))

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


def _has_indexed(use: Use) -> list[Expr]:
    """Indices into an empty axis are invalid, including 0 and -1."""
    x, indices = use.call.shape(0), use.call.shape(1)
    count = product(indices)
    if use.call.op in ("gather_nd", "scatter_nd"):
        first, depth = use.call.attributes.get("batch_dims", 0), static(indices[-1])
        assert depth is not None
        return [c for dim in x[first : first + depth] for c in unless_none(count, dim)]
    return unless_none(count, x[front_axis(use["axis"], len(x))])


REQUIREMENTS: dict[str, Requirement] = {
    "gather": _has_indexed,
    "gather_elements": _has_indexed,
    "gather_nd": _has_indexed,
    "scatter_elements": _has_indexed,
    "scatter_nd": _has_indexed,
}
LOWERINGS: dict[str, Lowering] = {
    "segment_reduce": _segment_reduce,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
}
