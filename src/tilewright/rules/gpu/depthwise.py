"""Depthwise convolution on a GPU, channels last.

    for t in threads {                                   some channels of some pixels of a row
      for r0 { line = the pixels of one input row that the windows read, in registers
        for r1, xi { sums[xi] += line[xi * stride + r1] * W[r0, r1] } }
      Y = epilogue(sums) }

A thread has as many channels as one access loads, and `columns` neighbouring pixels: each pixel it
loads and widens serves all windows of its row, each weight all of its pixels. Constant weights are
packed with channels contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.multiprocessor import (
    LINE_BYTES,
    USUAL_THREADS,
    WORD_BYTES,
    multiprocessor_of,
)
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.parts import ceildiv, depth_of
from tilewright.rules.gpu.threads import bind_flat
from tilewright.rules.match.epilogue import epilogue_blocks
from tilewright.rules.match.nest import Nest, block_of, is_expression, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring
from tilewright.sym import ONE, ZERO, Const, FloorDiv
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import Load, Store
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import exprs, output_buffers


@dataclass(frozen=True)
class Plan:
    """The tile of a thread, and threads per block."""

    columns: int  # neighbouring pixels per thread
    lanes: int  # channels per thread
    threads: int
    across: int  # threads along channels, before those of the next pixels


@dataclass(frozen=True)
class Found:
    """A depthwise convolution, and the block that pads its image."""

    reference: BlockRef
    padded: BlockRef | None
    weights: str
    packs: bool  # weights are constant
    widest: int  # channels per access, at most
    repeats: int  # result channels per image channel
    images: int  # batch times rows: results without columns and channels
    wide: int
    channels: int
    rows: int | None  # the iterator over kernel rows; None: there is one
    columns: int | None  # likewise
    kernel_y: int
    kernel_x: int
    stride: int
    element_bytes: int


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A depthwise convolution of images or sequences whose channels are the last axis of image and
    result; all sizes static."""
    nest = nest_of(sch, reference)
    if nest is None or not is_expression(nest.block):
        return None
    if len(nest.spatial) < 3 or len(nest.spatial) > 4 or nest.is_dynamic(list(nest.loops)):
        return None
    loads = [node for node in exprs(nest.block.body) if isinstance(node, Load)]
    image, weights = _operands(nest, loads)
    if image is None or weights is None:
        return None
    *outer, x, channel = nest.spatial
    kernel = [at for at in nest.reduce if nest.extent(at) is not ONE]
    columns = [at for at in kernel if sym.uses_var(image.index[-2], {nest.var(at)})]
    rows = [at for at in kernel if at not in columns]
    if not kernel or kernel != [*rows, *columns] or len(columns) > 1 or len(rows) > len(outer) - 1:
        return None
    step = sym.linear(image.index[-2], [nest.var(at) for at in (x, *columns)])
    stride = None if step is None else step[0].get(nest.var(x))
    repeats = _repeats(nest, image)
    if not isinstance(stride, Const) or repeats is None:
        return None
    size = image.buffer.dtype.size_bytes
    channels = nest.guess(channel)
    widest = multiprocessor_of(context.target).access_bytes // size
    while channels % widest:
        widest //= 2
    return Found(
        reference,
        _padding_block(sch, reference, image),
        weights.buffer.name,
        weights.buffer.name in context.constants,
        widest,
        repeats,
        prod(nest.guess(at) for at in outer),
        nest.guess(x),
        channels,
        rows[0] if rows else None,
        columns[0] if columns else None,
        prod(nest.guess(at) for at in rows),
        prod(nest.guess(at) for at in columns),
        int(stride.value),
        size,
    )


def _operands(nest: Nest, loads: list[Load]) -> tuple[Load | None, Load | None]:
    """The image, whose last index is the channel, and the weights."""
    *places, channel = (nest.var(at) for at in nest.spatial)
    image = weights = None
    for load in loads:
        others = [at for at in load.index if sym.uses_var(at, set(places))]
        if not others and load.index and load.index[0] is channel:
            weights = load
        elif len(others) == len(places) == len(load.index) - 1:
            image = load
    return (image, weights) if len(loads) == 2 else (None, None)


def _repeats(nest: Nest, image: Load) -> int | None:
    """Result channels per channel of the image, which is its last index, up to reduction iterators
    of extent 1; None if it is not."""
    units = {nest.var(at): ZERO for at in nest.reduce if nest.extent(at) is ONE}
    index = sym.simplify(sym.substitute(image.index[-1], units))
    channel = nest.var(nest.spatial[-1])
    if index is channel:
        return 1
    if isinstance(index, FloorDiv) and index.a is channel and isinstance(index.b, Const):
        return int(index.b.value)
    return None


