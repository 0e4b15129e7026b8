"""Scans on a GPU: one thread per line, sequential along it.

for i in blockIdx.x, threadIdx.x { for t { state[t + 1, i] = f(state[t, i], x[i, t]) } }
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.multiprocessor import USUAL_THREADS, WARP, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.parts import ceildiv
from tilewright.rules.gpu.threads import ThreadsPlan, bind_flat, units_first
from tilewright.rules.match.nest import is_expression, nest_of, total
from tilewright.rules.rule import Rule
from tilewright.rules.space import Columns, Cost, Space, doublings
from tilewright.tensor.ir import SCAN, SPATIAL
from tilewright.tensor.schedule import BlockRef, Schedule


@dataclass(frozen=True)
class Found:
    """The lines of a scan, and the steps of each."""

    reference: BlockRef
    lines: int
    steps: int


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A scan with one sequential loop; the others are independent."""
    nest = nest_of(sch, reference)
    if nest is None or not is_expression(nest.block):
        return None
    kinds = [it.kind for it in nest.block.iters]
    if kinds.count(SCAN) != 1 or any(kind not in (SCAN, SPATIAL) for kind in kinds):
        return None
    scanned = [at for at in nest.loops if at not in nest.spatial]
    return Found(reference, total(nest, nest.spatial), total(nest, scanned))


def plans(found: Found, context: RuleContext) -> Space[ThreadsPlan]:
    return Space(ThreadsPlan, {"threads": doublings(USUAL_THREADS, WARP)})


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Steps bound by store-to-load latency; idle multiprocessors where there are few blocks."""
    sm = multiprocessor_of(context.target)
    blocks = ceildiv(found.lines, c["threads"])
    resident = sm.threads // c["threads"]
    waves = ceildiv(blocks, sm.count * resident)
    issued = ceildiv(blocks, sm.count) * c["threads"] / sm.warp / sm.warps_issued_per_cycle
    return Cost.of(
        launch=sm.launch_cycles,
        steps=waves * found.steps * sm.global_latency_cycles,
        issue=found.steps * issued,
    )


def apply(
    sch: Schedule, found: Found, plan: ThreadsPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    """Schedule by a plan."""
    nest = nest_of(sch, found.reference)
    assert nest is not None
    scanned = [loop for at, loop in nest.loops.items() if at not in nest.spatial]
    units, spatial = units_first(nest, nest.spatial)
    if not spatial:
        spatial = [sch.add_unit_loop(scanned[0])]
    sch.reorder(*units, *spatial, *scanned)
    bind_flat(sch, spatial, plan.threads)
    return (found.reference,)


SCAN_RULE = Rule("scan", ThreadsPlan, match, plans, cost, apply)
