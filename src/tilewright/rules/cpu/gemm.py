"""Matrix products: what kind of schedule serves, and its sizes.

A product with rows to share what is read of B, or whose B is a weight that can be packed, is cut
into tiles (`tiles`). One of few rows reads B once, in order (`streams`).
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, log

from tilewright.base.target import CPU
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu import gemm_model
from tilewright.rules.cpu.gemm_amx import amx, amx_plan
from tilewright.rules.cpu.gemm_schedule import BEFORE, INSIDE, NOWHERE, WEIGHT, Plan, tiled
from tilewright.rules.cpu.gemv import stream_plan
from tilewright.rules.match.contraction import Contraction, contraction
from tilewright.rules.match.nest import attempt, fused, nest_of
from tilewright.sym import ONE, Const, Expr
from tilewright.tensor.ir import TO_AND_FRO
from tilewright.tensor.schedule import BlockRef, Schedule

MOST_ROWS, SOME_ROWS, FEW_ROWS = 14, 8, 6
FEW_DOTS = 3  # rows for which packing B would take longer than using it
NARROW = (4, 2)  # vectors of a panel that come from memory faster than they are used
PASSING_ROWS = 320  # for fewer, bringing a block of B takes a good part of the time
MANY_PANELS = 6  # of which one may be filled with zeros
AHEAD, FAR_AHEAD = 8, 32  # steps of the sum that B is asked for: from the second cache, from memory
BURST = 8  # lines of B that may be asked for at once
# Steps of a part of a sum: few enough for its share of A and B to stay in the caches, enough to be
# worth bringing a tile to memory.
SHALLOWEST, GOOD_PART, DEEPEST = 192, 640, 1024
GOOD_PACKED_PART = 256  # of what is packed on the way: blocks are wide, and read in long pieces


def matmul(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a sum of products and what follows it."""
    nest = nest_of(sch, reference)
    found = None if nest is None else contraction(nest)
    if found is None or context.target.kind != CPU:
        return ()
    if (tiles := amx_plan(found, context)) is not None:
        return amx(sch, reference, found, tiles)
    if found.b.buffer.name not in context.constants:
        if (stream := stream_plan(found, context)) is not None:
            return tiled(sch, reference, found, stream)
        if _is_dots(found):
            return ()  # sums along what is contiguous are a reduction's business
    plan = plan_of(found, context)
    if plan is None:
        return ()
    done = tiled(sch, reference, found, plan)
    if _is_passing_by(found, context, plan.packing):
        _walk_to_and_fro(sch, reference, found, plan.tile.share == gemm_model.ALONE)
    return done


def _is_passing_by(found: Contraction, context: RuleContext, packing: str) -> bool:
    """Whether a product of few rows does little but read weights that no private cache holds."""
    size = found.guess(found.k) * found.guess((*found.batch, *found.n))
    is_large = size * found.b.buffer.dtype.size_bytes > context.target.l2_bytes
    return packing == WEIGHT and is_large and found.guess(found.m) <= FEW_DOTS


def _walk_to_and_fro(sch: Schedule, c: BlockRef, found: Contraction, alone: bool) -> None:
    """Begin with the panels that were read last; a thread alone leaves the loop to the runtime."""
    loop, *_ = sch.get_loops(c)
    if alone:
        loop = fused(sch, sch.get_loops(c)[: len(found.batch) + len(found.n)])
        if not attempt(sch, sch.parallel, loop):
            return
        sch.annotate(loop, "threads", 1)
    sch.annotate(loop, TO_AND_FRO, True)


