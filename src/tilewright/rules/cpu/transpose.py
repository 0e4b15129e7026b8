"""Transposes: tiles that are read along one dimension and written along another.

    for tile { part[16, 16] = x[rows of the tile], by lanes;  y = part, by lanes across it }

Every line of memory is read once and written once while it is in the nearest cache, whichever way
the lines of source and result run.
"""

from __future__ import annotations

from tilewright.rules import cost
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.vectorize import total
from tilewright.rules.match.nest import Access, Nest, fused, is_expression, nest_of
from tilewright.sym import ONE, Const, uses_var
from tilewright.tensor.schedule import BlockRef, Schedule

ROW_VECTORS = 2  # of the source that a tile takes from each of its rows
SHORTEST = 4  # dimensions below this are not worth a tile


def transpose(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a block without reductions that reads across its result's innermost dimension."""
    nest = nest_of(sch, reference)
    if nest is None or not nest.loops or nest.reduce or not is_expression(nest.block):
        return ()
    if len(nest.spatial) != len(nest.block.iters):
        return ()
    lanes = cost.lanes_of(context.target, nest.block)
    kept = [at for at in nest.spatial if nest.extent(at) is not ONE]
    if lanes < 4 or len(kept) < 2 or nest.guess(kept[-1]) < SHORTEST:
        return ()
    across, short = kept[-1], nest.extent(kept[-1])
    if isinstance(short, Const) and 2 * int(short.value) <= lanes:
        return ()  # a vector holds several of them: its lanes come from as many rows, in order
    found = [(access, _along(nest, access, across)) for access in nest.reads]
    found = [(access, along) for access, along in found if along is not None]
    if not found or len({along for _, along in found}) != 1:
        return ()
    along = found[0][1]
    assert along is not None
    _tiles(sch, nest, [access for access, _ in found], across, along, lanes, context)
    return (reference,)


def _along(nest: Nest, access: Access, across: int) -> int | None:
    """The iterator that an access is contiguous along, if that is not the result's."""
    stride = access.stride(nest.var(across))
    if stride is None or (isinstance(stride, Const) and abs(int(stride.value)) <= 4):
        return None
    for at in nest.spatial:
        if nest.guess(at) >= SHORTEST and access.stride(nest.var(at)) is ONE:
            return at
    return None


def _tiles(
    sch: Schedule,
    nest: Nest,
    reads: list[Access],
    across: int,
    along: int,
    lanes: int,
    context: RuleContext,
) -> None:
    others = [nest.loops[at] for at in nest.spatial if at not in (across, along)]
    width = lanes * (ROW_VECTORS if nest.guess(along) >= ROW_VECTORS * lanes else 1)
    outer_row, row = sch.split(nest.loops[along], [None, width])
    outer_column, column = sch.split(nest.loops[across], [None, lanes])
    sch.reorder(*others, outer_row, outer_column, row, column)
    reference = sch.get_block(nest.name)
    for access in reads:
        index = next(
            at for at, region in enumerate(nest.block.reads) if region.buffer is access.buffer
        )
        copy = sch.cache_read(reference, index, "local")
        sch.compute_at(copy, outer_column)
        _copy(sch, copy, nest, access, along, width, lanes)
    sch.vectorize(column)
    work = cost.instance_ns(nest, context.target) * nest.instances
    count = cost.chunks(2 * work, context.threads)
    around = [at for at in nest.spatial if at not in (across, along)]
    rows = total(nest, around) * -(-nest.guess(along) // width)
    if count > 1 and rows > 1:
        loop = fused(sch, [*others, outer_row])
        if rows >= 4 * count:
            size = cost.chunk_rows(rows, count, 2 * work / rows, nest.is_open([*around, along]))
            loop, _ = sch.split(loop, [None, size])
        sch.parallel(loop)


def _copy(
    sch: Schedule, copy: BlockRef, nest: Nest, access: Access, along: int, width: int, lanes: int
) -> None:
    """Rows of a tile as they lie in memory: lanes along the last loop of the copy that has any."""
    region = next(r for r in nest.block.reads if r.buffer is access.buffer)
    loops = sch.get_loops(copy)[-len(region.ranges) :]
    dims = [at for at, r in enumerate(region.ranges) if uses_var(r.start, {nest.var(along)})]
    loop = loops[dims[-1]]
    if width > lanes:
        _, loop = sch.split(loop, [None, lanes])
    sch.vectorize(loop)
