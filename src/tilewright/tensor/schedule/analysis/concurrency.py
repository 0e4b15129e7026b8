"""When iterations of a loop may run concurrently."""

from __future__ import annotations

from tilewright import sym
from tilewright.sym import Const, Context, Lt, Var
from tilewright.tensor.ir import (
    BLOCK_LEVEL,
    PARALLEL,
    SERIAL,
    THREAD,
    VECTOR,
    VTHREAD,
    Block,
    Buffer,
    For,
    Function,
    Stmt,
    level_of,
)
from tilewright.tensor.schedule.analysis.adding import adds_up
from tilewright.tensor.schedule.analysis.flow import conflict, private_buffers
from tilewright.tensor.schedule.analysis.refusal import refuse
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    all_loops,
    find_block,
    find_path,
    loop_ranges,
    ordered_vars,
    scope_blocks,
    writes_of,
)
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import blocks, walk


def check_serial(fn: Function, loop: For, primitive: str) -> None:
    """A loop's kind is set only once."""
    if loop.kind != SERIAL:
        raise refuse(
            fn,
            "TW2103",
            f"cannot {primitive} loop %{loop.var.name}: it is {loop.kind} already",
            loop.var,
        )


def check_constant_extent(fn: Function, loop: For, primitive: str) -> None:
    """Vector and unrolled loops have static extents."""
    if not isinstance(loop.extent, Const):
        raise refuse(
            fn,
            "TW2109",
            f"cannot {primitive} loop %{loop.var.name}: its extent {loop.extent} is not a constant",
            loop.var,
            help="split it by a constant factor and use the inner loop",
        )


def check_concurrent(fn: Function, path: Path, loop: For, primitive: str) -> None:
    """Iterations are independent. An intermediate used only inside is private to each of them,
    unless it is in `shared` memory."""
    _check_unordered(fn, loop, primitive)
    found = conflict(
        [loop],
        context_at(fn, path),
        body=loop.body,
        outside=_outside(path),
        private=_private(fn, path, (Owner.BLOCK,)),
    )
    if found is not None:
        raise _shared(fn, loop, primitive, found.buffer, found.writer, found.other)


def check_still_concurrent(fn: Function, made: Function, path: Path, primitive: str) -> None:
    """Concurrent loops along a path of `made`, which replaces `fn`, are still independent."""
    for at, loop in enumerate(path):
        if not isinstance(loop, For) or loop.kind not in (PARALLEL, VECTOR):
            continue
        way = path[: at + 1]
        found = conflict(
            [loop],
            context_at(made, way),
            body=loop.body,
            outside=_outside(way),
            private=_private(made, way, (Owner.BLOCK,)),
        )
        if found is not None:
            raise _shared(fn, loop, primitive, found.buffer, found.writer, found.other)


def check_shared(fn: Function, made: Function) -> None:
    """Iterations of vector and parallel loops in a kernel have no races in shared memory, of which
    a thread block has one. `made` is about to replace `fn`."""
    shared = [buffer for buffer in made.allocs if buffer.memory.owner is Owner.BLOCK]
    if not shared:
        return
    for block in blocks(made.body):
        for buffer in writes_of(block):
            if buffer in shared:
                _check_iterations(fn, made, find_block(made, block.name) or (), buffer)


def _check_iterations(fn: Function, made: Function, path: Path, buffer: Buffer) -> None:
    in_kernel = False
    for at, loop in enumerate(path):
        if not isinstance(loop, For):
            continue
        in_kernel = in_kernel or loop.kind in (THREAD, VTHREAD)
        if not in_kernel or loop.kind not in (VECTOR, PARALLEL):
            continue
        way = path[: at + 1]
        ctx = context_at(made, way)
        found = conflict(
            [loop], ctx, body=loop.body, outside=_outside(way), private=set(), about=buffer
        )
        if found is not None:
            raise refuse(
                fn,
                "TW2113",
                f"iterations of loop %{loop.var.name} would share %{buffer.name}, which is in "
                f"{buffer.scope} memory, and may use elements that others write in "
                f"@{found.writer.name}",
                loop.var,
                help="keep it in local memory, or the loop serial",
            )


