"""What must hold of a block before it may run elsewhere, at another time, or more than once.

Complete and reduction blocks compute each element from finished inputs alone, so an instance may be
repeated and its neighbours may run before or after it. What remains to check is that the inputs are
finished, and not yet overwritten, where the block goes.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tilewright import sym
from tilewright.base.errors import ScheduleError
from tilewright.sym import Context, Var
from tilewright.tensor.injectivity import is_injective
from tilewright.tensor.intrin import UPDATE
from tilewright.tensor.ir import (
    BLOCK_LEVEL,
    REDUCE,
    SCAN,
    SPATIAL,
    THREAD,
    Block,
    Buffer,
    For,
    Function,
    If,
    Stmt,
    TensorCall,
    Update,
)
from tilewright.tensor.ownership import owning_memory
from tilewright.tensor.regions import is_data_dependent, whole
from tilewright.tensor.schedule.analysis.intervals import (
    are_disjoint,
    bounding_box,
    contains,
    covers,
    read_box,
)
from tilewright.tensor.schedule.analysis.refusal import refuse
from tilewright.tensor.schedule.analysis.sites import (
    Scope,
    Site,
    common_depth,
    inside_scope,
    is_touched_outside,
    is_under,
    region_of,
    scope_context,
    shared_loops,
)
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    all_loops,
    loop_ranges,
    ordered_vars,
    reads_of,
    writes_of,
)
from tilewright.tensor.scopes import GLOBAL, MemoryScope, Owner


def check_repeatable(fn: Function, scope: Scope, block: Block, what: str) -> None:
    """The block is complete or a reduction: the only writer, from its own init, in any order."""
    check_straight(fn, scope, what)
    reason = _not_repeatable(fn, scope, block)
    if reason:
        raise refuse(
            fn,
            "TW2120",
            f"cannot {what}: {reason}",
            block.name,
            help="to move, a block must compute every element by itself, from finished inputs",
        )


def check_straight(fn: Function, scope: Scope, what: str) -> None:
    """Every block of the scope runs for certain, over ranges that nothing computes."""
    for site in scope.sites:
        for stmt in inside_scope(site.path)[:-1]:
            branches = isinstance(stmt, If)
            if branches or (isinstance(stmt, For) and any(map(is_data_dependent, stmt.exprs()))):
                where = "in a branch" if branches else "in a loop whose range is read from memory"
                raise refuse(
                    fn,
                    "TW2148",
                    f"cannot {what}: @{site.block.name} stands {where}, so it is not certain what "
                    "runs",
                    site.block.name,
                    help="move blocks before branches are made; a predicate takes their place",
                )


def _not_repeatable(fn: Function, scope: Scope, block: Block) -> str:
    made, me = writes_of(block), f"@{block.name}"
    if any(it.kind == SCAN for it in block.iters):
        return f"{me} scans, and every step starts from the one before"
    for buffer in made:
        others = scope.writers(buffer, but=block)
        if others:
            return f"@{others[0].block.name} writes %{buffer.name} as well"
        if buffer in reads_of(block):
            return f"{me} reads %{buffer.name}, which it also writes"
        if is_touched_outside(fn, scope, buffer):
            return f"%{buffer.name} is used outside of @{_holder_name(scope)}"
    if block.init is None and _accumulates(block):
        return f"{me} adds to what is there already, without an init of its own"
    if block.init is not None and all(it.kind == SPATIAL for it in block.iters):
        return f"{me} has an init but no reduce iterator"
    return ""


def _holder_name(scope: Scope) -> str:
    assert scope.holder is not None
    return scope.holder.name


def _accumulates(block: Block) -> bool:
    """Whether a statement adds to an element that nothing inside the block has set before."""
    if any(it.kind == REDUCE for it in block.iters):
        return True
    stack: list[Stmt] = [block.body]
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, Update) or (isinstance(stmt, TensorCall) and stmt.phase == UPDATE):
            return True
        if not (isinstance(stmt, Block) and stmt.init is not None):
            stack.extend(stmt.children())
    return False


def check_intermediate(fn: Function, buffer: Buffer, at: str, what: str) -> None:
    """The buffer belongs to the function alone."""
    if buffer in fn.buffers:
        raise refuse(
            fn,
            "TW2121",
            f"cannot {what}: %{buffer.name} is a parameter of the function",
            at,
            help="the caller sees every element of a parameter; this is for intermediates",
        )


# --------------------------------------------------------------------------- inputs


def check_inputs_late(
    fn: Function,
    scope: Scope,
    block: Block,
    old: Site,
    first_reader: int,
    place: Path,
    what: str,
) -> None:
    """The block may run later than it did: nothing overwrites its inputs in between.

    `place` leads to where it goes, right before the block of order `first_reader`.
    """
    for buffer in reads_of(block):
        for writer in scope.writers(buffer, but=block):
            if writer.order < old.order:
                continue
            if writer.order <= first_reader or shared_loops(writer.path, place):
                raise refuse(
                    fn,
                    "TW2125",
                    f"cannot {what}: @{writer.block.name} overwrites "
                    f"%{buffer.name}, which it reads, before its new place",
                    writer.block.name,
                )


def check_inputs_there(
    fn: Function,
    scope: Scope,
    moved: Block,
    inner: Sequence[For],
    place: Path,
    old: Path,
    what: str,
    certain: Container[Buffer] = (),
) -> None:
    """All that the block reads at its new place has been computed there.

    `moved` is the block as it will be, `inner` the loops around it at the new place inside the last
    statement of `place`; `old` leads to its old place, where it was right. Of buffers in `certain`
    it is known that all that is read is there.
    """
    for region in moved.reads:
        writers = [s for s in scope.writers(region.buffer) if s.block.name != moved.name]
        for writer in writers:
            shared = shared_loops(writer.path, place)
            memory = memory_at(fn, scope, region.buffer, moved.name, place)
            check_seen(fn, region.buffer, memory, writer.path, place, what)
            if region.buffer not in fn.buffers:
                _check_home(fn, region.buffer, writer, old, shared, what)
            if not shared and scope.holder is None:
                continue  # all of it has been written; inside a block, only the block's part
            check_finished(fn, writer, shared, what)
            if region.buffer not in certain:
                _check_covered(fn, scope, moved, inner, writer, shared, place, region.buffer, what)
        if not writers and scope.holder is not None and region.buffer not in fn.buffers:
            _check_declared(fn, scope, moved, inner, place, region.buffer, what)


def _check_home(
    fn: Function,
    buffer: Buffer,
    writer: Site,
    old: Path,
    shared: Sequence[For],
    what: str,
) -> None:
    """Values computed for one iteration are not read outside of it."""
    for loop in shared_loops(writer.path, old):
        if loop not in shared:
            raise refuse(
                fn,
                "TW2126",
                f"cannot {what}: it reads %{buffer.name}, which @{writer.block.name} "
                f"computes inside loop %{loop.var.name}",
                loop.var,
                help=f"keep it inside %{loop.var.name}, or move @{writer.block.name} first",
            )


def check_finished(fn: Function, writer: Site, shared: Sequence[For], what: str) -> None:
    """No loop around both still adds to what the writer computes, or computes it again."""
    ordered = ordered_vars(writer.block)
    for loop in shared:
        if loop.var in ordered or not _assigns_once(writer.block):
            raise refuse(
                fn,
                "TW2127",
                f"cannot {what}: inside loop %{loop.var.name} the results of "
                f"@{writer.block.name} are not finished",
                loop.var,
                help="choose a loop outside of the reduction",
            )


def _assigns_once(block: Block) -> bool:
    """Whether an element gets its value from one instance alone, reduce iterators aside."""
    if own_axes(block) is not None:
        return True
    ranges = {it.var: (sym.ZERO, it.extent) for it in block.iters if it.kind != REDUCE}
    return all(are_disjoint(region, ranges, sym.EMPTY) for region in block.writes)


def _check_covered(
    fn: Function,
    scope: Scope,
    moved: Block,
    inner: Sequence[For],
    writer: Site,
    shared: Sequence[For],
    place: Path,
    buffer: Buffer,
    what: str,
) -> None:
    around = [stmt for stmt in inside_scope(place) if isinstance(stmt, For)]
    if not covers(
        writer.block,
        region_of(writer.block.writes, buffer),
        [loop for loop in writer.loops if loop not in shared],
        moved,
        region_of(moved.reads, buffer),
        [*(loop for loop in around if loop not in shared), *inner],
        scope_context(fn, scope, shared),
    ):
        raise refuse(
            fn,
            "TW2128",
            f"cannot {what}: it is not certain that @{writer.block.name} has "
            f"computed all of %{buffer.name} that is needed there",
            writer.block.name,
            help=f"move @{writer.block.name} further out first, or @{moved.name} less far in",
        )


def _check_declared(
    fn: Function,
    scope: Scope,
    moved: Block,
    inner: Sequence[For],
    place: Path,
    buffer: Buffer,
    what: str,
) -> None:
    """What comes from outside of an enclosing block is within what that block reads."""
    assert scope.holder is not None
    ctx = scope_context(fn, scope, ())
    around = [stmt for stmt in inside_scope(place) if isinstance(stmt, For)]
    needed = read_box(moved, region_of(moved.reads, buffer), [*around, *inner], ctx)
    declared = [region for region in scope.holder.reads if region.buffer is buffer]
    if not declared or not contains(declared[0], needed, ctx):
        raise refuse(
            fn,
            "TW2128",
            f"cannot {what}: it would need more of %{buffer.name} than @{scope.holder.name} reads",
            scope.holder.name,
        )


def memory_used_at(memory: MemoryScope, uses: Sequence[Path]) -> MemoryScope:
    """The memory that an intermediate is really in, given the paths to all its uses."""
    depth = min(common_depth(uses[0], path) for path in uses)
    return owning_memory(memory, [stmt for stmt in uses[0][:depth] if isinstance(stmt, For)])


def memory_at(fn: Function, scope: Scope, buffer: Buffer, moved: str, place: Path) -> MemoryScope:
    """The memory a buffer is really in when the block `moved`, which uses it, is at `place`."""
    if buffer in fn.buffers:
        return GLOBAL
    uses = [
        site.path
        for site in scope.sites
        if site.block.name != moved
        and (buffer in reads_of(site.block) or buffer in writes_of(site.block))
    ]
    return memory_used_at(buffer.memory, [place, *uses])


def check_seen(
    fn: Function, buffer: Buffer, memory: MemoryScope, writer: Path, reader: Path, what: str
) -> None:
    """What is written in `memory` at one place of a kernel is there for the reader at another.

    A statement runs on every thread of the loops it is not inside of, so only a writer deeper in
    thread loops than its reader leaves something out.
    """
    if memory.owner is Owner.DEVICE:
        return
    depth = common_depth(writer, reader)
    if not any(isinstance(stmt, For) and stmt.kind == THREAD for stmt in writer[:depth]):
        return
    for stmt in writer[depth:]:
        if not isinstance(stmt, For) or stmt.kind != THREAD:
            continue
        if memory.owner is not Owner.BLOCK or stmt.level == BLOCK_LEVEL:
            raise refuse(
                fn,
                "TW2129",
                f"cannot {what}: in {memory.reference} memory, each iteration of "
                f"%{stmt.var.name} has a %{buffer.name} of its own",
                stmt.var,
                help=f"keep everything that uses it inside %{stmt.var.name}",
            )


def check_alone(fn: Function, scope: Scope, block: Block, place: Path, what: str) -> None:
    """A reduction does not add to the same elements from several threads.

    Inside a kernel a statement runs on all threads of the axes that are bound elsewhere in it.
    """
    kernel = next((s for s in place if isinstance(s, For) and s.kind == THREAD), None)
    if kernel is None or block.init is None:
        return
    around = {stmt.thread for stmt in place if isinstance(stmt, For)}
    repeating = [loop for loop in all_loops(kernel) if loop.thread and loop.thread not in around]
    for buffer in writes_of(block):
        memory = memory_at(fn, scope, buffer, block.name, place)
        is_shared = memory.owner is Owner.BLOCK
        is_local = memory.owner is not Owner.DEVICE and not is_shared
        if is_local and all(is_under(reader.path, kernel) for reader in scope.readers(buffer)):
            continue
        for loop in repeating:
            if not (is_shared and loop.level == BLOCK_LEVEL):
                raise rivals(fn, loop, buffer, memory, what)


def rivals(
    fn: Function, loop: For, buffer: Buffer, memory: MemoryScope, what: str
) -> ScheduleError:
    return refuse(
        fn,
        "TW2129",
        f"cannot {what}: threads of %{loop.var.name} would add to the same elements of "
        f"%{buffer.name}, which is in {memory.reference} memory",
        loop.var,
        help='give each its own: set_scope(block, 0, "local"), or rfactor the reduction',
    )


def check_outputs_there(
    fn: Function,
    scope: Scope,
    moved: Block,
    inner: Sequence[For],
    place: Path,
    what: str,
) -> None:
    """Whoever reads the block's results in the same iteration finds them all computed."""
    around = [stmt for stmt in inside_scope(place) if isinstance(stmt, For)]
    for region in moved.writes:
        for reader in scope.readers(region.buffer):
            if reader.block.name == moved.name:
                continue
            memory = memory_at(fn, scope, region.buffer, moved.name, place)
            check_seen(fn, region.buffer, memory, place, reader.path, what)
            shared = shared_loops(reader.path, place)
            if not shared:
                continue
            if not covers(
                moved,
                region,
                [*(loop for loop in around if loop not in shared), *inner],
                reader.block,
                region_of(reader.block.reads, region.buffer),
                [loop for loop in reader.loops if loop not in shared],
                scope_context(fn, scope, shared),
            ):
                raise refuse(
                    fn,
                    "TW2128",
                    f"cannot {what}: it is not certain that it would have computed "
                    f"all of %{region.buffer.name} that @{reader.block.name} needs there",
                    reader.block.name,
                )


