"""Cheap producers disappear into their consumers."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.tensor.ir import Block, Call
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.visit import blocks, exprs

DUPLICATED_NODES = 24  # a value used by several consumers is computed anew up to this size


def inline_producers(sch: Schedule) -> None:
    """Inline every element-wise block that is not a result and not too dear to repeat."""
    for block in list(blocks(sch.function.body)):
        reference = sch.get_block(block.name)
        readers = sch.get_consumers(reference)
        if not readers or (len(readers) > 1 and not _is_cheap(block)):
            continue
        try:
            sch.compute_inline(reference)
        except ScheduleError:
            continue  # a reduction, a result, an opaque body: it stays


def _is_cheap(block: Block) -> bool:
    nodes = list(exprs(block.body))
    return len(nodes) <= DUPLICATED_NODES and not any(isinstance(node, Call) for node in nodes)
