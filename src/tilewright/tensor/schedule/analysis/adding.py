"""Which blocks accumulate: running them twice, or by two threads at once, changes the result."""

from __future__ import annotations

from tilewright.tensor.intrin import COMPUTE, UPDATE, intrinsic
from tilewright.tensor.ir import SPATIAL, Block, Stmt, TensorCall, Update
from tilewright.tensor.schedule.analysis.tree import reads_of, writes_of
from tilewright.tensor.visit import walk


def adds_up(block: Block) -> bool:
    """Whether concurrent execution of the block by threads on one memory would spoil its result."""
    return (
        any(it.kind != SPATIAL for it in block.iters)
        or any(buffer in writes_of(block) for buffer in reads_of(block))
        or any(_adds(stmt) for stmt in walk(block.body))
    )


def is_implemented(call: TensorCall) -> bool:
    """Whether the call is carried out by an instruction, rather than by the loops of its
    behaviour."""
    return intrinsic(call.intrin, call.arguments).implementation(call.phase) is not None


def _adds(stmt: Stmt) -> bool:
    if isinstance(stmt, TensorCall):
        # The loops of a behaviour that is a reduction reset the result, then add to it.
        loops = stmt.phase == COMPUTE and not is_implemented(stmt)
        return stmt.phase == UPDATE or (loops and _is_reduction(stmt))
    return isinstance(stmt, Update)


def _is_reduction(call: TensorCall) -> bool:
    return any(
        isinstance(stmt, Update)
        for stmt in walk(intrinsic(call.intrin, call.arguments).behavior.body)
    )
