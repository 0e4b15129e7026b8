"""Softmax, normalizations and their kind: all stages of a row while the row is in cache.

    for chunk in parallel ... { for row in ... { max of row; exp and sum of row; row / sum } }

A *row* is what the reductions keep: the loops of the last stage that every reduction before it
has too, as they are. Stages move under the loop over rows, each gets lanes of its own, and what
they hand on is as large as a row. Where the rows themselves lie side by side in memory, lanes
run across rows: a tile of them takes the place of one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.rules import cost
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.vectorize import lane_axis, total, vectorize_stage
from tilewright.rules.match.nest import Nest, fused, groups, is_expression, nest_of
from tilewright.sym import ONE, Const, Var
from tilewright.tensor.ir import REDUCE, SPATIAL, Block, Buffer, Load, Store, Update
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import blocks, exprs, output_buffers, walk

TILE_VECTORS = 4  # of neighbouring rows that are done together


@dataclass
class Stages:
    """The stages that end in one block, and which of their iterators are rows of it."""

    sink: Nest
    members: dict[str, Nest]  # the last ones of the program first, without the sink
    rows: list[int]  # iterators of the sink
    maps: dict[str, dict[int, int]]  # of every member: row of the sink -> its own iterator


def rows(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a block without reductions together with reductions that it uses."""
    found = stages_of(sch, reference)
    if found is None or not _is_worth_it(found, context) or _has_later(sch, reference):
        return ()
    order = [at for at in found.sink.loops if at not in found.rows]
    across = _side_by_side(found, order, context)
    if across:
        depth = _tiles(sch, found, across, order, context)
    else:
        depth = _single(sch, found, order, context)
    names = [*found.members, found.sink.name]
    for name in names:
        vectorize_stage(sch, sch.get_block(name), depth, context)
    return tuple(sch.get_block(name) for name in names)


def _has_later(sch: Schedule, reference: BlockRef) -> bool:
    """Whether the block is a stage of a larger whole, whose turn comes later."""
    names = [block.name for block in blocks(sch.function.body)]
    for name in names[names.index(reference.name) + 1 :]:
        found = stages_of(sch, sch.get_block(name))
        if found is not None and reference.name in found.members:
            return True
    return False


def _is_worth_it(found: Stages, context: RuleContext) -> bool:
    work = sum(
        cost.instance_ns(nest, context.target) * nest.instances
        for nest in (found.sink, *found.members.values())
    )
    count = total(found.sink, found.rows)
    return count >= context.threads or cost.chunks(work, context.threads) == 1


def _row_ns(found: Stages, context: RuleContext) -> float:
    work = sum(
        cost.instance_ns(nest, context.target) * nest.instances
        for nest in (found.sink, *found.members.values())
    )
    return work / max(1, total(found.sink, found.rows))


# ------------------------------------------------------------------------------------ loops


def _single(sch: Schedule, found: Stages, order: list[int], context: RuleContext) -> int:
    """One row at a time; how many loops its stages stand under."""
    sink = found.sink
    if order:
        sch.reorder(*[sink.loops[at] for at in (*found.rows, *order)])
    row = fused(sch, [sink.loops[at] for at in found.rows])
    count, is_open = total(sink, found.rows), sink.is_open(found.rows)
    row, depth = _shared(sch, row, count, is_open, _row_ns(found, context), context)
    _gather(sch, found, row)
    return depth


def _shared(
    sch: Schedule, row: LoopRef, count: int, is_open: bool, row_ns: float, context: RuleContext
) -> tuple[LoopRef, int]:
    """Chunks of rows on the cores; the loop over the rows of a chunk, and how deep it stands."""
    parts = min(count, cost.chunks(row_ns * count, context.threads))
    if parts < 2:
        return row, 1
    chunk, row = sch.split(row, [None, cost.chunk_rows(count, parts, row_ns, is_open)])
    sch.parallel(chunk)
    return row, 2