def check_threads(fn: Function, path: Path, loop: For, thread: str) -> None:
    """Threads may also store equal values to the same element.

    An intermediate used only inside is private to each iteration, but memory in `shared` scope
    belongs to all threads of a block.
    """
    _check_unordered(fn, loop, "bind")
    _check_one_axis(fn, path, loop, thread)
    over_blocks = level_of(thread) == BLOCK_LEVEL
    private = _private(fn, path, () if over_blocks else (Owner.BLOCK,))
    ctx = context_at(fn, path)
    if _only_first_runs(loop, ctx):
        return
    found = conflict([loop], ctx, body=loop.body, outside=_outside(path), private=private)
    if found is None:
        return
    if over_blocks:
        raise _shared(fn, loop, "bind", found.buffer, found.writer, found.other)
    # Elements that all threads store alike need no owner, unless something accumulates there.
    adding = [block for block in scope_blocks(loop.body) if adds_up(block)]
    common = {
        buffer
        for block in scope_blocks(loop.body)
        for buffer in writes_of(block)
        if not any(buffer in writes_of(other) for other in adding)
    }
    found = conflict(
        [loop], ctx, body=loop.body, outside=_outside(path), private={*private, *common}
    )
    if found is not None:
        raise _shared(fn, loop, "bind", found.buffer, found.writer, found.other)


def _only_first_runs(loop: For, ctx: Context) -> bool:
    """Whether the predicates of all blocks under a loop leave only its first iteration."""
    later = sym.var(loop.var.name)
    inside = ctx.bind(later, sym.add(loop.start, 1), loop.stop)
    loops = [stmt for stmt in walk(loop.body) if isinstance(stmt, For)]
    inside = inside.bind_all({inner.var: (inner.start, inner.stop) for inner in loops})
    for block in scope_blocks(loop.body):
        conditions = sym.conjuncts(sym.substitute(block.predicate, {loop.var: later}))
        if not any(
            isinstance(cond, Lt) and sym.prove(sym.le(cond.b, cond.a), inside)
            for cond in conditions
        ):
            return False
    return True


def _private(fn: Function, path: Path, shared: tuple[Owner, ...]) -> set[Buffer]:
    """The buffers that are private to each iteration; those of the owners in `shared` are not."""
    return {b for b in private_buffers(fn, path) if b.memory.owner not in shared}


def _outside(path: Path) -> list[For] | None:
    """The loops around the last statement; None where an enclosing block hides them."""
    if any(isinstance(stmt, Block) for stmt in path):
        return None
    return [stmt for stmt in path[:-1] if isinstance(stmt, For)]


def check_nesting(fn: Function, path: Path, new: Stmt, primitive: str) -> None:
    """Loop kinds stay legally nested if `new` replaces the last statement of `path`.

    A kernel, an outermost thread loop with all inside, starts from a single thread, and its axes
    have one extent each, known at launch.
    """
    around = [stmt for stmt in path[:-1] if isinstance(stmt, For)]
    stack: list[tuple[Stmt, tuple[For, ...]]] = [(new, tuple(around))]
    while stack:
        stmt, outer = stack.pop()
        if isinstance(stmt, For):
            problem = _misplaced(stmt, outer)
            if problem:
                at = path[-1]
                name = f"loop %{at.var.name}" if isinstance(at, For) else "loops"
                raise refuse(fn, "TW2114", f"cannot {primitive} {name}: {problem}", stmt.var)
            outer = (*outer, stmt)
        stack.extend((child, outer) for child in reversed(stmt.children()))


def _misplaced(loop: For, outer: tuple[For, ...]) -> str:
    """Why a loop cannot be nested inside of others; "" if it can."""
    root = next((at for at, each in enumerate(outer) if each.kind == THREAD), None)
    if loop.kind == PARALLEL and root is not None:
        return f"parallel loop %{loop.var.name} would be inside a kernel"
    if loop.kind != THREAD:
        return ""
    for at, each in enumerate(outer):
        outside = root is None or at < root
        if each.kind in (PARALLEL, VECTOR) or (each.kind == VTHREAD and outside):
            return f"thread loop %{loop.var.name} would be inside {each.kind} loop %{each.var.name}"
    inside = {each.var for each in outer[root:]} if root is not None else set()
    if any(sym.uses_var(end, inside) for end in (loop.start, loop.stop)):
        return (
            f"the extent {loop.extent} of %{loop.var.name} would not be known where the kernel "
            "starts"
        )
    return ""


