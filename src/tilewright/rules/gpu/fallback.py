"""What serves any block on a GPU: threads for loops that are independent, else one thread."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import USUAL_THREADS
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.threads import alone, bind_flat
from tilewright.rules.match.nest import nest_of
from tilewright.tensor.ir import THREAD, For
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.schedule.analysis.tree import find_block


def fallback(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Every nest that no other rule took; blocks that share their outermost loop go together."""
    path = find_block(sch.function, reference.name)
    assert path is not None
    if any(isinstance(stmt, For) and stmt.kind == THREAD for stmt in path):
        return (reference,)
    point = sch.checkpoint()
    try:
        return _independent(sch, reference)
    except ScheduleError:
        sch.restore(point)
    return tuple(sch.get_child_blocks(alone(sch, reference)))


def _independent(sch: Schedule, reference: BlockRef) -> tuple[BlockRef, ...]:
    nest = nest_of(sch, reference)
    if nest is None or not nest.spatial:
        raise ScheduleError("TW2705", "no loops of its own")
    spatial = [nest.loops[at] for at in nest.spatial]
    others = [loop for at, loop in nest.loops.items() if at not in nest.spatial]
    sch.reorder(*spatial, *others)
    bind_flat(sch, spatial, USUAL_THREADS)
    return (reference,)
