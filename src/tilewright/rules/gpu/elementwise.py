"""Elementwise blocks on a GPU: one fused loop, a few neighbouring elements per thread."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import (
    LINE_BYTES,
    MAX_THREADS,
    USUAL_THREADS,
    WARP,
    Multiprocessor,
    multiprocessor_of,
)
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.threads import Spatial, bind_flat, spatial_nest, units_first
from tilewright.rules.match.epilogue import epilogue_blocks
from tilewright.rules.match.nest import Nest, block_of, fused, groups, is_expression
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring
from tilewright.sym import ONE, ZERO, Compare, Const, Context, Expr, FloorDiv, FloorMod, Var
from tilewright.tensor.ir import Load
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import exprs

THREADS = doublings(MAX_THREADS, WARP)  # candidates for threads per block


@dataclass(frozen=True)
class Plan:
    """Elements per thread and threads per block."""

    threads: int  # of a block
    vector: int  # neighbouring elements of a thread, in one access
    unroll: int = 1  # neighbouring elements of a thread, accessed singly with shared index math


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Spatial | None:
    found = spatial_nest(sch, reference)
    return found if found is not None and is_expression(found.nest.block) else None


def plans(found: Spatial, context: RuleContext) -> Space[Plan]:
    """Vectors up to the widest access, where all accesses are contiguous; otherwise several
    elements along the last axis, where their indices need divisions: all of it, or runs that
    divide it and that whole blocks of threads have, such as those that divisions are by."""
    widest = vector_of(found.nest, context)
    line = _divided_line(found.nest) if widest == 1 else 1
    least = multiprocessor_of(context.target).access_words
    runs = [run for run in doublings(line // 2, least) if line % run == 0]
    if widest == 1:
        runs += [run for run in _digits(found.nest) if run != line and run not in runs]

    def legal(c: Columns) -> Column:
        whole: Column = found.nest.instances % (c["threads"] * c["unroll"]) == 0
        result: Column = (c["unroll"] == 1) | (c["unroll"] == line) | whole
        return result

    return Space(Plan, {
        "threads": preferring(USUAL_THREADS, THREADS),
        "vector": doublings(widest)[::-1],
        "unroll": tuple(dict.fromkeys((1, line, *runs))),
    }, legal)  # fmt: skip


def cost(found: Spatial, c: Columns, context: RuleContext) -> Cost:
    """Instructions, memory, and idle multiprocessors, where there are fewer than two usual blocks
    each. The number of threads per block makes little difference; tuning decides."""
    sm = multiprocessor_of(context.target)
    lanes = context.target.cores * sm.warp * sm.warps_issued_per_cycle
    wanted = 2.0 * context.target.cores
    blocks = found.nest.instances / (USUAL_THREADS * c["vector"] * c["unroll"])
    divided = np.where(c["unroll"] > 1, 0, _divisions(found.nest) * sm.division_instructions)
    sizes = [access.buffer.dtype.size_bytes for access in found.nest.accesses]
    used = dict.fromkeys(access.buffer for access in found.nest.accesses)
    moved = sum(found.nest.touched(buffer) * buffer.dtype.size_bytes for buffer in used)
    # An access of a warp takes a step for each line of memory: more than its share of lines where
    # threads are runs of several accesses apart.
    runs = [c["unroll"] * size for size in sizes]
    lines = c["unroll"] * _far_lines(found.nest) + sum(
        np.maximum(1, run / sm.access_bytes) * np.minimum(1, run / LINE_BYTES) - run / LINE_BYTES
        for run in runs
    )
    apart = found.nest.instances / c["unroll"] * lines / context.target.cores
    threads = found.nest.instances / (c["vector"] * c["unroll"])
    # Of scalars, all resident threads together have few bytes in flight.
    turns = np.floor(threads / (sm.count * sm.threads)) * sm.global_latency_cycles
    steps = found.nest.instances * (1 + divided) / c["vector"] + threads * _steps(found.nest, sm)
    return Cost.of(
        launch=sm.launch_cycles,
        memory=np.maximum(moved / sm.memory_bytes_per_cycle, turns),
        issue=steps / lanes,
        idle=np.maximum(0.0, wanted - blocks) / wanted * sm.global_latency_cycles,
        lines=apart,
    )


def apply(sch: Schedule, found: Spatial, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    units, loops = units_first(found.nest, found.nest.spatial)
    if units:
        sch.reorder(*units, *loops)
    if plan.unroll > 1:
        widest = multiprocessor_of(context.target).access_bytes
        return (found.reference, _bind_runs(sch, found, loops, plan, widest))
    point = sch.checkpoint()
    try:
        done = _fuse_epilogue(sch, found.reference, loops[-1])
        bind_flat(sch, loops, plan.threads, plan.vector)
    except ScheduleError:
        sch.restore(point)
        _, thread = bind_flat(sch, loops, plan.threads, plan.vector)
        done = _fuse_epilogue(sch, found.reference, thread)
        for reader in done if plan.vector > 1 else ():
            sch.vectorize(sch.get_loops(reader)[-1])
    return (found.reference, *done)


def _bind_runs(
    sch: Schedule, found: Spatial, loops: list[LoopRef], plan: Plan, access_bytes: int
) -> BlockRef:
    """Give each thread a run of the last axis, or all of it. Returns what stores its results."""
    *outer, line = loops
    stored = sch.cache_write(found.reference, 0, "local")
    is_whole = found.nest.guess(found.nest.spatial[-1]) == plan.unroll
    if not is_whole:
        run, line = sch.split(line, [None, plan.unroll])
        outer.append(run)
    sch.reverse_compute_at(stored, outer[-1])
    sch.unroll(line)
    lanes = gcd(access_bytes // found.nest.writes[0].buffer.dtype.size_bytes, plan.unroll)
    part, lane = sch.split(sch.get_loops(stored)[-1], [None, lanes])
    sch.vectorize(lane)
    sch.unroll(part)
    if is_whole:
        _bind_lines(sch, found.nest, outer, plan.threads)
    else:
        bind_flat(sch, outer, plan.threads)
    return stored


def _bind_lines(sch: Schedule, nest: Nest, outer: list[LoopRef], threads: int) -> None:
    """Bind the loops around lines to threads, so that a thread's results form a box; where blocks
    do not divide all of them, only the innermost loop is split."""
    at = {loop.var: at for at, loop in nest.loops.items()}
    extents = [nest.extent(at[loop.var]) for loop in outer]
    known = [int(extent.value) for extent in extents if isinstance(extent, Const)]
    if not isinstance(extents[-1], Const) or (
        len(known) == len(outer) and prod(known) % threads == 0
    ):
        bind_flat(sch, outer, threads)
        return
    *planes, last = outer
    part, thread = sch.split(last, [None, min(threads, -(-known[-1] // WARP) * WARP)])
    sch.bind(fused(sch, [*planes, part]), "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def _fuse_epilogue(sch: Schedule, reference: BlockRef, loop: LoopRef) -> tuple[BlockRef, ...]:
    """Fuse elementwise consumers into the loop over single elements of their operand, or into its
    thread. What a thread has need not be a box of the axes, which an element always is."""
    done: list[BlockRef] = []
    waiting = [reference]
    while waiting:
        last = waiting.pop()
        for reader in epilogue_blocks(sch, last):
            if not _is_elementwise_of(sch, last, reader):
                continue
            if sch.attempt(sch.reverse_compute_at, reader, loop):
                waiting.append(reader)
                done.append(reader)
    return tuple(done)


def _is_elementwise_of(sch: Schedule, made_by: BlockRef, reader: BlockRef) -> bool:
    """Whether a block reads each element of a result once, for its own element at the same
    position."""
    source, block = block_of(sch.function, made_by.name), block_of(sch.function, reader.name)
    made = source.writes[0].buffer
    loads = [node for node in exprs(block.body) if isinstance(node, Load) and node.buffer is made]
    if [it.extent for it in block.iters] != [it.extent for it in source.iters]:
        return False
    return all(
        index is it.var or it.extent is ONE
        for load in loads
        for index, it in zip(load.index, block.iters, strict=True)
    )


def _divisions(nest: Nest) -> int:
    """Integer divisions in the indices along the last axis."""
    last = nest.var(nest.spatial[-1])
    nodes = dict.fromkeys(exprs(nest.block.body))
    kinds = (FloorDiv, FloorMod)
    return sum(isinstance(node, kinds) and sym.uses_var(node, {last}) for node in nodes)


def _far_lines(nest: Nest) -> float:
    """Lines of memory per element, of accesses whose neighbours along the last axis are apart."""
    last = nest.var(nest.spatial[-1])
    steps = [
        float(stride.value) * access.buffer.dtype.size_bytes
        for access in nest.accesses
        if isinstance(stride := access.stride(last), Const) and stride.value > 1
    ]
    return sum(min(1.0, step / LINE_BYTES) for step in steps)


def _steps(nest: Nest, sm: Multiprocessor) -> int:
    """Instructions of a thread for its indices and conditions: those of the body, and divisions of
    its number where not all axes are contiguous together."""
    last = [at for at in nest.spatial if nest.extent(at) is not ONE]
    nodes = dict.fromkeys(node for node in exprs(nest.block.body) if node.children())
    found = [node for node in nodes if node.dtype is INDEX or isinstance(node, Compare)]
    divisions = sum(isinstance(node, (FloorDiv, FloorMod)) for node in found)
    apart = max(0, len(groups(nest, last)) - 1) if last else 0
    return len(found) - divisions + (divisions + 2 * apart) * sm.division_instructions


def _digits(nest: Nest) -> list[int]:
    """The divisors of indices along a long last axis: runs of these have one quotient each."""
    *others, at = nest.spatial
    last, extent = nest.var(at), nest.extent(at)
    if not others or not isinstance(extent, Const):
        return []
    found = [
        int(node.b.value)
        for node in dict.fromkeys(exprs(nest.block.body))
        if isinstance(node, (FloorDiv, FloorMod)) and node.a is last and isinstance(node.b, Const)
    ]
    runs = dict.fromkeys(n for n in found if 1 < n <= WARP and int(extent.value) % n == 0)
    return list(runs)


def _divided_line(nest: Nest) -> int:
    """Elements along the last axis for one thread: at most those of two warps, and only where
    enough threads remain to fill the GPU."""
    *others, last = nest.spatial
    extent = nest.extent(last)
    if not others or not isinstance(extent, Const) or not _divisions(nest):
        return 1
    return int(extent.value) if 1 < extent.value <= 2 * WARP else 1


def vector_of(nest: Nest, context: RuleContext) -> int:
    """Elements that one thread can load in one access, where all accesses are contiguous."""
    last = [at for at in nest.spatial if nest.extent(at) is not ONE]
    if not last:
        return 1
    part = groups(nest, last)[-1]
    # Static extents that are fused into the contiguous axis must be multiples of the vector.
    known = [extent for at in part if isinstance(extent := nest.extent(at), Const)]
    count = prod(int(each.value) for each in known)
    lanes = gcd(multiprocessor_of(context.target).access_bytes, count)
    while lanes > 1 and not _is_contiguous(nest, part[-1], lanes, context):
        lanes //= 2
    return lanes


def _is_contiguous(nest: Nest, last: int, lanes: int, context: RuleContext) -> bool:
    """Whether so many neighbours along an axis, from a multiple of that number on, are one access
    of each buffer, or the same element; and whether all of them are accessed or none."""
    var, part, lane = nest.var(last), sym.var("part"), sym.var("lane")
    extents = {it.var: (ZERO, it.extent) for it in nest.block.iters}
    ctx = sym.EMPTY.bind_all({**extents, lane: (ZERO, sym.const(lanes))})
    extent = nest.extent(last)
    ctx = ctx.bind(part, ZERO, sym.floordiv(extent, sym.const(lanes)))
    at = sym.add(sym.mul(part, sym.const(lanes)), lane)
    strides = []
    for access in nest.accesses:
        stride = access.stride(var)
        if stride is None:
            offset = sym.simplify(sym.substitute(access.offset, {var: at}), ctx)
            found = sym.linear(offset, (lane,))
            stride = None if found is None else found[0].get(lane, ZERO)
        if stride is not ZERO and stride is not ONE:
            return False
        strides.append(stride)
    widest = multiprocessor_of(context.target).access_bytes // lanes
    sizes = [
        access.buffer.dtype.size_bytes
        for access, stride in zip(nest.accesses, strides, strict=True)
        if stride is ONE
    ]
    if any(size > widest for size in sizes):
        return False
    conditions = [node.cond for node in exprs(nest.block.body) if isinstance(node, sym.Select)]
    told = [sym.simplify(sym.substitute(cond, {var: at}), ctx) for cond in conditions]
    return all(_is_same(part, lane, lanes, ctx) for cond in told for part in sym.conjuncts(cond))


def _is_same(cond: Expr, lane: Var, lanes: int, ctx: Context) -> bool:
    """Whether a condition holds for all lanes or none. What depends on memory is evaluated for each
    lane anyway."""
    if not sym.uses_var(cond, {lane}) or any(isinstance(node, Load) for node in sym.walk(cond)):
        return True
    if not isinstance(cond, Compare) or sym.linear(sym.sub(cond.b, cond.a), (lane,)) is None:
        return False
    first, last = (sym.substitute(cond, {lane: sym.const(at)}) for at in (0, lanes - 1))
    return sym.prove(first, ctx.assume(last)) and sym.prove(last, ctx.assume(first))


ELEMENTWISE = Rule("elementwise", Plan, match, plans, cost, apply)
