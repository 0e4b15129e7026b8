"""Shape operators and data movement: every element is read from its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym, te
from tilewright.base.dtype import F64, I64
from tilewright.lower.axes import at_axis, axes_of, first_of, items, may_be
from tilewright.lower.base import (
    Lowering,
    Use,
    counted,
    flat_index,
    front_axis,
    number,
    placed,
    product,
    read_at,
    read_broadcast,
    split_index,
    static,
)
from tilewright.sym import ONE, ZERO, Const, Expr
from tilewright.te import Tensor


def _move(use: Use, x: Tensor, place: Callable[..., Sequence[Expr]]) -> Tensor:
    """A tensor with the elements of x at mapped indices."""
    return te.compute(use.shape, lambda *index: x[tuple(place(*index))], name=use.name)


# ------------------------------------------------------------------------------------ shapes


def _shape(use: Use, x: Tensor) -> Tensor:
    return _listed(use, x.shape)


def _dims(use: Use, values: Tensor | None = None) -> Tensor:
    known = use.call.value(0)
    if known is None:
        assert values is not None
        return _move(use, values, lambda *index: index)
    return _listed(use, known)


def _listed(use: Use, items: Sequence[Expr]) -> Tensor:
    """A short list of expressions of sizes as a tensor."""

    def element(*index: Expr) -> Expr:
        value: Expr = number(items[-1], use.dtype) if items else te.const(0, use.dtype)
        for at, one in reversed(list(enumerate(items[:-1]))):
            value = te.select(te.eq(index[0], at), number(one, use.dtype), value)
        return value

    return te.compute(use.shape, element, name=use.name)


# ------------------------------------------------------------------------------------ reshape


def _reshape(use: Use, x: Tensor, shape: Tensor | None = None) -> Tensor:
    groups = reshape_groups(x.shape, use.shape)

    def place(*index: Expr) -> list[Expr]:
        found: list[Expr] = []
        for before, after in groups:
            inner = [use.shape[axis] for axis in after]
            flat = flat_index([index[axis] for axis in after], inner)
            found += split_index(flat, [x.shape[axis] for axis in before])
        if shape is None:
            return found
        # A shape from memory has as many elements: that was checked, not proved.
        pairs = zip(found, x.shape, strict=True)
        return [sym.maximum(sym.minimum(at, sym.sub(dim, 1)), 0) for at, dim in pairs]

    if shape is None:
        return _move(use, x, place)
    return te.compute(
        use.shape, lambda *index: read_at(x, place(*index), *range(x.ndim)), name=use.name
    )


def reshape_groups(
    before: Sequence[Expr], after: Sequence[Expr]
) -> list[tuple[list[int], list[int]]]:
    """The shortest groups of axes that have equal numbers of elements on both sides."""
    groups: list[tuple[list[int], list[int]]] = []
    left, right = 0, 0
    while left < len(before) or right < len(after):
        ends = _shortest(before[left:], after[right:])
        groups.append((list(range(left, left + ends[0])), list(range(right, right + ends[1]))))
        left, right = left + ends[0], right + ends[1]
    return groups


def _shortest(before: Sequence[Expr], after: Sequence[Expr]) -> tuple[int, int]:
    """The numbers of axes on both sides with provably equally many elements; all axes, if
    unknown."""
    if before and before[0] is ONE:
        return 1, 0
    if after and after[0] is ONE:
        return 0, 1
    for total in range(2, len(before) + len(after)):
        for count in range(max(1, total - len(after)), min(len(before), total - 1) + 1):
            rest = total - count
            if sym.equal(product(before[:count]), product(after[:rest])):
                return count, rest
    return len(before), len(after)


# ------------------------------------------------------------------------------------ repeated


def _expand(use: Use, x: Tensor, shape: Tensor | None = None) -> Tensor:
    return te.compute(use.shape, lambda *index: read_broadcast(x, use.shape, index), name=use.name)


def _tile(use: Use, x: Tensor, repeats: Tensor | None = None) -> Tensor:
    def place(*index: Expr) -> list[Expr]:
        pairs = zip(index, x.shape, use.shape, strict=True)
        return [at if dim is full else sym.floormod(at, dim) for at, dim, full in pairs]

    return _move(use, x, place)


# ------------------------------------------------------------------------------------ order


def _transpose(use: Use, x: Tensor) -> Tensor:
    perm = [front_axis(axis, x.ndim) for axis in use["perm"]]
    return _move(use, x, lambda *index: [index[perm.index(axis)] for axis in range(x.ndim)])


def _concat(use: Use, *parts: Tensor) -> Tensor:
    axis = front_axis(use["axis"], len(use.shape))
    kept = [part for part in parts if static(part.shape[axis]) != 0] or [parts[0]]

    def element(*index: Expr) -> Expr:
        starts: list[Expr] = [ZERO]
        for part in kept:
            starts.append(sym.simplify(sym.add(starts[-1], part.shape[axis])))
        at = index[axis]

        def among(first: int, end: int) -> Expr:
            """The element of one of these parts, selected by binary search."""
            if end - first == 1:
                return kept[first][placed(index, axis, sym.sub(at, starts[first]))]
            middle = (first + end) // 2
            inside = sym.lt(at, starts[middle])
            return te.if_then_else(inside, among(first, middle), among(middle, end))

        return among(0, len(kept))

    return te.compute(use.shape, element, name=use.name)


def _interleave(use: Use, *parts: Tensor) -> Tensor:
    axes, factors = use["axes"], use["factors"]

    def element(*index: Expr) -> Expr:
        place = list(index)
        for axis, factor in zip(axes, factors, strict=True):
            place[axis] = sym.floordiv(index[axis], factor)
        reads = [part[tuple(place)] for part in parts]
        for axis, factor in zip(reversed(axes), reversed(factors), strict=True):
            turn = sym.floormod(index[axis], factor)
            reads = [_in_turn(turn, reads[at : at + factor]) for at in range(0, len(reads), factor)]
        return reads[0]

    return te.compute(use.shape, element, name=use.name)


def _in_turn(turn: Expr, reads: Sequence[Expr]) -> Expr:
    """Select the read number `turn`."""
    out = reads[-1]
    for at, read in reversed(list(enumerate(reads[:-1]))):
        out = te.if_then_else(te.eq(turn, at), read, out)
    return out


# ------------------------------------------------------------------------------------ slice


def _slice(
    use: Use,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    first = items(use, 1, starts)
    step = items(use, 4, steps) if use.call.has(4) else [ONE] * len(first)
    named = axes_of(use, 3, axes, len(first), x.ndim)
    touched = [axis for axis in range(x.ndim) if may_be(named, axis)]

    def place(*index: Expr) -> list[Expr]:
        found = list(index)
        for axis in touched:
            start, stride = at_axis(named, first, axis, ZERO), at_axis(named, step, axis, ONE)
            found[axis] = _sliced(x, axis, index[axis], start, stride)
        return found

    if starts is None and steps is None and axes is None:
        return _move(use, x, place)
    return te.compute(use.shape, lambda *index: read_at(x, place(*index), *touched), name=use.name)


def _sliced(x: Tensor, axis: int, at: Expr, start: Expr, step: Expr) -> Expr:
    """A position in x; in bounds by the output's extent, unless bounds are dynamic."""
    dim = x.shape[axis]
    forward = isinstance(step, Const) and step.value > 0
    if isinstance(start, Const) and forward and start.value == 0:
        return sym.mul(at, step)
    first = sym.simplify(first_of(start, step, dim))
    place = sym.simplify(sym.add(first, sym.mul(at, step)))
    if isinstance(step, Const) and isinstance(dim, Const) and isinstance(start, Const):
        return place
    return sym.maximum(sym.minimum(place, sym.sub(dim, 1)), 0)


