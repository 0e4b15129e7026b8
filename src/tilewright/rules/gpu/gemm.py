"""Contractions on a GPU without tensor cores: GEMM, batched GEMM, convolution.

    for block in blockIdx.x { for t in threadIdx.x {
      for ko { A_shared, B_shared = tiles; for ki { registers += A_shared * B_shared } } } }

A thread block computes a tile of the result: `block_m` values of an iterator that only the first
operand has, `block_y` x `block_x` of two that only the second has (one of them for a GEMM).
Operands are staged in shared memory, `block_k` values of the first reduction iterator at a time
with all of the others (kernel positions of a convolution), so that an input pixel is loaded once
for all positions. Each thread keeps `thread_m x thread_y x thread_x` accumulators in registers.
Where there are too few tiles for the GPU, k is split into `split_k` parts that a further kernel
adds up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import WARP, WORD_BYTES, Multiprocessor, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.parts import (
    ceildiv,
    contraction_of,
    copy_lanes,
    depth_of,
    filled_by,
    follows_reductions,
    padded,
    parts_along,
    stored_bytes,
    try_extent,
)
from tilewright.rules.gpu.reduction import fuse_epilogue
from tilewright.rules.gpu.threads import attempt_all, share_among_threads
from tilewright.rules.match.contraction import Contraction, contraction
from tilewright.rules.match.nest import block_of, fused, is_expression, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring
from tilewright.sym import ONE, Const, Var
from tilewright.tensor.ir import Load
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

Filled = Callable[[Schedule, BlockRef, Load], BlockRef]


@dataclass(frozen=True)
class Plan:
    """Tile sizes of a thread block and of a thread."""

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
    """The sizes of a contraction, which determine the plans."""

    batch: int  # independent contractions, and outer iterators that are not tiled
    m: int
    y: int
    x: int
    k: int  # of the reduction iterator that is tiled
    inner: int  # of the other reduction iterators, together
    planes: int  # of those that are no windows along y or x
    halo_y: int  # input rows per output row
    halo_x: int
    stride_y: int
    stride_x: int
    element_bytes: int


UNROLLED_OPERATIONS = 512  # multiply-adds without a branch
MAX_DILATION_ELEMENTS = 4  # of windows whose overlap is seen
BLOCK_ROWS = (1, 2, 4, 7, 8, 14)  # candidates for rows of a tile


@dataclass(frozen=True)
class Found:
    """A contraction in a program, and its sizes."""

    reference: BlockRef
    problem: Problem
    is_open: bool = False  # a spatial extent is dynamic


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A contraction with enough rows and columns for tiles, and a static k."""
    nest = nest_of(sch, reference)
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return None
    found = contraction(nest)
    if found is None or not has_rows(found) or _has_dynamic_k(found):
        return None
    if _is_diagonal(found.a) or _is_diagonal(found.b):
        return None
    problem = problem_of(found)
    sm = multiprocessor_of(context.target)
    results = problem.m * problem.y * problem.x
    if problem.m < sm.access_words or results < sm.issuing_threads:
        return None
    return Found(reference, problem, nest.is_dynamic(nest.spatial))


def has_rows(found: Contraction) -> bool:
    """Whether m is more than one row."""
    return bool(found.m) and _tiled_axes(found)[0] is not None


def _is_diagonal(load: Load) -> bool:
    """Whether a variable is several indices: the box around a tile's elements would exceed shared
    memory."""
    indices = [index for index in load.index if isinstance(index, Var)]
    return len(set(indices)) < len(indices)


def _has_dynamic_k(found: Contraction) -> bool:
    """Whether k is dynamic: its parts, and tiles along it, are planned at compile time."""
    return found.nest.is_dynamic(found.k)


def _tiled_axes(found: Contraction) -> tuple[int | None, int | None, int, int]:
    """The iterators that are tiled: m, y, x, k."""
    rows = [at for at in found.m if found.nest.extent(at) is not ONE]
    columns = [at for at in found.n if found.nest.extent(at) is not ONE]
    m = _rows_of(found, rows) if rows else None
    x = columns[-1] if columns else found.n[-1]
    y = columns[-2] if len(columns) > 1 else None
    return m, y, x, found.k[0]


def _rows_of(found: Contraction, rows: Sequence[int]) -> int:
    """Of iterators with enough rows for tiles, the one whose rows lie nearest to each other."""

    def apart(at: int) -> int:
        stride = found.stride(found.a, at)
        return int(stride.value) if isinstance(stride, Const) else sys.maxsize

    most = max(map(found.nest.guess, rows))
    enough = [at for at in rows if found.nest.guess(at) >= min(most, WARP)]
    return min(enough, key=apart)


