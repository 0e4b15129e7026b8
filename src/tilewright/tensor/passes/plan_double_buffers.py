"""Turn `double_buffer_scope` on a block into a two-stage software pipeline of the loop around it.

    for k { block L { annotate double_buffer_scope = 0  S = .. } block C { .. = S } }
    for k [software_pipeline_stage = (0, 1), software_pipeline_order = (0, 1)] { .. }

The loop is the innermost one around all uses of the buffer. The statement that fills the buffer,
and the earlier ones that it depends on, run one iteration ahead; `pipeline_loops` does the rest.
There is no such plan where these also fill buffers that others use and that have a single slot.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.sym import Var
from tilewright.tensor.ir import (
    SERIAL,
    Block,
    Buffer,
    For,
    Function,
    Stmt,
    annotated,
    annotation,
)
from tilewright.tensor.passes.accesses import Place, common
from tilewright.tensor.passes.pipeline_loops import ORDER, STAGE
from tilewright.tensor.passes.rewriter import as_list
from tilewright.tensor.visit import blocks, rewrite

KEY = "double_buffer_scope"


def plan_double_buffers(fn: Function, ctx: PassContext) -> Function:
    marked: dict[Buffer, None] = {}
    for block in blocks(fn.body):
        at = annotation(block, KEY)
        if at is not None:
            marked[block.writes[int(at)].buffer] = None
    if not marked:
        return fn
    plans: dict[Var, list[int]] = {}
    loops: dict[Var, For] = {}
    for buffer, place in _homes(fn.body, marked).items():
        loop = next((p.stmt for p in place.ancestors() if isinstance(p.stmt, For)), None)
        if isinstance(loop, For) and loop.kind == SERIAL and annotation(loop, STAGE) is None:
            stages = _stages(loop, buffer)
            known = plans.get(loop.var, stages)
            plans[loop.var] = [min(a, b) for a, b in zip(stages, known, strict=True)]
            loops[loop.var] = loop
    for variable, loop in loops.items():
        between = _shared_by_stages(loop, plans[variable])
        homes = _homes(fn.body, between)
        if any(
            buffer not in fn.allocs or all(p.stmt is not loop for p in homes[buffer].ancestors())
            for buffer in between
        ):
            del plans[variable]

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block) and annotation(stmt, KEY) is not None:
            return replace(stmt, annotations=annotated(stmt.annotations, KEY, None))
        stages = plans.get(stmt.var) if isinstance(stmt, For) else None
        if isinstance(stmt, For) and stages is not None and 0 in stages and 1 in stages:
            notes = annotated(stmt.annotations, STAGE, tuple(stages))
            notes = annotated(notes, ORDER, tuple(range(len(stages))))
            return replace(stmt, annotations=notes)
        return stmt

    return replace(fn, body=rewrite(fn.body, rule))


def _shared_by_stages(loop: For, stages: list[int]) -> dict[Buffer, None]:
    """The buffers that both stages use and one of them writes."""
    used: list[dict[Buffer, bool]] = [{}, {}]
    for step, stage in zip(as_list(loop.body), stages, strict=True):
        for block in blocks(step):
            for region in block.reads:
                used[stage].setdefault(region.buffer, False)
            for region in block.writes:
                used[stage][region.buffer] = True
    first, second = used
    return {
        buffer: None
        for buffer, writes in first.items()
        if buffer in second and (writes or second[buffer])
    }


def _homes(root: Stmt, marked: dict[Buffer, None]) -> dict[Buffer, Place]:
    """The innermost place around all uses of each buffer."""
    found: dict[Buffer, Place] = {}
    stack = [Place(root, None, 0, 0)]
    while stack:
        place = stack.pop()
        stmt = place.stmt
        if isinstance(stmt, Block):
            for region in (*stmt.reads, *stmt.writes):
                if region.buffer in marked:
                    known = found.get(region.buffer, place)
                    found[region.buffer] = common(known, place)
        children = stmt.children()
        stack += [Place(child, place, at, place.depth + 1) for at, child in enumerate(children)]
    return found


def _stages(loop: For, buffer: Buffer) -> list[int]:
    """0 for statements that must run ahead to fill the buffer early, 1 for the rest."""
    steps = as_list(loop.body)
    stages = [1] * len(steps)
    needed = {buffer}
    for at in range(len(steps) - 1, -1, -1):
        inside = list(blocks(steps[at]))
        if any(region.buffer in needed for block in inside for region in block.writes):
            stages[at] = 0
            needed |= {region.buffer for block in inside for region in block.reads}
    return stages
