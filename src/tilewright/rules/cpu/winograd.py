"""Convolutions by Winograd's method: what a block of tiles needs stays in the second cache.

    for blocks of rows of tiles
      pad the rows; transform them                    V: all channels of the block
      for panels of output channels
        for each of the a x a products                tiles in registers, as in `matmul`
        transform tiles of the result, and what follows them

Weights are transformed and packed as [panel, i, j, c, channel in panel] before the first call.
Where there are too few blocks for the threads, these share out panels, after V has been made.

Where registers hold all tiles of an image, and the second cache does not hold the weights, these
come by once, in order: [i, j, panel, c, channel in panel]. Each of the products reads its part of V
from the first cache then, and the result is made after all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.base.target import CPU, Target
from tilewright.graph.winograd import (
    COLUMNS,
    HALF,
    IMAGE,
    PADDED,
    PRODUCT,
    RESULT,
    ROLE,
    WEIGHTS,
)
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_model import Problem, best_tile, even
from tilewright.rules.cpu.epilogue import followers
from tilewright.rules.cpu.gemm_model import unrolled_steps
from tilewright.rules.cpu.gemm_schedule import unrolled_sum
from tilewright.rules.match.nest import Nest, attempt, block_of, nest_of
from tilewright.sym import ONE, Const, Expr
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import Block, annotation
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

PARALLEL_FLOPS = 2_000_000  # of all threads together: less is not worth waking another
AHEAD = 128  # vectors of weights that are asked for, where all come by once
UNKNOWN_TILES = 14  # along an axis whose size is not known


@dataclass(frozen=True)
class Parts:
    """The stages of one convolution."""

    product: Nest
    image: BlockRef
    half: BlockRef
    padded: BlockRef
    weights: tuple[BlockRef, ...]  # the last one is what products read
    columns: BlockRef
    result: BlockRef  # what makes images of tiles, with all that was inlined behind it

    @property
    def size(self) -> int:
        """Inputs of a tile along an axis."""
        return number(self.product.extent(0))

    @property
    def tile(self) -> int:
        return self.size - 2


@dataclass(frozen=True)
class Plan:
    """What is decided."""

    lanes: int
    vectors: int  # of channels in a panel
    rows: int  # rows of tiles in a block
    pixels: tuple[int, int]  # tiles that registers hold, along both axes
    share: str  # what threads share out: "blocks", "panels" or nothing
    steps: int  # of a sum that are unrolled
    far: bool  # weights are more than the second cache holds
    once: bool  # registers hold all tiles of the image, and weights come by once


def winograd(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule all stages of a convolution, from its products."""
    if annotation(block_of(sch.function, reference.name), ROLE) != PRODUCT:
        return ()
    parts = _parts(sch, reference)
    if parts is None or context.target.kind != CPU:
        return ()
    plan = _plan(parts, context.target, context.threads)
    return _scheduled(sch, _followed(sch, parts), plan, context)


def number(expr: Expr, unknown: int = UNKNOWN_TILES) -> int:
    return int(expr.value) if isinstance(expr, Const) else unknown


# ------------------------------------------------------------------------------------ stages


def _parts(sch: Schedule, reference: BlockRef) -> Parts | None:
    """The stages around a product; None if something else has come between."""
    product = nest_of(sch, reference)
    image = _role(sch, sch.get_producers(reference), IMAGE)
    weights = _role(sch, sch.get_producers(reference), WEIGHTS)
    columns = _role(sch, sch.get_consumers(reference), COLUMNS)
    half = None if image is None else _role(sch, sch.get_producers(image), HALF)
    padded = None if half is None else _role(sch, sch.get_producers(half), PADDED)
    if product is None or weights is None or columns is None:
        return None
    if image is None or half is None or padded is None:
        return None
    before = _role(sch, sch.get_producers(weights), WEIGHTS)
    result = _role(sch, sch.get_consumers(columns), RESULT)
    if result is None:
        return None
    chain = (weights,) if before is None else (before, weights)
    return Parts(product, image, half, padded, chain, columns, result)


def _role(sch: Schedule, references: list[BlockRef], role: str) -> BlockRef | None:
    found = [
        reference
        for reference in references
        if annotation(block_of(sch.function, reference.name), ROLE) == role
    ]
    return found[0] if len(found) == 1 and nest_of(sch, found[0]) is not None else None


