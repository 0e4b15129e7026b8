"""Software pipelining of loops, with double buffering as its simplest case.

    for k in 0..n [software_pipeline_stage = (0, 1)] { L(k); C(k) }

    L(0)
    for k in 1..n { L(k); C(k - 1) }
    C(n - 1)

Statement j of the body runs `stage[j]` iterations late; within an iteration, statements run in the
order of `order`. A buffer of the body that is written in one stage and read in a later one gets a
slot per iteration in flight. `double_buffer_scope` on a block means that the statement that fills
its output runs one iteration ahead of the rest.

Asynchronous copies (`cp.async.tile` of all threads, `cp.async.run` of one) are committed as a group
per iteration, and their users wait for that iteration's group. A barrier after the wait makes the
data visible to all threads, and keeps copies from overwriting what others still use, as does one
before the first copy.

    barrier; L(0); commit; L(1); commit; for k { wait(1); barrier; L(k); commit; C(k - 2) } ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.base.errors import UserError
from tilewright.base.loc import Loc
from tilewright.base.passes import PassContext
from tilewright.sym import FALSE, TRUE, Context, Expr, Var, const
from tilewright.tensor.intrin import intrinsic
from tilewright.tensor.ir import (
    SERIAL,
    Alloc,
    Annotations,
    Buffer,
    Call,
    Eval,
    For,
    Function,
    If,
    Seq,
    Stmt,
    TensorCall,
    annotated,
    annotation,
    seq,
)
from tilewright.tensor.passes.accesses import collect, common
from tilewright.tensor.passes.inject_virtual_threads import add_leading_index
from tilewright.tensor.passes.insert_barriers import BARRIER
from tilewright.tensor.passes.rewriter import Rewriter, as_list, join, with_body
from tilewright.tensor.visit import fresh_copy, walk

STAGE, ORDER = "software_pipeline_stage", "software_pipeline_order"
ASYNC_COPY, ASYNC_RUN = "cp.async.tile", "cp.async.run"
COMMIT, WAIT = "cp.async.commit", "cp.async.wait"


def pipeline_loops(fn: Function, ctx: PassContext) -> Function:
    if not any(
        (isinstance(s, For) and annotation(s, STAGE)) or is_async_copy(s) for s in walk(fn.body)
    ):
        return fn
    body = _Pipeline(_private(fn.body))(fn.body)
    assert body is not None
    return replace(fn, body=body)


def _private(root: Stmt) -> dict[Var, list[Buffer]]:
    """Per pipelined loop, the buffers allocated outside of it that only its body uses."""
    allocated = [stmt.buffer for stmt in walk(root) if isinstance(stmt, Alloc)]
    found: dict[Var, list[Buffer]] = {}
    for buffer, accesses in collect(root, allocated).items():
        if accesses:
            place = accesses[0].place
            for access in accesses[1:]:
                place = common(place, access.place)
            for around in place.ancestors():
                if isinstance(around.stmt, Alloc) and around.stmt.buffer is buffer:
                    break
                if isinstance(around.stmt, For) and around is not place:
                    found.setdefault(around.stmt.var, []).append(buffer)
    return found


def expanded_plan(loop: For, groups: list[list[Stmt]]) -> For:
    """The loop with statement j replaced by group j, and its plan to match."""
    if [[stmt] for stmt in as_list(loop.body)] == groups:
        return loop
    stages, orders = annotation(loop, STAGE), annotation(loop, ORDER)
    if stages is not None:
        sizes = [len(group) for group in groups]
        _check_length(loop, len(groups))
        by_order = sorted(range(len(groups)), key=lambda j: orders[j] if orders else j)
        first: dict[int, int] = {}
        count = 0
        for j in by_order:
            first[j] = count
            count += sizes[j]
        new_stages = tuple([stages[j] for j, size in enumerate(sizes) for _ in range(size)])
        new_orders = tuple([first[j] + k for j, size in enumerate(sizes) for k in range(size)])
        notes = annotated(annotated(loop.annotations, STAGE, new_stages), ORDER, new_orders)
        loop = replace(loop, annotations=notes)
    return replace(loop, body=seq(*[stmt for group in groups for stmt in group]))


def _check_length(loop: For, statements: int) -> None:
    for key in (STAGE, ORDER):
        plan = annotation(loop, key)
        if plan is not None and len(plan) != statements:
            raise _bad_plan(
                f"{key} of loop %{loop.var.name} names {len(plan)} statements, "
                f"the body has {statements}",
                loop.loc,
            )


def _bad_plan(message: str, loc: Loc) -> UserError:
    return UserError(
        "TW2204",
        message,
        loc,
        help="give one stage and one place in the order per statement of the loop's body, so that "
        "what is read was written in an earlier stage, or earlier in the same one",
    )


@dataclass(slots=True)
class _Step:
    """A statement of the body with its place in the plan."""

    stmt: Stmt
    stage: int
    order: int


class _Pipeline(Rewriter):
    def __init__(self, private: dict[Var, list[Buffer]]) -> None:
        super().__init__()
        self.private = private
        self.made: dict[Buffer, Buffer] = {}  # multi-slot versions of buffers allocated outside
        self.planned = False  # whether an enclosing plan places the waits

    def visit_leaf(self, stmt: Stmt) -> Stmt | None:
        alone = is_async_copy(stmt) and not self.planned
        return seq(Eval(BARRIER), stmt, _commit(), _wait(0)) if alone else stmt

    def visit_alloc(self, stmt: Alloc) -> Stmt | None:
        body = self(stmt.body)
        made = self.made.get(stmt.buffer)
        return with_body(stmt if made is None else replace(stmt, buffer=made), body)

    def visit_for(self, loop: For) -> Stmt | None:
        if annotation(loop, STAGE) is None:
            return super().visit_for(loop)
        if loop.kind != SERIAL:  # iterations are parallel anyway
            return super().visit_for(replace(loop, annotations=_without_plan(loop)))
        allocs: list[Alloc] = []
        steps: list[Stmt] = []
        flatten_body(loop.body, allocs, steps)
        _check_length(loop, len(steps))
        stages = annotation(loop, STAGE)
        orders = annotation(loop, ORDER, tuple(range(len(steps))))
        inside = self.ctx.bind(loop.var, loop.start, loop.stop)
        plan = []
        around, self.planned = self.planned, True
        for step, stage, order in zip(steps, stages, orders, strict=True):
            done = self.scoped(inside, step)
            assert done is not None
            plan.append(_Step(done, stage, order))
        self.planned = around
        own = [self.made.get(alloc.buffer, alloc.buffer) for alloc in allocs]
        outside = [self.made.get(b, b) for b in self.private.get(loop.var, ())]
        several = _multi_slot_buffers(loop, [*own, *outside], plan)
        self.made.update({b: several[b] for b in outside if b in several})
        result = _pipelined(loop, plan, self.ctx)
        for buffer in reversed(own):
            result = Alloc(several.get(buffer, buffer), result)
        return result


def flatten_body(body: Stmt, allocs: list[Alloc], steps: list[Stmt]) -> None:
    """Append the statements of a body, and the allocations around some of them, in order."""
    while True:
        if isinstance(body, Alloc):
            allocs.append(body)
            body = body.body
        elif isinstance(body, Seq):
            *before, last = body.stmts
            for stmt in before:
                if isinstance(stmt, Alloc):
                    flatten_body(stmt, allocs, steps)
                else:
                    steps.append(stmt)
            body = last
        else:
            steps.append(body)
            return


def _multi_slot_buffers(loop: For, own: list[Buffer], plan: list[_Step]) -> dict[Buffer, Buffer]:
    """Buffers that need several slots, with a leading slot dimension."""
    versions = _versions(loop, own, plan)
    several = {
        buffer: replace(buffer, shape=(const(count), *buffer.shape), align=_shifted(buffer))
        for buffer, count in versions.items()
        if count > 1
    }
    for step in plan:
        for buffer, made in several.items():
            slot = sym.floormod(sym.sub(loop.var, loop.start), versions[buffer])
            step.stmt = add_leading_index(step.stmt, {buffer: made}, slot)
    return several


def _pipelined(loop: For, plan: list[_Step], ctx: Context) -> Stmt:
    depth = max(step.stage for step in plan)
    plan.sort(key=lambda step: step.order)

    copies = [any(is_async_copy(each) for each in walk(step.stmt)) for step in plan]
    last_copy = max((at for at, copies_ in enumerate(copies) if copies_), default=None)
    behind = _copy_distance(plan, copies)

    def iteration(at: Expr, ctx: Context) -> Stmt | None:
        """Each statement at its own, earlier iteration, if that is in the loop's range."""
        done: list[Stmt] = []
        waits = False
        for number, step in enumerate(plan):
            its = sym.simplify(sym.sub(at, step.stage), ctx)
            inside = sym.all_of(sym.le(loop.start, its), sym.lt(its, loop.stop))
            inside = sym.simplify(inside, ctx)
            if inside is not FALSE:
                copy = fresh_copy(step.stmt, {loop.var: its})
                done.append(copy if inside is TRUE else If(inside, copy, None, loop.loc))
                if behind and not copies[number]:
                    waits = True
            if number == last_copy:  # one group per iteration, so that waits can count them
                done.append(_commit())
                done += [] if behind else [_wait(0)]
        return join(*([_wait(behind - 1)] if waits else ()), *done)

    steady_start = sym.simplify(sym.add(loop.start, depth), ctx)
    prologue = [iteration(sym.add(loop.start, k), ctx) for k in range(depth)]
    # A loop shorter than the pipeline has no steady part; its epilogue starts later.
    epilogue_start = sym.simplify(sym.maximum(loop.stop, steady_start), ctx)
    epilogue = [iteration(sym.add(epilogue_start, k), ctx) for k in range(depth)]
    inner = iteration(loop.var, ctx.bind(loop.var, steady_start, loop.stop))
    steady = None if inner is None else replace(loop, start=steady_start, body=inner)
    if steady is not None:
        steady = replace(steady, annotations=_without_plan(loop))
    # All threads are done with the slots being filled.
    free = Eval(BARRIER) if any(copies) else None
    result = join(free, *prologue, steady, *epilogue)
    assert result is not None
    return result


