"""software_pipeline: run the statements of a loop in stages, with overlapping iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.base.errors import ScheduleError
from tilewright.sym import Var
from tilewright.tensor.ir import (
    SERIAL,
    Buffer,
    For,
    Function,
    Seq,
    Stmt,
    annotated,
    annotation,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import (
    all_loops,
    find_loop,
    ordered_vars,
    reads_of,
    replace_at,
    scope_blocks,
    with_body,
    writes_of,
)
from tilewright.tensor.visit import blocks

STAGE, ORDER = "software_pipeline_stage", "software_pipeline_order"


def software_pipeline(
    fn: Function, var: Var, stages: Sequence[int], order: Sequence[int]
) -> Function:
    """
    Before: for k { load(k); compute(k) }
    After:  for k [software_pipeline_order = (0, 1), software_pipeline_stage = (0, 1)] { ... }

    Statement j of the body runs `stages[j]` iterations late; within an iteration, statements run in
    the order of the numbers `order[j]`. Lowering implements it, with a slot of each buffer per
    iteration in flight.
    """
    path, loop = path_to_loop(fn, var, "pipeline")
    _check_plan(fn, loop, stages, order)
    notes = annotated(loop.annotations, STAGE, tuple(int(stage) for stage in stages))
    notes = annotated(notes, ORDER, tuple(int(place) for place in order))
    return with_body(fn, replace_at(path, replace(loop, annotations=notes)))


def check_plans(before: Function, after: Function) -> None:
    """A changed body of a pipelined loop still fits its plan."""
    for loop in all_loops(after.body):
        stages = annotation(loop, STAGE)
        if stages is None:
            continue
        path = find_loop(before, loop.var)
        old = None if path is None else path[-1]
        if isinstance(old, For) and old.body is loop.body:
            continue
        try:
            _check_plan(after, loop, stages, annotation(loop, ORDER, range(len(stages))))
        except ScheduleError as error:
            raise refuse(
                before,
                "TW2147",
                f"loop %{loop.var.name} is pipelined, and its plan would not fit any more: "
                f"{error.message}",
                loop.var,
                help="pipeline a loop when its body is final",
            ) from error


def _check_plan(fn: Function, loop: For, stages: Sequence[int], order: Sequence[int]) -> None:
    steps = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
    _check_numbers(fn, loop, len(steps), stages, order)
    _check_dependences(fn, loop, [_touched(step) for step in steps], stages, order)


def _check_numbers(
    fn: Function, loop: For, count: int, stages: Sequence[int], order: Sequence[int]
) -> None:
    name = f"%{loop.var.name}"
    reason = ""
    if loop.kind != SERIAL:
        reason = f"it is {loop.kind}"
    elif len(stages) != count or len(order) != count:
        reason = (
            f"{len(stages)} stages and {len(order)} places in the order do not fit the number of "
            f"statements in its body, {count}"
        )
    elif any(stage < 0 for stage in stages):
        reason = f"stage {min(stages)} is negative"
    elif sorted(order) != list(range(count)):
        reason = f"{list(order)} is not an order of {count} statements"
    if reason:
        raise refuse(
            fn,
            "TW2145",
            f"cannot pipeline loop {name}: {reason}",
            loop.var,
            help="give one stage and one place in the order per statement of the loop's body",
        )


@dataclass(frozen=True, slots=True)
class _Touched:
    """The accesses of a statement of the body."""

    reads: dict[Buffer, None]
    writes: dict[Buffer, None]
    first: str  # the name of a block in it
    carries: set[Var]


def _touched(step: Stmt) -> _Touched:
    reads: dict[Buffer, None] = {}
    writes: dict[Buffer, None] = {}
    carries: set[Var] = set()
    inside = scope_blocks(step)
    for block in inside:
        reads.update(reads_of(block))
        writes.update(writes_of(block))
        carries.update(ordered_vars(block))
    return _Touched(reads, writes, inside[0].name if inside else "", carries)


def _check_dependences(
    fn: Function,
    loop: For,
    steps: Sequence[_Touched],
    stages: Sequence[int],
    order: Sequence[int],
) -> None:
    """Values pass between statements in time, and are not overwritten before use."""
    for later in range(len(steps)):
        for earlier in range(later):
            a, b = steps[earlier], steps[later]
            touched = [
                buffer
                for buffer in (*a.writes, *a.reads)
                if buffer in b.writes or (buffer in a.writes and buffer in b.reads)
            ]
            for buffer in touched:
                if (stages[earlier], order[earlier]) > (stages[later], order[later]):
                    reason = "but they would run in the opposite order"
                elif stages[earlier] < stages[later] and not _has_versions(fn, loop, buffer, a, b):
                    reason = "of which there is only one for all iterations"
                else:
                    continue
                raise refuse(
                    fn,
                    "TW2146",
                    f"cannot pipeline loop %{loop.var.name}: @{a.first} and then @{b.first} use "
                    f"%{buffer.name}, {reason}",
                    b.first,
                    help="a statement reads what the same or an earlier stage has written",
                )


def _has_versions(fn: Function, loop: For, buffer: Buffer, a: _Touched, b: _Touched) -> bool:
    """Whether each iteration writes the buffer anew, with no other uses, so that it can have
    slots."""
    if buffer in fn.buffers or loop.var in a.carries or buffer in b.writes:
        return False
    inside = set(blocks(loop))
    return all(
        block in inside
        for block in blocks(fn.body)
        if buffer in reads_of(block) or buffer in writes_of(block)
    )
