"""Vectors for the innermost dimension, cores for the outermost: what serves any block.

Blocks of more than `PARALLEL_ELEMENTS` elements are spread over the cores; smaller ones are done
before a second core has woken up.
"""

from __future__ import annotations

from math import prod

from tilewright.rules.context import RuleContext
from tilewright.rules.match.nest import guess, nest_of
from tilewright.sym import Const
from tilewright.tensor.ir import SPATIAL, Iter
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

FALLBACK = "fallback"  # the name of the rule
PARALLEL_ELEMENTS = 32 * 1024  # of a block: fewer take less time than waking a thread


def spread(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule the nest of one block that stands alone."""
    nest = nest_of(sch, reference)
    if nest is None:
        return ()  # scheduled already, or shared with others
    block, loops = nest.block, list(nest.loops.values())
    spatial = [loop for loop, it in zip(loops, block.iters, strict=True) if it.kind == SPATIAL]
    if not spatial:
        return ()
    reduce = [loop for loop in loops if loop not in spatial]
    lanes = context.target.vector_bits // (8 * max(r.buffer.dtype.size_bytes for r in block.writes))
    last = block.iters[loops.index(spatial[-1])]
    inner: list[LoopRef] = []
    if _extent(last) is None or (_extent(last) or 0) >= lanes > 1:
        rest, lane = sch.split(spatial[-1], [None, lanes])
        spatial[-1] = rest
        inner = [lane]
    sch.attempt(sch.reorder, *spatial, *reduce, *inner)
    for lane in inner:
        sch.attempt(sch.vectorize, lane)
    if context.threads > 1 and _work(block.iters) > PARALLEL_ELEMENTS:
        outer = spatial[:-1] if len(spatial) > 1 else spatial
        sch.attempt(sch.parallel, sch.fuse(*outer) if len(outer) > 1 else outer[0])
    return (reference,)


def _extent(it: Iter) -> int | None:
    return int(it.extent.value) if isinstance(it.extent, Const) else None


def _work(iters: tuple[Iter, ...]) -> int:
    """Instances of the block; a size that is not known counts as large."""
    return prod(guess(it.extent) for it in iters)
