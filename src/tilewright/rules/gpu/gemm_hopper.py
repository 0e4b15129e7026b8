"""GEMM by Hopper's tensor cores: bulk copies by a producer warp, products by warpgroups.

    for tile in blockIdx.x { for group in threadIdx.y {
      clear; for ko [specialize = (slots, blocks)] { copy A, B; sums += A B^T }; store } }

Both operands have k contiguous. Tiles are `64 * groups` by `block_n`; `slots` of them are in
flight. Neighbouring blocks share columns of `span` tiles, so that B stays in L2; as many blocks as
there are multiprocessors stay for all tiles, and fetch the next one while they store the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.intrin import hopper
from tilewright.rules.context import RuleContext
from tilewright.rules.match.contraction import contraction
from tilewright.rules.match.nest import block_of, is_expression, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space
from tilewright.sym import ONE, Cast, Const, Var
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import Load, Store
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import output_buffers

FEATURE = "wgmma"
BLOCK_N = (64, 256, 192, 128, 96)  # candidates, in columns of one wgmma
GROUPS = (1, 2)  # candidates, warpgroups that multiply
SLOTS = (4, 5, 6, 3, 2)  # candidates, tiles on their way in shared memory
SPAN = (1, 16, 8, 4, 2)  # candidates, tiles along m before the next column
ROUND_UP_BYTES = 4096  # of shared memory beside the slots: barriers, alignment


@dataclass(frozen=True)
class Plan:
    """Tiles of a block, and how blocks follow each other."""

    groups: int  # of 128 threads, each with 64 rows
    block_n: int
    slots: int
    span: int  # tiles along m that neighbouring blocks take before the next column


@dataclass(frozen=True)
class Found:
    """A GEMM whose operands tensor cores take as they are, or once a weight is transposed."""

    reference: BlockRef
    rounded: BlockRef | None  # what only converts the sums
    dtype: str
    result: str
    m: int
    n: int
    k: int
    a_index: int  # of the block's reads
    b_index: int
    packs_b: bool  # a weight [k, n] that is stored as [n, k]


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """C[m, n] = sum of A[m, k] B[n, k], in a type of the tensor cores, all sizes known."""
    nest = nest_of(sch, reference) if context.target.has(FEATURE) else None
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return None
    found = contraction(nest)
    if found is None or nest.is_dynamic(list(nest.loops)):
        return None
    spatial = [at for at in nest.spatial if nest.extent(at) is not ONE]
    if len(nest.reduce) != 1 or spatial != [*found.m, *found.n]:
        return None
    if len(found.m) != 1 or len(found.n) != 1:
        return None
    kind = found.a.buffer.dtype.name
    if kind != found.b.buffer.dtype.name or kind not in hopper.TYPES:
        return None
    if nest.block.writes[0].buffer.dtype.name != "f32":
        return None
    (m,), (n,), (k,) = found.m, found.n, found.k
    if not _is_matrix(found.a, nest.var(m), nest.var(k)):
        return None
    packs = not _is_matrix(found.b, nest.var(n), nest.var(k))
    if packs and not (
        _is_matrix(found.b, nest.var(k), nest.var(n))
        and found.b.buffer.rank == 2
        and found.b.buffer.name in context.constants
    ):
        return None
    rounded = _rounded(sch, reference)
    result = "f32"
    if rounded is not None:
        result = block_of(sch.function, rounded.name).writes[0].buffer.dtype.name
    sizes = (nest.guess(m), nest.guess(n), nest.guess(k))
    reads = (found.read_index(found.a), found.read_index(found.b))
    return Found(reference, rounded, kind, result, *sizes, *reads, packs)


def _is_matrix(load: Load, row: Var, column: Var) -> bool:
    """Whether an operand is read as a matrix, neighbouring columns side by side."""
    *outer, last_row, last = load.index
    dims = load.buffer.shape
    unit = all(isinstance(at, Const) for at in outer) and all(dim is ONE for dim in dims[:-2])
    return unit and last_row is row and last is column


def _rounded(sch: Schedule, reference: BlockRef) -> BlockRef | None:
    """The only reader, if all it does is convert each sum."""
    consumers = sch.get_consumers(reference)
    made = block_of(sch.function, reference.name).writes[0].buffer
    if len(consumers) != 1 or made in output_buffers(sch.function):
        return None
    body = block_of(sch.function, consumers[0].name).body
    if not isinstance(body, Store) or not isinstance(body.value, Cast):
        return None
    (value,) = body.value.children()
    plain = isinstance(value, Load) and value.buffer is made and value.index == body.index
    return consumers[0] if plain and body.buffer.dtype.name in hopper.TYPES else None


def plans(found: Found, context: RuleContext) -> Space[Plan] | None:
    """Tiles that divide the matrices and fit."""
    sm = multiprocessor_of(context.target)
    depth = hopper.ROW_BYTES // hopper.TYPES[found.dtype]
    if found.k % depth or found.m % hopper.M or found.n % BLOCK_N[0]:
        return None

    def legal(c: Columns) -> Column:
        rows = hopper.M * c["groups"]
        fits = c["slots"] * (rows + c["block_n"]) * hopper.ROW_BYTES + ROUND_UP_BYTES
        whole = (found.m % rows == 0) & (found.n % c["block_n"] == 0)
        result: Column = whole & (fits <= sm.shared_bytes) & (found.m // rows % c["span"] == 0)
        return result

    return Space(Plan, {"groups": GROUPS, "block_n": BLOCK_N, "slots": SLOTS, "span": SPAN}, legal)


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Waves of tiles: products, or shared memory where tiles are narrow; the last store."""
    sm = multiprocessor_of(context.target)
    rows = hopper.M * c["groups"]
    tiles = (found.m // rows) * (found.n // c["block_n"])
    waves = -(-tiles // sm.count)
    steps = found.k * hopper.TYPES[found.dtype] // hopper.ROW_BYTES
    work = rows * c["block_n"] * (hopper.ROW_BYTES // hopper.TYPES[found.dtype])
    per_step = work / sm.tensor_fma_per_cycle
    narrow = (rows + c["block_n"]) * hopper.ROW_BYTES / sm.l2_bytes_per_cycle
    waiting = sm.global_latency_cycles * 2.0 / c["slots"]
    return Cost.of(
        products=waves * steps * np.maximum(np.maximum(per_step, narrow), waiting),
        start=sm.global_latency_cycles,
        store=1.0 * rows * c["block_n"] / 64,
        l2=waves * steps * 40.0 / c["span"],
    )


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """The schedule of a plan."""
    c, kind = found.reference, found.dtype
    rows, depth = hopper.M * plan.groups, hopper.ROW_BYTES // hopper.TYPES[kind]
    done: list[BlockRef] = []
    if found.packs_b:
        packed = sch.cache_read(c, found.b_index, "global")
        sch.transform_layout(packed, ("write", 0), "(k, n) -> (n, k)")
        sch.annotate(packed, CONSTANT, True)
        done.append(packed)
    a = sch.cache_read(c, found.a_index, hopper.TILE_SCOPE)
    b = sch.cache_read(c, found.b_index, hopper.TILE_SCOPE)
    if found.rounded is None:
        store = sch.cache_write(c, 0, hopper.SUM_SCOPE)
    else:
        store = found.rounded
        sch.set_scope(c, 0, hopper.SUM_SCOPE)
    *_, i, j, k = sch.get_loops(c)  # those before have one iteration
    far, near, group, ii = sch.split(i, [None, plan.span, plan.groups, hopper.M])
    column, jj = sch.split(j, [None, plan.block_n])
    ko, ki = sch.split(k, [None, depth])
    sch.reorder(far, column, near, group, ko, ii, jj, ki)
    sch.reverse_compute_at(store, group)
    sch.bind(sch.fuse(far, column, near), "blockIdx.x")
    sch.bind(group, "threadIdx.y")
    sch.compute_at(a, ko)
    sch.compute_at(b, ko)
    start = sch.decompose_reduction(c, ko)
    product = hopper.dot_of(kind, plan.block_n)
    sch.tensorize(sch.get_loops(c)[-3], product)
    sch.tensorize(sch.get_loops(start)[-2], product)
    sch.tensorize(sch.get_loops(store)[-2], hopper.store_of(found.result, plan.block_n))
    sch.tensorize(sch.get_loops(a)[-2], hopper.load_of(kind, rows))
    sch.tensorize(sch.get_loops(b)[-2], hopper.load_of(kind, plan.block_n))
    tiles = found.m // rows * (found.n // plan.block_n)
    sch.specialize(ko, plan.slots, min(tiles, multiprocessor_of(context.target).count))
    return (*done, c, start, a, b, store)


GEMM_HOPPER = Rule("gemm_hopper", Plan, match, plans, cost, apply)
