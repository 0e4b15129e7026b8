"""GEMM of int8, i16 and bf16 by dot-product instructions (VNNI, NEON dot and alike).

    for jb                   nc panels whose B stays in L2
      pack B[:, jb]            as [panel, k // group, n in panel, k % group]; weights beforehand
      for io                   register tiles of m
        for jp                 panels
          for k                mr x nr dot products of a group of k per lane
          the epilogue (requantization, bias, activation), and the store

Each lane accumulates `group` products per instruction. k is padded to whole groups with zeros, n to
whole panels; sums of integers wrap like any i32, so results are bit-exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.dots import Dot, dots_of
from tilewright.base.dtype import I32
from tilewright.base.machine import LOOP_CYCLES
from tilewright.rules.context import RuleContext
from tilewright.rules.cost import TIE_SHARE
from tilewright.rules.cpu.dot_model import (
    fits_registers,
    is_unrollable,
    narrower_of,
    register_tile,
    result_cycles,
    row_counts,
    tile_cycles,
    whole,
)
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import BATCH, NONE, M, N, ceil_div, most_vectors
from tilewright.rules.cpu.gemm_plan import chunk_counts, row_tile, row_tiles
from tilewright.rules.cpu.gemm_schedule import copy_of, inline_crop, producer_of, transposed_along_k
from tilewright.rules.cpu.gemv import GEMV_MAX_ROWS
from tilewright.rules.match.contraction import Contraction, find_contraction
from tilewright.rules.match.nest import attempt, fused
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import chunk_cycles, late_cycles
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, tile_sizes, unit
from tilewright.sym import ONE, Const, Expr
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import Update
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class Problem:
    """The sizes of a GEMM, and the instruction for its types; dynamic sizes are guessed."""

    found: Contraction
    dot: Dot
    batch: int
    m: int
    n: int
    k: int
    is_weight: bool  # B is packed before the first call
    transposes_a: bool  # A is not contiguous along k
    narrower: int  # how many times narrower than the sums the results are

    @property
    def panel_vector_bytes(self) -> int:
        """Bytes of a panel of one vector."""
        return self.k * self.dot.lanes * self.found.b.buffer.dtype.size_bytes

    @property
    def calls(self) -> int:
        """Instructions along k; 1 where k is dynamic."""
        k = self.found.extent(self.found.k[-1])
        return 1 if k is None else -(-k // self.dot.steps)


@dataclass(frozen=True)
class DotPlan:
    """The blocking of a GEMM by dot products."""

    dot: str = unit("intrinsic", "dot product of a group of k")
    mr: int = unit("rows", "of the register tile")
    nr: int = unit("vectors", "of the register tile")
    parallel: str = unit("axis", "split across threads")
    m_chunks: int = unit("chunks of m", "split across threads; 1 for other axes")
    nc_panels: int = unit("panels", "in a block of n that stays in L2")
    k_unroll: int = unit("calls along k", "per iteration of the unrolled loop")


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Problem | None:
    """A contraction of types that the target has a dot-product instruction for."""
    found = find_contraction(sch, block)
    if found is None:
        return None
    types = (found.a.buffer.dtype, found.b.buffer.dtype, found.block.writes[0].buffer.dtype)
    dots = dots_of(context.target, *(each.name for each in types))
    k = found.k[-1]
    if not dots or not _is_plain(found):
        return None
    return Problem(
        found,
        whole(dots, found.extent(k)),
        found.guess(found.batch) * found.guess(found.n[:-1]),
        found.guess(found.m),
        found.nest.guess(found.n[-1]),
        found.guess(found.k),
        found.b.buffer.name in context.constants,
        found.stride(found.a, k) is not ONE,
        narrower_of(sch, block, types[-1].size_bytes),
    )


def _is_plain(found: Contraction) -> bool:
    """Whether operands and result are indexed by iterators alone."""
    iterators: set[Expr] = {it.var for it in found.block.iters}
    body = found.block.body
    assert isinstance(body, Update)
    return all(
        at in iterators or isinstance(at, Const)  # of a dimension of 1
        for index in (found.a.index, found.b.index, body.index)
        for at in index
    )


# --------------------------------------------------------------------------- the space


def plans(problem: Problem, context: RuleContext) -> Space[DotPlan] | None:
    """All blockings of a GEMM; None where register tiles do not pay."""
    found, dot = problem.found, problem.dot
    if problem.n == 1 or found.nest.guess(found.k[-1]) < dot.group:
        return None
    if not problem.is_weight and problem.m <= GEMV_MAX_ROWS:
        return None  # packing B takes longer than the dot products
    vectors, threads = -(-problem.n // dot.lanes), context.threads
    mr_max = min(context.target.machine.address_registers, problem.m)
    widths = tile_sizes(min(most_vectors(context.target), vectors))
    panels = {-(-vectors // nr) for nr in widths}
    is_dynamic_n = found.extent(found.n[-1]) is None
    counts = (n for n in range(1, max(panels) + 1) if any(total % n == 0 for total in panels))
    candidates: dict[str, tuple[int | str, ...]] = {
        "dot": (dot.name,),
        "mr": row_counts(context.target.machine)[:mr_max],
        "nr": widths,
        "parallel": (NONE,) if threads == 1 else (NONE, BATCH, N, M),
        "m_chunks": (1,) if threads == 1 else chunk_counts(found, mr_max, context),
        "nc_panels": (1,) if is_dynamic_n else tuple(counts),
        "k_unroll": doublings(context.target.machine.fma_latency_cycles),
    }
    return Space(
        DotPlan,
        candidates,
        lambda columns: _legal(problem, context, columns),
        stages=(("mr", "nr", "parallel", "m_chunks"), ("nc_panels", "k_unroll")),
    )


def _legal(problem: Problem, context: RuleContext, c: Columns) -> Column:
    found, mr, nr = problem.found, c["mr"], c["nr"]
    legal: Column = fits_registers(problem.dot, mr, nr, context.target.vector_registers)
    is_m, is_n = c["parallel"] == M, c["parallel"] == N
    legal &= (c["parallel"] != BATCH) | (problem.batch > 1)
    legal &= ~is_m | bool(found.m)
    tiles = np.array([row_tiles(found, rows) for rows in range(1, int(mr.max(initial=1)) + 1)])
    is_whole = tiles[mr - 1] % c["m_chunks"] == 0
    if found.m and found.extent(found.m[0]) is None:  # of a dynamic m, each tile is a chunk
        legal &= c["m_chunks"] == 1
    else:
        legal &= is_whole & (is_m == (c["m_chunks"] > 1))
    panels = ceil_div(problem.n, nr * problem.dot.lanes)
    legal &= panels % c["nc_panels"] == 0
    legal &= ~is_n | (c["nc_panels"] <= ceil_div(panels, context.threads))
    room = context.target.machine.l2.block_bytes
    block_bytes = c["nc_panels"] * nr * problem.panel_vector_bytes
    legal &= (c["nc_panels"] == 1) | (block_bytes <= room)
    legal &= is_unrollable(
        problem.dot, context.target.machine, problem.calls, mr, nr, c["k_unroll"]
    )
    return legal


# --------------------------------------------------------------------------- the cost


def cost(problem: Problem, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last."""
    dot, machine, threads = problem.dot, context.target.machine, context.threads
    mr, nr = c["mr"], c["nr"]
    is_m, is_n, is_batch = (c["parallel"] == axis for axis in (M, N, BATCH))
    tiles = ceil_div(problem.m, mr)
    chunks = np.where(c["m_chunks"] > 1, c["m_chunks"], tiles)
    chunk_tiles = np.where(is_m, ceil_div(tiles, chunks), tiles)
    rows = ceil_div(chunks, threads) * chunk_tiles * mr
    m = np.where(is_m, np.minimum(problem.m, rows), problem.m)
    panels = ceil_div(problem.n, nr * dot.lanes)
    blocks = ceil_div(panels, c["nc_panels"])
    panels = np.where(is_n, ceil_div(blocks, threads) * c["nc_panels"], panels)
    batch = np.where(is_batch, ceil_div(problem.batch, threads), problem.batch)
    full, rest = m // mr, m % mr
    left = np.maximum(rest, 1)
    near = c["nc_panels"] * nr * problem.panel_vector_bytes <= machine.l1d.size_bytes // 2
    sums = full * tile_cycles(dot, machine, mr, nr, problem.k, near) + np.where(
        rest > 0, tile_cycles(dot, machine, left, nr, problem.k, near), 0
    )
    sums = batch * panels * sums
    each = full * result_cycles(mr, nr, problem.narrower, machine) + np.where(
        rest > 0, result_cycles(left, nr, problem.narrower, machine), 0
    )
    groups = problem.batch * problem.n * ceil_div(problem.k, dot.group)
    shared_out = np.where(c["parallel"] == NONE, 1, threads)
    pack = 0 if problem.is_weight else LOOP_CYCLES * groups / dot.lanes / shared_out
    # Every row tile reads its panels of B from L2, every block of panels all rows of A.
    row_panels = batch * ceil_div(m, mr) * panels
    b_bytes = row_panels * nr * problem.panel_vector_bytes
    a_bytes = batch * ceil_div(panels, c["nc_panels"]) * m * problem.k
    # Where B exceeds L2, a block of several panels stays there for one chunk of rows.
    again = np.where(c["nc_panels"] == 1, 1.0, 1 / chunk_tiles) - 1 / tiles
    beyond = b_bytes * again if problem.n * problem.k > machine.l2.size_bytes else 0
    # Each thread reads all of the operand that is not split. Splitting n splits the rows of results
    # and epilogue operands, whose cache lines several cores then fetch.
    item = I32.size_bytes / problem.narrower
    moved = 2 * problem.batch * problem.m * problem.n * item / shared_out
    beyond_l2_rate = machine.l3.bytes_per_cycle or machine.memory_bytes_per_cycle
    b_once = problem.batch * problem.n * problem.k / np.where(is_n | is_batch, threads, 1)
    a_once = problem.batch * problem.m * problem.k / np.where(is_m | is_batch, threads, 1)
    scattered = np.where(is_n, machine.exposed_rows_share, machine.exposed_share)
    exposed = machine.exposed_share
    epilogue, loop = batch * panels * each, row_panels * problem.calls / c["k_unroll"]
    pieces = problem.batch * np.where(is_m, chunks, np.where(is_n, blocks, 1))
    own = np.where(c["parallel"] == NONE, 0, ceil_div(pieces, threads))
    a_bytes_all = problem.batch * problem.m * problem.k
    return Cost.of(
        dots=sums,
        fuse_epilogue=epilogue,
        b_from_l2=exposed * b_bytes / machine.l2.bytes_per_cycle,
        a_from_l2=exposed * a_bytes / machine.l2.bytes_per_cycle,
        beyond_l2=exposed * beyond / machine.memory_bytes_per_cycle,
        once=exposed * (a_once + b_once) / beyond_l2_rate,
        rows=scattered * moved / beyond_l2_rate,
        tails=2 * TIE_SHARE * sums * (problem.m % mr > 0),
        loop=loop,
        pack=pack,
        dispatch=own * chunk_cycles(machine),
        imbalance=late_cycles((sums + epilogue + loop) / np.maximum(own, 1), machine) * (own > 0),
        turn_a=2 * problem.transposes_a * a_bytes_all / machine.l2.bytes_per_cycle / threads,
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
    )


