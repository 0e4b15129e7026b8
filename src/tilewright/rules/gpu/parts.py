"""Helpers that GPU schedules of contractions share."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import LINE_BYTES
from tilewright.intrin import hopper
from tilewright.rules.match.contraction import Contraction, contraction
from tilewright.rules.match.nest import block_of, is_expression, nest_of
from tilewright.sym import ONE, Const, Expr, Select, Var, uses_var
from tilewright.tensor.ir import REDUCE, Block, Load, Store
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.schedule.analysis.tree import all_loops
from tilewright.tensor.visit import blocks, output_buffers


def ceildiv(a: Any, b: Any) -> Any:
    """Division rounded up, of numbers or columns."""
    return -(-a // b)


def stored_bytes(size_bytes: Any) -> Any:
    """Shared memory that buffers of these sizes take."""
    return ceildiv(size_bytes, LINE_BYTES) * LINE_BYTES


def extent_of(sch: Schedule, loop: LoopRef) -> int:
    """The static extent of a loop."""
    found = _extent(sch, loop)
    assert isinstance(found, Const)
    return int(found.value)


def try_extent(sch: Schedule, loop: LoopRef) -> int | None:
    """The extent of a loop, if it is static."""
    found = _extent(sch, loop)
    return int(found.value) if isinstance(found, Const) else None


def is_unit(sch: Schedule, loop: LoopRef) -> bool:
    """Whether a loop has one iteration, whatever dynamic sizes are."""
    return _extent(sch, loop) is ONE


def _extent(sch: Schedule, loop: LoopRef) -> Expr:
    return next(each.extent for each in all_loops(sch.function.body) if each.var is loop.var)


def depth_of(sch: Schedule, reference: BlockRef, loop: LoopRef) -> int:
    """The number of loops around a block down to and including one of them."""
    return [each.var for each in sch.get_loops(reference)].index(loop.var) + 1


def contraction_of(sch: Schedule, reference: BlockRef) -> Contraction:
    """The contraction that a matched block is by now."""
    nest = nest_of(sch, reference)
    found = None if nest is None else contraction(nest)
    if found is None:
        raise ScheduleError("TW2705", f"@{reference.name} is no contraction any more")
    return found


def is_matrix(load: Load, row: Var, column: Var) -> bool:
    """Whether an operand's last two indices are `row` and `column`, which no other index uses."""
    if len(load.index) < 2:
        return False
    *outer, last_row, last = load.index
    apart = not any(uses_var(at, {row, column}) for at in outer)
    return apart and last_row is row and last is column


def padded(
    sch: Schedule,
    reference: BlockRef,
    multiples: Mapping[int, int],
    consumers: list[BlockRef],
    *,
    clamp: bool = False,
) -> tuple[list[BlockRef], list[BlockRef]]:
    """Pad a contraction's iterators to multiples. Returns the blocks that pad operands, and those
    that store results without the padding: the consumers, or a block that crops if there are
    none."""
    nest, before = contraction_of(sch, reference).nest, _names(sch)
    sch.pad(reference, [multiples.get(at, 1) for at in nest.loops], clamp)
    added = [sch.get_block(name) for name in _names(sch) if name not in before]
    crops = [each for each in sch.get_consumers(reference) if each in added]
    for crop in crops if consumers else ():
        sch.compute_inline(crop)
    return [each for each in added if each not in crops], consumers or crops


def _names(sch: Schedule) -> list[str]:
    return [block.name for block in blocks(sch.function.body)]


def filled_by(sch: Schedule, reference: BlockRef, load: Load) -> BlockRef:
    """The block that fills an operand's shared tile: its producer if that is elementwise, and ends
    no row such as a softmax unless it only pads one, else a copy."""
    for producer in sch.get_producers(reference):
        block = block_of(sch.function, producer.name)
        if block.writes[0].buffer is not load.buffer:
            continue
        alone = len(sch.get_consumers(producer)) == 1
        moves = _moves_elements(block) and bool(sch.get_producers(producer))
        simple = is_expression(block) and (moves or not follows_reductions(sch, producer))
        if alone and simple and load.buffer not in output_buffers(sch.function):
            sch.set_scope(producer, 0, "shared")
            return producer
    return copied_by(sch, reference, load)


def _moves_elements(block: Block) -> bool:
    """Whether a block copies elements of a buffer, some of them replaced by a constant: padding."""
    body = block.body
    value = body.value if isinstance(body, Store) else None
    if isinstance(value, Select) and isinstance(value.b, Const):
        value = value.a
    return isinstance(value, Load)


def follows_reductions(sch: Schedule, reference: BlockRef) -> bool:
    """Whether a block is a reduction or reads results of some, also through others."""
    found, seen = [reference], {reference}
    while found:
        current = found.pop()
        if any(it.kind == REDUCE for it in block_of(sch.function, current.name).iters):
            return True
        found += [each for each in sch.get_producers(current) if each not in seen]
        seen.update(found)
    return False


def copied_by(sch: Schedule, reference: BlockRef, load: Load) -> BlockRef:
    """A copy of an operand's tile in shared memory."""
    index = contraction_of(sch, reference).read_index(load)
    return sch.cache_read(reference, index, "shared")


def copy_lanes(sch: Schedule, copy: BlockRef, access_bytes: int) -> int:
    """Elements that a thread copies per access: as many as are contiguous in source and
    destination."""
    block = block_of(sch.function, copy.name)
    body = block.body
    if not isinstance(body, Store) or not isinstance(body.value, Load):
        return 1
    if body.index[-1] is not body.value.index[-1] or body.value.buffer.shape[-1] is ONE:
        return 1
    lanes = access_bytes // body.buffer.dtype.size_bytes
    side = body.value.buffer.shape[-1]
    own = try_extent(sch, sch.get_loops(copy)[-1])
    if own is None or not isinstance(side, Const) or own % lanes or int(side.value) % lanes:
        return 1
    return lanes


def parts_along(sch: Schedule, along: LoopRef) -> BlockRef:
    """The partial reductions along a loop, as a nest with that loop first."""
    partial = sch.rfactor(along, 0)
    loops = sch.get_loops(partial)
    first = next(loop for loop in loops if loop.var is along.var)
    sch.reorder(first, *[loop for loop in loops if loop.var is not along.var])
    return partial


def spread_runs(sch: Schedule, store: BlockRef) -> None:
    """Distribute an epilogue's loops over the threads that hold the sums, with a contiguous run
    each."""
    ii, jj = sch.get_loops(store)[-2:]
    warp, half, row = sch.split(ii, hopper.ROW_DIGITS)
    lanes = _lanes(sch, store)
    run, part, some, lane = sch.split(jj, [None, hopper.QUAD, hopper.RUN // lanes, lanes])
    # A thread's two rows are consecutive, so that per-column operands (a bias) are loaded once.
    sch.reorder(warp, row, part, run, half, some, lane)
    sch.bind(sch.fuse(warp, row, part), "threadIdx.x")
    for loop in (run, half, some):
        sch.unroll(loop)
    sch.vectorize(lane)


def _lanes(sch: Schedule, store: BlockRef) -> int:
    """The vector length that divides the contiguous rows of all accesses."""
    block = block_of(sch.function, store.name)
    lanes = hopper.RUN
    for region in (*block.reads, *block.writes):
        width = region.buffer.shape[-1] if region.buffer.rank else ONE
        if region.buffer.memory.is_addressable and isinstance(width, Const) and width is not ONE:
            lanes = gcd(lanes, int(width.value))
    return lanes
