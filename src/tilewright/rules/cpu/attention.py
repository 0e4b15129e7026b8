"""Attention by tiles of queries (as in FlashAttention): scores exist for one tile at a time.

    for tile in parallel ... {                     batch, head, a few vectors of queries
      q^T of the tile
      scores[j, i] of the tile                     register tiles of keys x queries
      max, exp, sum over j, vectorized along i
      for feature block { for query block { values[i, f] += exp[j, i] * v[j, f] } }; over the sum
    }

Lanes are queries up to the weights, so nothing is reduced across lanes, and neither keys nor values
need packing. Any program of this form matches: a GEMM, row-wise reductions, and a second GEMM by
what they produce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from tilewright.base.machine import Cache, Machine
from tilewright.graph.ops.attention import QUERY_BLOCK
from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.gemm_model import (
    ceil_div,
    most_vectors,
    tiles_cycles,
    unrolled_steps,
)
from tilewright.rules.cpu.gemm_schedule import unrolled_sum
from tilewright.rules.match.nest import Nest, fused, guess, inner_nest, total
from tilewright.rules.match.rows import Stages, own_axes, stages_of
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import NONE
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, tile_sizes, unit
from tilewright.sym import ONE, Const, Mul, Select, Var, uses_var
from tilewright.tensor.ir import Load, Update
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import exprs

# The axis split across threads: tiles of queries of all heads, or heads.
TILES, HEADS = "tiles", "heads"


@dataclass(frozen=True)
class AttentionPlan:
    """The tiling of attention."""

    tile_vectors: int = unit("vectors", "of queries in a tile")
    keys: int = unit("keys", "of the register tile of the first GEMM")
    queries: int = unit("queries", "of the register tile of the second GEMM")
    feature_vectors: int = unit("vectors", "of features in that register tile")
    pack: bool = unit("flag", "keys and values are packed per head")
    parallel: str = unit("axis", "split across threads")


@dataclass(frozen=True)
class Attention:
    """Two GEMMs with row-wise reductions between them."""

    stages: Stages
    first: Nest  # queries times keys
    scores: Nest | None  # the epilogue of the first GEMM, if there is any
    second: Nest  # softmax weights times values
    row: int  # the root's iterator over queries
    read: int  # the index of `first`'s read of the queries

    def query(self, name: str) -> int:
        """A member's iterator over queries."""
        return self.stages.row_axis_of[name][self.row]

    def other(self, nest: Nest) -> int:
        """The spatial iterator of a GEMM that is no row: over keys, or features."""
        rows = self.stages.row_axis_of[nest.name].values()
        return next(at for at in nest.spatial if at not in rows)

    @property
    def heads(self) -> list[int]:
        """The root's row iterators other than queries: batch and heads."""
        return [at for at in self.stages.rows if at != self.row]

    @property
    def is_dynamic(self) -> bool:
        """Whether the number of queries is dynamic."""
        return self.stages.root.is_dynamic([self.row])

    @property
    def operands(self) -> tuple[_Rows, _Rows] | None:
        """Keys and values, where both are read row by row."""
        first, second = self.first, self.second
        keys = _rows_of(first, self.other(first), first.reduce[0])
        values = _rows_of(second, second.reduce[0], self.other(second))
        return None if keys is None or values is None else (keys, values)


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Attention | None:
    found = _attention(sch, block)
    if found is None:
        return None
    lanes = costs.lanes_of(context.target, found.first.block)
    is_wide = lanes > 2 and 2 * found.stages.root.guess(found.row) >= lanes
    return found if is_wide else None


