"""Tensors in another shape, order or extent: every element is read where it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym, te
from tilewright.base.dtype import F64
from tilewright.lower.base import (
    Lowering,
    Use,
    flat_index,
    front_axis,
    item,
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
    """A tensor of the elements of x at the places of each index."""
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
    """A short list of expressions of sizes, as a tensor."""

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
        return found

    return _move(use, x, place)


def reshape_groups(
    before: Sequence[Expr], after: Sequence[Expr]
) -> list[tuple[list[int], list[int]]]:
    """Runs of axes that hold the same number of elements on both sides, as short as can be."""
    groups: list[tuple[list[int], list[int]]] = []
    left, right = 0, 0
    while left < len(before) or right < len(after):
        ends = _shortest(before[left:], after[right:])
        groups.append((list(range(left, left + ends[0])), list(range(right, right + ends[1]))))
        left, right = left + ends[0], right + ends[1]
    return groups


def _shortest(before: Sequence[Expr], after: Sequence[Expr]) -> tuple[int, int]:
    """How many axes on each side hold equally many elements; all, if nothing less is certain."""
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
        value: Expr | None = None
        for part, start in reversed(list(zip(kept, starts[:-1], strict=True))):
            read = part[placed(index, axis, sym.sub(at, start))]
            inside = sym.lt(at, sym.add(start, part.shape[axis]))
            value = read if value is None else te.if_then_else(inside, read, value)
        assert value is not None
        return value

    return te.compute(use.shape, element, name=use.name)


# ------------------------------------------------------------------------------------ slice


def _slice(
    use: Use,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    if axes is not None:
        raise use.unsupported("along axes known only at run time")
    known = use.call.ints(3)
    count = static(use.call.shape(1)[0])
    assert count is not None
    named = range(count) if known is None else [front_axis(axis, x.ndim) for axis in known]

    def place(*index: Expr) -> list[Expr]:
        found = list(index)
        for at, axis in enumerate(named):
            step = item(use, 4, steps, at) if use.call.has(4) else ONE
            found[axis] = _sliced(x, axis, index[axis], item(use, 1, starts, at), step)
        return found

    if use.call.value(1) is not None and (not use.call.has(4) or use.call.value(4) is not None):
        return _move(use, x, place)
    return te.compute(use.shape, lambda *index: read_at(x, place(*index), *named), name=use.name)


def _sliced(x: Tensor, axis: int, at: Expr, start: Expr, step: Expr) -> Expr:
    """A position in x; the output's extent keeps it inside, except that of unknown numbers."""
    dim = x.shape[axis]
    forward = isinstance(step, Const) and step.value > 0
    if isinstance(start, Const) and forward and start.value == 0:
        return sym.mul(at, step)
    front = sym.simplify(te.select(start < 0, start + dim, start))
    top = te.select(step > 0, dim, dim - 1)
    first = sym.maximum(sym.minimum(front, top), te.select(step > 0, ZERO, sym.const(-1)))
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
    if axes is not None:
        raise use.unsupported("along axes known only at run time")
    known = use.call.ints(3)
    named = range(x.ndim) if known is None else [front_axis(axis, x.ndim) for axis in known]

    def element(*index: Expr) -> Expr:
        found, tests = list(index), []
        for at, axis in enumerate(named):
            before = item(use, 1, pads, at)
            after = item(use, 1, pads, at + len(named))
            if before is ZERO and after is ZERO:
                continue
            place = sym.simplify(sym.sub(index[axis], before))
            dim = x.shape[axis]
            if use["mode"] == "constant":
                tests += [sym.le(0, place), sym.lt(place, dim)]
                found[axis] = place
                continue
            # Where elements are removed, the rest is what is reflected or repeated.
            low = sym.simplify(sym.maximum(sym.sub(0, before), 0))
            high = sym.simplify(sym.add(dim, sym.minimum(after, 0)))
            inner = _outside(use["mode"], sym.sub(place, low), sym.simplify(sym.sub(high, low)))
            found[axis] = sym.maximum(sym.minimum(sym.add(inner, low), sym.sub(dim, 1)), 0)
        known_pads = use.call.value(1) is not None or use["mode"] == "constant"
        read = x[tuple(found)] if known_pads else read_at(x, found, *named)
        if not tests:
            return read
        fill = te.const(0, x.dtype) if value is None else value[(0,) * value.ndim]
        return te.if_then_else(te.all(*tests), read, fill)

    return te.compute(use.shape, element, name=use.name)


def _outside(mode: str, at: Expr, size: Expr) -> Expr:
    """Which element stands for one at a place that may be outside 0..size."""
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
    "slice": _slice,
    "pad": _pad,
    "range": _range,
}
