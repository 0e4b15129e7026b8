"""Non-maximum suppression.

Classes are independent work items. On CPUs a class makes a heap of the boxes above the score
threshold, usually few, and extracts the best until enough are kept; with many threads, all boxes of
all classes are sorted in parallel first (`runs`). A box is kept if no kept one overlaps it too
much. Corners of kept boxes are stored contiguously, so that a box is compared with many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import sym, te
from tilewright.base.dtype import I32, I64, INDEX
from tilewright.lower.base import Lowering, Use, product, read_at, split_index, wide
from tilewright.lower.merge_sort import load
from tilewright.lower.search import inside, positions
from tilewright.lower.sorting import PIECE, in_order, sort_key
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, If, Let, Stmt

_ZERO, _ONE = te.const(0, I64), te.const(1, I64)
_SHOWN, _HIDDEN = te.const(0, I32), te.const(1, I32)
INDEX_BITS = 40  # of box indices
_AXES = 2  # of a box: corners are two low coordinates, then two high ones


def _corners(box: Sequence[Expr], *, center: bool) -> list[Expr]:
    """The low and high corners of a box."""
    pairs = list(zip(box[:_AXES], box[_AXES:], strict=True))
    if center:
        half = te.const(2, box[0].dtype)
        return [at - extent / half for at, extent in pairs] + [
            at + extent / half for at, extent in pairs
        ]
    return [te.min(*pair) for pair in pairs] + [te.max(*pair) for pair in pairs]


def _overlap(one: Sequence[Expr], two: Sequence[Expr]) -> Expr:
    """Intersection over union of two boxes, given by corners."""
    zero = te.const(0, one[0].dtype)
    common = te.const(1, one[0].dtype)
    for at in range(_AXES):
        gap = te.min(one[at + _AXES], two[at + _AXES]) - te.max(one[at], two[at])
        common = common * te.max(gap, zero)
    union = _area(one) + _area(two) - common
    return te.select(union > zero, common / te.select(union > zero, union, common + 1), zero)


def _area(corners: Sequence[Expr]) -> Expr:
    return (corners[2] - corners[0]) * (corners[3] - corners[1])


@dataclass(frozen=True)
class _Class:
    """One class of one image: its index, and views of inputs and outputs."""

    use: Use
    line: tuple[Expr, ...]
    boxes: BufferView
    scores: BufferView
    scalars: tuple[Expr | None, ...]  # maximal number, overlap threshold, score threshold
    kept: BufferView
    counts: BufferView
    corners: BufferView
    hidden: BufferView

    def score(self, box: Expr) -> Expr:
        return wide(self.scores[(*self.line, box)])

    def passes(self, score: Expr) -> list[Expr]:
        """Whether a score is above the threshold, if any."""
        least = self.scalars[2]
        return [] if least is None else [score > te.cast(wide(least), score.dtype)]

    def select(self, candidates: Expr, visit: Callable[[Expr], Stmt]) -> Stmt:
        """Process candidates by rank, until enough are kept."""
        line, limit, capacity = self.line, self.scalars[0], self.kept.shape[-1]
        assert limit is not None
        clear = loops([capacity], lambda k: store(self.kept, (*line, k), _ZERO), "k")
        many = self.counts[line]
        more = [many < te.cast(limit, I64), many < te.cast(capacity, I64)]

        def some(number: Expr) -> Stmt:
            rank, first = sym.var("rank"), number * PIECE
            end = sym.minimum(first + PIECE, candidates)
            return when(more, For(rank, first, end, when(more, visit(rank))))

        pieces = loops([sym.ceildiv(candidates, PIECE)], some, "some")
        return seq(clear, store(self.counts, line, _ZERO), pieces)

    def meet(self, box: Expr) -> Stmt:
        """Compare a box with all kept ones."""
        line, hidden = self.line, (*self.line, ZERO)
        parts = [wide(self.boxes[line[0], box, sym.const(part)]) for part in range(2 * _AXES)]
        own = [sym.var(f"corner{at}", parts[0].dtype) for at in range(2 * _AXES)]
        many, k = load(self.counts, *line), sym.var("k")

        def against(k: Expr) -> Stmt:
            other = [self.corners[(*line, sym.const(at), k)] for at in range(2 * _AXES)]
            common, allowed = _overlap(other, own), self.scalars[1]
            most = te.const(0, common.dtype) if allowed is None else wide(allowed)
            hit = te.select(common > te.cast(most, common.dtype), _HIDDEN, _SHOWN)
            return store(self.hidden, hidden, te.max(self.hidden[hidden], hit))

        def piece(number: Expr) -> Stmt:
            end = sym.minimum(number * PIECE + PIECE, many)
            some = For(k, number * PIECE, end, against(k))
            return when([te.eq(self.hidden[hidden], _SHOWN)], some)

        stays = seq(
            store(self.kept, (*line, many), te.cast(box, I64)),
            *(store(self.corners, (*line, sym.const(at), many), own[at]) for at in range(len(own))),
            store(self.counts, line, self.counts[line] + _ONE),
        )
        stmt = seq(
            store(self.hidden, hidden, _SHOWN),
            loops([sym.ceildiv(many, PIECE)], piece, "piece"),
            If(te.eq(self.hidden[hidden], _SHOWN), stays),
        )
        for var, value in zip(own, _corners(parts, center=self.use["center"]), strict=True):
            stmt = Let(var, value, stmt)
        return stmt


def _suppress_boxes(use: Use, *inputs: Tensor | None) -> tuple[Tensor, ...]:
    if inputs[2] is None:  # without a limit, nothing is kept
        shapes = [(use.name, use.shape), (f"{use.name}_counts", use.shape[:-1])]
        return tuple(te.compute(of, lambda *at: _ZERO, name=name) for name, of in shapes)
    given = [at for at, tensor in enumerate(inputs) if tensor is not None]
    tensors = [tensor for tensor in inputs if tensor is not None]
    boxes, scores = tensors[:2]
    *lines, count = scores.shape
    whole, own = (*lines, count), (*lines, ONE)
    kept_shape = use.shape
    corner = wide(boxes[(ZERO,) * boxes.ndim]).dtype
    rooms = {
        "kept": (kept_shape, I64),
        "counts": (tuple(lines), I64),
        "corners": ((*lines, sym.const(2 * _AXES), kept_shape[-1]), corner),
        "hidden": (own, I32),
    }

    def class_of(ins: list[BufferView], outs: list[BufferView], line: tuple[Expr, ...]) -> _Class:
        views = dict(zip(given, ins, strict=False))
        scalars = tuple(
            views[at][(0,) * views[at].ndim] if at in views else None for at in (2, 3, 4)
        )
        return _Class(use, line, ins[0], ins[1], scalars, *outs[:4])

    def run(body: Callable[..., Stmt], read: Sequence[Tensor]) -> tuple[Tensor, ...]:
        shapes, dtypes = zip(*rooms.values(), strict=True)
        return procedure(shapes, read, body, use.name, dtypes, lines)[:2]

    if use["runs"]:
        name = f"{use.name}_order"

        def key_of(*at: Expr) -> Expr:
            return sort_key(read_at(scores, at, *range(scores.ndim)))

        ordered = in_order(lines, count, key_of, use["runs"], name)

        def side_by_side(ins: list[BufferView], outs: list[BufferView], *line: Expr) -> Stmt:
            places = ins[len(tensors) :]
            one = class_of(ins, outs, line)

            def visit(rank: Expr) -> Stmt:
                box = te.cast(ordered.place(*line, rank, views=places), INDEX)
                return when(one.passes(one.score(box)), one.meet(box))

            return one.select(count, visit)

        return run(side_by_side, [*tensors, *ordered.tensors])

    key = sort_key(scores[(ZERO,) * scores.ndim]).dtype
    rooms |= {"keys": (whole, key), "box": (whole, I64), "place": (own, I64)}
    rooms |= {"left": (own, I64), "levels": (own, I64), "best": (own, I64)}

    def by_itself(ins: list[BufferView], outs: list[BufferView], *line: Expr) -> Stmt:
        one, room = class_of(ins, outs, line), dict(zip(rooms, outs, strict=True))
        heap = _Heap(line, *(room[of] for of in ("keys", "box", "place", "left", "levels")))
        best = room["best"]

        def add(each: Expr) -> Stmt:
            entry = heap.add(sort_key(one.scores[(*line, each)]), each)
            return when(one.passes(one.score(each)), entry)

        def visit(rank: Expr) -> Stmt:
            return seq(heap.take(best), one.meet(load(best, *line, ZERO)))

        candidates = sym.var("candidates")  # the number of remaining candidates
        selected = Let(candidates, load(heap.left, *heap.first), one.select(candidates, visit))
        return seq(heap.clear(), loops([count], add, "e"), heap.order(), selected)

    return run(by_itself, tensors)


@dataclass(frozen=True)
class _Heap:
    """A binary max-heap of a class's boxes; of equal keys the first comes first."""

    line: tuple[Expr, ...]
    keys: BufferView
    box: BufferView
    place: BufferView  # the position of the box being sifted down
    left: BufferView  # the size of the heap
    levels: BufferView  # the initial depth of the tree

    @property
    def first(self) -> tuple[Expr, ...]:
        return (*self.line, ZERO)

    def clear(self) -> Stmt:
        return store(self.left, self.first, _ZERO)

    def add(self, key: Expr, box: Expr) -> Stmt:
        """Append a box, unordered."""
        end = (*self.line, load(self.left, *self.first))
        return seq(
            store(self.keys, end, key),
            store(self.box, end, te.cast(box, I64)),
            store(self.left, self.first, self.left[self.first] + _ONE),
        )

    def order(self) -> Stmt:
        """Heapify, from the last inner node."""
        many = load(self.left, *self.first)

        def level(at: Expr) -> Stmt:
            is_there = te.shift_right(self.left[self.first], te.cast(at, I64)) > _ZERO
            deeper = self.levels[self.first] + te.cast(is_there, I64)
            return store(self.levels, self.first, deeper)

        half = sym.floordiv(many, 2)
        return seq(
            store(self.levels, self.first, _ZERO),
            loops([sym.const(INDEX_BITS)], level, "level"),
            loops([half], lambda at: self.sift_down(half - at - 1), "parent"),
        )

    def take(self, into: BufferView) -> Stmt:
        """Remove the maximum and move the last box into its place."""
        last = (*self.line, load(self.left, *self.first))
        return seq(
            store(into, self.first, self.box[self.first]),
            store(self.left, self.first, self.left[self.first] - _ONE),
            store(self.keys, self.first, self.keys[last]),
            store(self.box, self.first, self.box[last]),
            self.sift_down(ZERO),
        )

    def sift_down(self, place: Expr) -> Stmt:
        """Sift a box down while a child comes before it."""
        many = load(self.left, *self.first)
        parent = load(self.place, *self.first)
        child = sym.var("child")

        def step(_: Expr) -> Stmt:
            low = parent * 2 + 1
            high = sym.minimum(low + 1, many - 1)
            better = te.select(self.is_before(high, low), high, low)
            key, box = sym.var("key", self.keys.dtype), sym.var("box", I64)
            at, below = (*self.line, parent), (*self.line, child)
            moved = seq(
                store(self.keys, at, self.keys[below]),
                store(self.box, at, self.box[below]),
                store(self.keys, below, key),
                store(self.box, below, box),
                store(self.place, self.first, te.cast(child, I64)),
            )
            done = store(self.place, self.first, te.cast(many, I64))
            swap = Let(key, self.keys[at], Let(box, self.box[at], moved))
            return when(
                [low < many], Let(child, better, If(self.is_before(child, parent), swap, done))
            )

        begin = store(self.place, self.first, te.cast(place, I64))
        return seq(begin, loops([load(self.levels, *self.first)], step, "depth"))

    def is_before(self, a: Expr, b: Expr) -> Expr:
        one, two = (*self.line, a), (*self.line, b)
        earlier = te.all(te.eq(self.keys[one], self.keys[two]), self.box[one] < self.box[two])
        return te.any(self.keys[one] > self.keys[two], earlier)