def _followed(sch: Schedule, parts: Parts) -> Parts:
    """What follows, where it is one block that works in the same order, joins the last stage."""
    readers = sch.get_consumers(parts.result)
    if len(readers) != 1 or not followers(sch, parts.result):
        return parts
    if len(block_of(sch.function, readers[0].name).iters) != 4:
        return parts
    joined = attempt(sch, sch.compute_inline, parts.result)
    return replace(parts, result=readers[0]) if joined else parts


# ------------------------------------------------------------------------------------ the plan


def _plan(parts: Parts, target: Target, threads: int) -> Plan:
    product, a = parts.product, parts.size
    of = product.block.writes[0].buffer.dtype
    lanes = target.lanes(of.bits)
    batch = number(product.extent(2), 1)
    tall, wide, out, depth = (number(product.extent(at)) for at in range(3, 7))
    vectors_out = -(-out // lanes)
    far = a * a * out * depth * of.size_bytes > target.l2_bytes // 2
    # Weights that stay in the cache are read again for every block: small ones then leave room.
    room = target.l2_bytes * 5 // 8 if far else target.l2_bytes // 8
    most = max(1, room // (a * a * wide * (depth + 2 * lanes) * of.size_bytes))
    share = ""
    if threads > 1 and 2 * a * a * batch * tall * wide * out * depth > PARALLEL_FLOPS:
        # Blocks keep their images to themselves, but a few rows may not divide evenly.
        rounds = -(-batch * -(-tall // most) // threads) * most
        alone = batch == 1 and rounds * threads > 1.2 * tall
        share = "panels" if alone and vectors_out >= 2 * threads else "blocks"
    blocks = -(-tall // most)
    rows = -(-tall // blocks) if far else even(tall, most, 1)
    if share == "blocks":
        rows = even(tall, rows, threads, batch)
    panel, pixels = _tile(rows, wide, vectors_out, depth, target)
    fitting = (target.vector_registers - 1) // (rows * wide + 1)
    once = far and rows == tall and product.extent(2) is ONE and fitting > 0
    if once:
        panel, pixels = min(fitting, vectors_out), (rows, wide)
    steps = unrolled_steps(number(product.extent(6), unknown=1), panel * math.prod(pixels))
    return Plan(lanes, panel, rows, pixels, share, steps, far, once)


def _tile(
    rows: int, wide: int, vectors: int, depth: int, target: Target
) -> tuple[int, tuple[int, int]]:
    """Vectors of a panel and tiles of a block that registers hold."""
    problem = Problem(1, (rows, wide), vectors, depth, 1, (False, False), is_grouped=False)
    found, (_, tall, broad) = best_tile(problem, target)
    return found, (tall, broad)


# ------------------------------------------------------------------------------------ the schedule


def _scheduled(
    sch: Schedule, parts: Parts, plan: Plan, context: RuleContext
) -> tuple[BlockRef, ...]:
    m, lanes = parts.tile, plan.lanes
    n, y, x, o = sch.get_loops(parts.result)
    block, row, y_in = sch.split(y, [None, plan.rows, m])
    column, x_in = sch.split(x, [None, m])
    panel, vector, lane = sch.split(o, [None, plan.vectors, lanes])
    sch.reorder(n, block, panel, row, column, vector, y_in, x_in, lane)
    sch.vectorize(lane)
    for loop in (y_in, x_in):
        sch.unroll(loop)
    _columns(sch, parts, vector, lanes)
    store, each, depth, near = _product(sch, parts, plan, panel)
    shared = plan.share == "panels"
    _image(sch, parts, plan, None if shared or plan.once else block, context)
    _weights(sch, parts, plan, context)
    if plan.far:
        product = BlockRef(parts.product.name)
        made = block_of(sch.function, parts.weights[-1].name).writes[0].buffer
        reads = block_of(sch.function, product.name).reads
        index = next(i for i, read in enumerate(reads) if read.buffer is made)
        if plan.once:
            ahead = -(-AHEAD // (plan.vectors * plan.steps))
            attempt(sch, sch.prefetch, product, index, depth, ahead, near, True)
        else:  # ask for the weights of the next product meanwhile
            attempt(sch, sch.prefetch, product, index, each, 1, depth)
    if plan.share == "blocks":
        sch.parallel(sch.fuse(n, block))
    if shared:
        sch.parallel(sch.fuse(n, block, panel))
    if plan.once:  # tiles side by side shall not compete for the same places of the first cache
        channels = number(parts.product.extent(6))
        sch.storage_align(parts.image, 0, 4, channels, plan.lanes % channels)
        if plan.share:
            sch.parallel(each)
    stages = (parts.image, parts.half, parts.padded, *parts.weights, parts.columns, parts.result)
    return (BlockRef(parts.product.name), store, *stages)


def _inner(sch: Schedule, block: BlockRef, outer: LoopRef | None, count: int) -> list[LoopRef]:
    """The last `count` loops of a block, which it has for itself."""
    return sch.get_loops(block)[-count:]


def _columns(sch: Schedule, parts: Parts, vector: LoopRef, lanes: int) -> None:
    sch.set_scope(parts.columns, 0, "local")
    sch.compute_at(parts.columns, vector)
    *_, i, j, o = sch.get_loops(parts.columns)
    _, lane = sch.split(o, [None, lanes])
    sch.vectorize(lane)
    sch.unroll(i)
    sch.unroll(j)


def _product(
    sch: Schedule, parts: Parts, plan: Plan, panel: LoopRef
) -> tuple[BlockRef, LoopRef, LoopRef, LoopRef | None]:
    """For each of the a x a products, tiles of the image by vectors of channels in registers.

    The block that stores them, the loop over products, the one over channels and its unrolled part.
    """
    block = BlockRef(parts.product.name)
    if not plan.once:
        sch.compute_at(block, panel)
    *_, i, j, n, y, x, o, c = sch.get_loops(block)
    far_y, near_y = sch.split(y, [None, plan.pixels[0]])
    far_x, near_x = sch.split(x, [None, plan.pixels[1]])
    panels, vector, lane = sch.split(o, [None, plan.vectors, plan.lanes])
    sch.reorder(i, j, panels, n, far_y, far_x, c, near_y, near_x, vector, lane)
    each = sch.fuse(i, j, panels)
    for loop in (near_y, near_x, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, far_x)
    *_, y, x, o = sch.get_loops(store)
    vector, lane = sch.split(o, [None, plan.lanes])
    sch.vectorize(lane)
    for loop in (y, x, vector):
        sch.unroll(loop)
    sch.decompose_reduction(block, c)
    near: LoopRef | None = None
    if plan.steps > 1:
        c, near = unrolled_sum(sch, c, plan.steps)
    return store, each, c, near


def _image(
    sch: Schedule, parts: Parts, plan: Plan, block: LoopRef | None, context: RuleContext
) -> None:
    """Transform the tiles of a block, a vector of channels at a time."""
    if block is not None:
        sch.compute_at(parts.image, block)
    *_, i, j, n, y, x, c = sch.get_loops(parts.image)
    vector, lane = sch.split(c, [None, plan.lanes])
    sch.reorder(n, y, x, vector, i, j, lane)
    sch.vectorize(lane)
    sch.unroll(i)
    sch.unroll(j)
    sch.set_scope(parts.half, 0, "local")
    sch.compute_at(parts.half, vector)
    *_, i, j, c = sch.get_loops(parts.half)
    _, lane = sch.split(c, [None, plan.lanes])
    sch.vectorize(lane)
    sch.unroll(i)
    sch.unroll(j)
    sch.compute_at(parts.padded, y if block is None else block)
    *_, c = sch.get_loops(parts.padded)
    _, lane = sch.split(c, [None, plan.lanes])
    sch.vectorize(lane)
    if block is None and plan.share:
        sch.parallel(sch.fuse(n, y))


def _weights(sch: Schedule, parts: Parts, plan: Plan, context: RuleContext) -> None:
    width = plan.vectors * plan.lanes
    order = f"i, j, o // {width}" if plan.once else f"o // {width}, i, j"
    sch.transform_layout(
        parts.weights[-1],
        ("write", 0),
        f"(i, j, c, o) -> ({order}, c, o % {width})",
    )
    if all(_is_constant(sch, reference, parts, context) for reference in parts.weights):
        for reference in parts.weights:
            sch.annotate(reference, CONSTANT, True)


def _is_constant(sch: Schedule, reference: BlockRef, parts: Parts, context: RuleContext) -> bool:
    """Whether a block reads nothing but weights and what other such blocks make of them."""
    made = {
        region.buffer
        for other in parts.weights
        for region in block_of(sch.function, other.name).writes
    }
    block: Block = block_of(sch.function, reference.name)
    return all(
        region.buffer in made or region.buffer.name in context.constants for region in block.reads
    )
