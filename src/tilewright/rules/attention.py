"""Attention tile by tile: no more scores exist at a time than a few rows of queries have.

    for tile in parallel ... {                     batch, head, 16 or 32 queries
      q^T of the tile
      scores[j, i] of the tile                     8 keys x the queries in registers
      max, exp, sum over j, lanes along i
      for few queries { values[i, f] += exp[j, i] * v[j, f] }; divided by the sum
    }

Queries are lanes until their weights are known: then nothing is ever combined across lanes, and
neither keys nor values have to be packed. Any program of this form is taken: rows of a product,
reductions along them, a second product with what came out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.rules import cost
from tilewright.rules.nest import Nest, fused, inner_nest
from tilewright.rules.rows import Stages, stages_of
from tilewright.rules.setting import Setting
from tilewright.rules.stage import total
from tilewright.sym import ONE, Const, Mul, Var, uses_var
from tilewright.tensor.ir import Update
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

TILE_VECTORS = 2  # of queries
REGISTERS = 16  # accumulators of a product
FLOPS_PER_NS = 100.0


@dataclass(frozen=True)
class Products:
    """The parts of a program that is attention."""

    stages: Stages
    first: Nest  # scores: queries times keys
    second: Nest  # weights times values
    row: int  # the iterator of the sink that is a query
    query: int  # which read of `first` is the queries


def attention(sch: Schedule, reference: BlockRef, setting: Setting) -> tuple[BlockRef, ...]:
    """Schedule two products with reductions between them."""
    found = _products(sch, reference)
    if found is None:
        return ()
    lanes = cost.lanes_of(setting.target, found.first.block)
    rows = found.stages.sink.guess(found.row)
    if lanes < 4 or 2 * rows < lanes:
        return ()
    vectors = TILE_VECTORS if rows > lanes else 1
    tile = _tile_loop(sch, found, vectors * lanes, setting)
    between = [nest for nest in found.stages.members.values() if not _is_product(nest)]
    queries = _scores(sch, found, tile, lanes, vectors)
    for nest in between:
        _between(sch, found, nest, tile, lanes)
    _values(sch, found, lanes)
    _lay_out(sch, found, between, queries)
    names = [*found.stages.members, found.stages.sink.name]
    return (queries, *[sch.get_block(name) for name in names])


# ------------------------------------------------------------------------------------ finding


def _products(sch: Schedule, reference: BlockRef) -> Products | None:
    stages = stages_of(sch, reference)
    if stages is None:
        return None
    sums = [nest for nest in stages.members.values() if _is_product(nest)]
    if len(sums) != 2:
        return None
    second, first = sums  # consumers come first
    kept = [at for at in stages.rows if stages.sink.extent(at) is not ONE]
    free = [at for at in stages.sink.loops if at not in stages.rows]
    if not kept or len(free) != 1 or len(first.reduce) != 1 or len(second.reduce) != 1:
        return None
    row = kept[-1]
    if list(first.loops) != list(range(len(first.loops))) or first.spatial != second.spatial:
        return None
    if stages.rows != first.spatial[:-1] or row != first.spatial[-2]:
        return None  # [..., query, key] and [..., query, feature]
    query = _query_read(first, first.var(row), first.var(first.spatial[-1]))
    return None if query is None else Products(stages, first, second, row, query)


def _is_product(nest: Nest) -> bool:
    body = nest.block.body
    if not isinstance(body, Update) or body.reducer.name != "sum" or len(body.values) != 1:
        return False
    return isinstance(body.values[0], Mul)


def _query_read(nest: Nest, row: Var, column: Var) -> int | None:
    """The read of a product that speaks of its rows and not of its columns."""
    found = None
    for at, region in enumerate(nest.block.reads):
        starts = [r.start for r in region.ranges]
        if any(uses_var(start, {row}) for start in starts):
            if any(uses_var(start, {column}) for start in starts) or found is not None:
                return None
            found = at
    return found


# ------------------------------------------------------------------------------------ tiles


def _tile_loop(sch: Schedule, found: Products, tile: int, setting: Setting) -> LoopRef:
    """The loop over tiles of queries, with all stages under it."""
    sink = found.stages.sink
    outer, _ = sch.split(sink.loops[found.row], [None, tile])
    heads = [at for at in found.stages.rows if at < found.row]
    around = [sink.loops[at] for at in heads]
    work = 2 * (found.first.instances + found.second.instances) / FLOPS_PER_NS
    shared = cost.chunks(work, setting.threads) > 1
    if isinstance(sink.extent(found.row), Const) or total(sink, heads) < 2 * setting.threads:
        loop = fused(sch, [*around, outer])
        if shared:
            sch.parallel(loop)
    else:  # quotients by a number of tiles that is not known are hard to see through
        loop = outer
        if shared:
            sch.parallel(fused(sch, around))
    for name in found.stages.members:
        sch.compute_at(sch.get_block(name), loop)
    return loop


def _own(sch: Schedule, block: BlockRef, under: LoopRef) -> dict[int, LoopRef]:
    """Iterator of a block -> its loop inside another one."""
    depth = next(at for at, loop in enumerate(sch.get_loops(block), 1) if loop.var is under.var)
    nest = inner_nest(sch, block, depth)
    assert nest is not None  # compute_at makes a loop per iterator
    return nest.loops


def _scores(sch: Schedule, found: Products, tile: LoopRef, lanes: int, vectors: int) -> BlockRef:
    """The first product: several keys times all queries of the tile, in registers."""
    first = sch.get_block(found.first.name)
    row, column = found.row, found.first.spatial[-1]
    queries = sch.cache_read(first, found.query, "global")
    sch.compute_at(queries, tile)
    local = sch.cache_write(first, 0, "local")
    loops = _own(sch, local, tile)
    outer, key = sch.split(loops[column], [None, REGISTERS // vectors])
    step, lane = sch.split(loops[row], [None, lanes])
    sch.reorder(outer, key, step, lane)
    _unrolled(sch, key, step, lane)
    sch.compute_at(first, outer)
    loops = _own(sch, first, outer)
    step, lane = sch.split(loops[row], [None, lanes])
    sch.reorder(loops[found.first.reduce[0]], loops[column], step, lane)
    _unrolled(sch, loops[column], step, lane)
    return queries


def _unrolled(sch: Schedule, *loops: LoopRef) -> None:
    """Lanes for the innermost of some loops; the others are repeated."""
    sch.vectorize(loops[-1])
    for loop in loops[:-1]:
        sch.unroll(loop)


def _between(sch: Schedule, found: Products, nest: Nest, tile: LoopRef, lanes: int) -> None:
    """A stage along the keys, lanes along the queries."""
    block = sch.get_block(nest.name)
    loops = _own(sch, block, tile)
    step, lane = sch.split(loops[found.row], [None, lanes])
    others = [loop for at, loop in loops.items() if at > found.row]
    sch.reorder(*others, step, lane)
    _unrolled(sch, step, lane)
    if len(nest.spatial) == len(found.stages.rows):
        sch.set_scope(block, 0, "local")


def _values(sch: Schedule, found: Products, lanes: int) -> None:
    """The second product: a few queries times all features, in registers."""
    sink, second = sch.get_block(found.stages.sink.name), sch.get_block(found.second.name)
    around = sch.get_loops(sink)
    feature = found.second.spatial[-1]
    count = -(-found.second.guess(feature) // lanes)
    wide = min(count, REGISTERS // 2)
    together = 1  # of queries; a power of two, so that tiles hold whole groups
    while 2 * together * wide <= REGISTERS:
        together *= 2
    few, query = sch.split(around[-2], [None, together])
    outer, step, lane = sch.split(around[-1], [None, wide, lanes])
    sch.reorder(few, outer, query, step, lane)
    _unrolled(sch, query, step, lane)
    sch.compute_at(second, outer)
    loops = _own(sch, second, outer)
    step, lane = sch.split(loops[feature], [None, lanes])
    sch.reorder(loops[found.second.reduce[0]], loops[found.row], step, lane)
    _unrolled(sch, loops[found.row], step, lane)
    sch.set_scope(second, 0, "local")


def _lay_out(sch: Schedule, found: Products, between: list[Nest], queries: BlockRef) -> None:
    """Queries innermost in whatever is kept for all of a tile."""
    rank = len(found.first.spatial)
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    kept = [nest.name for nest in between if len(nest.spatial) == rank]
    local = next(b.name for b in sch.get_consumers(sch.get_block(found.first.name)))
    for name in (found.first.name, local, *kept):
        sch.transform_layout(sch.get_block(name), ("write", 0), _index_map(swapped))
    read = found.first.block.reads[found.query]
    row = found.first.var(found.row)
    last = next(at for at, r in enumerate(read.ranges) if uses_var(r.start, {row}))
    order = [at for at in range(len(read.ranges)) if at != last]
    sch.transform_layout(queries, ("write", 0), _index_map([*order, last]))
    loops = sch.get_loops(queries)[-len(read.ranges) :]
    lane = loops[last]
    sch.reorder(*[loop for loop in loops if loop is not lane], lane)
    sch.vectorize(lane)


def _index_map(order: list[int]) -> str:
    names = [f"d{at}" for at in range(len(order))]
    return f"({', '.join(names)}) -> ({', '.join(names[at] for at in order)})"
