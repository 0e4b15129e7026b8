"""Independent sequential bodies on a GPU: one thread each.

for i in blockIdx.x, threadIdx.x { low[i] = 0; for h { if ... { low[i] = ... } }; y[i] = low[i] }
"""

from __future__ import annotations

import numpy as np

from tilewright.base.multiprocessor import MAX_THREADS, USUAL_THREADS, WARP, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.threads import Spatial, ThreadsPlan, bind_flat, spatial_nest, units_first
from tilewright.rules.match.nest import is_expression, total
from tilewright.rules.rule import Rule
from tilewright.rules.space import Columns, Cost, Space, doublings, preferring
from tilewright.tensor.schedule import BlockRef, Schedule


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Spatial | None:
    found = spatial_nest(sch, reference)
    return None if found is None or is_expression(found.nest.block) else found


def plans(found: Spatial, context: RuleContext) -> Space[ThreadsPlan]:
    return Space(ThreadsPlan, {"threads": preferring(USUAL_THREADS, doublings(MAX_THREADS, WARP))})


def cost(found: Spatial, c: Columns, context: RuleContext) -> Cost:
    """The body's number of steps is unknown: each is charged a memory latency."""
    sm = multiprocessor_of(context.target)
    waves = -(-total(found.nest, found.nest.spatial) // (context.target.cores * sm.threads))
    steps = np.full(len(c["threads"]), waves * sm.global_latency_cycles)
    return Cost.of(launch=sm.launch_cycles, steps=steps)


def apply(
    sch: Schedule, found: Spatial, plan: ThreadsPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    units, loops = units_first(found.nest, found.nest.spatial)
    if units:
        sch.reorder(*units, *loops)
    bind_flat(sch, loops, plan.threads)
    return (found.reference,)


STEPS = Rule("steps", ThreadsPlan, match, plans, cost, apply)
