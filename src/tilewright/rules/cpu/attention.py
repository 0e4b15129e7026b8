"""Attention tile by tile: no more scores exist at a time than a few rows of queries have.

    for tile in parallel ... {                     batch, head, 16 or 32 queries
      q^T of the tile
      scores[j, i] of the tile                     8 keys x the queries in registers
      max, exp, sum over j, lanes along i
      for few features { for few queries { values[i, f] += exp[j, i] * v[j, f] } }; over the sum
    }

Queries are lanes until their weights are known: then nothing is ever combined across lanes, and
neither keys nor values have to be packed. Any program of this form is taken: rows of a product,
reductions along them, a second product with what came out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tilewright.rules import cost
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.fused_reductions import Stages, own_axes, stages_of
from tilewright.rules.cpu.gemm_model import unrolled_steps
from tilewright.rules.cpu.gemm_schedule import unrolled_sum
from tilewright.rules.cpu.vectorize import total
from tilewright.rules.match.nest import Nest, fused, guess, inner_nest
from tilewright.sym import ONE, Const, Mul, Select, Var, uses_var
from tilewright.tensor.ir import Load, Update
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.schedule.prefetch import LINE_BYTES
from tilewright.tensor.visit import exprs

TILE_VECTORS = 2  # of queries
REGISTERS = 16  # accumulators of a product
VALUE_VECTORS = 2  # of features of the values at a time
FLOPS_PER_NS = 100.0  # of both GEMMs on one core: what tells whether threads pay
MANY_TILES = 4  # of queries: for fewer, copies of keys and values do not pay
WAYS = 16  # of usual second caches


@dataclass(frozen=True)
class Products:
    """The parts of a program that is attention."""

    stages: Stages
    first: Nest  # queries times keys
    scores: Nest | None  # what is done to each of its results, if anything
    second: Nest  # weights times values
    row: int  # the iterator of the sink that is a query
    read: int  # which read of `first` is the queries

    def query(self, name: str) -> int:
        """The iterator of a member that is a query."""
        return self.stages.maps[name][self.row]

    def other(self, nest: Nest) -> int:
        """The spatial iterator of a product that is no row: a key, or a feature."""
        rows = self.stages.maps[nest.name].values()
        return next(at for at in nest.spatial if at not in rows)


def attention(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule two products with reductions between them."""
    found = _products(sch, reference)
    if found is None:
        return ()
    lanes = cost.lanes_of(context.target, found.first.block)
    rows = found.stages.sink.guess(found.row)
    if lanes < 4 or 2 * rows < lanes:
        return ()
    vectors = TILE_VECTORS if rows > lanes else 1
    packed = _pack(sch, found, lanes, context) if rows >= MANY_TILES * vectors * lanes else []
    tile = _tile_loop(sch, found, vectors * lanes, context)
    stored, queries = _scores(sch, found, tile, lanes, vectors)
    skipped = (found.first.name, found.second.name, stored.name)
    between = [nest for name, nest in found.stages.members.items() if name not in skipped]
    for nest in between:
        _between(sch, found, nest, tile, lanes)
    _values(sch, found, lanes)
    _lay_out(sch, found, between, stored, queries)
    names = [*found.stages.members, found.stages.sink.name]
    return (*packed, stored, queries, *[sch.get_block(name) for name in names])


# ------------------------------------------------------------------------------------ finding


def _products(sch: Schedule, reference: BlockRef) -> Products | None:
    stages = stages_of(sch, reference)
    if stages is None:
        return None
    sums = [nest for nest in stages.members.values() if _is_product(nest)]
    if len(sums) != 2 or any(len(nest.reduce) != 1 for nest in sums):
        return None
    second, first = sums  # consumers come first
    if len(stages.sink.loops) != len(stages.rows) + 1:
        return None
    if any(len(nest.spatial) != len(stages.rows) + 1 for nest in sums):
        return None
    for row in reversed(stages.rows):
        maps = stages.maps[first.name]
        key = next(at for at in first.spatial if at not in maps.values())
        read = _query_read(first, first.var(maps[row]), first.var(key))
        if stages.sink.extent(row) is not ONE and read is not None:
            return Products(stages, first, _epilogue(stages, first), second, row, read)
    return None