def _padding_block(sch: Schedule, reference: BlockRef, image: Load) -> BlockRef | None:
    """The block that zero-pads the image, if only this convolution reads it."""
    for producer in sch.get_producers(reference):
        block = block_of(sch.function, producer.name)
        made = block.writes[0].buffer
        alone = len(sch.get_consumers(producer)) == 1 and made not in output_buffers(sch.function)
        if made is image.buffer and alone and isinstance(block.body, Store):
            return producer
    return None


def plans(found: Found, context: RuleContext) -> Space[Plan]:
    """Tiles that divide a row and its channels; the last block of threads may be partial."""
    sm = multiprocessor_of(context.target)

    def legal(c: Columns) -> Column:
        runs = found.channels // c["lanes"]
        whole = (found.channels % c["lanes"] == 0) & (runs % c["across"] == 0)
        seen = (c["columns"] - 1) * found.stride + found.kernel_x
        held = c["columns"] * c["lanes"] + seen * c["lanes"] * found.element_bytes / WORD_BYTES
        whole &= (c["lanes"] % found.repeats == 0) | (c["lanes"] == 1)
        result: Column = whole & (held <= sm.accumulators)
        return result

    most = 2 * sm.warps_issued_per_cycle
    columns = [n for n in range(1, most + 1) if found.wide % n == 0]
    across = [n for n in range(1, sm.warp + 1) if found.channels % n == 0]
    every = [found.channels // lanes for lanes in doublings(found.widest)]
    return Space(
        Plan,
        {
            "columns": columns,
            "lanes": doublings(found.widest)[::-1],
            "threads": preferring(USUAL_THREADS // 2, doublings(USUAL_THREADS, sm.warp)),
            "across": tuple(dict.fromkeys([*every, *across[::-1]])),
        },
        legal,
    )


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Instruction issue, memory or L2 bandwidth, the dispatch of blocks, or the latency of loads
    that have no registers to be in flight together: whichever is largest."""
    sm = multiprocessor_of(context.target)
    results = found.images * found.wide * found.channels
    each = c["columns"] * c["lanes"]  # results of a thread
    blocks = ceildiv(results // each, c["threads"])
    positions = found.kernel_y * found.kernel_x
    seen = (c["columns"] - 1) * found.stride + found.kernel_x
    # Each loaded element is widened; each result goes through the epilogue and is rounded.
    wide = np.maximum(1, c["lanes"] // found.repeats)  # channels of the image
    access = sm.access_instructions
    loads = found.kernel_y * seen * (wide + access) + positions * (c["lanes"] + access)
    own = loads + (positions + sm.element_instructions) * each
    in_turn = ceildiv(blocks, sm.count)
    issue = in_turn * c["threads"] / sm.warp * own / sm.warps_issued_per_cycle
    moved = found.element_bytes * results * (1.0 + found.stride**2 / found.repeats)
    # Neighbouring tiles of a block find each other's pixels in L1.
    side = np.minimum(np.maximum(1, c["threads"] // c["across"]), found.wide // c["columns"])
    pixels = found.kernel_y * ((side * c["columns"] - 1) * found.stride + found.kernel_x)
    taken = (pixels * wide + positions * c["lanes"]) * found.element_bytes  # of a block
    # Channels side by side: the bytes of a pixel, in whole sectors, and a step for each line.
    run = np.minimum(c["across"], c["threads"]) * wide * found.element_bytes
    fetched = taken * c["threads"] / side * ceildiv(run, sm.sector_bytes) * sm.sector_bytes / run
    own_run = np.minimum(c["across"], sm.warp) * wide * found.element_bytes / LINE_BYTES
    lines = sm.warp / np.minimum(c["across"], sm.warp) * np.maximum(1, own_run)
    accesses = in_turn * c["threads"] / sm.warp * (found.kernel_y * seen + positions)
    words = (found.kernel_y * seen * wide + positions * c["lanes"]) * found.element_bytes
    words = words / WORD_BYTES
    loaded = np.minimum(words, sm.accumulators)
    held = each + loaded + loaded / 2  # half of them are widened at a time
    registers = np.minimum(sm.registers / sm.block_threads, held)
    ready = np.minimum(sm.threads, sm.registers / registers) // c["threads"]
    resident = np.clip(ready, 1, sm.blocks)
    by_rows = _lines_words(found, c["columns"], c["lanes"]) > sm.registers // sm.block_threads
    rounds = np.where(by_rows, found.kernel_y, np.ceil(words / sm.accumulators))
    idle = np.maximum(0.0, 2.0 * sm.count - blocks) / (2.0 * sm.count)
    least = (
        moved / sm.memory_bytes_per_cycle,
        in_turn * fetched / sm.l2_bytes_per_cycle,
        in_turn * sm.dispatch_cycles,
        accesses * lines,
        ceildiv(blocks, sm.count * resident) * rounds * sm.global_latency_cycles,
    )
    work = issue
    for limit in least:
        work = np.maximum(work, limit)
    return Cost.of(launch=sm.launch_cycles, work=work, idle=idle * sm.global_latency_cycles)


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    reference, sm = found.reference, multiprocessor_of(context.target)
    done = [_packed(sch, found)] if found.packs else []
    nest = nest_of(sch, reference)
    assert nest is not None
    *outer, x, channel = (nest.loops[at] for at in nest.spatial)
    kernel = [nest.loops[at] for at in (found.rows, found.columns) if at is not None]
    units = [loop for loop in (nest.loops[at] for at in nest.reduce) if loop not in kernel]
    xo, xi = sch.split(x, [None, plan.columns])
    far, co, lane = sch.split(channel, [None, plan.across, plan.lanes])
    sch.reorder(*outer, far, xo, co, *units, *kernel, xi, lane)
    done += _fuse_epilogue(sch, reference, co, plan.lanes)
    row = kernel[0] if found.rows is not None else co
    if found.padded is not None:
        sch.set_scope(found.padded, 0, "local")
        sch.compute_at(found.padded, row)
        _unroll_thread(sch, found.padded, row, plan.lanes // found.repeats)
        done.append(found.padded)
    start = sch.decompose_reduction(reference, [*units, *kernel][0])
    _unroll_thread(sch, start, co, plan.lanes)
    if found.rows is not None:
        # Kernel rows stay a loop where the loads of all of them exceed the registers.
        words = _lines_words(found, plan.columns, plan.lanes)
        kernel = kernel[1:] if words > sm.registers // sm.block_threads else kernel
    for loop in (*units, *kernel, xi):
        sch.unroll(loop)
    if plan.lanes > 1:
        sch.vectorize(lane)
    bind_flat(sch, [*outer, far, xo, co], plan.threads)
    return (reference, start, *done)


def _lines_words(found: Found, columns: Any, lanes: Any) -> Any:
    """4-byte words of all pixels that a thread's windows read."""
    seen = (columns - 1) * found.stride + found.kernel_x
    return found.kernel_y * seen * lanes * found.element_bytes // (WORD_BYTES * found.repeats)


def _packed(sch: Schedule, found: Found) -> BlockRef:
    """Pack constant weights with channels contiguous."""
    reads = block_of(sch.function, found.reference.name).reads
    index = next(at for at, read in enumerate(reads) if read.buffer.name == found.weights)
    packed = sch.cache_read(found.reference, index, "global")
    others = ", ".join(f"d{at}" for at in range(1, reads[index].buffer.rank))
    sch.transform_layout(packed, ("write", 0), f"(c, {others}) -> ({others}, c)")
    sch.annotate(packed, CONSTANT, True)
    return packed


def _fuse_epilogue(
    sch: Schedule, reference: BlockRef, thread: LoopRef, lanes: int
) -> list[BlockRef]:
    """Keep results in registers through the epilogue."""
    made = block_of(sch.function, reference.name).writes[0].buffer
    after = epilogue_blocks(sch, reference) if made not in output_buffers(sch.function) else []
    if after:
        sch.set_scope(reference, 0, "local")
    else:
        after = [sch.cache_write(reference, 0, "local")]
    for each in after:
        sch.reverse_compute_at(each, thread)
        _unroll_thread(sch, each, thread, lanes)
    return after


def _unroll_thread(sch: Schedule, block: BlockRef, below: LoopRef, lanes: int) -> None:
    """Unroll a block's loops inside of a thread, channels as vectors."""
    *outer, last = sch.get_loops(block)[depth_of(sch, block, below) :]
    for loop in outer:
        sch.unroll(loop)
    if lanes > 1:
        sch.vectorize(last)


DEPTHWISE = Rule("depthwise", Plan, match, plans, cost, apply)