# --------------------------------------------------------------------------- the schedule


def apply(
    sch: Schedule, problem: Problem, plan: DotPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    """Pad, pack B in groups, split into register tiles, tensorize the reduction."""
    found, dot = transposed_along_k(sch, problem.found), problem.dot
    problem = replace(problem, found=found)
    c = sch.get_block(found.nest.name)
    sch.pad(c, _multiples(problem, plan))
    panel = copy_of(sch, c, found, found.b)
    filled = producer_of(sch, c, found, found.a)
    inline_crop(sch, c)
    loops = sch.get_loops(c)
    outer = [loops[at] for at in (*found.batch, *found.n[:-1])]
    rows, inner = _split_rows(sch, loops, found, plan.mr)
    jb, jp, ji, lane = sch.split(loops[found.n[-1]], [None, plan.nc_panels, plan.nr, dot.lanes])
    *far, last = [loops[at] for at in found.k]
    ko, kg = sch.split(last, [None, dot.steps])
    chunk: list[LoopRef] = []
    if plan.parallel == M and found.extent(found.m[0]) is None:
        chunk, rows = rows[:1], rows[1:]
    elif plan.parallel == M:
        first, rows[0] = sch.split(rows[0], [plan.m_chunks, None])
        chunk = [first]
    tile_loops = register_tile(dot, inner, ji)
    sch.reorder(*outer, *chunk, jb, *rows, jp, *far, ko, *tile_loops, lane, kg)
    for loop in (*inner, ji):
        sch.unroll(loop)
    done = [c, panel, *fuse_epilogue(sch, c, jp, dot.lanes, plan.nr * dot.lanes)]
    init = sch.decompose_reduction(c, (*far, ko)[0])
    if plan.k_unroll > 1:
        _, near = sch.split(ko, [None, plan.k_unroll])
        sch.unroll(near)
    if filled is not None:
        done.append(filled)
        _pad_k(sch, filled, problem, [*outer, *chunk, jb, *rows][-1])
    _pack(sch, panel, problem, plan, jb)
    sch.tensorize(lane, plan.dot)
    sch.tensorize(sch.get_loops(init)[-1], plan.dot)
    done.append(init)
    if plan.parallel != NONE:
        around = {BATCH: outer, N: [*outer, jb], M: [*outer, *chunk]}
        shared = fused(sch, around[plan.parallel])
        sch.parallel(shared)
        if not rows:
            rows = [shared]
    if found.m and found.extent(found.m[-1]) is None:
        sch.annotate(rows[-1], TAILS, True)
    return tuple(dict.fromkeys(done))


def _multiples(problem: Problem, plan: DotPlan) -> list[int]:
    found = problem.found
    multiples = [1] * len(found.block.iters)
    multiples[found.n[-1]] = plan.nr * problem.dot.lanes
    multiples[found.k[-1]] = problem.dot.steps
    return multiples


def _split_rows(
    sch: Schedule, loops: Sequence[LoopRef], found: Contraction, mr: int
) -> tuple[list[LoopRef], list[LoopRef]]:
    """The loops over register tiles of m, and those inside a tile."""
    rows: list[LoopRef] = []
    inner: list[LoopRef] = []
    for at, size in zip(found.m, row_tile(found, mr), strict=True):
        loop = loops[at]
        if size > 1:
            loop, near = sch.split(loop, [None, size])
            inner.append(near)
        rows.append(loop)
    return rows, inner


def _pad_k(sch: Schedule, filled: BlockRef, problem: Problem, at: LoopRef) -> None:
    """Pad k with zeros where a row tile is read."""
    attempt(sch, sch.compute_at, filled, at)
    lanes = problem.dot.lanes * problem.dot.group
    _, lane = sch.split(sch.get_loops(filled)[-1], [None, lanes])
    attempt(sch, sch.vectorize, lane)


def _pack(sch: Schedule, panel: BlockRef, problem: Problem, plan: DotPlan, at: LoopRef) -> None:
    """Pack B as [panel, k // group, n in panel, k % group]."""
    found, dot = problem.found, problem.dot
    deep, column = found.nest.var(found.k[-1]), found.nest.var(found.n[-1])
    names = [f"x{axis}" for axis in range(len(found.b.index))]
    of = dict(zip(names, found.b.index, strict=True))
    k = next(name for name in names if of[name] is deep)
    j = next(name for name in names if of[name] is column)
    far = {found.nest.var(each) for each in found.k[:-1]}
    others = [name for name in names if name not in (k, j)]
    before = [name for name in others if of[name] not in far]
    middle = [name for name in others if of[name] in far]
    width, group = plan.nr * dot.lanes, dot.group
    places = [*before, f"{j} // {width}", *middle, f"{k} // {group}"]
    places += [f"{j} % {width}", f"{k} % {group}"]
    if not problem.is_weight and plan.parallel != M:
        sch.compute_at(panel, at)
    sch.transform_layout(panel, ("write", 0), f"({', '.join(names)}) -> ({', '.join(places)})")
    own = sch.get_loops(panel)[-len(names) :]
    rest = [loop for name, loop in zip(names, own, strict=True) if name not in (k, j)]
    ko, kg = sch.split(own[names.index(k)], [None, group])
    jo, ji = sch.split(own[names.index(j)], [None, dot.lanes])
    sch.reorder(*rest, jo, ko, ji, kg)
    if found.stride(found.b, found.k[-1]) is ONE:  # a group is contiguous
        sch.vectorize(kg)
    else:  # rows of a group are loaded whole, and interleaved in registers
        sch.vectorize(sch.fuse(ji, kg))
    if problem.is_weight:
        sch.annotate(panel, CONSTANT, True)
    elif plan.parallel == M:
        sch.parallel(sch.get_loops(panel)[0])


GEMM_DOT = Rule("gemm_dot", DotPlan, match, plans, cost, apply)