def _narrow(
    shape: gemm_model.Shape, tile: gemm_model.Tile, panel_bytes: int, room: int
) -> gemm_model.Tile:
    """Panels for weights that are read once: little of the last one empty, none a long way."""
    sizes = [each for each in NARROW if each <= tile.vectors and panel_bytes * each <= room]
    sizes = sizes or [min(NARROW[-1], tile.vectors)]
    return replace(tile, vectors=min(sizes, key=lambda each: -(-shape.columns // each) * each))


def _is_dots(found: Contraction) -> bool:
    """Whether few rows meet columns of B that are contiguous along the sum."""
    along_sum = found.stride(found.b, found.k[-1]) is ONE
    return along_sum and found.guess(found.m) <= FEW_DOTS


def plan_of(found: Contraction, context: RuleContext) -> Plan | None:
    """The decisions for a product; None where tiles do not serve."""
    target = context.target
    of = found.block.writes[0].buffer.dtype
    lanes = target.lanes(of.bits)
    last = found.n[-1]
    if lanes < 2 or found.nest.guess(last) < lanes // 2:
        return None
    shape = gemm_model.Shape(
        found.guess(found.batch) * found.guess(found.n[:-1]),
        found.guess(found.m),
        -(-found.nest.guess(last) // lanes),
        found.guess(found.k),
    )
    tile = gemm_model.choose(shape, target, context.threads, _most_rows(found))
    packing = _packing(found, tile, context)
    passing_by = _is_passing_by(found, context, packing)
    if passing_by:
        vector_bytes = shape.depth * lanes * found.b.buffer.dtype.size_bytes
        tile = _narrow(shape, tile, vector_bytes, target.l2_bytes // 4)
    part = _part(found, shape, tile, packing, context)
    panel_bytes = max(part or shape.depth, 1) * tile.vectors * lanes * of.size_bytes
    # B from far away, for not many rows: the next block comes while this one is used.
    passes = -(-shape.rows // tile.rows)
    passing = passes > 1 and shape.rows <= PASSING_ROWS and packing != NOWHERE
    room = target.l2_bytes // (8 if passing and packing != INSIDE else 4)
    panels = _panels(shape, tile, room // panel_bytes, context.threads)
    fills = _fills(found, shape, tile, packing)
    is_uneven = not fills and shape.columns % tile.vectors != 0
    if found.extent(last) is None or is_uneven or passing_by:
        panels = 1
    is_far = panel_bytes > target.l1d_bytes // 2
    chunks = context.threads if tile.share in (gemm_model.ROWS, gemm_model.COLUMNS) else 1
    rows_bytes = shape.rows * (part or shape.depth) * of.size_bytes
    blocks = -(-shape.columns // (tile.vectors * panels))
    return Plan(
        tile,
        lanes,
        _row_tile(found, tile.rows),
        panels,
        tile.vectors * lanes if fills else lanes,
        chunks,
        part,
        part > 0
        and rows_bytes <= target.l2_bytes // 3
        and tile.share != gemm_model.ROWS
        and blocks % chunks == 0,
        packing,
        gemm_model.unrolled_steps(
            part or found.extent(found.k[-1]) or 1,
            tile.rows * tile.vectors,
            BURST // tile.vectors,
        ),
        ahead=0 if not is_far else AHEAD if passes > 1 else FAR_AHEAD,
        prefetch_block=passing and is_far,
        prefetch_rows=rows_bytes > target.l2_bytes // 2,
    )


def _fills(
    found: Contraction, shape: gemm_model.Shape, tile: gemm_model.Tile, packing: str
) -> bool:
    """Whether the last panel is filled up with zeros.

    One that is not whole needs code of its own; where there are many, some zeros cost less.
    """
    if found.extent(found.n[-1]) is None:
        return True
    is_whole = shape.columns % tile.vectors == 0
    return packing != NOWHERE and (is_whole or shape.columns >= MANY_PANELS * tile.vectors)


def _most_rows(found: Contraction) -> int:
    """Rows of A that can be read side by side.

    At distances not known each needs an address of its own. At multiples of 4096 bytes, the period
    of usual first caches, all compete for the same few places there.
    """
    if found.guess(found.m) <= MOST_ROWS:
        return MOST_ROWS  # B is read once
    stride = found.stride(found.a, found.m[-1])
    if not isinstance(stride, Const):
        return FEW_ROWS
    if found.extent(found.m[-1]) is None:
        return SOME_ROWS  # each height that the last tile may have is code of its own
    shared = gcd(int(stride.value) * found.a.buffer.dtype.size_bytes, gemm_model.CACHE_PERIOD)
    return min(MOST_ROWS, max(gemm_model.CROWDED, FEW_ROWS * gemm_model.CACHE_PERIOD // shared))


def _part(
    found: Contraction,
    shape: gemm_model.Shape,
    tile: gemm_model.Tile,
    packing: str,
    context: RuleContext,
) -> int:
    """Steps in a part of the sum: of a long one, a divisor, so that all parts are alike.

    Bringing tiles to memory pays if all rows of a part stay in the second cache, or a panel of B
    would not.
    """
    steps = found.extent(found.k[0]) if len(found.k) == 1 else None
    if steps is None or steps <= DEEPEST * 3 // 2 or shape.rows <= tile.rows:
        return 0
    good = GOOD_PACKED_PART if packing == INSIDE else GOOD_PART
    parts = [d for d in range(SHALLOWEST, DEEPEST + 1) if steps % d == 0]
    part = min(parts, key=lambda d: abs(log(d / good)), default=0)
    size, room = found.block.writes[0].buffer.dtype.size_bytes, context.target.l2_bytes
    lanes = context.target.lanes(8 * size)
    is_large = steps * tile.vectors * lanes * size > room // 2
    return part if is_large or shape.rows * part * size <= room // 3 else 0


def _panels(shape: gemm_model.Shape, tile: gemm_model.Tile, most: int, threads: int) -> int:
    """Panels in a block of columns: as many as the cache holds, the same number for all."""
    total = -(-shape.columns // tile.vectors)
    parts = threads if tile.share == gemm_model.COLUMNS else 1
    each = -(-total // parts)
    blocks = -(-each // max(1, most))
    size = -(-each // blocks)
    # Blocks that are all alike need no code for a last one.
    return next(each for each in range(size, 0, -1) if total % each == 0)


def _row_tile(found: Contraction, rows: int) -> tuple[int, ...]:
    """How many of each row iterator a tile takes: all of the inner ones while they fit."""
    taken: list[int] = []
    for at in reversed(found.m):
        extent = found.extent(at)
        size = rows if extent is None else min(rows, extent)
        taken.append(size)
        rows = rows // size if size == extent else 1
    return tuple(reversed(taken))


def _packing(found: Contraction, tile: gemm_model.Tile, context: RuleContext) -> str:
    """Where B is copied to panels. Few rows read it in place, if that is contiguous."""
    iterators: set[Expr] = {it.var for it in found.block.iters}
    if not all(at in iterators or isinstance(at, Const) for at in found.b.index):
        return NOWHERE
    if found.b.buffer.name in context.constants:
        return WEIGHT
    if found.stride(found.b, found.n[-1]) is ONE:
        matrix = found.guess(found.k) * found.nest.guess(found.n[-1])
        near = matrix * found.b.buffer.dtype.size_bytes <= context.target.l2_bytes // 4
        if near or found.guess(found.m) <= 3 * tile.rows:
            return NOWHERE
    return BEFORE if tile.share == gemm_model.ROWS else INSIDE
