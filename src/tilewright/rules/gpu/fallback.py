"""The rule for any block on a GPU: threads for independent loops, otherwise one thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import MAX_THREADS, USUAL_THREADS, WARP, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.threads import ThreadsPlan, as_kernel_of_one_thread, bind_flat
from tilewright.rules.match.nest import nest_of, total
from tilewright.rules.rule import Rule
from tilewright.rules.space import Columns, Cost, Space, doublings, preferring
from tilewright.tensor.ir import THREAD, For
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.schedule.analysis.tree import find_block


@dataclass(frozen=True)
class Found:
    """A block that no other rule took."""

    reference: BlockRef
    steps: int  # iterations of all its loops
    threads: int  # iterations of the independent loops


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found:
    nest = nest_of(sch, reference)
    if nest is None:
        return Found(reference, 1, 1)
    return Found(reference, nest.instances, total(nest, nest.spatial))


def plans(found: Found, context: RuleContext) -> Space[ThreadsPlan]:
    return Space(ThreadsPlan, {"threads": preferring(USUAL_THREADS, doublings(MAX_THREADS, WARP))})


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """The block's body is unknown: each step of a thread is charged a memory latency."""
    sm = multiprocessor_of(context.target)
    waves = -(-found.threads // (context.target.cores * sm.threads))
    steps = waves * found.steps / found.threads * sm.global_latency_cycles
    return Cost.of(launch=sm.launch_cycles, steps=np.full(len(c["threads"]), steps))


def apply(
    sch: Schedule, found: Found, plan: ThreadsPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    """Blocks that share their outermost loop become one kernel."""
    reference = found.reference
    path = find_block(sch.function, reference.name)
    assert path is not None
    if any(isinstance(stmt, For) and stmt.kind == THREAD for stmt in path):
        return (reference,)
    point = sch.checkpoint()
    try:
        return _independent(sch, reference, plan.threads)
    except ScheduleError:
        sch.restore(point)
    return tuple(sch.get_child_blocks(as_kernel_of_one_thread(sch, reference)))


def _independent(sch: Schedule, reference: BlockRef, threads: int) -> tuple[BlockRef, ...]:
    nest = nest_of(sch, reference)
    if nest is None or not nest.spatial:
        raise ScheduleError("TW2705", "no loops of its own")
    spatial = [nest.loops[at] for at in nest.spatial]
    others = [loop for at, loop in nest.loops.items() if at not in nest.spatial]
    sch.reorder(*spatial, *others)
    bind_flat(sch, spatial, threads)
    return (reference,)


FALLBACK = Rule("fallback", ThreadsPlan, match, plans, cost, apply)