def plans(found: Attention, context: RuleContext) -> Space[AttentionPlan]:
    lanes = costs.lanes_of(context.target, found.first.block)
    registers = context.target.vector_registers
    rows, features = found.stages.root.guess(found.row), found.second.guess(_feature(found))
    heads, threads = total(found.stages.root, found.heads), context.threads
    # Dividing by a dynamic number of tiles hides which tile is the last.
    by_tiles = not found.is_dynamic or heads < 2 * threads
    axes = [*([TILES] if by_tiles else []), *([HEADS] if heads > 1 else [])]
    vectors = ceil_div(features, lanes)
    sizes = _near(tile_sizes(most_vectors(context.target)), 2)
    few = registers // 2 // 2  # rows of accumulators, by two vectors, in half of the registers
    most = min(few // 2, max(1, QUERY_BLOCK // lanes), ceil_div(rows, lanes))
    tiles = _near(doublings(most), 2)
    values = tuple(count for count in sizes if vectors % count == 0)

    def legal(c: Columns) -> Column:
        """Register tiles fit the registers, and queries divide the tile."""
        scores = _fits(c["keys"], c["tile_vectors"], registers)
        weighted = _fits(c["queries"], c["feature_vectors"], registers)
        ok: Column = scores & weighted & ((c["tile_vectors"] * lanes) % c["queries"] == 0)
        return ok

    return Space(
        AttentionPlan,
        {
            "tile_vectors": tiles,
            "keys": _fitting(_near(tile_sizes(registers // 2), few), tiles[0], registers),
            "queries": _fitting(_near(doublings(registers // 2), few), values[0], registers),
            "feature_vectors": values,
            "pack": (0, 1) if found.operands is not None else (0,),
            "parallel": (NONE, *axes) if threads > 1 else (NONE,),
        },
        legal,
    )


def _near(sizes: Sequence[int], wanted: int) -> tuple[int, ...]:
    """Tile sizes in order of preference: the nearest to `wanted` first."""
    return tuple(sorted(sizes, key=lambda size: (abs(size - wanted), size)))


def _fits(rows: Any, vectors: Any, registers: int) -> Any:
    """Whether the registers hold the accumulators, a row of vectors, and a broadcast element."""
    return rows * vectors + vectors + 1 <= registers


def _fitting(rows: Sequence[int], vectors: int, registers: int) -> tuple[int, ...]:
    """Rows of a register tile, those first that fit beside so many vectors."""
    return tuple(sorted(rows, key=lambda each: not _fits(each, vectors, registers)))


def _feature(found: Attention) -> int:
    return found.other(found.second)


def cost(found: Attention, c: Columns, context: RuleContext) -> Cost:
    """Cycles of both GEMMs' register tiles, of the stages between, and of keys and values, which
    every tile of queries reads again."""
    target, machine = context.target, context.target.machine
    lanes = costs.lanes_of(target, found.first.block)
    root, first, second = found.stages.root, found.first, found.second
    rows, keys = root.guess(found.row), first.guess(found.other(first))
    head_keys, seen = keys, second.summed_share  # others than these are skipped
    keys = max(1, round(keys * seen))
    vectors, heads = ceil_div(rows, lanes), total(root, found.heads)
    tiles = ceil_div(vectors, c["tile_vectors"])
    features = ceil_div(second.guess(_feature(found)), lanes)
    scores = tiles_cycles(keys, vectors, c["keys"], c["tile_vectors"], machine)
    values = tiles_cycles(rows, features, c["queries"], c["feature_vectors"], machine)
    # Each block of queries rereads all values, a block of features at a time.
    item = second.block.writes[0].buffer.dtype.size_bytes
    in_l1 = keys * c["feature_vectors"] * lanes * item <= machine.l1d.kept_bytes
    rate = np.where(in_l1, machine.l1d.bytes_per_cycle, machine.l2.bytes_per_cycle)
    read = ceil_div(rows, c["queries"]) * keys * features * lanes * item / rate
    gemms = first.guess(first.reduce[0]) * scores + np.maximum(keys * values, read)
    between = sum(
        nest.instances
        * seen
        / lanes
        * max(costs.body_cycles(nest.block), 1 / machine.loads_per_cycle)
        for name, nest in found.stages.members.items()
        if name not in (first.name, second.name)
    )
    # A tile's scores that exceed L1 are stored, and loaded again by every later stage.
    beyond = machine.l3.bytes_per_cycle or machine.memory_bytes_per_cycle
    tile_bytes = keys * c["tile_vectors"] * lanes * item
    from_l2 = machine.exposed_l2_share / machine.l2.bytes_per_cycle
    byte_cycles = np.where(tile_bytes > machine.l2.block_bytes, 1 / beyond, from_l2)
    byte_cycles = np.where(tile_bytes > machine.l1d.kept_bytes, byte_cycles, 0)
    between = between + heads * tiles * tile_bytes * len(found.stages.members) * byte_cycles
    memory: Column = np.zeros(len(c["keys"]))
    copies: Column = np.zeros(len(c["keys"]))
    if found.operands is not None:
        row_bytes = sum(each.row_bytes for each in found.operands)
        usable_bytes = min(each.usable_bytes(machine.l2) for each in found.operands)
        near, far = 1 / machine.l2.bytes_per_cycle, 1 / beyond
        head_bytes = head_keys * row_bytes
        packed = near if head_bytes <= machine.l2.kept_bytes else far
        plain = near if head_bytes <= usable_bytes // 2 else far
        memory = heads * tiles * keys * row_bytes * np.where(c["pack"] == 1, packed, plain)
        copies = np.where(c["pack"] == 1, 2 * heads * head_bytes * far + machine.wake_cycles, 0)
    threads = context.threads
    share = np.where(
        c["parallel"] == TILES,
        ceil_div(heads * tiles, threads) / (heads * tiles),
        np.where(c["parallel"] == HEADS, ceil_div(heads, threads) / heads, 1.0),
    )
    return Cost.of(
        gemms=heads * gemms * share,
        scores=between * share,
        memory=memory * share,
        copies=copies * share,
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
    )


def apply(
    sch: Schedule, found: Attention, plan: AttentionPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    lanes = costs.lanes_of(context.target, found.first.block)
    packed: list[BlockRef] = []
    if plan.pack and found.operands is not None:
        packed = [rows.packed(sch, lanes, context.threads) for rows in found.operands]
    tile = _tile_loop(sch, found, plan, lanes)
    stored, queries = _scores(sch, found, tile, plan, context)
    skipped = (found.first.name, found.second.name, stored.name)
    between = [nest for name, nest in found.stages.members.items() if name not in skipped]
    for nest in between:
        _between(sch, found, nest, tile, lanes)
    _values(sch, found, plan, context)
    _lay_out(sch, found, between, stored, queries)
    names = [*found.stages.members, found.stages.root.name]
    return (*packed, stored, queries, *[sch.get_block(name) for name in names])


# ------------------------------------------------------------------------------------ finding


def _attention(sch: Schedule, reference: BlockRef) -> Attention | None:
    stages = stages_of(sch, reference)
    if stages is None:
        return None
    sums = [nest for nest in stages.members.values() if _is_gemm(nest)]
    if len(sums) != 2 or any(len(nest.reduce) != 1 for nest in sums):
        return None
    second, first = sums  # consumers come first
    if len(stages.root.loops) != len(stages.rows) + 1:
        return None
    if any(len(nest.spatial) != len(stages.rows) + 1 for nest in sums):
        return None
    for row in reversed(stages.rows):
        maps = stages.row_axis_of[first.name]
        key = next(at for at in first.spatial if at not in maps.values())
        if not _weighs(stages, first, second, key):
            return None
        read = _query_read(first, first.var(maps[row]), first.var(key))
        if stages.root.extent(row) is not ONE and read is not None:
            return Attention(stages, first, _epilogue(stages, first), second, row, read)
    return None


def _is_gemm(nest: Nest) -> bool:
    body = nest.block.body
    if not isinstance(body, Update) or body.reducer.name != "sum" or len(body.values) != 1:
        return False
    value = body.values[0]
    if isinstance(value, Select):  # masked terms are zero
        value = value.a
    return isinstance(value, Mul)


def _weighs(stages: Stages, first: Nest, second: Nest, key: int) -> bool:
    """Whether the second GEMM sums over the keys of the first, weighted by values computed from its
    scores. Excludes two GEMMs over features of the same rows, as in gradients of normalizations."""
    if first.extent(key) is not second.extent(second.reduce[0]):
        return False
    made: set[Any] = set()
    for nest in reversed(list(stages.members.values())):  # producers first
        if nest is first or any(region.buffer in made for region in nest.block.reads):
            made.update(region.buffer for region in nest.block.writes)
    return any(region.buffer in made for region in second.block.reads)


def _query_read(nest: Nest, row: Var, column: Var) -> int | None:
    """The read of a GEMM that depends on its rows only, where the other operand depends on columns
    only."""
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
    """The single elementwise consumer of the first GEMM, if it keeps all elements."""
    made = [region.buffer for region in first.block.writes]
    users = [
        nest
        for nest in (*stages.members.values(), stages.root)
        if any(region.buffer in made for region in nest.block.reads)
    ]
    if len(users) != 1 or users[0].reduce or users[0] is stages.root:
        return None
    return users[0] if len(users[0].spatial) == len(first.spatial) else None


# ------------------------------------------------------------------------------------ packing


@dataclass(frozen=True)
class _Rows:
    """An operand that is read row by row: keys, or values."""

    nest: Nest
    load: Load
    axis: int  # the dimension of rows; the last one holds a row's elements

    @property
    def row_bytes(self) -> int:
        last = self.load.buffer.shape[-1]
        assert isinstance(last, Const)
        return int(last.value) * self.load.buffer.dtype.size_bytes

    @property
    def stride_bytes(self) -> int:
        between = self.load.buffer.shape[self.axis + 1 : -1]
        return self.row_bytes * prod(guess(dim, self.nest.likely) for dim in between)

    def usable_bytes(self, cache: Cache) -> int:
        """How much of a cache rows at this stride can occupy: they map to some of its sets only."""
        sets = cache.size_bytes // (cache.line_bytes * cache.ways)
        lines = -(-self.row_bytes // cache.line_bytes)
        apart = self.stride_bytes // cache.line_bytes
        return min(cache.size_bytes, cache.size_bytes * lines // max(1, gcd(apart, sets)))

    def packed(self, sch: Schedule, lanes: int, threads: int) -> BlockRef:
        """Pack the rows of each head contiguously; returns the block that copies."""
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
    """The operand of a GEMM that has a row for each value of an iterator."""
    at, last = nest.var(row), nest.var(element)
    for load in exprs(nest.block.body):
        if not isinstance(load, Load) or at not in load.index or load.index[-1] is not last:
            continue
        axis = load.index.index(at)
        known = all(isinstance(dim, Const) for dim in load.buffer.shape[axis:])
        return _Rows(nest, load, axis) if known else None
    return None


# ------------------------------------------------------------------------------------ tiles


def _tile_loop(sch: Schedule, found: Attention, plan: AttentionPlan, lanes: int) -> LoopRef:
    """Make the loop over tiles of queries, with all stages inside."""
    root = found.stages.root
    around = [root.loops[at] for at in found.heads]
    feature = next(loop for at, loop in root.loops.items() if at not in found.stages.rows)
    outer, inner = sch.split(root.loops[found.row], [None, plan.tile_vectors * lanes])
    sch.reorder(*around, outer, inner, feature)
    loop = outer
    if plan.parallel == TILES:
        loop = fused(sch, [*around, outer])
        sch.parallel(loop)
    elif plan.parallel == HEADS:
        sch.parallel(fused(sch, around))
    for name in found.stages.members:
        sch.compute_at(sch.get_block(name), loop)
    return loop


def _own(sch: Schedule, block: BlockRef, under: LoopRef) -> dict[int, LoopRef]:
    """A block's iterator -> its loop inside another loop."""
    depth = next(at for at, loop in enumerate(sch.get_loops(block), 1) if loop.var is under.var)
    nest = inner_nest(sch, block, depth)
    assert nest is not None  # compute_at makes a loop per iterator
    return nest.loops


def _scores(
    sch: Schedule, found: Attention, tile: LoopRef, plan: AttentionPlan, context: RuleContext
) -> tuple[BlockRef, BlockRef]:
    """The first GEMM: register tiles of keys by the tile's queries.

    Returns the blocks that store the scores and that copy the queries.
    """
    lanes = costs.lanes_of(context.target, found.first.block)
    first = sch.get_block(found.first.name)
    queries = sch.cache_read(first, found.read, "global")
    sch.compute_at(queries, tile)
    if found.scores is not None:
        stored = sch.get_block(found.scores.name)
        row = found.query(stored.name)
        row_axes = found.stages.row_axis_of[stored.name].values()
        column = next(at for at in found.scores.spatial if at not in row_axes)
        sch.set_scope(first, 0, "local")
    else:
        stored = sch.cache_write(first, 0, "local")
        row, column = found.query(first.name), found.other(found.first)
    loops = _own(sch, stored, tile)
    outer, key = sch.split(loops[column], [None, plan.keys])
    step, lane = sch.split(loops[row], [None, lanes])
    sch.reorder(outer, key, step, lane)
    _vectorize_and_unroll(sch, key, step, lane)
    sch.compute_at(first, outer)
    loops = _own(sch, first, outer)
    row, column = found.query(first.name), found.other(found.first)
    step, lane = sch.split(loops[row], [None, lanes])
    depth = found.first.reduce[0]
    sch.reorder(loops[depth], loops[column], step, lane)
    _vectorize_and_unroll(sch, loops[column], step, lane)
    body = plan.keys * plan.tile_vectors
    _unroll_sum(sch, found.first, loops[depth], body, context.target.machine)
    _mark_tails(sch, found.first, found.other(found.first), outer)
    return stored, queries


def _mark_tails(sch: Schedule, gemm: Nest, tiled: int, loop: LoopRef) -> None:
    """Request specialized code for the tail tile, where the extent is static; otherwise there would
    be one per possible tail."""
    if isinstance(gemm.extent(tiled), Const):
        sch.annotate(loop, TAILS, True)


def _unroll_sum(sch: Schedule, gemm: Nest, depth: LoopRef, body: int, machine: Machine) -> None:
    """Unroll k, given the multiply-adds per step."""
    extent = gemm.extent(gemm.reduce[0])
    steps = unrolled_steps(int(extent.value), body, machine) if isinstance(extent, Const) else 1
    if steps > 1:
        unrolled_sum(sch, depth, steps)


def _vectorize_and_unroll(sch: Schedule, *loops: LoopRef) -> None:
    """Vectorize the innermost loop and unroll the others."""
    sch.vectorize(loops[-1])
    for loop in loops[:-1]:
        sch.unroll(loop)


def _between(sch: Schedule, found: Attention, nest: Nest, tile: LoopRef, lanes: int) -> None:
    """Schedule a stage between the GEMMs: serial along keys, vectorized along queries."""
    block = sch.get_block(nest.name)
    loops = _own(sch, block, tile)
    query = found.query(nest.name)
    step, lane = sch.split(loops[query], [None, lanes])
    sch.reorder(*[loop for at, loop in loops.items() if at != query], step, lane)
    _vectorize_and_unroll(sch, step, lane)
    if len(nest.spatial) == len(found.stages.rows):
        sch.set_scope(block, 0, "local")


def _values(sch: Schedule, found: Attention, plan: AttentionPlan, context: RuleContext) -> None:
    """The second GEMM: register tiles of queries by features."""
    root, second = sch.get_block(found.stages.root.name), sch.get_block(found.second.name)
    lanes, around = costs.lanes_of(context.target, found.first.block), sch.get_loops(root)
    feature = found.other(found.second)
    few, query = sch.split(around[-2], [None, plan.queries])
    outer, step, lane = sch.split(around[-1], [None, plan.feature_vectors, lanes])
    sch.reorder(outer, few, query, step, lane)  # a block of features of all values stays in L1
    _vectorize_and_unroll(sch, query, step, lane)
    sch.compute_at(second, few)
    loops = _own(sch, second, few)
    row = loops[found.query(second.name)]
    step, lane = sch.split(loops[feature], [None, lanes])
    depth = loops[found.second.reduce[0]]
    sch.reorder(depth, row, step, lane)
    _vectorize_and_unroll(sch, row, step, lane)
    body = plan.queries * plan.feature_vectors
    _unroll_sum(sch, found.second, depth, body, context.target.machine)
    sch.set_scope(second, 0, "local")
    _mark_tails(sch, found.second, found.query(second.name), few)


def _lay_out(
    sch: Schedule, found: Attention, between: list[Nest], stored: BlockRef, queries: BlockRef
) -> None:
    """Make queries the innermost dimension of all buffers of a tile."""
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


def _query_last(sch: Schedule, block: BlockRef, found: Attention, like: str) -> None:
    """Make queries the last dimension of what a block writes; its axes are those of the block
    `like`."""
    nest = found.stages.members[like]
    axes = own_axes(nest.block)
    assert axes is not None
    last = next(dim for dim, at in axes.items() if at == found.query(like))
    sch.transform_layout(block, ("write", 0), _index_map(len(axes), last))


def _index_map(rank: int, *last: int) -> str:
    """The index map that moves some dimensions last."""
    names = [f"d{at}" for at in range(rank)]
    order = [
        *[name for at, name in enumerate(names) if at not in last],
        *[names[at] for at in last],
    ]
    return f"({', '.join(names)}) -> ({', '.join(order)})"


ATTENTION = Rule("attention", AttentionPlan, match, plans, cost, apply)
