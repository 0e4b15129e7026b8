"""Sums of products on a GPU without tensor cores: GEMM, batched GEMM, convolution.

    for block in blockIdx.x { for t in threadIdx.x {
      for ko { A_shared, B_shared = tiles; for ki { registers += A_shared * B_shared } } } }

A block of threads computes a tile of the result: `block_m` values of an iterator that only the
first operand has, `block_y` x `block_x` of two that only the second has (one of them for a GEMM).
Operands come through shared memory, `block_k` values of the first summed iterator at a time with
all of the others (kernel positions of a convolution), so that an input pixel is fetched once for
all positions. Each thread keeps `thread_m x thread_y x thread_x` sums in registers. Where the tiles
are too few for the GPU, `split_k` parts of the sum are computed apart and added up afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.target import Target
from tilewright.rules.contraction import Contraction, contraction
from tilewright.rules.gpu.reduction import through
from tilewright.rules.gpu.threads import WARP, attempt_all, share
from tilewright.rules.nest import attempt, block_of, fused, is_expression, nest_of
from tilewright.rules.setting import Setting
from tilewright.sym import ONE, Const
from tilewright.tensor.ir import REDUCE
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import output_buffers

Columns = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Plan:
    """Tiles of a block of threads and of a thread."""

    block_m: int
    block_y: int
    block_x: int
    block_k: int
    thread_m: int
    thread_y: int
    thread_x: int
    split_k: int = 1

    @property
    def threads(self) -> int:
        rows = self.block_m // self.thread_m
        return rows * (self.block_y // self.thread_y) * (self.block_x // self.thread_x)


@dataclass(frozen=True)
class Problem:
    """A contraction by its sizes: what plans are chosen by."""

    batch: int  # independent ones, and outer iterators that are not tiled
    m: int
    y: int
    x: int
    k: int  # of the summed iterator that is cut
    inner: int  # of the other summed iterators, together
    halo_y: int  # rows that a tile of one row reads
    halo_x: int
    stride_y: int
    stride_x: int
    element_bytes: int


MAX_THREADS = 512  # of a block: 128 registers for each thread at least
FETCH_CYCLES = 700  # between asking global memory and having a tile in shared memory
SM_FMA, SM_SHARED_WORDS = 128, 32  # multiply-adds and words of shared memory per cycle
SM_THREADS = 2048
LAUNCH_CYCLES = 3000  # of another kernel, with the round trip of its operands
SHARED_BYTES = 48 * 1024  # static shared memory


def gemm(sch: Schedule, reference: BlockRef, setting: Setting) -> tuple[BlockRef, ...]:
    """Schedule a sum of products with what follows it."""
    nest = nest_of(sch, reference)
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return ()
    found = contraction(nest)
    if found is None or not found.rows or _is_open(found):
        return ()
    if _tiled(found)[0] is None:
        return ()
    problem = problem_of(found)
    if problem.m * problem.y * problem.x < 4 * WARP or problem.m < 4:
        return ()
    plan = plan_of(problem, setting.target)
    if plan is None:
        return ()
    return apply(sch, reference, plan)


def _is_open(found: Contraction) -> bool:
    return found.nest.is_open(list(found.nest.loops))


def _tiled(found: Contraction) -> tuple[int | None, int | None, int, int]:
    """The iterators that are cut: m, y, x, k."""
    rows = [at for at in found.rows if found.nest.extent(at) is not ONE]
    columns = [at for at in found.columns if found.nest.extent(at) is not ONE]
    m = max(rows, key=found.nest.guess) if rows else None
    x = columns[-1] if columns else found.columns[-1]
    y = columns[-2] if len(columns) > 1 else None
    return m, y, x, found.depth[0]


def problem_of(found: Contraction) -> Problem:
    m, y, x, k = _tiled(found)
    assert m is not None
    nest = found.nest
    tiled = {m, x, k} | ({y} if y is not None else set())
    batch = 1
    for at in nest.spatial:
        if at not in tiled:
            batch *= nest.guess(at)
    inner = [at for at in found.depth if at != k]
    count = 1
    for at in inner:
        count *= nest.guess(at)
    windows = {at: _window(found, at, inner) for at in (y, x) if at is not None}
    halo_x, stride_x = windows[x]
    halo_y, stride_y = windows[y] if y is not None else (1, 1)
    return Problem(
        batch,
        nest.guess(m),
        1 if y is None else nest.guess(y),
        nest.guess(x),
        nest.guess(k),
        count,
        halo_y,
        halo_x,
        stride_y,
        stride_x,
        found.b.buffer.dtype.size_bytes,
    )


def _window(found: Contraction, at: int, inner: Sequence[int]) -> tuple[int, int]:
    """Of the second operand along a column: how many it reads for one result, and the stride."""
    nest, stride = found.nest, found.stride(found.b, at)
    if not isinstance(stride, Const) or not stride.value:
        return 1, 1
    reach, step = 1, None
    for other in inner:
        apart = found.stride(found.b, other)
        if not isinstance(apart, Const) or not apart.value:
            continue
        for scale in (1, 2, 3, 4):  # the same axis of memory, at the kernel's dilation
            if apart.value * scale == stride.value or apart.value == stride.value * scale:
                reach = 1 + (nest.guess(other) - 1) * max(1, apart.value // stride.value)
                step = max(1, stride.value // apart.value)
    return reach, step or 1


# ------------------------------------------------------------------------------------ choosing


def plans(problem: Problem) -> list[Plan]:
    """All tiles worth a thought, legal or not."""
    ys = [1] if problem.y == 1 else sorted({1, 2, 4, 7, 8, min(problem.y, 14)})
    xs = sorted({8, 16, 32, 64, 128} | ({problem.x} if problem.x <= 64 else set()))
    found = []
    for bm, by, bx, bk in itertools.product((8, 16, 32, 64, 128), ys, xs, (4, 8, 16, 32)):
        for tm, ty, tx in itertools.product((1, 2, 4, 8), (1, 2), (1, 2, 4, 8)):
            if bm % tm or by % ty or bx % tx or tm * ty * tx > 64:
                continue
            threads = bm // tm * (by // ty) * (bx // tx)
            if not WARP <= threads <= MAX_THREADS:
                continue
            for split in (1, 2, 4, 8, 16):
                if split == 1 or problem.k >= 2 * split * bk:
                    found.append(Plan(bm, by, bx, bk, tm, ty, tx, split))
    return found


def columns_of(found: Sequence[Plan]) -> Columns:
    names = Plan.__dataclass_fields__
    return {name: np.array([getattr(plan, name) for plan in found], np.int64) for name in names}


def cycles(problem: Problem, c: Columns, target: Target) -> np.ndarray[Any, Any]:
    """What each plan is expected to take; infinite where it is not legal."""
    bm, by, bx, bk = c["block_m"], c["block_y"], c["block_x"], c["block_k"]
    tm, ty, tx, split = c["thread_m"], c["thread_y"], c["thread_x"], c["split_k"]
    threads = bm // tm * (by // ty) * (bx // tx)
    tile_y = (by - 1) * problem.stride_y + problem.halo_y
    tile_x = (bx - 1) * problem.stride_x + problem.halo_x
    shared = problem.element_bytes * bk * (bm * problem.inner + tile_y * tile_x)
    tiles = _ceil(problem.m, bm) * _ceil(problem.y, by) * _ceil(problem.x, bx) * problem.batch
    blocks = tiles * split
    resident = np.minimum(SM_THREADS // threads, target.shared_bytes // np.maximum(shared, 1))
    resident = np.clip(resident, 1, _ceil(blocks, target.cores))
    steps = _ceil(_ceil(problem.k, split), bk)
    depth = steps * bk * problem.inner
    warps = threads / WARP
    fma = threads * tm * ty * tx / SM_FMA
    loads = warps * (np.ceil(tm / 4) + ty * np.where(tx > 1, tx / 2, 1)) * 1.2
    issue = warps * (tm * ty * tx + tm / 4 + ty * tx / 2 + 1) / 4
    per_k = np.maximum(np.maximum(fma, loads), issue)
    alone = 4 * np.maximum(tm * ty * tx / 4, 4) + 8  # a warp by itself waits for its operands
    fetched = bk * (bm * problem.inner + tile_y * tile_x) / SM_SHARED_WORDS
    block = depth * np.maximum(per_k * resident, alone) + steps * (
        FETCH_CYCLES + 2 * fetched * resident
    )
    waves = _ceil(blocks, target.cores * resident)
    total = waves * block + np.where(split > 1, LAUNCH_CYCLES, 0)
    legal = (threads % WARP == 0) & (shared <= SHARED_BYTES) & (bk <= 2 * problem.k)
    return np.where(legal, total, np.inf)


def _ceil(a: Any, b: Any) -> Any:
    return -(-a // b)


def plan_of(problem: Problem, target: Target) -> Plan | None:
    """The plan that is expected to be fastest; None if none is legal."""
    found = plans(problem)
    if not found:
        return None
    expected = cycles(problem, columns_of(found), target)
    best = int(np.argmin(expected))
    return found[best] if np.isfinite(expected[best]) else None


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, reference: BlockRef, plan: Plan) -> tuple[BlockRef, ...]:
    """The schedule of a plan."""
    if plan.split_k > 1:
        return _split(sch, reference, plan)
    nest = nest_of(sch, reference)
    found = None if nest is None else contraction(nest)
    assert nest is not None
    assert found is not None
    a, b = _operand(sch, reference, found, 0), _operand(sch, reference, found, 1)
    nest = nest_of(sch, reference)
    assert nest is not None
    m, y, x, k = _tiled(found)
    assert m is not None
    tiles = {m: (plan.block_m, plan.thread_m), x: (plan.block_x, plan.thread_x)}
    if y is not None:
        tiles[y] = (plan.block_y, plan.thread_y)
    grid: list[LoopRef] = []
    threads: list[LoopRef] = []
    registers: list[LoopRef] = []
    for at in nest.spatial:
        if at not in tiles:
            grid.append(nest.loops[at])
            continue
        block, thread = tiles[at]
        outer, among, own = sch.split(nest.loops[at], [None, block // thread, thread])
        grid.append(outer)
        threads.append(among)
        registers.append(own)
    ko, ki = sch.split(nest.loops[k], [None, plan.block_k])
    rest = [nest.loops[at] for at in nest.reduce if at != k]
    sch.reorder(*grid, *threads, ko, ki, *rest, *registers)
    lane = threads[-1]
    followed = through(sch, reference, lane)
    sch.bind(fused(sch, grid), "blockIdx.x")
    thread = fused(sch, threads)
    sch.bind(thread, "threadIdx.x")
    for copy in (a, b):
        sch.compute_at(copy, ko)
    for copy in (a, b):
        depth = [loop.var for loop in sch.get_loops(copy)].index(ko.var) + 1
        share(sch, sch.get_loops(copy)[depth:], plan.threads)
    sch.decompose_reduction(reference, ko)
    attempt_all(sch, registers, sch.unroll)
    if plan.thread_m * plan.thread_y * plan.thread_x * plan.block_k <= 256:
        attempt(sch, sch.unroll, ki)
    return (reference, a, b, *followed)


def _operand(sch: Schedule, reference: BlockRef, found: Contraction, which: int) -> BlockRef:
    """What fills the shared tile of an operand: what makes it, if that only moves values."""
    load = (found.a, found.b)[which]
    for producer in sch.get_producers(reference):
        block = block_of(sch.function, producer.name)
        if block.writes[0].buffer is not load.buffer:
            continue
        alone = len(sch.get_consumers(producer)) == 1
        simple = is_expression(block) and not any(it.kind == REDUCE for it in block.iters)
        if alone and simple and load.buffer not in output_buffers(sch.function):
            sch.set_scope(producer, 0, "shared")
            return producer
    return sch.cache_read(reference, found.read_index(load), "shared")


def _split(sch: Schedule, reference: BlockRef, plan: Plan) -> tuple[BlockRef, ...]:
    """Parts of the sum are contractions of their own; the sum of the parts comes after."""
    nest = nest_of(sch, reference)
    assert nest is not None
    found = contraction(nest)
    assert found is not None
    extent = found.extent(found.depth[0])
    assert extent is not None
    part, _ = sch.split(nest.loops[found.depth[0]], [plan.split_k, -(-extent // plan.split_k)])
    partial = sch.rfactor(part, 0)
    single = Plan(**{**plan.__dict__, "split_k": 1})
    return apply(sch, partial, single)