def _is_product(nest: Nest) -> bool:
    body = nest.block.body
    if not isinstance(body, Update) or body.reducer.name != "sum" or len(body.values) != 1:
        return False
    value = body.values[0]
    if isinstance(value, Select):  # of some terms, the others being zero
        value = value.a
    return isinstance(value, Mul)


def _query_read(nest: Nest, row: Var, column: Var) -> int | None:
    """The read of a product that speaks of its rows alone, where the other does of columns."""
    found = [expr for expr in exprs(nest.block.body) if isinstance(expr, Load)]
    rows: list[Load] = []
    for load in found:
        of_row, of_column = (any(uses_var(at, {v}) for at in load.index) for v in (row, column))
        if of_row and of_column:
            return None
        if of_row:
            rows.append(load)
    if len(rows) != 1 or [load.buffer for load in found].count(rows[0].buffer) > 1:
        return None
    return [region.buffer for region in nest.block.reads].index(rows[0].buffer)


def _epilogue(stages: Stages, first: Nest) -> Nest | None:
    """The one stage that reads the first product, if it has all of its elements."""
    made = [region.buffer for region in first.block.writes]
    users = [
        nest
        for nest in (*stages.members.values(), stages.sink)
        if any(region.buffer in made for region in nest.block.reads)
    ]
    if len(users) != 1 or users[0].reduce or users[0] is stages.sink:
        return None
    return users[0] if len(users[0].spatial) == len(first.spatial) else None


# ------------------------------------------------------------------------------------ packing


