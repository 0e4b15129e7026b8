"""Epilogue fusion: the results of a register tile are stored through their elementwise
consumers."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.rules.match.epilogue import epilogue_blocks
from tilewright.rules.match.nest import block_of
from tilewright.tensor.ir import Buffer, Call
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import exprs, output_buffers

UNROLLED_NODES = 40  # epilogues up to this size are unrolled over the registers of a tile


def fuse_epilogue(
    sch: Schedule, block: BlockRef, tile: LoopRef, lanes: int, width: int
) -> list[BlockRef]:
    """Store the results of a tile, through the epilogue where it can be fused.

    An epilogue that goes through memory and narrows the sums works on several vectors at a time,
    where a tile, `width` elements wide, has enough of them.
    """
    point = sch.checkpoint()
    try:
        found = _through_consumers(sch, block, tile, lanes, width)
        if found:
            return found
        sch.restore(point)
    except ScheduleError as error:
        sch.abandon(point, "epilogue", error)
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, tile)
    _vectorize(sch, store, tile, lanes, unrolled=True)
    return [store]


def _through_consumers(
    sch: Schedule, block: BlockRef, tile: LoopRef, lanes: int, width: int
) -> list[BlockRef]:
    made = block_of(sch.function, block.name).writes[0].buffer
    if made in output_buffers(sch.function):
        return []
    consumers = epilogue_blocks(sch, block)
    if not consumers:
        return []
    cheap = all(_is_small(sch, reference) for reference in consumers)
    done: list[BlockRef] = []
    if cheap:
        sch.set_scope(block, 0, "local")
    else:  # through a buffer of the tile's size, so that the epilogue's code exists once
        store = sch.cache_write(block, 0, "local")
        sch.reverse_compute_at(store, tile)
        _vectorize(sch, store, tile, lanes, unrolled=True)
        done.append(store)
    for reference in consumers:
        own = lanes if cheap else _result_lanes(sch, reference, made, lanes, width)
        sch.reverse_compute_at(reference, tile)
        _vectorize(sch, reference, tile, own, unrolled=cheap)
    return [*done, *consumers]


def _result_lanes(sch: Schedule, reference: BlockRef, made: Buffer, lanes: int, width: int) -> int:
    """Lanes of the epilogue: as many as fill a vector of results, if a tile has whole ones.

    With few channels per group, vectors stay wide whatever the tile: LLVM 22 for AArch64 fails to
    narrow three lanes of 64 bits.
    """
    written = block_of(sch.function, reference.name).writes[0].buffer.dtype
    wide = lanes * max(1, made.dtype.size_bytes // max(1, written.size_bytes))
    if lanes & (lanes - 1):
        return wide
    while wide > lanes and width % wide:
        wide //= 2
    return wide


def _is_small(sch: Schedule, reference: BlockRef) -> bool:
    nodes = list(exprs(block_of(sch.function, reference.name).body))
    return len(nodes) <= UNROLLED_NODES and not any(isinstance(node, Call) for node in nodes)


def _vectorize(
    sch: Schedule, block: BlockRef, tile: LoopRef, lanes: int, *, unrolled: bool
) -> None:
    """Vectorize a block over one tile along its last loop."""
    loops = sch.get_loops(block)
    own = loops[[loop.var for loop in loops].index(tile.var) + 1 :]
    *rows, column = own
    vector, lane = sch.split(column, [None, lanes])
    sch.vectorize(lane)
    if unrolled:
        for loop in (*rows, vector):
            sch.unroll(loop)
