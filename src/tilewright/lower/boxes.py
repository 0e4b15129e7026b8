"""Boxes by score, without those that overlap a better one. How many only the data tells."""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import I64, INDEX
from tilewright.lower.base import Lowering, Use, wide
from tilewright.lower.merge import load, merge_sort
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, If, Stmt

_ZERO, _ONE = te.const(0, I64), te.const(1, I64)


def _corners(box: list[Expr], *, center: bool) -> tuple[list[Expr], list[Expr]]:
    """A box as its low and its high corner."""
    if center:
        half = te.const(2, box[0].dtype)
        low = [box[at] - box[at + 2] / half for at in range(2)]
        return low, [box[at] + box[at + 2] / half for at in range(2)]
    low = [te.min(box[at], box[at + 2]) for at in range(2)]
    return low, [te.max(box[at], box[at + 2]) for at in range(2)]


def _overlap(one: list[Expr], two: list[Expr], *, center: bool) -> Expr:
    """Intersection over union."""
    (low, high), (low2, high2) = _corners(one, center=center), _corners(two, center=center)
    zero = te.const(0, low[0].dtype)
    common = te.const(1, low[0].dtype)
    for at in range(2):
        gap = te.min(high[at], high2[at]) - te.max(low[at], low2[at])
        common = common * te.max(gap, zero)
    area = (high[0] - low[0]) * (high[1] - low[1])
    union = area + (high2[0] - low2[0]) * (high2[1] - low2[1]) - common
    return te.select(union > zero, common / te.select(union > zero, union, common + 1), zero)


class _Suppression:
    """One use of the operator: a statement that visits boxes by score and keeps some."""

    def __init__(self, use: Use, inputs: tuple[Tensor | None, ...]) -> None:
        self.use = use
        self.given = [at for at, tensor in enumerate(inputs) if tensor is not None]
        self.tensors = [tensor for tensor in inputs if tensor is not None]
        boxes, scores = self.tensors[:2]
        self.count, self.lines = scores.shape[2], scores.shape[:2]
        self.of = boxes.dtype

    def scalar(self, ins: list[BufferView], at: int) -> Expr | None:
        if at not in self.given:
            return None
        view = ins[self.given.index(at)]
        return view[(0,) * view.ndim]

    def shapes(self) -> list[tuple[Expr, ...]]:
        """How many are kept; then room for: ranks, their spare, two cursors, the order of two
        boxes, the boxes kept of one class, and how many they are."""
        line = (self.count,)
        return [(ONE,), line, line, (sym.const(2),), (ONE,), line, (sym.const(2),)]

    def body(self, ins: list[BufferView], work: list[BufferView], out: BufferView | None) -> Stmt:
        total, order, spare, cursor, verdict, kept, state = work
        boxes, scores = ins[:2]
        limit, overlap, least = (self.scalar(ins, at) for at in (2, 3, 4))
        assert limit is not None
        hidden = sym.const(1)  # where the state says whether a better box hides this one

        def box(batch: Expr, at: Expr) -> list[Expr]:
            return [wide(boxes[batch, at, sym.const(part)]) for part in range(4)]

        def line(batch: Expr, label: Expr) -> Stmt:
            def score(at: Expr) -> Expr:
                return wide(scores[batch, label, at])

            def compare(a: Expr, b: Expr) -> Stmt:
                less = _above(score(a), score(b))
                more = _above(score(b), score(a))
                found = te.select(less, te.const(-1, I64), te.select(more, _ONE, _ZERO))
                return store(verdict, (ZERO,), found)

            def visit(rank: Expr) -> Stmt:
                here = load(order, rank)

                def against(k: Expr) -> Stmt:
                    common = _overlap(
                        box(batch, load(kept, k)), box(batch, here), center=self.use["center"]
                    )
                    allowed = te.const(0, common.dtype) if overlap is None else wide(overlap)
                    hit = common > te.cast(allowed, common.dtype)
                    return when([hit], store(state, (hidden,), _ONE))

                k = sym.var("k")
                tests = [state[ZERO] < te.cast(limit, I64)]
                if least is not None:
                    tests.append(score(here) > te.cast(wide(least), score(here).dtype))
                row = [te.cast(batch, I64), te.cast(label, I64), te.cast(here, I64)]
                keep = [
                    store(kept, (load(state, ZERO),), te.cast(here, I64)),
                    store(state, (ZERO,), state[ZERO] + _ONE),
                    store(total, (ZERO,), total[ZERO] + _ONE),
                ]
                if out is not None:
                    place = load(total, ZERO)
                    rows = seq(
                        *(store(out, (place, sym.const(at)), item) for at, item in enumerate(row))
                    )
                    keep.insert(0, when([place < out.shape[0]], rows))
                look = seq(
                    store(state, (hidden,), _ZERO),
                    For(k, ZERO, load(state, ZERO), against(k)),
                    If(te.eq(state[hidden], _ZERO), seq(*keep)),
                )
                return when(tests, look)

            return seq(
                merge_sort(self.count, order, spare, cursor, compare, verdict),
                store(state, (ZERO,), _ZERO),
                loops([self.count], visit, "r"),
            )

        return seq(store(total, (ZERO,), _ZERO), loops(self.lines, line, "line"))


def _above(a: Expr, b: Expr) -> Expr:
    """Whether a comes strictly before b: the greater first, NaN before all."""
    return te.any(a > b, te.all(te.isnan(a), te.logical_not(te.isnan(b))))


def count_selected(use: Use, *inputs: Tensor | None) -> Expr:
    """How many boxes stay; without a limit none is asked for."""
    if inputs[2] is None:
        return ZERO
    found = _Suppression(use, inputs)

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        return found.body(ins, outs, None)

    shapes = found.shapes()
    made = procedure(shapes, found.tensors, body, f"{use.name}_work", [I64] * len(shapes))
    return te.cast(made[0][ZERO], INDEX)


def _non_max_suppression(use: Use, *inputs: Tensor | None) -> Tensor:
    if inputs[2] is None:
        return te.compute(use.shape, lambda i, j: _ZERO, name=use.name)
    found = _Suppression(use, inputs)

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        return found.body(ins, outs[1:], outs[0])

    shapes = [use.shape, *found.shapes()]
    return procedure(shapes, found.tensors, body, use.name, [I64] * len(shapes))[0]


LOWERINGS: dict[str, Lowering] = {"non_max_suppression": _non_max_suppression}
