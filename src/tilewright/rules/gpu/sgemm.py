"""GEMM of f32 without tensor cores, with tiles loaded by asynchronous copies.

    for tile in blockIdx.x { for t in threadIdx.x {
      for ko [software_pipeline] { copy A, B; for ki { registers += A[ki, :] B[ki, :] } } } }

Copies of the tiles `stages - 1` steps ahead are in flight while a block multiplies, and take no
registers. Shared tiles are contiguous along m or n: an operand that is contiguous along k is
transposed by single-word copies. What the 4 x 8 threads of a warp load in one access is contiguous
in a tile, which avoids bank conflicts: the first accesses of all threads, then their second ones.
Where there are too few tiles, k is split into `split_k` parts that a further kernel adds up.

Tails along m and n repeat the last row of an operand that is contiguous along k; only stores are
guarded. Dynamic sizes, few rows or columns, other tails, windows, and operands that are computed on
the fly are left to the rule `gemm`, whose blocks wait for their copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.multiprocessor import WORD_BYTES, Multiprocessor, multiprocessor_of
from tilewright.intrin import ampere
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.gemm import splits
from tilewright.rules.gpu.parts import (
    ceildiv,
    contraction_of,
    copied_by,
    copy_lanes,
    depth_of,
    extent_of,
    is_matrix,
    padded,
    parts_along,
    stored_bytes,
)
from tilewright.rules.gpu.reduction import fuse_epilogue
from tilewright.rules.match.contraction import Contraction, contraction, multiplies_tf32
from tilewright.rules.match.nest import block_of, fused, is_expression, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring
from tilewright.sym import ONE, Min, uses_var, walk
from tilewright.tensor.ir import RESIDENT, Load
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

FEATURE = "cp.async"
BLOCKS = ("block_m", "block_n")
STAGES = (4, 3, 2)  # candidates for tiles of each operand in shared memory


@dataclass(frozen=True)
class Plan:
    """The tiles of a block and of a thread, and the pipeline depth."""

    block_m: int
    block_n: int
    block_k: int
    thread_m: int
    thread_n: int
    stages: int  # pipeline stages: tiles of each operand in shared memory
    split_k: int
    run_k: int  # steps of k per iteration of the unrolled loop

    @property
    def threads(self) -> int:
        return self.block_m // self.thread_m * (self.block_n // self.thread_n)


@dataclass(frozen=True)
class Found:
    """A GEMM of f32 matrices."""

    reference: BlockRef
    batch: int
    m: int
    n: int
    k: int
    along_k: tuple[bool, bool]  # whether A and B are contiguous along k


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A GEMM whose operands are indexed by m or n and k alone; all sizes static."""
    nest = nest_of(sch, reference)
    if not context.target.has(FEATURE) or nest is None or not is_expression(nest.block):
        return None
    if sch.get_producers(reference):
        return None
    found = contraction(nest)
    if found is None or len(nest.reduce) != 1 or nest.is_dynamic(list(nest.loops)):
        return None
    rows = [at for at in found.m if nest.extent(at) is not ONE]
    if len(rows) != 1 or len(found.n) != 1 or multiplies_tf32(nest.block):
        return None
    buffers = (found.a.buffer, found.b.buffer, nest.block.writes[0].buffer)
    if any(buffer.dtype.name != "f32" for buffer in buffers):
        return None
    (m,), (n,), (k,) = rows, found.n, found.k
    depth = nest.var(k)
    for load, side in ((found.a, nest.var(m)), (found.b, nest.var(n))):
        if not is_matrix(load, side, depth) and not is_matrix(load, depth, side):
            return None
    sizes = nest.guess(m), nest.guess(n), nest.guess(k)
    if min(sizes[:2]) < multiprocessor_of(context.target).warp:
        return None
    whole = found.guess(tuple(nest.spatial))
    along_k = (found.a.index[-1] is depth, found.b.index[-1] is depth)
    return Found(reference, whole // (sizes[0] * sizes[1]), *sizes, along_k)


# ------------------------------------------------------------------------------------ choosing


def plans(found: Found, context: RuleContext) -> Space[Plan]:
    """Tiles that divide k, and m and n where operands have no rows to repeat."""
    sm = multiprocessor_of(context.target)
    words, most = sm.access_words, sm.warp * sm.warps_issued_per_cycle
    lanes_m, lanes_n = _lanes(sm)

    def legal(c: Columns) -> Column:
        threads = _threads(c)
        whole = (found.m % c["block_m"] == 0) | found.along_k[0]
        whole &= (found.n % c["block_n"] == 0) | found.along_k[1]
        whole &= (found.k % (c["block_k"] * c["split_k"]) == 0) & (c["run_k"] <= c["block_k"])
        whole &= c["block_m"] % (c["thread_m"] * lanes_m) == 0
        whole &= c["block_n"] % (c["thread_n"] * lanes_n) == 0
        # All threads copy equal parts of a tile.
        shared = (c["block_m"] * c["block_k"]) % (threads * words) == 0
        shared &= (c["block_n"] * c["block_k"]) % (threads * words) == 0
        steps = found.k // c["split_k"] // c["block_k"]
        fits = (_shared_bytes(c, words) <= sm.static_shared_bytes) & (steps >= c["stages"])
        fits &= (threads >= sm.warp) & (threads <= sm.block_threads)
        result: Column = whole & shared & fits
        return result

    sizes = preferring(most, doublings(most, sm.warp))
    return Space(
        Plan,
        {
            "block_m": sizes,
            "block_n": sizes,
            "block_k": preferring(2 * words, doublings(sm.warp, words)),
            "thread_m": (2 * words, words),
            "thread_n": (2 * words, words),
            "stages": STAGES,
            "split_k": splits(sm),
            "run_k": doublings(sm.warp // 2, words)[::-1],
        },
        legal,
    )


def _lanes(sm: Multiprocessor) -> tuple[int, int]:
    """A warp's threads along m and n: near square, which minimizes loads of both operands."""
    return sm.access_words, sm.warp // sm.access_words


def _threads(c: Columns) -> Column:
    found: Column = c["block_m"] // c["thread_m"] * (c["block_n"] // c["thread_n"])
    return found


def _shared_bytes(c: Columns, words: int) -> Column:
    """Shared memory of f32 tiles, rows of k padded by an access."""
    sides = [
        stored_bytes(WORD_BYTES * c["stages"] * c["block_k"] * (c[side] + words)) for side in BLOCKS
    ]
    found: Column = sides[0] + sides[1]
    return found


def _resident(c: Columns, sm: Multiprocessor) -> Column:
    """Blocks that a multiprocessor has room for. Registers are for sums, operands of two steps of
    k, and copies in flight; they are given out eight at a time."""
    words, loaded = sm.access_words, c["thread_m"] + c["thread_n"]
    registers = c["thread_m"] * c["thread_n"] + (2 + 1) * loaded + sm.warp // 2
    registers = ceildiv(registers, 2 * words) * 2 * words
    # An epilogue needs registers too, however few a thread's sums are.
    threads = np.minimum(sm.registers // registers, sm.threads // 2)
    found: Column = np.minimum(sm.shared_bytes // _shared_bytes(c, words), threads // _threads(c))
    return found


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles of all waves of blocks: instructions of the scheduler with most warps, and tiles from
    L2; adding up the parts of k."""
    sm = multiprocessor_of(context.target)
    words, split, threads = sm.access_words, c["split_k"], _threads(c)
    tiles = found.batch * ceildiv(found.m, c["block_m"]) * ceildiv(found.n, c["block_n"])
    blocks = tiles * split
    sums = c["thread_m"] * c["thread_n"]
    resident = np.clip(_resident(c, sm), 1, ceildiv(blocks, sm.count))
    waves, last = np.divmod(blocks, sm.count * resident)
    last = ceildiv(last, sm.count)  # blocks of a multiprocessor in the last wave
    steps = found.k // split // c["block_k"]
    loads = (c["thread_m"] + c["thread_n"]) / words  # per thread and step of k
    moved = c["block_k"] * (c["block_m"] + c["block_n"])  # words per step

    def copied(resident: Column) -> Column:
        """Cycles until the tiles of a step have come from L2."""
        found: Column = resident * WORD_BYTES * moved / sm.l2_bytes_per_cycle
        return found

    def busy(resident: Column) -> Column:
        """Cycles of a step of k of so many blocks."""
        warps = resident * threads / sm.warp
        most = np.ceil(warps / sm.warps_issued_per_cycle)  # of a scheduler
        issued = (most + sm.lone_warp_share) * c["block_k"] * (sums + loads)
        # A 16-byte load of a warp takes a cycle of all banks per half of its threads.
        read = warps * words // 2 * c["block_k"] * loads
        waiting = sm.global_latency_cycles / (c["stages"] - 1)
        step = np.maximum(issued + copied(resident) + sm.barrier_cycles, read)
        found: Column = np.maximum(step, waiting)
        return found

    is_partial = last > 0
    through_tiles = steps * (waves * busy(resident) + np.where(is_partial, busy(last), 0))
    # Of a wave, the first tiles and the results.
    alone = 2 * sm.global_latency_cycles
    started = waves * (alone + copied(resident)) + np.where(is_partial, alone + copied(last), 0)
    operands = 1.0 * WORD_BYTES * found.batch * (found.m + found.n) * found.k
    parts = 2.0 * WORD_BYTES * found.batch * found.m * found.n * split  # written, and read again
    return Cost.of(
        arithmetic=np.maximum(through_tiles, operands / sm.memory_bytes_per_cycle),
        start=started,
        split=np.where(split > 1, sm.launch_cycles + parts / sm.memory_bytes_per_cycle, 0),
    )


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule by a plan."""
    reference, sm = found.reference, multiprocessor_of(context.target)
    _repeat_last_rows(sch, reference, plan)
    if plan.split_k > 1:
        k = contraction_of(sch, reference).k[0]
        part, _ = sch.split(sch.get_loops(reference)[k], [plan.split_k, None])
        reference = parts_along(sch, part)
        plan = replace(plan, split_k=1)
    return _tiled(sch, reference, plan, sm)


def _repeat_last_rows(sch: Schedule, reference: BlockRef, plan: Plan) -> None:
    """Pad m and n to whole tiles; stores are guarded."""
    found = contraction_of(sch, reference)
    m, n = _sides(found)
    blocks = {m: plan.block_m, n: plan.block_n}
    if any(found.nest.guess(at) % by for at, by in blocks.items()):
        padded(sch, reference, blocks, sch.get_consumers(reference), clamp=True)


def _sides(found: Contraction) -> tuple[int, int]:
    """The iterators m and n."""
    return next(at for at in found.m if found.nest.extent(at) is not ONE), found.n[-1]


def _tiled(
    sch: Schedule, reference: BlockRef, plan: Plan, sm: Multiprocessor
) -> tuple[BlockRef, ...]:
    found = contraction_of(sch, reference)
    nest = found.nest
    (m, n), k, words = _sides(found), found.k[0], sm.access_words
    lanes_m, lanes_n = _lanes(sm)
    a, b = (_tile_of(sch, reference, load) for load in (found.a, found.b))
    warps = plan.block_m // plan.thread_m // lanes_m, plan.block_n // plan.thread_n // lanes_n
    far, warp_m, lane_m, ii = sch.split(nest.loops[m], [None, warps[0], lanes_m, plan.thread_m])
    column, warp_n, lane_n, jj = sch.split(nest.loops[n], [None, warps[1], lanes_n, plan.thread_n])
    ko, ki, kk = sch.split(nest.loops[k], [None, plan.block_k // plan.run_k, plan.run_k])
    outer = [nest.loops[at] for at in nest.spatial if at not in (m, n)]
    grid, threads = [*outer, far, column], [warp_m, warp_n, *_interleaved(sch, lane_m, lane_n)]
    sch.reorder(*grid, *threads, ko, ki, kk, ii, jj)
    followed = fuse_epilogue(sch, reference, threads[-1])
    blocks = fused(sch, grid)
    sch.bind(blocks, "blockIdx.x")
    sch.annotate(blocks, RESIDENT, int(_resident(vars(plan), sm)))
    sch.bind(fused(sch, threads), "threadIdx.x")
    for copy, load, thread in ((a, found.a, plan.thread_m), (b, found.b, plan.thread_n)):
        sch.compute_at(copy, ko)
        along_k = uses_var(load.index[-1], {nest.var(k)})
        lanes = 1 if along_k else copy_lanes(sch, copy, sm.access_bytes)
        _lay_out(sch, copy, thread, words, along_k=along_k)
        _copy(sch, copy, ko, plan.threads, lanes)
    start = sch.decompose_reduction(reference, ko)
    for loop in (kk, ii, jj):
        sch.unroll(loop)
    for store in followed:
        _store(sch, store, words)
    ahead = plan.stages - 1
    sch.software_pipeline(ko, [0, 0, ahead], [0, 1, 2])
    return (start, reference, a, b, *followed)


def _interleaved(sch: Schedule, lane_m: LoopRef, lane_n: LoopRef) -> list[LoopRef]:
    """A warp's threads, so that one of any two neighbours, and of any two that are two apart, loads
    what the other does: shared memory serves half a warp at once then, else a quarter."""
    half_m, m = sch.split(lane_m, [None, 2])
    half_n, n = sch.split(lane_n, [None, 2])
    return [half_m, half_n, m, n]


def _tile_of(sch: Schedule, reference: BlockRef, load: Load) -> BlockRef:
    """A copy of an operand's tile; its rows are the block's where the operand's are repeated."""
    if not any(isinstance(each, Min) for each in walk(*load.index)):
        return copied_by(sch, reference, load)
    return sch.reindex_read(reference, contraction_of(sch, reference).read_index(load), "shared")


def _lay_out(sch: Schedule, copy: BlockRef, thread: int, words: int, *, along_k: bool) -> None:
    """Lay a tile out by k, then a thread's accesses, then threads; rows of k are padded, so that
    the threads that fill them hit different banks."""
    rank = block_of(sch.function, copy.name).writes[0].buffer.rank
    *outer, first, last = [f"d{at}" for at in range(rank)]
    along, side = (last, first) if along_k else (first, last)
    order = f"{along}, {side} // {words} % {thread // words}, {side} // {thread}, {side} % {words}"
    order = ", ".join((*outer, order))
    sch.transform_layout(copy, ("write", 0), f"({', '.join((*outer, first, last))}) -> ({order})")
    sch.storage_align(copy, 0, axis=-4, factor=2 * words, offset=words)


def _store(sch: Schedule, store: BlockRef, words: int) -> None:
    """Store a thread's results, 16 bytes at a time."""
    row, column = sch.get_loops(store)[-2:]
    run, lane = sch.split(column, [None, words])
    if sch.attempt(sch.vectorize, lane):
        for loop in (row, run):
            sch.unroll(loop)


def _copy(sch: Schedule, copy: BlockRef, ko: LoopRef, threads: int, lanes: int) -> None:
    """Copy a tile asynchronously, `lanes` elements per access."""
    own = sch.get_loops(copy)[depth_of(sch, copy, ko) :]
    turn, thread, run = sch.split(fused(sch, own), [None, threads, lanes])
    sch.bind(thread, "threadIdx.x")
    sch.tensorize(run, ampere.run_of("f32", lanes))
    if extent_of(sch, turn) > 1:
        sch.unroll(turn)


SGEMM = Rule("sgemm", Plan, match, plans, cost, apply)