# ------------------------------------------------------------------------------------ rows


def count_boxes(counts: Tensor, name: str) -> Expr:
    """The number of boxes of all classes."""
    axes = [te.reduce_axis((0, dim), name=f"c{at}") for at, dim in enumerate(counts.shape)]
    total = te.compute((), lambda: te.sum(counts[tuple(axes)], axis=axes), name=f"{name}_count")
    return te.cast(total[()], INDEX)


def _list_boxes(use: Use, kept: Tensor, counts: Tensor) -> Tensor:
    if use["side_by_side"]:
        return _all_rows(use, kept, counts)

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        out, at = outs
        row = load(at, ZERO)

        def rows(*line: Expr) -> Stmt:
            k = sym.var("k")
            parts = [*(te.cast(each, I64) for each in line), ins[0][(*line, k)]]
            cells = [store(out, (row, sym.const(part)), each) for part, each in enumerate(parts)]
            step = seq(*cells, store(at, (ZERO,), at[ZERO] + _ONE))
            end = sym.minimum(load(ins[1], *line), kept.shape[-1])
            return For(k, ZERO, end, when([row < out.shape[0]], step))

        return seq(store(at, (ZERO,), _ZERO), loops(counts.shape, rows, "line"))

    return procedure([use.shape, (ONE,)], [kept, counts], body, use.name, [I64, I64])[0]


