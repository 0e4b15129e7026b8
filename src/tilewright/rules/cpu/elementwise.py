"""Element by element: contiguous loops as one, lanes along it, chunks of it on the cores.

    for f in parallel 0..chunks { for o in 0..n [unroll = 4] { for l in vector 0..16 { ... } } }

Loops that all accesses walk over like one become one. Its lanes are contiguous in the result;
operands come as they are: contiguous, the same for all lanes, or strided. Where the innermost
dimension is shorter than a vector, the outer ones join it, and as many vectors as its pattern
takes to repeat are unrolled, so that every lane's place is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tilewright.rules import cost
from tilewright.rules.context import RuleContext
from tilewright.rules.match.nest import Nest, fused, groups, is_expression, nest_of
from tilewright.sym import Const
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

UNROLLED_CYCLES = 16.0  # bodies below this many cycles per vector are unrolled
LONGEST_PATTERN = 6  # vectors


def elementwise(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a block without reductions that stands alone."""
    nest = nest_of(sch, reference)
    if nest is None or not nest.loops or len(nest.spatial) != len(nest.block.iters):
        return ()
    if not is_expression(nest.block):
        return ()
    spread_out(sch, nest, range(len(nest.loops)), context)
    return (reference,)


def spread_out(sch: Schedule, nest: Nest, order: Sequence[int], context: RuleContext) -> None:
    """Lanes for the innermost of some loops, which are perfectly nested in this order, and cores
    for the outermost."""
    lanes = _lanes(nest, order, context)
    parts = _joined(nest, groups(nest, order), lanes)
    loops = [fused(sch, [nest.loops[at] for at in part]) for part in parts]
    each_ns = cost.instance_ns(nest, context.target)
    inner = _extent(nest, parts[-1])
    rest = 1
    for part in parts[:-1]:
        rest *= _guess(nest, part)
    count = cost.chunks(each_ns * rest * _guess(nest, parts[-1]), context.threads)
    pattern = _pattern(nest, parts[-1], lanes)
    outer = loops[:-1]
    if count > 1 and rest < count:  # too few rows: the row itself is cut
        block = lanes * pattern
        if inner is None:
            size = max(1, int(2 * cost.REGION_NS / each_ns / block))
        else:
            size = even_share(-(-inner // block), -(-count // rest))
        chunk, row = sch.split(loops[-1], [None, size * block])
        outer.append(chunk)
    else:
        row = loops[-1]
    vectors(sch, nest, row, lanes, pattern)
    if outer and count > 1:
        whole = fused(sch, outer)
        if rest >= 4 * count:
            is_open = nest.is_open([at for part in parts[:-1] for at in part])
            row_ns = each_ns * _guess(nest, parts[-1])
            whole, _ = sch.split(whole, [None, cost.chunk_rows(rest, count, row_ns, is_open)])
        sch.parallel(whole)


def _lanes(nest: Nest, order: Sequence[int], context: RuleContext) -> int:
    """A vector of the widest type; several where bytes are made, if they fill one of bytes."""
    lanes = cost.lanes_of(context.target, nest.block)
    written = max(region.buffer.dtype.bits for region in nest.block.writes)
    inner = _extent(nest, groups(nest, order)[-1])
    many = lanes * cost.widest(nest.block).bits // max(8, written)
    is_whole = inner is not None and lanes > 1 and inner % many == 0
    return many if written == 8 and is_whole else lanes


def vectors(sch: Schedule, nest: Nest, row: LoopRef, lanes: int, pattern: int = 1) -> None:
    """Lanes, and a few vectors at a time where a vector is little work."""
    if lanes == 1:
        return
    if pattern > 1:
        _, step, lane = sch.split(row, [None, pattern, lanes])
        sch.vectorize(lane)
        sch.unroll(step)
        return
    step, lane = sch.split(row, [None, lanes])
    sch.vectorize(lane)
    if cost.is_cheap(nest.block, UNROLLED_CYCLES):
        sch.annotate(step, "unroll", 4)


def even_share(whole: int, parts: int) -> int:
    """The size of parts: without a rest, if there is such a size a little above."""
    least = max(1, -(-whole // parts))
    return next((size for size in range(least, least + least // 4 + 1) if whole % size == 0), least)


def _joined(nest: Nest, parts: list[list[int]], lanes: int) -> list[list[int]]:
    """The groups, the innermost ones joined until they hold a vector."""
    while len(parts) > 1:
        inner = _extent(nest, parts[-1])
        if inner is None or 2 * inner > lanes:
            break
        joined = [*parts[:-2], [*parts[-2], *parts[-1]]]
        if _pattern(nest, joined[-1], lanes) > LONGEST_PATTERN:
            break
        parts = joined
    return parts


def _pattern(nest: Nest, part: Sequence[int], lanes: int) -> int:
    """After how many vectors the places of lanes repeat, along loops that were not one."""
    within = groups(nest, part)
    if len(within) == 1:
        return 1
    period = 1
    for group in within[1:]:
        extent = _extent(nest, group)
        if extent is None:
            return LONGEST_PATTERN + 1
        period *= extent
    return period // gcd(period, lanes)


def _extent(nest: Nest, part: Sequence[int]) -> int | None:
    total = 1
    for at in part:
        extent = nest.extent(at)
        if not isinstance(extent, Const):
            return None
        total *= int(extent.value)
    return total


def _guess(nest: Nest, part: Sequence[int]) -> int:
    total = 1
    for at in part:
        total *= nest.guess(at)
    return total