def is_async_copy(stmt: Stmt) -> bool:
    """Whether a call starts an asynchronous copy, which has to be waited for."""
    if not isinstance(stmt, TensorCall):
        return False
    step = intrinsic(stmt.intrin, stmt.arguments).implementation(stmt.phase)
    called = step.value.op if isinstance(step, Eval) and isinstance(step.value, Call) else ""
    return called in (ASYNC_COPY, ASYNC_RUN)


def _copy_distance(plan: list[_Step], copies: list[bool]) -> int:
    """How many iterations after their copies the first users run."""
    begun = [step.stage for step, is_copy in zip(plan, copies, strict=True) if is_copy]
    users = [step.stage for step, is_copy in zip(plan, copies, strict=True) if not is_copy]
    return max(0, min(users) - max(begun)) if begun and users else 0


def _commit() -> Stmt:
    """Commit the copies issued since the last commit as a group."""
    return Eval(Call(COMMIT, (), BOOL))


def _wait(newer: int) -> Stmt:
    """Wait until at most `newer` of the latest groups are in flight, for all threads."""
    return seq(Eval(Call(WAIT, (const(newer),), BOOL)), Eval(BARRIER))


def _without_plan(loop: For) -> Annotations:
    return annotated(annotated(loop.annotations, STAGE, None), ORDER, None)


