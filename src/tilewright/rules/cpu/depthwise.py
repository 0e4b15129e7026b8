"""Depthwise convolution, channels last: tiles of windows, weights as [vector, kernel, lane].

Padding is a condition on kernel positions; lowering splits the borders from the inside of the
image, where there is none.
"""

from __future__ import annotations

from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_schedule import padding_of
from tilewright.rules.cpu.windows_tile import (
    WindowsPlan,
    lanes_of,
    tile_windows,
    windows_cost,
    windows_space,
)
from tilewright.rules.match.nest import block_of, nest_of
from tilewright.rules.match.windows import Convolution, convolution
from tilewright.rules.rule import Rule
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.schedule import BlockRef, Schedule


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Convolution | None:
    nest = nest_of(sch, block)
    found = None if nest is None else convolution(nest)
    if found is None or not found.is_depthwise or found.depth is None:
        return None
    return found if lanes_of(found, context) > 1 else None


def apply(
    sch: Schedule, found: Convolution, plan: WindowsPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    block, lanes = BlockRef(found.nest.name), lanes_of(found, context)
    padding = padding_of(sch, found)
    if padding is not None:
        sch.compute_inline(padding)
    packed = pack_weights(sch, found, lanes, context)
    return (block, packed, *tile_windows(sch, found, plan, context))


def pack_weights(sch: Schedule, found: Convolution, lanes: int, context: RuleContext) -> BlockRef:
    """The block that copies weights as [vector, kernel, c, lane]."""
    block = BlockRef(found.nest.name)
    reads = block_of(sch.function, block.name).reads  # without padding, there are others
    index = next(i for i, read in enumerate(reads) if read.buffer is found.w.buffer)
    packed = sch.cache_read(block, index, "global")
    names = [f"k{at}" for at in range(len(found.kernel_spatial))]
    order = ", ".join([f"o // {lanes}", *names, "c", f"o % {lanes}"])
    sch.transform_layout(packed, ("write", 0), f"({', '.join(['o', 'c', *names])}) -> ({order})")
    if found.w.buffer.name in context.constants:
        sch.annotate(packed, CONSTANT, True)
    return packed


DEPTHWISE = Rule("depthwise", WindowsPlan, match, windows_space, windows_cost, apply)
