"""Direct convolution on a GPU, channels first, at any batch.

    for block in blockIdx.x {                    block_m channels of block_y x block_x pixels
      for t in threadIdx.x {                     slices x rows x channels x columns
        for co { W_shared, X_shared = tiles;  for ci, s, r { registers += W_shared * X_shared } }
        parts[slice] = registers }
      Y = epilogue(sum of parts) }

Neighbouring threads own neighbouring columns, so one load of the image serves a warp without bank
conflicts; each thread keeps `thread_m` channels of `thread_y` rows in registers, and each pixel it
loads serves all kernel positions above and below it. A single image has too few results to occupy a
GPU: input channels are split over `slices` groups of threads in a block, whose sums are added in
shared memory, and over `split_k` blocks, whose sums a further kernel adds. Constant weights are
packed in the order in which blocks load them. The channels of a block are of one group; where there
is one group, channels and pixels that no tile divides are padded as they are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import sym
from tilewright.base.multiprocessor import WORD_BYTES, Multiprocessor, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.gemm import UNROLLED_OPERATIONS, pad_to_tiles
from tilewright.rules.gpu.parts import (
    ceildiv,
    contraction_of,
    copy_lanes,
    depth_of,
    extent_of,
    filled_by,
    parts_along,
    stored_bytes,
)
from tilewright.rules.gpu.reduction import fuse_epilogue
from tilewright.rules.gpu.threads import MAX_TURNS, attempt_all, share_among_threads
from tilewright.rules.match.contraction import Contraction, contraction
from tilewright.rules.match.nest import fused, inner_nest, is_expression, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring
from tilewright.sym import ONE, Const, FloorDiv
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class Plan:
    """Tile sizes of a thread block and of a thread."""

    block_m: int
    block_y: int
    block_x: int
    block_k: int  # input channels per step
    thread_m: int
    thread_y: int
    slices: int = 1  # groups of threads of a block that split the input channels
    split_k: int = 1  # blocks that split the input channels


@dataclass(frozen=True)
class Axes:
    """The roles of the block's iterators."""

    m: int
    y: int
    x: int
    c: int
    kernel_y: int | None
    kernel_x: int | None
    others: tuple[int, ...]  # further reduction iterators: kernel positions


@dataclass(frozen=True)
class Problem:
    """The sizes of a convolution, which determine the plans."""

    batch: int  # images, and outer axes that are not tiled
    m: int
    group_m: int  # of one group
    y: int
    x: int
    k: int
    kernel_y: int
    kernel_x: int
    positions: int  # kernel positions in all
    stride_y: int
    stride_x: int
    reach_y: int  # input rows per output row
    reach_x: int
    element_bytes: int
    packs: bool  # weights are constant

    @property
    def is_padded(self) -> bool:
        """Whether sizes are padded to whole tiles."""
        return self.packs and self.group_m == self.m


@dataclass(frozen=True)
class Found:
    """A convolution in a program, and its sizes."""

    reference: BlockRef
    axes: Axes
    problem: Problem
    is_open: bool  # a spatial extent is dynamic