def _shifted(buffer: Buffer) -> tuple[tuple[int, int, int], ...]:
    return tuple([(a if a < 0 else a + 1, factor, offset) for a, factor, offset in buffer.align])


def _versions(loop: For, own: list[Buffer], plan: list[_Step]) -> dict[Buffer, int]:
    """The number of slots of each buffer of the body; checks the plan."""
    versions = dict.fromkeys(own, 1)
    uses = [touched(step.stmt) for step in plan]
    for later in range(len(plan)):
        for earlier in range(later):
            a, b = plan[earlier], plan[later]
            for buffer, writes in uses[earlier].items():
                if buffer not in uses[later] or not (writes or uses[later][buffer]):
                    continue
                if (a.stage, a.order) > (b.stage, b.order) or (
                    a.stage < b.stage and buffer not in versions
                ):
                    raise _bad_plan(
                        f"the plan of loop %{loop.var.name} puts statements {earlier} and {later} "
                        f"in stages {a.stage} and {b.stage}, but both use %{buffer.name}",
                        loop.loc,
                    )
                if buffer in versions:
                    # A slot read after the write of the same iteration is not free for that write.
                    extra = 1 if a.order < b.order and a.stage < b.stage else 0
                    versions[buffer] = max(versions[buffer], b.stage - a.stage + extra)
    return versions


def touched(stmt: Stmt) -> dict[Buffer, bool]:
    """The buffers a statement uses, and whether it writes them."""
    found: dict[Buffer, bool] = {}
    for buffer, accesses in collect(stmt, None).items():
        found[buffer] = any(access.is_write or access.is_opaque for access in accesses)
    return found
