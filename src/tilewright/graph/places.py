"""Elements that follow from where they stand: of ranges, and of what is computed from those.

    element(%m, (q, k))    k <= q    of  %m = less_equal(%keys: i64[1, n], %queries: i64[n, 1])

Masks of attention are computed so from the places of queries and keys. Integers are taken for
numbers that do not overflow, as indices are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import sym
from tilewright.graph.definitions import Definitions
from tilewright.graph.ir import Node, Value
from tilewright.sym import ONE, ZERO, Const, Context, Expr

_LEAST_BITS = 32  # of integers that number elements; fewer may wrap

Index = tuple[Expr, ...]


@dataclass(frozen=True)
class Places:
    """What is asked: the definitions of values, and the facts about indices."""

    scope: Definitions
    ctx: Context

    def element(self, value: Value | None, at: Index) -> Expr | None:
        """An element of a tensor of integers or conditions, at an index; None if it depends on
        more than that."""
        if value is None or value.tensor.shape is None or len(value.tensor.shape) != len(at):
            return None
        of = value.tensor.dtype
        if not (of.is_bool or (of.is_int and of.bits >= _LEAST_BITS)):
            return None
        node = self.scope.producer(value)
        rule = None if node is None else _RULES.get(node.op)
        found = None if rule is None or node is None else rule(self, node, at)
        return None if found is None else sym.simplify(found, self.ctx)

    def operand(self, node: Node, at: Index, which: int) -> Expr | None:
        """An element of an operand that is broadcast to the result."""
        value = node.inputs[which]
        shape = () if value is None else value.tensor.shape or ()
        aligned = at[len(at) - len(shape) :]
        return self.element(
            value, tuple([ZERO if dim is ONE else x for dim, x in zip(shape, aligned, strict=True)])
        )

    def is_inside(self, index: Expr, value: Value | None, axis: int) -> bool:
        """Whether an index is certainly one of an axis."""
        dim = (() if value is None else value.tensor.shape or ())[axis]
        return sym.prove(sym.logical_and(sym.le(0, index), sym.lt(index, dim)), self.ctx)


_Rule = Callable[[Places, Node, Index], Expr | None]


def _constant(places: Places, node: Node, at: Index) -> Expr | None:
    number = places.scope.number(node.output)
    if number is None:
        return None
    is_bool = node.output.tensor.dtype.is_bool
    return (
        sym.as_expr(bool(number), node.output.tensor.dtype) if is_bool else sym.const(int(number))
    )


def _range(places: Places, node: Node, at: Index) -> Expr | None:
    start, delta = node.get("start"), node.get("delta")
    if node.inputs or not isinstance(start, int | Expr) or not isinstance(delta, int | Expr):
        return None
    return sym.add(sym.as_expr(start), sym.mul(at[0], sym.as_expr(delta)))


def _reshape(places: Places, node: Node, at: Index) -> Expr | None:
    """Of views that add and take away axes of one element only."""
    value = node.inputs[0]
    before = () if value is None else value.tensor.shape or ()
    after = node.output.tensor.shape or ()
    kept = [x for dim, x in zip(after, at, strict=True) if dim is not ONE]
    dims = [dim for dim in after if dim is not ONE]
    if dims != [dim for dim in before if dim is not ONE]:
        return None
    left = iter(kept)
    return places.element(value, tuple([ZERO if dim is ONE else next(left) for dim in before]))


def _expand(places: Places, node: Node, at: Index) -> Expr | None:
    return places.operand(node, at, 0)


def _transpose(places: Places, node: Node, at: Index) -> Expr | None:
    before = dict(zip(node["perm"], at, strict=True))
    return places.element(node.inputs[0], tuple([before[axis] for axis in range(len(at))]))


def _slice(places: Places, node: Node, at: Index) -> Expr | None:
    value, index = node.inputs[0], list(at)
    shape = () if value is None else value.tensor.shape or ()
    starts, steps = node.get("starts"), node.get("steps")
    if len(node.inputs) > 1 or starts is None:
        return None
    axes = node.get("axes") or range(len(starts))
    for axis, first, step in zip(axes, starts, steps or (1,) * len(starts), strict=True):
        if step != 1:
            return None
        if first == 0:
            continue
        start = sym.as_expr(first)
        if isinstance(start, Const) and start.value < 0:
            start = sym.add(shape[axis], start)
        if not sym.prove(sym.logical_and(sym.le(0, start), sym.le(start, shape[axis])), places.ctx):
            return None  # it is clamped
        index[axis] = sym.simplify(sym.add(index[axis], start), places.ctx)
    return places.element(value, tuple(index))


def _concat(places: Places, node: Node, at: Index) -> Expr | None:
    """An element of the part that an index is in; of either where the parts go on alike."""
    axis, first, *others = node["axis"], *node.inputs
    axis %= len(at)
    if not others:
        return places.element(first, at)
    size = sym.simplify((() if first is None else first.tensor.shape or ())[axis], places.ctx)
    rest = node.output if len(others) > 1 else others[0]
    if len(others) > 1 and not isinstance(at[axis], Const):
        return None
    if sym.prove(sym.lt(at[axis], size), places.ctx):
        return places.element(first, at)
    after = (*at[:axis], sym.simplify(sym.sub(at[axis], size), places.ctx), *at[axis + 1 :])
    if len(others) > 1:
        return _part(places, others, axis, after)
    found = places.element(rest, after)
    if sym.prove(sym.le(size, at[axis]), places.ctx) or found is None or size is not ONE:
        return found if sym.prove(sym.le(size, at[axis]), places.ctx) else None
    before = places.element(first, (*at[:axis], ZERO, *at[axis + 1 :]))
    ahead = places.element(rest, (*at[:axis], sym.const(-1), *at[axis + 1 :]))
    return found if before is not None and before is ahead else None


def _part(places: Places, parts: Sequence[Value | None], axis: int, at: Index) -> Expr | None:
    """An element of one of several parts, at a constant index along the axis."""
    for part in parts:
        size = (() if part is None else part.tensor.shape or ())[axis]
        if sym.prove(sym.lt(at[axis], size), places.ctx):
            return places.element(part, at)
        at = (*at[:axis], sym.simplify(sym.sub(at[axis], size), places.ctx), *at[axis + 1 :])
    return None


def _gather(places: Places, node: Node, at: Index) -> Expr | None:
    x, indices = node.inputs
    axis = node["axis"] % (1 if x is None else len(x.tensor.shape or (ONE,)))
    rank = 0 if indices is None else len(indices.tensor.shape or ())
    found = places.element(indices, at[axis : axis + rank])
    if found is None or not places.is_inside(found, x, axis):
        return None
    return places.element(x, (*at[:axis], found, *at[axis + rank :]))


def _gather_nd(places: Places, node: Node, at: Index) -> Expr | None:
    x, indices = node.inputs
    shape = () if indices is None else indices.tensor.shape or ()
    if node.get("batch_dims", 0) or not shape or not isinstance(shape[-1], Const):
        return None
    lead = len(shape) - 1
    found = [
        places.element(indices, (*at[:lead], sym.const(axis)))
        for axis in range(int(shape[-1].value))
    ]
    index = [each for each in found if each is not None]
    inside = [places.is_inside(each, x, axis) for axis, each in enumerate(index)]
    if len(index) < len(found) or not all(inside):
        return None
    return places.element(x, (*index, *at[lead:]))


def _cumsum(places: Places, node: Node, at: Index) -> Expr | None:
    """Running sums of zeros: what numbers the sequences of a batch that are packed into one."""
    along = sym.var("along")
    axis = node["axis"] % len(at)
    dim = (node.output.tensor.shape or ())[axis]
    inner = Places(places.scope, places.ctx.bind(along, 0, dim))
    found = inner.element(node.inputs[0], (*at[:axis], along, *at[axis + 1 :]))
    return ZERO if found is ZERO else None


def _cast(places: Places, node: Node, at: Index) -> Expr | None:
    value = node.inputs[0]
    found = places.element(value, at)
    if found is None or value is None:
        return None
    before, after = value.tensor.dtype, node.output.tensor.dtype
    if before.is_bool == after.is_bool:
        return found
    return sym.select(found, 1, 0) if before.is_bool else sym.ne(found, 0)


def _elementwise(made: Callable[..., Expr | None]) -> _Rule:
    def rule(places: Places, node: Node, at: Index) -> Expr | None:
        found = [places.operand(node, at, which) for which in range(len(node.inputs))]
        return None if any(each is None for each in found) else made(*found)

    return rule


_RULES: dict[str, _Rule] = {
    "constant": _constant,
    "range": _range,
    "reshape": _reshape,
    "expand": _expand,
    "transpose": _transpose,
    "slice": _slice,
    "concat": _concat,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "cumsum": _cumsum,
    "cast": _cast,
    "add": _elementwise(sym.add),
    "sub": _elementwise(sym.sub),
    "mul": _elementwise(sym.mul),
    "neg": _elementwise(lambda x: sym.sub(0, x)),
    "abs": _elementwise(lambda x: sym.maximum(x, sym.sub(0, x))),
    "minimum": _elementwise(sym.minimum),
    "maximum": _elementwise(sym.maximum),
    "equal": _elementwise(lambda a, b: None if a.dtype.is_bool else sym.eq(a, b)),
    "not_equal": _elementwise(lambda a, b: None if a.dtype.is_bool else sym.ne(a, b)),
    "less": _elementwise(sym.lt),
    "less_equal": _elementwise(sym.le),
    "greater": _elementwise(lambda a, b: sym.lt(b, a)),
    "greater_equal": _elementwise(lambda a, b: sym.le(b, a)),
    "logical_and": _elementwise(sym.logical_and),
    "logical_or": _elementwise(sym.logical_or),
    "logical_not": _elementwise(sym.logical_not),
    "where": _elementwise(sym.select),
}