TILE_CHOICES = {
    "block_m": (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128),
    "block_k": (8, 4, 16, 32, 64, 12, 24, 48, 2, 1),
    "thread_m": (4, 8, 2, 1, 3),
    "thread_y": (1, 2, 3, 4, 5, 7, 8),
    "slices": (1, 2, 4, 8, 16),
    "split_k": (1, 2, 4, 8),
}  # channels, rows, slices and splits


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A convolution over channels and windows of an image of static sizes."""
    nest = nest_of(sch, reference)
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return None
    if nest.is_dynamic(nest.reduce):
        return None
    found = contraction(nest)
    axes = None if found is None else axes_of(found)
    if found is None or axes is None:
        return None
    problem = problem_of(found, axes, found.a.buffer.name in context.constants)
    least = multiprocessor_of(context.target).issuing_threads
    if problem is None or problem.m * problem.y * problem.x < least:
        return None
    if problem.group_m < problem.m and problem.k == 1:
        return None  # depthwise
    return Found(reference, axes, problem, nest.is_dynamic(nest.spatial))


def axes_of(found: Contraction) -> Axes | None:
    """The roles of iterators: rows and columns index the last axes of the image, the input channel
    an axis of its own."""
    nest = found.nest
    rows = [at for at in found.m if nest.extent(at) is not ONE]
    rows += [at for at in found.batch if _group_size(found, at)]
    columns = [at for at in found.n if nest.extent(at) is not ONE]
    if len(rows) != 1 or len(columns) < 2:
        return None
    y, x = columns[-2:]
    kernel: dict[int, int] = {}
    for index in found.b.index:
        along = [at for at in (y, x) if sym.uses_var(index, {nest.var(at)})]
        taps = [at for at in nest.reduce if sym.uses_var(index, {nest.var(at)})]
        if len(along) > 1 or len(taps) > 1:
            return None
        if along and taps:
            kernel[along[0]] = taps[0]
    channels = [at for at in nest.reduce if at not in kernel.values()]
    if not channels:
        return None
    c = max(channels, key=nest.guess)
    taken = {c, kernel.get(y), kernel.get(x)}
    others = tuple([at for at in nest.reduce if at not in taken])
    return Axes(rows[0], y, x, c, kernel.get(y), kernel.get(x), others)


def _group_size(found: Contraction, at: int) -> int | None:
    """The channels per group, if an iterator is over those of all groups: its group alone is in an
    index of the image."""
    var = found.nest.var(at)
    used = [index for index in found.b.index if sym.uses_var(index, {var})]
    groups = {each for each in sym.walk(*used) if isinstance(each, FloorDiv) and each.a is var}
    if len(used) != 1 or len(groups) != 1:
        return None
    (group,) = groups
    rest = sym.rewrite(used[0], lambda each: sym.ZERO if each is group else each)
    is_known = isinstance(group.b, Const) and not sym.uses_var(rest, {var})
    return int(group.b.value) if is_known else None  # type: ignore[attr-defined]  # a constant


def problem_of(found: Contraction, axes: Axes, packs: bool) -> Problem | None:
    nest = found.nest
    batch = 1
    for at in nest.spatial:
        if at not in (axes.m, axes.y, axes.x):
            batch *= nest.guess(at)
    steps = {}
    for at, tap in ((axes.y, axes.kernel_y), (axes.x, axes.kernel_x)):
        index = next(i for i in found.b.index if sym.uses_var(i, {nest.var(at)}))
        used = [nest.var(each) for each in (at, tap) if each is not None]
        linear = sym.linear(index, used)
        if linear is None:
            return None
        factors = [linear[0].get(var) for var in used]
        if not all(isinstance(factor, Const) for factor in factors):
            return None
        stride = int(factors[0].value)  # type: ignore[union-attr]  # all are constants
        dilation = int(factors[1].value) if tap is not None else 1  # type: ignore[union-attr]
        size = 1 if tap is None else nest.guess(tap)
        steps[at] = (stride, 1 + (size - 1) * dilation, size)
    positions = 1
    for at in nest.reduce:
        if at != axes.c:
            positions *= nest.guess(at)
    return Problem(
        batch,
        nest.guess(axes.m),
        _group_size(found, axes.m) or nest.guess(axes.m),
        nest.guess(axes.y),
        nest.guess(axes.x),
        nest.guess(axes.c),
        steps[axes.y][2],
        steps[axes.x][2],
        positions,
        steps[axes.y][0],
        steps[axes.x][0],
        steps[axes.y][1],
        steps[axes.x][1],
        found.b.buffer.dtype.size_bytes,
        packs,
    )


# ------------------------------------------------------------------------------------ choosing


def plans(found: Found, context: RuleContext) -> Space[Plan] | None:
    """The candidate tile sizes."""
    problem, sm = found.problem, multiprocessor_of(context.target)
    words = sm.access_words
    xs = _divisors(problem.x, words, 2 * sm.warp)
    xs = xs or [*preferring(sm.warp // 2, doublings(sm.warp, 2 * words))]
    ms = _tiles_of(problem, problem.group_m, TILE_CHOICES["block_m"])
    ms = ms or _divisors(problem.group_m, 1, 2 * sm.warp)
    ks = _tiles_of(problem, problem.k, TILE_CHOICES["block_k"])
    if problem.k <= 2 * sm.warp and problem.k not in ks:
        ks.append(problem.k)
    ys = _divisors(problem.y, 1, sm.warp)
    if problem.is_padded and all(problem.y % rows for rows in TILE_CHOICES["thread_y"] if rows > 1):
        ys += doublings(2 * words)[1:]  # a thread has several rows
    ks = _fitting(problem, ks, {"block_m": ms, "block_y": ys, "block_x": xs}, sm) or ks

    def legal(c: Columns) -> Column:
        threads = _threads(c)
        whole = (c["block_m"] % c["thread_m"] == 0) & (c["block_y"] % c["thread_y"] == 0)
        # Beside them a thread has copies in flight.
        few = c["thread_m"] * c["thread_y"] <= sm.accumulators - MAX_TURNS
        fits = _stored_bytes(problem, c) <= sm.static_shared_bytes
        fits &= (threads >= sm.warp) & (threads <= sm.block_threads)
        wide = c["block_x"] < 2 * problem.x
        tall = (c["block_y"] < 2 * problem.y) & (c["block_m"] < 2 * problem.m)
        shared = c["block_k"] % c["slices"] == 0
        deep = (problem.k >= c["split_k"] * c["block_k"]) & (not found.is_open)
        shared &= (c["split_k"] == 1) | deep
        result: Column = whole & few & fits & wide & tall & shared
        return result

    return Space(
        Plan,
        {
            "block_m": ms,
            "block_y": ys,
            "block_x": xs,
            "block_k": ks,
            **{name: TILE_CHOICES[name] for name in ("thread_m", "thread_y", "slices", "split_k")},
        },
        legal,
        stages=(
            ("block_m", "block_y", "block_x", "thread_m", "thread_y", "slices"),
            ("block_k", "slices", "split_k", "block_m"),
            ("block_y", "thread_y", "thread_m", "slices"),
        ),
    )


def _tiles_of(problem: Problem, size: int, candidates: Sequence[int]) -> list[int]:
    """Tile sizes of channels: any where weights are packed and padded, else those that divide."""
    if problem.is_padded:
        return [tile for tile in candidates if tile < 2 * size]
    return [tile for tile in candidates if size % tile == 0]


def _fitting(
    problem: Problem, ks: list[int], tiles: Mapping[str, Sequence[int]], sm: Multiprocessor
) -> list[int]:
    """Input channels per step with which the smallest tiles fit shared memory: a search that
    begins with others would find none."""
    least = {name: min(sizes) for name, sizes in tiles.items()}
    least |= {"thread_m": 1, "thread_y": 1, "slices": 1}
    columns = {name: np.full(len(ks), size) for name, size in least.items()}
    fits = _stored_bytes(problem, columns | {"block_k": np.array(ks)}) <= sm.static_shared_bytes
    return [size for size, fit in zip(ks, fits, strict=True) if fit]


def _divisors(size: int, least: int, most: int) -> list[int]:
    """Tile sizes of an axis that leave no tail."""
    return [tile for tile in range(least, most + 1) if size % tile == 0]


def _threads(c: Columns) -> Column:
    rows = c["block_y"] // c["thread_y"]
    found: Column = c["slices"] * rows * (c["block_m"] // c["thread_m"]) * c["block_x"]
    return found


def _tile_elements(problem: Problem, c: Columns) -> Column:
    """Elements of both operands' tiles, per input channel."""
    found: Column = c["block_m"] * problem.positions + _image_elements(problem, c)
    return found


