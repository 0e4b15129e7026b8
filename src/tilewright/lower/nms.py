"""Boxes by score, without those that overlap a better one. How many only the data tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import sym, te
from tilewright.base.dtype import I64, INDEX
from tilewright.lower.base import Lowering, Use, product, read_at, split_index, wide
from tilewright.lower.merge_sort import load, merge_sort
from tilewright.lower.search import inside, positions
from tilewright.lower.sorting import in_order, sort_key
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


At = tuple[BufferView, tuple[Expr, ...]]


@dataclass(frozen=True)
class _Work:
    """Where a class keeps what it needs."""

    kept: Callable[[Expr], At]  # boxes that stay, by their number
    state: Callable[[Expr], At]
    keep: Callable[[Expr], Stmt]  # what else is done with a box that stays


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
        scores = ins[1]

        def line(batch: Expr, label: Expr) -> Stmt:
            def score(at: Expr) -> Expr:
                return wide(scores[batch, label, at])

            def compare(a: Expr, b: Expr) -> Stmt:
                less = _above(score(a), score(b))
                more = _above(score(b), score(a))
                found = te.select(less, te.const(-1, I64), te.select(more, _ONE, _ZERO))
                return store(verdict, (ZERO,), found)

            def keep(here: Expr) -> Stmt:
                done = store(total, (ZERO,), total[ZERO] + _ONE)
                if out is None:
                    return done
                place = load(total, ZERO)
                row = [te.cast(each, I64) for each in (batch, label, here)]
                rows = [store(out, (place, sym.const(at)), item) for at, item in enumerate(row)]
                return seq(when([place < out.shape[0]], seq(*rows)), done)

            places = _Work(lambda k: (kept, (k,)), lambda at: (state, (at,)), keep)
            return seq(
                merge_sort(self.count, order, spare, cursor, compare, verdict),
                self.visits(ins, (batch, label), lambda rank: load(order, rank), places),
            )

        return seq(store(total, (ZERO,), _ZERO), loops(self.lines, line, "line"))

    def visits(
        self,
        ins: list[BufferView],
        line: Sequence[Expr],
        box_of: Callable[[Expr], Expr],
        work: _Work,
    ) -> Stmt:
        """The boxes of a class by rank: one stays if no better one that stays hides it."""
        boxes, scores = ins[:2]
        limit, overlap, least = (self.scalar(ins, at) for at in (2, 3, 4))
        assert limit is not None
        # The state says how many stay, and whether a better box hides this one.
        (state, many), (_, hidden) = work.state(ZERO), work.state(sym.const(1))

        def box(at: Expr) -> list[Expr]:
            return [wide(boxes[line[0], at, sym.const(part)]) for part in range(4)]

        def visit(rank: Expr) -> Stmt:
            here, k = box_of(rank), sym.var("k")
            score = wide(scores[(*line, here)])

            def against(k: Expr) -> Stmt:
                kept, at = work.kept(k)
                common = _overlap(box(load(kept, *at)), box(here), center=self.use["center"])
                allowed = te.const(0, common.dtype) if overlap is None else wide(overlap)
                hit = common > te.cast(allowed, common.dtype)
                return when([hit], store(state, hidden, _ONE))

            tests = [state[many] < te.cast(limit, I64)]
            if least is not None:
                tests.append(score > te.cast(wide(least), score.dtype))
            kept, place = work.kept(load(state, *many))
            stays = seq(
                store(kept, place, te.cast(here, I64)),
                store(state, many, state[many] + _ONE),
                work.keep(here),
            )
            look = seq(
                store(state, hidden, _ZERO),
                For(k, ZERO, load(state, *many), against(k)),
                If(te.eq(state[hidden], _ZERO), stays),
            )
            return when(tests, look)

        return seq(store(state, many, _ZERO), loops([self.count], visit, "r"))


def _above(a: Expr, b: Expr) -> Expr:
    """Whether a comes strictly before b: the greater first, NaN before all."""
    return te.any(a > b, te.all(te.isnan(a), te.logical_not(te.isnan(b))))


@dataclass(frozen=True)
class _Selected:
    """Boxes that stay of each class, by score, and how many there are up to it."""

    kept: Tensor
    counts: Tensor


def _side_by_side(found: _Suppression) -> _Selected:
    """All classes at once: their boxes are sorted first, then each is visited by itself."""
    use, count, lines = found.use, found.count, found.lines
    scores = found.tensors[1]

    def key_of(*at: Expr) -> Expr:
        return sort_key(read_at(scores, at, *range(scores.ndim)))

    ordered = in_order(lines, count, key_of, use["runs"], f"{use.name}_order")
    given = len(found.tensors)

    def body(ins: list[BufferView], outs: list[BufferView], *line: Expr) -> Stmt:
        kept, state, many = outs
        visit = found.visits(
            ins[:given],
            line,
            lambda rank: te.cast(ordered.place(*line, rank, views=ins[given:]), INDEX),
            _Work(
                lambda k: (kept, (*line, k)),
                lambda at: (state, (*line, at)),
                lambda here: seq(),
            ),
        )
        return seq(visit, store(many, line, state[(*line, ZERO)]))

    whole = (*lines, count)
    shapes = [whole, (*lines, sym.const(2)), lines]
    tensors = [*found.tensors, *ordered.tensors]
    kept, _, many = procedure(shapes, tensors, body, f"{use.name}_kept", [I64] * 3, lines)
    flat = product(lines)
    j = te.reduce_axis((0, flat), name="j")

    def up_to(at: Expr) -> Expr:
        own = read_at(many, split_index(j, lines), *range(len(lines)))
        return te.sum(te.select(j <= at, own, _ZERO), axis=j)

    return _Selected(kept, te.compute((flat,), up_to, name=f"{use.name}_counts"))


def count_selected(use: Use, *inputs: Tensor | None) -> Expr:
    """How many boxes stay; without a limit none is asked for."""
    if inputs[2] is None:
        return ZERO
    found = _Suppression(use, inputs)
    if use["runs"]:
        counts = _side_by_side(found).counts
        last = read_at(counts, (sym.maximum(counts.shape[0] - 1, 0),), 0)
        return te.cast(te.compute((), lambda: last, name=f"{use.name}_total")[()], INDEX)

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        return found.body(ins, outs, None)

    shapes = found.shapes()
    made = procedure(shapes, found.tensors, body, f"{use.name}_work", [I64] * len(shapes))
    return te.cast(made[0][ZERO], INDEX)


def _non_max_suppression(use: Use, *inputs: Tensor | None) -> Tensor:
    if inputs[2] is None:
        return te.compute(use.shape, lambda i, j: _ZERO, name=use.name)
    found = _Suppression(use, inputs)
    if use["runs"]:
        return _rows(use, found, _side_by_side(found))

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        return found.body(ins, outs[1:], outs[0])

    shapes = [use.shape, *found.shapes()]
    return procedure(shapes, found.tensors, body, use.name, [I64] * len(shapes))[0]


def _rows(use: Use, found: _Suppression, selected: _Selected) -> Tensor:
    """Every row looks for its class."""
    lines, counts, kept = found.lines, selected.counts, selected.kept
    which = positions(counts, (use.shape[0],), f"{use.name}_which")
    flat, whole = counts.shape[0], kept.shape

    def element(row: Expr, part: Expr) -> Expr:
        line = inside(which[row], flat)
        before = te.if_then_else(line > 0, read_at(counts, (sym.maximum(line - 1, 0),), 0), _ZERO)
        index = split_index(line, lines)
        place = inside(te.cast(row, I64) - before, whole[-1])
        box = read_at(kept, (*index, place), *range(len(whole)))
        of_line = te.select(te.eq(part, 0), te.cast(index[0], I64), te.cast(index[1], I64))
        return te.select(te.eq(part, 2), box, of_line)

    return te.compute(use.shape, element, name=use.name)


LOWERINGS: dict[str, Lowering] = {"non_max_suppression": _non_max_suppression}