def _tiles(
    sch: Schedule, found: Stages, across: list[int], order: list[int], context: RuleContext
) -> int:
    """Neighbouring rows together: all along the last dimensions, or pieces of the last one."""
    sink = found.sink
    lanes = cost.lanes_of(context.target, sink.block)
    if sink.guess(across[-1]) >= lanes:
        across = across[-1:]  # pieces of several dimensions at once would be no boxes
    outer = [at for at in found.rows if at not in across]
    inner = [sink.loops[at] for at in order]
    around = [sink.loops[at] for at in outer]
    together = total(sink, across)
    if not around or together > TILE_VECTORS * lanes:
        across = across[-1:]
        outer = [at for at in found.rows if at not in across]
        around = [sink.loops[at] for at in outer]
        width = lanes
        while width < TILE_VECTORS * lanes and total(sink, across) >= 2 * width:
            width *= 2
        tile, lane = sch.split(sink.loops[across[-1]], [None, width])
        sch.reorder(*around, tile, *inner, lane)
        row = fused(sch, [*around, tile])
        count = total(sink, outer) * -(-total(sink, across) // width)
        together = width
    else:
        sch.reorder(*around, *inner, *[sink.loops[at] for at in across])
        row, count = fused(sch, around), total(sink, outer)
    row_ns, is_open = _row_ns(found, context) * together, sink.is_open(found.rows)
    row, depth = _shared(sch, row, count, is_open, row_ns, context)
    _gather(sch, found, row)
    return depth


def _gather(sch: Schedule, found: Stages, row: LoopRef) -> None:
    for name in found.members:
        sch.compute_at(sch.get_block(name), row)


def _side_by_side(found: Stages, order: list[int], context: RuleContext) -> list[int]:
    """The rows that are neighbours in memory, if the innermost loops of the result are rows and
    the reductions before it walk across them."""
    sink = found.sink
    kept = [at for at in sink.loops if sink.extent(at) is not ONE]
    if not kept or kept[-1] not in found.rows:
        return []
    last = [at for at in kept if at > max([at for at in order if at in kept], default=-1)]
    part = groups(sink, last)[-1]
    lanes = cost.lanes_of(context.target, sink.block)
    walks = [lane_axis(nest, lanes) for nest in found.members.values() if nest.reduce]
    return part if total(sink, part) > 1 and any(walk is not None for walk in walks) else []


# ------------------------------------------------------------------------------------ stages


def stages_of(sch: Schedule, reference: BlockRef) -> Stages | None:
    """The reductions, and what lies between, that a block without reductions uses."""
    sink = nest_of(sch, reference)
    if sink is None or sink.reduce or not sink.loops or not is_expression(sink.block):
        return None
    outputs = output_buffers(sch.function)
    order = list(blocks(sch.function.body))
    readers: dict[Buffer, list[Block]] = {}
    for block in order:
        for region in block.reads:
            readers.setdefault(region.buffer, []).append(block)
    members: dict[str, Nest] = {}
    for block in reversed(order):
        made = [region.buffer for region in block.writes]
        used = [
            reader for buffer in made for reader in readers.get(buffer, ()) if reader is not block
        ]
        if block is sink.block or not used or any(buffer in outputs for buffer in made):
            continue
        if any(user is not sink.block and user.name not in members for user in used):
            continue
        nest = nest_of(sch, sch.get_block(block.name))
        if nest is not None and is_expression(block) and own_axes(block):
            members[block.name] = nest
    if not any(nest.reduce for nest in members.values()):
        return None
    return _with_rows(sink, members)


def _with_rows(sink: Nest, members: dict[str, Nest]) -> Stages | None:
    """The rows that all members share; members that share none are left out."""
    chosen = dict(members)
    kept = list(sink.loops)
    while True:
        maps: dict[str, dict[int, int]] = {sink.name: {at: at for at in kept}}
        nests = {sink.name: sink, **chosen}
        lost: set[int] = set()
        for name, nest in chosen.items():
            found = _mapped(nest, nests, maps, kept)
            if nest.reduce or _uses_reduction(nest, chosen):
                lost.update(at for at in kept if at not in found)
            elif len(found) < len(kept):
                chosen = _without(name, chosen)
                break
            maps[name] = found
        else:
            if not lost:
                break
            kept = [at for at in kept if at not in lost]
            if not kept:
                return None
    if not any(nest.reduce for nest in chosen.values()):
        return None
    return Stages(sink, dict(chosen), kept, maps)


def _without(name: str, members: dict[str, Nest]) -> dict[str, Nest]:
    """The members but one and all that it uses."""
    gone = {name}
    for each, nest in members.items():  # consumers first
        made = [region.buffer for region in nest.block.writes]
        if any(region.buffer in made for other in gone for region in members[other].block.reads):
            gone.add(each)
    return {each: nest for each, nest in members.items() if each not in gone}


def _uses_reduction(nest: Nest, members: dict[str, Nest]) -> bool:
    found = {nest.name}
    for each, other in members.items():
        made = [region.buffer for region in other.block.writes]
        used = any(region.buffer in made for name in found for region in members[name].block.reads)
        if used:
            found.add(each)
            if other.reduce:
                return True
    return False


def _mapped(
    nest: Nest, nests: dict[str, Nest], maps: dict[str, dict[int, int]], rows: list[int]
) -> dict[int, int]:
    """Row of the sink -> the iterator of a member that runs through it, for all who read it."""
    axes = own_axes(nest.block)
    assert axes is not None
    found: dict[int, int] | None = None
    made = [region.buffer for region in nest.block.writes]
    for name, user in nests.items():
        if name not in maps:
            continue
        for expr in exprs(user.block.body):
            if not isinstance(expr, Load) or expr.buffer not in made:
                continue
            here = {
                row: axes[dim]
                for row, at in maps[name].items()
                for dim, index in enumerate(expr.index)
                if dim in axes and index is user.var(at)
            }
            found = here if found is None else _agreed(found, here)
    return {row: at for row, at in (found or {}).items() if row in rows}


def _agreed(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
    return {row: at for row, at in a.items() if b.get(row) == at}


def own_axes(block: Block) -> dict[int, int] | None:
    """Dimension -> the spatial iterator that it is written at, if each has one of its own."""
    indices = [stmt.index for stmt in walk(block.body) if isinstance(stmt, (Store, Update))]
    if not indices or any(index != indices[0] for index in indices):
        return None
    place = {it.var: at for at, it in enumerate(block.iters) if it.kind == SPATIAL}
    axes: dict[int, int] = {}
    for dim, index in enumerate(indices[0]):
        if isinstance(index, Var) and index in place and place[index] not in axes.values():
            axes[dim] = place[index]
        elif not isinstance(index, Const):
            return None
    free = [it for it in block.iters if it.kind not in (SPATIAL, REDUCE)]
    return None if free else axes