def context_at(fn: Function, path: Path) -> Context:
    """The facts at the last statement of `path`: ranges of loops and block iterators."""
    ctx = sym.EMPTY
    for cond in fn.requires:
        ctx = ctx.assume(cond)
    for stmt in path[:-1]:
        if isinstance(stmt, For):
            ctx = ctx.bind_all(loop_ranges([stmt]))
        elif isinstance(stmt, Block):
            ctx = ctx.bind_all({it.var: (sym.ZERO, it.extent) for it in stmt.iters})
    return ctx


def _check_unordered(fn: Function, loop: For, primitive: str) -> None:
    """No block below accumulates or scans along the loop."""
    for block in scope_blocks(loop.body):
        if loop.var in ordered_vars(block):
            raise refuse(
                fn,
                "TW2108",
                f"cannot {primitive} loop %{loop.var.name}: @{block.name} carries values from one "
                "iteration to the next",
                loop.var,
                help="use a loop over spatial iterators only, or rfactor the reduction first",
            )


def _shared(
    fn: Function, loop: For, primitive: str, buffer: Buffer, writer: Block, other: Block
) -> Exception:
    if other is writer:
        why = f"iterations may write the same elements of %{buffer.name} in @{writer.name}"
    else:
        why = (
            f"@{other.name} may use elements of %{buffer.name} that other iterations write in "
            f"@{writer.name}"
        )
    return refuse(
        fn,
        "TW2113",
        f"cannot {primitive} loop %{loop.var.name}: {why}",
        loop.var,
        help="compute_at the loop what it needs, or move what it should not hold out of it",
    )


def _check_one_axis(fn: Function, path: Path, loop: For, thread: str) -> None:
    """For nested loops on one axis, each thread runs its own iteration: blocks inside both may
    depend on the inner one only, and other threads must see what is stored."""
    around = [s for s in path[:-1] if isinstance(s, For) and s.thread == thread]
    inside = [s for s in all_loops(loop.body) if s.thread == thread]
    pairs = [(outer, loop) for outer in around] + [(loop, inner) for inner in inside]
    for outer, inner in pairs:
        both = block_of_pairs(outer, inner)
        if both is not None:
            raise refuse(
                fn,
                "TW2110",
                f"cannot bind loop %{loop.var.name} to {thread}: @{both.name} runs for all "
                f"pairs of %{outer.var.name} and %{inner.var.name}, which would be one thread",
                loop.var,
            )
        for block in scope_blocks(inner.body):
            local = [b for b in writes_of(block) if b.memory.owner is Owner.THREAD]
            if not local:
                continue
            where = find_path(fn.body, inner)
            assert where is not None
            kept = private_buffers(fn, where)
            for buffer in local:
                if buffer not in kept:
                    raise refuse(
                        fn,
                        "TW2110",
                        f"cannot bind loop %{loop.var.name} to {thread}: each thread would hold "
                        f"just its part of %{buffer.name}, which is in {buffer.scope} memory",
                        loop.var,
                        help=f"let the threads share it: set_scope({block.name!r}, 0, 'shared')",
                    )


def block_of_pairs(outer: For, inner: For) -> Block | None:
    """A block inside both loops that does not depend on the inner one alone."""
    moved = _moved_by(outer, inner)
    for block in scope_blocks(inner.body):
        if moved is None or _uses(block, moved):
            return block
    return None


def _moved_by(outer: For, inner: For) -> set[Var] | None:
    """The variables around `inner` that depend on those of `outer`, a loop around it. None where
    the outer loop decides whether, or how often, the inner one runs."""
    between = find_path(outer.body, inner)
    assert between is not None
    moved = {outer.var}
    for stmt in between[:-1]:
        if isinstance(stmt, Block):
            if sym.uses_var(stmt.predicate, moved):
                return None
            bound = zip(stmt.iters, stmt.bindings, strict=True)
            moved = {it.var for it, value in bound if sym.uses_var(value, moved)}
        elif any(sym.uses_var(expr, moved) for expr in stmt.exprs()):
            return None
    return moved


def _uses(block: Block, variables: set[Var]) -> bool:
    return any(sym.uses_var(x, variables) for x in (*block.bindings, block.predicate))