def problem_of(found: Contraction) -> Problem:
    m, y, x, k = _tiled_axes(found)
    assert m is not None
    nest = found.nest
    tiled = {m, x, k} | ({y} if y is not None else set())
    batch = 1
    for at in nest.spatial:
        if at not in tiled:
            batch *= nest.guess(at)
    inner = [at for at in found.k if at != k]
    windows = {at: _window_of(found, at, inner) for at in (y, x) if at is not None}
    halo_x, stride_x, taps_x = windows[x]
    halo_y, stride_y, taps_y = windows[y] if y is not None else (1, 1, None)
    return Problem(
        batch,
        nest.guess(m),
        1 if y is None else nest.guess(y),
        nest.guess(x),
        nest.guess(k),
        prod(nest.guess(at) for at in inner),
        prod(nest.guess(at) for at in inner if at not in (taps_x, taps_y)),
        halo_y,
        halo_x,
        stride_y,
        stride_x,
        found.b.buffer.dtype.size_bytes,
    )


def _window_of(found: Contraction, at: int, inner: Sequence[int]) -> tuple[int, int, int | None]:
    """The window of the second operand along a column: its extent, the stride, and the reduction
    iterator over it."""
    nest, stride = found.nest, found.stride(found.b, at)
    if not isinstance(stride, Const) or not stride.value:
        return 1, 1, None
    reach, step, taps = 1, None, None
    for other in inner:
        apart = found.stride(found.b, other)
        if not isinstance(apart, Const) or not apart.value:
            continue
        # The same dimension, at the kernel's dilation.
        for scale in range(1, MAX_DILATION_ELEMENTS + 1):
            if apart.value * scale == stride.value or apart.value == stride.value * scale:
                far, near = int(stride.value), int(apart.value)
                reach = 1 + (nest.guess(other) - 1) * max(1, near // far)
                step, taps = max(1, far // near), other
    return reach, step or 1, taps


# ------------------------------------------------------------------------------------ choosing


def splits(sm: Multiprocessor) -> tuple[int, ...]:
    """Candidates for `split_k`."""
    return doublings(sm.warp // 2)


def plans(found: Found, context: RuleContext) -> Space[Plan]:
    """The candidate tile sizes."""
    problem, sm = found.problem, multiprocessor_of(context.target)
    least, most = sm.warp // sm.warps_issued_per_cycle, sm.warp * sm.warps_issued_per_cycle
    wide = preferring(sm.access_words, doublings(2 * sm.access_words))
    ys = [1] if problem.y == 1 else sorted({*BLOCK_ROWS[:-1], min(problem.y, BLOCK_ROWS[-1])})
    xs = [*preferring(sm.warp, doublings(most, least))]
    if problem.x <= 2 * sm.warp and problem.x not in xs:
        xs.append(problem.x)

    def legal(c: Columns) -> Column:
        threads = _threads(c)
        whole = (c["block_m"] % c["thread_m"] == 0) & (c["block_y"] % c["thread_y"] == 0)
        whole &= c["block_x"] % c["thread_x"] == 0
        few = c["thread_m"] * c["thread_y"] * c["thread_x"] <= sm.accumulators
        fits = _stored_bytes(problem, c, sm.access_words) <= sm.static_shared_bytes
        fits &= (threads >= sm.warp) & (threads <= sm.block_threads) & (threads % sm.warp == 0)
        deep = (c["split_k"] == 1) | (problem.k >= 2 * c["split_k"] * c["block_k"])
        deep &= (problem.k % c["split_k"] == 0) & ((c["split_k"] == 1) | (not found.is_open))
        result: Column = whole & few & fits & deep
        return result

    return Space(
        Plan,
        {
            "block_m": preferring(sm.warp, doublings(most, least)),
            "block_y": ys,
            "block_x": xs,
            "block_k": preferring(least, doublings(sm.warp, sm.access_words)),
            "thread_m": wide,
            "thread_y": (1, 2) if problem.y > 1 else (1,),
            "thread_x": wide,
            "split_k": splits(sm),
        },
        legal,
        stages=(
            ("block_m", "block_y", "block_x", "block_k", "thread_m", "thread_y", "thread_x"),
            ("block_m", "block_y", "block_x", "split_k"),
        ),
    )


def _threads(c: Columns) -> Column:
    rows = c["block_m"] // c["thread_m"]
    found: Column = rows * (c["block_y"] // c["thread_y"]) * (c["block_x"] // c["thread_x"])
    return found


def _tile_elements(problem: Problem, c: Columns) -> Column:
    """Elements of both operands' tiles, per step of k."""
    tile_x = (c["block_x"] - 1) * problem.stride_x + problem.halo_x
    found: Column = c["block_m"] * problem.inner + _tile_rows(problem, c) * tile_x
    return found


def _tile_rows(problem: Problem, c: Columns) -> Column:
    """Rows of the second operand's tile, over all planes."""
    tile_y = (c["block_y"] - 1) * problem.stride_y + problem.halo_y
    found: Column = problem.planes * tile_y
    return found


def _shared_bytes(problem: Problem, c: Columns) -> Column:
    found: Column = problem.element_bytes * c["block_k"] * _tile_elements(problem, c)
    return found


def _stored_bytes(problem: Problem, c: Columns, words: int) -> Column:
    """An upper bound on shared memory, with padded rows and whole cache lines."""
    rows = c["block_k"] * (problem.inner + _tile_rows(problem, c))
    padding = 2 * words * problem.element_bytes * rows
    found: Column = stored_bytes(_shared_bytes(problem, c) + padding) + stored_bytes(1)
    return found


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles of all waves of blocks: arithmetic or shared memory bandwidth, whichever is larger,
    and tile loads."""
    problem, sm = found.problem, multiprocessor_of(context.target)
    threads, split = _threads(c), c["split_k"]
    tiles = ceildiv(problem.m, c["block_m"]) * ceildiv(problem.y, c["block_y"])
    tiles = tiles * ceildiv(problem.x, c["block_x"]) * problem.batch
    blocks = tiles * split
    resident = np.minimum(sm.threads // threads, sm.shared_bytes // _shared_bytes(problem, c))
    resident = np.clip(resident, 1, ceildiv(blocks, sm.count))
    steps = ceildiv(ceildiv(problem.k, split), c["block_k"])
    depth = steps * c["block_k"] * problem.inner
    warps = threads / sm.warp
    sums = c["thread_m"] * c["thread_y"] * c["thread_x"]
    # Neighbouring threads read a window's row at a stride of a thread's columns: bank conflicts.
    apart = c["thread_x"] * problem.stride_x if problem.halo_x > 1 else np.ones_like(threads)
    meet = np.gcd(apart, sm.shared_words_per_cycle)
    words = np.ceil(c["thread_m"] / sm.access_words) + c["thread_y"] * c["thread_x"] * meet
    instructions = sums + c["thread_m"] / sm.access_words + c["thread_y"] * c["thread_x"] / 2 + 1
    per_k = np.maximum(
        np.maximum(threads * sums / sm.fma_per_cycle, warps * words),
        warps * instructions / sm.warps_issued_per_cycle,
    )
    # With one warp, latency is exposed: each word of an access waits for a multiply-add.
    latency = sm.fma_latency_cycles
    alone = np.maximum(sums, sm.access_words * latency) + 2 * latency
    waves = ceildiv(blocks, sm.count * resident)
    moved = c["block_k"] * _tile_elements(problem, c) / sm.shared_words_per_cycle
    results = problem.batch * problem.m * problem.y * problem.x
    summed = 2 * WORD_BYTES * results / sm.memory_bytes_per_cycle  # of each part
    return Cost.of(
        arithmetic=waves * depth * np.maximum(per_k * resident, alone),
        fetch=waves * steps * (sm.global_latency_cycles + 2 * moved * resident),
        split=np.where(split > 1, sm.launch_cycles + split * summed, 0),
    )


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule by a plan."""
    words = multiprocessor_of(context.target).access_words
    return tiled(sch, found.reference, plan, words)


def tiled(
    sch: Schedule, reference: BlockRef, plan: Plan, words: int, filled: Filled = filled_by
) -> tuple[BlockRef, ...]:
    """Tile, with both operands staged in shared memory by the blocks that `filled` returns."""
    pad_to_tiles(sch, reference, _tiles(sch, reference, plan))
    if plan.split_k > 1:
        return _split(sch, reference, plan, words, filled)
    found = contraction_of(sch, reference)
    a, b = (filled(sch, reference, load) for load in (found.a, found.b))
    nest = nest_of(sch, reference)
    assert nest is not None
    m, y, x, k = _tiled_axes(found)
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
    followed = fuse_epilogue(sch, reference, lane)
    sch.bind(fused(sch, grid), "blockIdx.x")
    sch.bind(fused(sch, threads), "threadIdx.x")
    for copy in (a, b):
        sch.compute_at(copy, ko)
    for copy, load, at in ((a, found.a, m), (b, found.b, x)):
        _lay_out(sch, copy, load, found.nest.var(at), words)
        _bind_copy(sch, copy, ko, plan.threads, words * load.buffer.dtype.size_bytes)
    start = sch.decompose_reduction(reference, ko)
    attempt_all(sch, registers, sch.unroll)
    for store in followed:  # sums stay in registers if their places are known
        axes = len(block_of(sch.function, store.name).iters)
        attempt_all(sch, sch.get_loops(store)[-axes:], sch.unroll)
    if plan.thread_m * plan.thread_y * plan.thread_x * plan.block_k <= UNROLLED_OPERATIONS:
        sch.attempt(sch.unroll, ki)
    return (start, reference, a, b, *followed)


def _tiles(sch: Schedule, reference: BlockRef, plan: Plan) -> dict[int, int]:
    """The sizes of tiles, by iterator."""
    m, y, x, k = _tiled_axes(contraction_of(sch, reference))
    assert m is not None
    tiles = {m: plan.block_m, x: plan.block_x, k: plan.block_k * plan.split_k}
    return tiles if y is None else tiles | {y: plan.block_y}


def pad_to_tiles(sch: Schedule, reference: BlockRef, tiles: Mapping[int, int]) -> None:
    """Pad sizes to whole tiles where possible: a thread multiplies without branches, and only
    copies and stores are guarded."""
    nest = contraction_of(sch, reference).nest
    if all(nest.guess(at) % by == 0 for at, by in tiles.items()):
        return
    point = sch.checkpoint()
    try:
        copies, _ = padded(sch, reference, tiles, sch.get_consumers(reference))
    except ScheduleError:
        sch.restore(point)
        return
    for producer in (each for copy in copies for each in sch.get_producers(copy)):
        if not follows_reductions(sch, producer):  # its rows would be computed padded
            sch.attempt(sch.compute_inline, producer)  # one copy is enough


def _bind_copy(sch: Schedule, copy: BlockRef, ko: LoopRef, threads: int, access_bytes: int) -> None:
    """Distribute a tile's copy over the threads, by vectors if all have equal numbers of them."""
    own = sch.get_loops(copy)[depth_of(sch, copy, ko) :]
    lanes = copy_lanes(sch, copy, access_bytes)
    is_even = _is_shared_evenly(sch, own, threads * lanes)
    share_among_threads(sch, own, threads, lanes if is_even else 1)


def _is_shared_evenly(sch: Schedule, loops: Sequence[LoopRef], parts: int) -> bool:
    """Whether threads get equal numbers of iterations. Not so for a tile of dynamic size when every
    call may have fewer rows than one tile."""
    extents = [try_extent(sch, loop) for loop in loops]
    return None not in extents and prod(filter(None, extents)) % parts == 0


def _lay_out(sch: Schedule, copy: BlockRef, load: Load, along: Var, words: int) -> None:
    """Lay a shared tile out so that a thread's operands are contiguous, for vector loads; rows are
    padded so that the threads that fill it hit different banks."""
    axes = [at for at, index in enumerate(load.index) if index is along]
    if len(axes) != 1 or axes[0] == len(load.index) - 1:
        return
    names = [f"d{at}" for at in range(len(load.index))]
    order = [*(name for name in names if name != names[axes[0]]), names[axes[0]]]
    index_map = f"({', '.join(names)}) -> ({', '.join(order)})"
    if sch.attempt(sch.transform_layout, copy, ("write", 0), index_map):
        sch.attempt(sch.storage_align, copy, 0, -2, 2 * words, words)


def _split(
    sch: Schedule, reference: BlockRef, plan: Plan, words: int, filled: Filled
) -> tuple[BlockRef, ...]:
    """Split k by rfactor: the parts are contractions of their own, added up by a further kernel."""
    found = contraction_of(sch, reference)
    nest = found.nest
    extent = found.extent(found.k[0])
    assert extent is not None
    part, _ = sch.split(nest.loops[found.k[0]], [plan.split_k, -(-extent // plan.split_k)])
    return tiled(sch, parts_along(sch, part), replace(plan, split_k=1), words, filled)


GEMM = Rule("gemm", Plan, match, plans, cost, apply)