@dataclass(frozen=True)
class _Rows:
    """An operand that is read row by row: keys, or values."""

    nest: Nest
    load: Load
    axis: int  # of the rows; their elements run along the last one

    @property
    def row_bytes(self) -> int:
        last = self.load.buffer.shape[-1]
        assert isinstance(last, Const)
        return int(last.value) * self.load.buffer.dtype.size_bytes

    @property
    def stride_bytes(self) -> int:
        between = self.load.buffer.shape[self.axis + 1 : -1]
        return self.row_bytes * prod(guess(dim) for dim in between)

    def room(self, cache_bytes: int) -> int:
        """What of a cache rows at such distances can use: they fall into some of its sets only."""
        sets = cache_bytes // (LINE_BYTES * WAYS)
        lines, apart = -(-self.row_bytes // LINE_BYTES), self.stride_bytes // LINE_BYTES
        return min(cache_bytes, cache_bytes * lines // max(1, gcd(apart, sets)))

    def copied(self, sch: Schedule, lanes: int, threads: int) -> BlockRef:
        """A block that copies all rows, those of a head one after the other."""
        reads = [region.buffer for region in self.nest.block.reads]
        block = sch.get_block(self.nest.name)
        copy = sch.cache_read(block, reads.index(self.load.buffer), "global")
        rank = len(self.load.index)
        sch.transform_layout(copy, ("write", 0), _index_map(rank, self.axis, rank - 1))
        loops = sch.get_loops(copy)
        outer = [loop for at, loop in enumerate(loops) if at not in (self.axis, rank - 1)]
        sch.reorder(*outer, loops[self.axis], loops[-1])
        _, lane = sch.split(loops[-1], [None, lanes])
        sch.vectorize(lane)
        if threads > 1:
            sch.parallel(fused(sch, [*outer, loops[self.axis]]))
        return copy


def _rows_of(nest: Nest, row: int, element: int) -> _Rows | None:
    """The operand of a product with a row for each value of an iterator."""
    at, last = nest.var(row), nest.var(element)
    for load in exprs(nest.block.body):
        if not isinstance(load, Load) or at not in load.index or load.index[-1] is not last:
            continue
        axis = load.index.index(at)
        known = all(isinstance(dim, Const) for dim in load.buffer.shape[axis:])
        return _Rows(nest, load, axis) if known else None
    return None


def _pack(sch: Schedule, found: Products, lanes: int, context: RuleContext) -> list[BlockRef]:
    """Copies of keys and values, where the second cache does not hold a head's as they are."""
    first, second = found.first, found.second
    keys = _rows_of(first, found.other(first), first.reduce[0])
    values = _rows_of(second, second.reduce[0], found.other(second))
    if keys is None or values is None:
        return []
    count = first.guess(found.other(first))
    room = min(rows.room(context.target.l2_bytes) for rows in (keys, values))
    if count * (keys.row_bytes + values.row_bytes) <= room // 2:
        return []
    return [rows.copied(sch, lanes, context.threads) for rows in (keys, values)]


# ------------------------------------------------------------------------------------ tiles


def _tile_loop(sch: Schedule, found: Products, tile: int, context: RuleContext) -> LoopRef:
    """The loop over tiles of queries, with all stages under it."""
    sink = found.stages.sink
    heads = [at for at in found.stages.rows if at != found.row]
    around = [sink.loops[at] for at in heads]
    feature = next(loop for at, loop in sink.loops.items() if at not in found.stages.rows)
    outer, inner = sch.split(sink.loops[found.row], [None, tile])
    sch.reorder(*around, outer, inner, feature)
    work = 2 * (found.first.instances + found.second.instances) / FLOPS_PER_NS
    shared = cost.chunks(work, context.threads) > 1
    is_known = isinstance(sink.extent(found.row), Const)
    if shared and (is_known or total(sink, heads) < 2 * context.threads):
        loop = fused(sch, [*around, outer])
        sch.parallel(loop)
    else:  # quotients by a number of tiles hide which one is the last
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


def _scores(
    sch: Schedule, found: Products, tile: LoopRef, lanes: int, vectors: int
) -> tuple[BlockRef, BlockRef]:
    """The first product: several keys times all queries of the tile, in registers.

    The blocks that store it, and that copy the queries.
    """
    first = sch.get_block(found.first.name)
    queries = sch.cache_read(first, found.read, "global")
    sch.compute_at(queries, tile)
    if found.scores is not None:
        stored = sch.get_block(found.scores.name)
        row = found.query(stored.name)
        column = next(
            at for at in found.scores.spatial if at not in found.stages.maps[stored.name].values()
        )
        sch.set_scope(first, 0, "local")
    else:
        stored = sch.cache_write(first, 0, "local")
        row, column = found.query(first.name), found.other(found.first)
    loops = _own(sch, stored, tile)
    outer, key = sch.split(loops[column], [None, REGISTERS // vectors])
    step, lane = sch.split(loops[row], [None, lanes])
    sch.reorder(outer, key, step, lane)
    _unrolled(sch, key, step, lane)
    sch.compute_at(first, outer)
    loops = _own(sch, first, outer)
    row, column = found.query(first.name), found.other(found.first)
    step, lane = sch.split(loops[row], [None, lanes])
    depth = found.first.reduce[0]
    sch.reorder(loops[depth], loops[column], step, lane)
    _unrolled(sch, loops[column], step, lane)
    _unroll_sum(sch, found.first, loops[depth])
    _mark_tails(sch, found.first, found.other(found.first), outer)
    return stored, queries


def _mark_tails(sch: Schedule, product: Nest, tiled: int, loop: LoopRef) -> None:
    """Ask for a last tile of its own; where any may be the last, for none: there is much code."""
    if isinstance(product.extent(tiled), Const):
        sch.annotate(loop, TAILS, True)


def _unroll_sum(sch: Schedule, product: Nest, depth: LoopRef) -> None:
    extent = product.extent(product.reduce[0])
    steps = unrolled_steps(int(extent.value), REGISTERS) if isinstance(extent, Const) else 1
    if steps > 1:
        unrolled_sum(sch, depth, steps)


def _unrolled(sch: Schedule, *loops: LoopRef) -> None:
    """Lanes for the innermost of some loops; the others are repeated."""
    sch.vectorize(loops[-1])
    for loop in loops[:-1]:
        sch.unroll(loop)


def _between(sch: Schedule, found: Products, nest: Nest, tile: LoopRef, lanes: int) -> None:
    """A stage along the keys, lanes along the queries."""
    block = sch.get_block(nest.name)
    loops = _own(sch, block, tile)
    query = found.query(nest.name)
    step, lane = sch.split(loops[query], [None, lanes])
    sch.reorder(*[loop for at, loop in loops.items() if at != query], step, lane)
    _unrolled(sch, step, lane)
    if len(nest.spatial) == len(found.stages.rows):
        sch.set_scope(block, 0, "local")


def _values(sch: Schedule, found: Products, lanes: int) -> None:
    """The second product: a few queries times all features, in registers."""
    sink, second = sch.get_block(found.stages.sink.name), sch.get_block(found.second.name)
    around = sch.get_loops(sink)
    feature = found.other(found.second)
    wide = min(-(-found.second.guess(feature) // lanes), VALUE_VECTORS)
    together = 1  # of queries; a power of two, so that tiles hold whole groups
    while 2 * together * wide <= REGISTERS:
        together *= 2
    few, query = sch.split(around[-2], [None, together])
    outer, step, lane = sch.split(around[-1], [None, wide, lanes])
    sch.reorder(
        outer, few, query, step, lane
    )  # some features of all values stay in the first cache
    _unrolled(sch, query, step, lane)
    sch.compute_at(second, few)
    loops = _own(sch, second, few)
    row = loops[found.query(second.name)]
    step, lane = sch.split(loops[feature], [None, lanes])
    depth = loops[found.second.reduce[0]]
    sch.reorder(depth, row, step, lane)
    _unrolled(sch, row, step, lane)
    _unroll_sum(sch, found.second, depth)
    sch.set_scope(second, 0, "local")
    _mark_tails(sch, found.second, found.query(second.name), few)


def _lay_out(
    sch: Schedule, found: Products, between: list[Nest], stored: BlockRef, queries: BlockRef
) -> None:
    """Queries innermost in whatever is kept for all of a tile."""
    rank = len(found.first.spatial)
    for name in (found.first.name, stored.name):
        _query_last(sch, sch.get_block(name), found, found.first.name)
    for nest in between:
        if len(nest.spatial) == rank:
            _query_last(sch, sch.get_block(nest.name), found, nest.name)
    read = found.first.block.reads[found.read]
    row = found.first.var(found.query(found.first.name))
    last = next(at for at, r in enumerate(read.ranges) if uses_var(r.start, {row}))
    sch.transform_layout(queries, ("write", 0), _index_map(len(read.ranges), last))
    loops = sch.get_loops(queries)[-len(read.ranges) :]
    sch.reorder(*[loop for loop in loops if loop is not loops[last]], loops[last])
    sch.vectorize(loops[last])


def _query_last(sch: Schedule, block: BlockRef, found: Products, like: str) -> None:
    """The dimension of queries goes last in what a block writes, which has the axes of another."""
    nest = found.stages.members[like]
    axes = own_axes(nest.block)
    assert axes is not None
    last = next(dim for dim, at in axes.items() if at == found.query(like))
    sch.transform_layout(block, ("write", 0), _index_map(len(axes), last))


def _index_map(rank: int, *last: int) -> str:
    """The order of dimensions with some of them last."""
    names = [f"d{at}" for at in range(rank)]
    order = [
        *[name for at, name in enumerate(names) if at not in last],
        *[names[at] for at in last],
    ]
    return f"({', '.join(names)}) -> ({', '.join(order)})"