def _image_elements(problem: Problem, c: Columns) -> Column:
    tile_y = (c["block_y"] - 1) * problem.stride_y + problem.reach_y
    tile_x = (c["block_x"] - 1) * problem.stride_x + problem.reach_x
    planes = problem.positions // (problem.kernel_y * problem.kernel_x)  # along further axes
    found: Column = planes * tile_y * tile_x
    return found


def _parts_bytes(c: Columns) -> Column:
    """Bytes of the sums that slices exchange."""
    return np.where(c["slices"] > 1, WORD_BYTES * _threads(c) * c["thread_m"] * c["thread_y"], 0)


def _shared_bytes(problem: Problem, c: Columns) -> Column:
    tiles = problem.element_bytes * c["block_k"] * _tile_elements(problem, c)
    found: Column = tiles + _parts_bytes(c)
    return found


def _stored_bytes(problem: Problem, c: Columns) -> Column:
    """Shared memory with each buffer rounded up to whole cache lines."""
    each = problem.element_bytes * c["block_k"]
    weights = stored_bytes(each * c["block_m"] * problem.positions)
    image = stored_bytes(each * _image_elements(problem, c))
    found: Column = weights + image + stored_bytes(_parts_bytes(c))
    return found


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles of all waves of blocks: arithmetic or shared memory bandwidth, whichever is larger,
    and tile loads."""
    problem, sm = found.problem, multiprocessor_of(context.target)
    threads, split = _threads(c), c["split_k"]
    warps = ceildiv(threads, sm.warp)
    tiles = ceildiv(problem.m, c["block_m"]) * ceildiv(problem.y, c["block_y"])
    tiles = tiles * ceildiv(problem.x, c["block_x"]) * problem.batch
    blocks = tiles * split
    resident = np.minimum(sm.threads // (warps * sm.warp), _residents(problem, c, sm))
    resident = np.clip(resident, 1, ceildiv(blocks, sm.count))
    waves = ceildiv(blocks, sm.count * resident)
    steps = ceildiv(ceildiv(problem.k, split), c["block_k"])
    own = steps * ceildiv(c["block_k"], c["slices"])  # input channels per thread
    columns = problem.positions // problem.kernel_y  # kernel columns
    sums = c["thread_m"] * c["thread_y"]
    pixels = (c["thread_y"] - 1) * problem.stride_y + problem.reach_y
    # Where a warp spans several rows, their loads may conflict in banks.
    in_row = c["block_x"] * (c["block_m"] // c["thread_m"])
    meet = np.where((in_row < sm.warp) & (c["block_y"] > c["thread_y"]), 2, 1)
    meet = meet * np.gcd(problem.stride_x, sm.shared_words_per_cycle)
    loads = columns * (
        np.minimum(pixels, c["thread_y"] * problem.kernel_y) * meet
        + problem.kernel_y * np.ceil(c["thread_m"] / sm.access_words)
    )
    fmas = problem.positions * sums
    busy = np.maximum(
        warps * resident * (fmas + loads) / sm.warps_issued_per_cycle,
        warps * resident * loads,
    )
    # Latency exposed to a single warp: of sums that wait for themselves, and of operands.
    latency = sm.fma_latency_cycles
    alone = latency * fmas / np.minimum(sums, latency) + sm.shared_latency_cycles * columns
    fetched = c["block_k"] * _tile_elements(problem, c)
    moved = fetched * resident * problem.element_bytes / sm.l2_bytes_per_cycle
    # A thread has a few loads in flight; further ones wait for these.
    image = fetched - c["block_k"] * c["block_m"] * problem.positions
    turns = ceildiv(image, threads * MAX_TURNS) + ceildiv(fetched - image, threads * MAX_TURNS)
    copies = fetched / threads * warps * resident * sm.copy_instructions / sm.warps_issued_per_cycle
    results = problem.batch * problem.m * problem.y * problem.x
    summed = 2 * WORD_BYTES * results / sm.memory_bytes_per_cycle  # of each part
    start = warps * resident * sm.start_instructions / sm.warps_issued_per_cycle
    exchange = 2 * (sm.step_cycles + warps * sums * resident)  # sums are stored, and loaded
    return Cost.of(
        arithmetic=waves * own * np.maximum(busy, alone),
        fetch=waves * steps * (turns * sm.global_latency_cycles + np.maximum(moved, copies)),
        start=waves * start,
        gather=np.where(c["slices"] > 1, waves * exchange, 0),
        split=np.where(split > 1, sm.launch_cycles + split * summed, 0),
    )


def _residents(problem: Problem, c: Columns, sm: Multiprocessor) -> Column:
    found: Column = sm.shared_bytes // _shared_bytes(problem, c)
    return found


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """The schedule of a plan."""
    reference, axes = found.reference, found.axes
    wide = multiprocessor_of(context.target).access_bytes
    if found.problem.is_padded:
        tiles = {axes.m: plan.block_m, axes.y: plan.block_y, axes.x: plan.block_x}
        pad_to_tiles(sch, reference, tiles | {axes.c: plan.block_k * plan.split_k})
    done = _pack(sch, found, plan)
    if plan.split_k > 1:
        nest = nest_of(sch, reference)
        assert nest is not None
        part, _ = sch.split(nest.loops[axes.c], [plan.split_k, None])
        return (*done, *_tiled(sch, parts_along(sch, part), _with_split_first(axes), plan, wide))
    return (*done, *_tiled(sch, reference, axes, plan, wide))


def _with_split_first(axes: Axes) -> Axes:
    """The axes after an iterator has been inserted first."""

    def later(at: int | None) -> int | None:
        return None if at is None else at + 1

    return Axes(
        axes.m + 1,
        axes.y + 1,
        axes.x + 1,
        axes.c + 1,
        later(axes.kernel_y),
        later(axes.kernel_x),
        tuple([at + 1 for at in axes.others]),
    )


def _pack(sch: Schedule, found: Found, plan: Plan) -> list[BlockRef]:
    """Pack constant weights in the order blocks load them, output channels contiguous."""
    contracted = contraction_of(sch, found.reference)
    load, nest, m = contracted.a, contracted.nest, found.axes.m
    places = [at for at, index in enumerate(load.index) if index is nest.var(m)]
    if not found.problem.packs or len(places) != 1 or nest.guess(m) % plan.block_m:
        return []
    packed = sch.cache_read(found.reference, contracted.read_index(load), "global")
    for producer in sch.get_producers(packed):
        sch.compute_inline(producer)  # what pads
    names = [f"d{at}" for at in range(len(load.index))]
    channel = names[places[0]]
    others = ", ".join(name for name in names if name != channel)
    order = f"{channel} // {plan.block_m}, {others}, {channel} % {plan.block_m}"
    sch.transform_layout(packed, ("write", 0), f"({', '.join(names)}) -> ({order})")
    sch.annotate(packed, CONSTANT, True)
    return [packed]


def _tiled(
    sch: Schedule, reference: BlockRef, axes: Axes, plan: Plan, wide: int
) -> tuple[BlockRef, ...]:
    """The schedule of one contraction, by one slice or by several."""
    if plan.slices > 1:
        return _sliced(sch, reference, axes, plan, wide)
    nest = nest_of(sch, reference)
    assert nest is not None
    image, weights = _copies(sch, reference)
    grid: list[LoopRef] = []
    threads: dict[int, LoopRef] = {}
    registers: list[LoopRef] = []
    tiles = {axes.m: (plan.block_m, plan.thread_m), axes.y: (plan.block_y, plan.thread_y)}
    for at in nest.spatial:
        if at in tiles:
            block, thread = tiles[at]
            outer, threads[at], own = sch.split(nest.loops[at], [None, block // thread, thread])
            registers.append(own)
        elif at == axes.x:
            outer, threads[at] = sch.split(nest.loops[at], [None, plan.block_x])
        else:
            outer = nest.loops[at]
        grid.append(outer)
    co, ci = sch.split(nest.loops[axes.c], [None, plan.block_k])
    taps = [nest.loops[at] for at in _taps(axes)]
    order = [threads[at] for at in (axes.y, axes.m, axes.x)]
    sch.reorder(*grid, *order, co, ci, *taps, *registers)
    followed = fuse_epilogue(sch, reference, order[-1])
    sch.bind(fused(sch, grid), "blockIdx.x")
    sch.bind(fused(sch, order), "threadIdx.x")
    start = _inner(sch, reference, (image, weights), co, ci, taps, registers, plan, wide)
    return (start, reference, image, weights, *followed)


def _sliced(
    sch: Schedule, reference: BlockRef, axes: Axes, plan: Plan, wide: int
) -> tuple[BlockRef, ...]:
    """Split the input channels over slices of a block, whose sums are added in shared memory."""
    nest = nest_of(sch, reference)
    assert nest is not None
    each = plan.block_k // plan.slices
    _, part, _ = sch.split(nest.loops[axes.c], [None, plan.slices, each])
    partial = parts_along(sch, part)
    image, weights = _copies(sch, partial)
    grid, rest = [], []
    blocks = {axes.m: plan.block_m, axes.y: plan.block_y, axes.x: plan.block_x}
    *spatial, summed = sch.get_loops(reference)
    for at, loop in zip(nest.spatial, spatial, strict=True):
        if at in blocks:
            outer, inner = sch.split(loop, [None, blocks[at]])
            grid.append(outer)
            rest.append(inner)
        else:
            grid.append(loop)
    sch.reorder(*grid, *rest, summed)
    followed = fuse_epilogue(sch, reference, rest[-1])
    row = fused(sch, grid)
    sch.bind(row, "blockIdx.x")
    sch.compute_at(partial, row)
    inside = inner_nest(sch, partial, depth_of(sch, partial, row))
    assert inside is not None
    loops, ours = inside.loops, _with_split_first(axes)
    m, m_own = sch.split(loops[ours.m], [None, plan.thread_m])
    y, y_own = sch.split(loops[ours.y], [None, plan.thread_y])
    kept = (0, ours.m, ours.y, ours.x)
    units = [loops[at] for at in inside.spatial if at not in kept and at in loops]
    co, ci = loops[ours.c], loops[ours.c + 1]  # the channel loop was split in two
    taps = [loops[at + 1] for at in _taps(ours)]
    order = [loops[0], y, m, loops[ours.x]]
    sch.reorder(*units, *order, co, ci, *taps, m_own, y_own)
    thread = fused(sch, order)
    sch.set_scope(partial, 0, "shared")
    store = sch.cache_write(partial, 0, "local")
    sch.reverse_compute_at(store, thread)
    sch.bind(thread, "threadIdx.x")
    start = _inner(sch, partial, (image, weights), co, ci, taps, [m_own, y_own], plan, wide)
    own = sch.get_loops(reference)[depth_of(sch, reference, row) : -1]
    share_among_threads(sch, own, _thread_count(plan))
    sch.attempt(sch.unroll, sch.get_loops(reference)[-1])
    return (start, partial, store, image, weights, reference, *followed)


def _inner(
    sch: Schedule,
    block: BlockRef,
    copies: tuple[BlockRef, BlockRef],
    co: LoopRef,
    ci: LoopRef,
    taps: list[LoopRef],
    registers: list[LoopRef],
    plan: Plan,
    access_bytes: int,
) -> BlockRef:
    """Load tiles per step over channels; accumulate in registers."""
    for copy in copies:
        sch.compute_at(copy, co)
        own = sch.get_loops(copy)[depth_of(sch, copy, co) :]
        share_among_threads(sch, own, _thread_count(plan), copy_lanes(sch, copy, access_bytes))
    start = sch.decompose_reduction(block, co)
    attempt_all(sch, registers, sch.unroll)
    unrolled = plan.thread_m * plan.thread_y
    for loop in reversed([ci, *taps]):
        extent = extent_of(sch, loop)
        unrolled *= extent
        if 2 * unrolled > UNROLLED_OPERATIONS and loop is not (taps[-1] if taps else None):
            break
        sch.attempt(sch.unroll, loop)
    return start


def _taps(axes: Axes) -> list[int]:
    """Kernel positions, kernel rows last: they share a thread's pixels."""
    return [at for at in (*axes.others, axes.kernel_x, axes.kernel_y) if at is not None]


def _thread_count(plan: Plan) -> int:
    rows = plan.block_y // plan.thread_y
    return plan.slices * rows * (plan.block_m // plan.thread_m) * plan.block_x


def _copies(sch: Schedule, reference: BlockRef) -> tuple[BlockRef, BlockRef]:
    """The blocks that fill the shared tiles of image and weights."""
    image = filled_by(sch, reference, contraction_of(sch, reference).b)
    found = contraction_of(sch, reference)
    return image, sch.cache_read(reference, found.read_index(found.a), "shared")


CONVOLUTION = Rule("convolution", Plan, match, plans, cost, apply)