def _all_rows(use: Use, kept: Tensor, counts: Tensor) -> Tensor:
    """Every row finds its class by searching the prefix sums of the classes' counts."""
    lines = counts.shape
    flat = product(lines)
    j = te.reduce_axis((0, flat), name="j")

    def up_to(at: Expr) -> Expr:
        own = read_at(counts, split_index(j, lines), *range(len(lines)))
        return te.sum(te.select(j <= at, own, _ZERO), axis=j)

    ends = te.compute((flat,), up_to, name=f"{use.name}_ends")
    which = positions(ends, (use.shape[0],), f"{use.name}_which")

    def element(row: Expr, part: Expr) -> Expr:
        line = inside(which[row], flat)
        before = te.if_then_else(line > 0, read_at(ends, (sym.maximum(line - 1, 0),), 0), _ZERO)
        index = split_index(line, lines)
        place = inside(te.cast(row, I64) - before, kept.shape[-1])
        box = read_at(kept, (*index, place), *range(kept.ndim))
        of_line = te.select(te.eq(part, 0), te.cast(index[0], I64), te.cast(index[1], I64))
        return te.select(te.eq(part, 2), box, of_line)

    return te.compute(use.shape, element, name=use.name)


LOWERINGS: dict[str, Lowering] = {"suppress_boxes": _suppress_boxes, "list_boxes": _list_boxes}