def check_runs_once(
    fn: Function, scope: Scope, runner: Site, inner: Sequence[For], block: Block, what: str
) -> None:
    """No two iterations of the loops around `runner` meet one instance of it.

    Then `block`, which is to run along with it, runs once per instance too. Loops of `inner` that
    drive no spatial iterator are the runner's own reduction.
    """
    indices = [
        at
        for it, at in zip(runner.block.iters, runner.block.bindings, strict=True)
        if it.kind == SPATIAL
    ]
    ctx = scope_context(fn, scope, ())
    driving = [loop for loop in runner.loops if any(sym.uses_var(at, {loop.var}) for at in indices)]
    repeating = [
        loop
        for loop in runner.loops
        if loop not in driving and loop not in inner and not _runs_once(loop, ctx)
    ]
    if not repeating and is_injective(indices, loop_ranges(driving), ctx):
        return
    loop = (repeating or driving)[0]
    raise refuse(
        fn,
        "TW2134",
        f"cannot {what}: iterations of %{loop.var.name} may compute the same "
        f"elements in @{runner.block.name}, so that @{block.name} would run more than once",
        loop.var,
    )


def _runs_once(loop: For, ctx: Context) -> bool:
    return sym.prove(sym.le(loop.extent, 1), ctx)


def fills(fn: Function, scope: Scope, writer: Site, buffer: Buffer) -> bool:
    """Whether a block, while all its loops run, certainly writes every element of a buffer."""
    region = region_of(writer.block.writes, buffer)
    ctx = scope_context(fn, scope, ())
    total = bounding_box(writer.block, region, writer.loops, ctx)
    return total is not None and contains(total, whole(buffer), ctx)


def own_axes(block: Block) -> dict[int, Var] | None:
    """Dimension -> the spatial iterator that is its index in everything the block writes.

    None unless each spatial iterator stands alone in one dimension. Dimensions at a constant index
    are left out.
    """
    spatial = {it.var for it in block.iters if it.kind == SPATIAL}
    found: dict[int, Var] | None = None
    for region in block.writes:
        axes: dict[int, Var] = {}
        for axis, r in enumerate(region.ranges):
            if r.extent is not sym.ONE:
                return None
            if isinstance(r.start, Var) and r.start in spatial:
                axes[axis] = r.start
            elif not isinstance(r.start, sym.Const):
                return None
        if sorted(v.uid for v in axes.values()) != sorted(v.uid for v in spatial):
            return None
        if found is not None and found != axes:
            return None
        found = axes
    return found