# ------------------------------------------------------------------------------------ pad


def _pad(
    use: Use,
    x: Tensor,
    pads: Tensor | None = None,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    amounts = items(use, 1, pads)
    half = len(amounts) // 2
    named = axes_of(use, 3, axes, half, x.ndim)
    amount = {
        axis: (
            at_axis(named, amounts[:half], axis, ZERO),
            at_axis(named, amounts[half:], axis, ZERO),
        )
        for axis in range(x.ndim)
        if may_be(named, axis)
    }
    touched = [axis for axis, (before, after) in amount.items() if (before, after) != (ZERO, ZERO)]
    before = {axis: amount[axis][0] for axis in touched}
    if use["mode"] == "constant":
        fill = te.const(0, x.dtype) if value is None else value[(0,) * value.ndim]
        return _framed(use, x, before, lambda _: fill)
    places = {axis: _repeated(use["mode"], x.shape[axis], *amount[axis]) for axis in touched}
    if pads is None and axes is None:

        def repeated(index: Sequence[Expr]) -> Expr:
            return x[tuple([places[a](at) if a in places else at for a, at in enumerate(index)])]

        return _framed(use, x, before, repeated)
    # Data-dependent positions are computed once per axis.
    tables = {
        axis: te.compute(
            (use.shape[axis],),
            lambda i, place=place: te.cast(place(i), I64),
            name=f"{use.name}_places{axis}",
        )
        for axis, place in places.items()
    }

    def element(*index: Expr) -> Expr:
        found = list(index)
        for axis, table in tables.items():
            found[axis] = counted(table[index[axis]], x.shape[axis])
        return read_at(x, found, *tables)

    return te.compute(use.shape, element, name=use.name)


def _framed(
    use: Use, x: Tensor, before: dict[int, Expr], outside: Callable[[Sequence[Expr]], Expr]
) -> Tensor:
    """x surrounded by `outside`, as separate cases, so that x is copied contiguously."""

    def element(*index: Expr) -> Expr:
        inside, tests = list(index), []
        for axis, amount in before.items():
            inside[axis] = sym.simplify(sym.sub(index[axis], amount))
            tests += [sym.le(0, inside[axis]), sym.lt(inside[axis], x.shape[axis])]
        if not tests:
            return x[index]
        return te.if_then_else(te.all(*tests), x[tuple(inside)], outside(index))

    return te.compute(use.shape, element, name=use.name)


def _repeated(mode: str, dim: Expr, before: Expr, after: Expr) -> Callable[[Expr], Expr]:
    """The source along an axis of elements that repeat those inside.

    Where elements are removed, the remaining ones are reflected or repeated.
    """
    low = sym.simplify(sym.maximum(sym.sub(0, before), 0))
    high = sym.simplify(sym.add(dim, sym.minimum(after, 0)))
    size = sym.simplify(sym.sub(high, low))

    def place(at: Expr) -> Expr:
        moved = sym.sub(sym.simplify(sym.sub(at, before)), low)
        inner = sym.add(_outside(mode, moved, size), low)
        return sym.maximum(sym.minimum(inner, sym.sub(dim, 1)), 0)

    return place


def _outside(mode: str, at: Expr, size: Expr) -> Expr:
    """The position of the element that replaces one at a position possibly outside of 0..size."""
    if mode == "edge":
        return sym.maximum(sym.minimum(at, sym.sub(size, 1)), 0)
    if mode == "wrap":
        return sym.floormod(at, sym.maximum(size, 1))
    period = sym.simplify(sym.maximum(sym.mul(sym.sub(size, 1), 2), 1))
    folded = sym.floormod(at, period)
    return sym.minimum(folded, sym.sub(period, folded)) if period is not ONE else ZERO


# ------------------------------------------------------------------------------------ range


def _range(
    use: Use, start: Tensor | None = None, limit: Tensor | None = None, delta: Tensor | None = None
) -> Tensor:
    of = F64 if use.dtype.is_float else use.dtype

    def scalar(at: int, tensor: Tensor | None) -> Expr:
        known = use.call.value(at)
        if known is not None:
            return number(known[0], of)
        assert tensor is not None
        return te.cast(tensor[(0,) * tensor.ndim], of)

    def element(i: Expr) -> Expr:
        value = scalar(0, start) + te.cast(i, of) * scalar(2, delta)
        return te.cast(value, use.dtype)

    return te.compute(use.shape, element, name=use.name)


LOWERINGS: dict[str, Lowering] = {
    "shape": _shape,
    "dims": _dims,
    "reshape": _reshape,
    "expand": _expand,
    "tile": _tile,
    "transpose": _transpose,
    "concat": _concat,
    "interleave": _interleave,
    "slice": _slice,
    "pad": _pad,
    "range": _range,
}
