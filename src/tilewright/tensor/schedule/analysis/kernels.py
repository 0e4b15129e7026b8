"""What all threads of a kernel do: every statement that no loop on an axis holds, each by itself.

A kernel is an outermost thread loop with all inside. Binding one loop in it to an axis gives the
whole kernel that axis: blocks beside the loop run once per thread. So, for each axis,

- its loops have one extent, and no block depends on two of them inside each other;
- memory that belongs to one thread (`local` for threadIdx, `shared` and `local` for blockIdx) is
  filled and used either under one loop on the axis, or by every thread for itself, or under
  several loops where each thread uses what it has filled;
- memory that threads have in common is not added to by a block which every thread runs;
- what a block of threads reads from `global` memory, no other block writes: they never meet.

An intermediate in `global` scope that is used under one thread loop alone is a thread's own, or a
block's own if that loop is over blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tilewright import sym
from tilewright.sym import ONE, TRUE, Const, Expr, Var
from tilewright.tensor.injectivity import determined_vars, is_injective
from tilewright.tensor.ir import (
    BLOCK_LEVEL,
    INDEPENDENT,
    THREAD,
    THREAD_LEVEL,
    Block,
    Buffer,
    For,
    Function,
    Region,
    Stmt,
    TensorCall,
    annotation,
    level_of,
)
from tilewright.tensor.ownership import is_apart_along, owning_memory
from tilewright.tensor.regions import contains, region_over, stop_of, substitute_region
from tilewright.tensor.schedule.analysis.adding import adds_up, is_implemented
from tilewright.tensor.schedule.analysis.concurrency import block_of_pairs, check_nesting
from tilewright.tensor.schedule.analysis.flow import private_buffers, single_place
from tilewright.tensor.schedule.analysis.refusal import refuse
from tilewright.tensor.schedule.analysis.tree import all_loops, loop_ranges
from tilewright.tensor.scopes import GLOBAL, MemoryScope, Owner
from tilewright.tensor.visit import kernels_of, walk


@dataclass(frozen=True, slots=True)
class _Access:
    """A region of a buffer that a block in a kernel reads, writes, or adds to."""

    block: Block
    region: Region
    loops: tuple[For, ...]  # from the kernel's root to the block
    threads: dict[str, For]  # those on axes: the innermost of each
    around: tuple[Block, ...]  # the blocks it is inside, outermost first
    writes: bool
    adds: bool


# The primitives after which other threads may run a block, or share what it touches.
MOVING = frozenset(
    (
        "bind",
        "cache_read",
        "cache_write",
        "compute_at",
        "compute_inline",
        "decompose_reduction",
        "pad",
        "reverse_compute_at",
        "reverse_compute_inline",
        "rfactor",
        "rfactor_at",
        "set_scope",
    )
)


@dataclass(frozen=True, slots=True)
class Checked:
    """A kernel that means what it meant, and the intermediates that it has to itself."""

    root: For
    own: set[Buffer]


def check_kernels(
    fn: Function, made: Function, known: Sequence[Checked] = ()
) -> tuple[Checked, ...]:
    """The kernels of `made`, which is about to take the place of `fn`, mean what they meant.

    Those that are known, and have to themselves what they had, are not looked at again.
    """
    check_nesting(fn, (made.body,), made.body, "nest")
    found: list[Checked] = []
    for root in kernels_of(made.body):
        own = private_buffers(made, (root,))
        if not any(each.root is root and each.own == own for each in known):
            _check_kernel(fn, root, own)
        found.append(Checked(root, own))
    return tuple(found)


def _check_kernel(fn: Function, root: For, own: set[Buffer]) -> None:
    _check_loops(fn, root)
    touched: dict[Buffer, list[_Access]] = {}
    for access in _accesses(root):
        touched.setdefault(access.region.buffer, []).append(access)
    # Also those of loops that only prefetch: a kernel has an axis as a whole.
    loops = [stmt for stmt in walk(root) if isinstance(stmt, For) and stmt.kind == THREAD]
    axes = dict.fromkeys(loop.thread for loop in loops if loop.extent is not ONE)
    for buffer, users in touched.items():
        if not any(user.writes for user in users):
            continue
        if buffer.memory.owner is Owner.UNIT:
            continue  # who drives a unit together, its intrinsics know
        memories = [buffer.memory, GLOBAL]  # what is used outside too, threads have in common
        if buffer in own:
            memories = [owning_memory(buffer.memory, _common_loops(users))]
        for memory, axis in product(dict.fromkeys(memories), axes):
            _check_axis(fn, axis, buffer, memory, users)


def unequal_loops(kernel: Stmt, first: For | None = None) -> tuple[For, For] | None:
    """Two loops on one axis of a kernel whose extents differ, `first` before all others."""
    known = {} if first is None else {first.thread: first}
    for loop in all_loops(kernel):
        if loop.kind == THREAD:
            other = known.setdefault(loop.thread, loop)
            if not sym.equal(other.extent, loop.extent, sym.EMPTY):
                return other, loop
    return None


def describe_unequal(one: For, other: For) -> str:
    return (
        f"%{one.var.name} and %{other.var.name}, both on {other.thread}, would be in one kernel, "
        f"and their extents {one.extent} and {other.extent} differ"
    )


def _check_loops(fn: Function, root: For) -> None:
    """Loops on one axis are the same threads: of one extent, and one iteration of each a thread."""
    unequal = unequal_loops(root)
    if unequal is not None:
        raise refuse(fn, "TW2115", describe_unequal(*unequal), help=_HELP)
    stack: list[tuple[Stmt, tuple[For, ...]]] = [(root, ())]
    while stack:
        stmt, around = stack.pop()
        if isinstance(stmt, For) and stmt.kind == THREAD:
            for outer in around:
                both = block_of_pairs(outer, stmt) if outer.thread == stmt.thread else None
                if both is not None:
                    raise refuse(
                        fn,
                        "TW2115",
                        f"@{both.name} would run for all pairs of %{outer.var.name} and "
                        f"%{stmt.var.name}, which are one thread of {stmt.thread}",
                        both.name,
                        help=_HELP,
                    )
            around = (*around, stmt)
        stack.extend([(child, around) for child in reversed(stmt.children())])


def _common_loops(users: list[_Access]) -> list[For]:
    """The loops around all users, from the outermost in."""
    return [
        loops[0]
        for loops in zip(*[user.loops for user in users], strict=False)
        if all(loop is loops[0] for loop in loops)
    ]


_Place = tuple[Stmt, tuple[For, ...], dict[str, For], tuple[Block, ...]]


def _accesses(root: For) -> Iterator[_Access]:
    """What the kernel touches, by block; blocks that hold thread loops are looked into."""
    stack: list[_Place] = [(root, (), {}, ())]
    while stack:
        stmt, loops, threads, around = stack.pop()
        if isinstance(stmt, Block):
            if not any(isinstance(s, For) and s.kind == THREAD for s in walk(stmt.body)):
                adds = adds_up(stmt)
                for region in stmt.reads:
                    yield _Access(stmt, region, loops, threads, around, writes=False, adds=False)
                for region in stmt.writes:
                    yield _Access(stmt, region, loops, threads, around, writes=True, adds=adds)
                continue
            around = (*around, stmt)
        elif isinstance(stmt, For):
            loops = (*loops, stmt)
            if stmt.kind == THREAD:
                threads = {**threads, stmt.thread: stmt}
        stack.extend([(child, loops, threads, around) for child in reversed(stmt.children())])


def _check_axis(
    fn: Function, axis: str, buffer: Buffer, memory: MemoryScope, users: list[_Access]
) -> None:
    if is_apart_along(memory, axis):
        problem = _split_up(axis, buffer, users)
    elif level_of(axis) == BLOCK_LEVEL and memory.owner is not Owner.CLUSTER:
        meeting = None if _is_independent(users) else _unordered(axis, buffer, users)
        problem = meeting or _repeated(axis, buffer, users)
    else:
        problem = _repeated(axis, buffer, users)
    if problem is not None:
        block, words = problem
        raise refuse(fn, "TW2115", words, block.name, help=_HELP)


_HELP = "bind the loops around a kernel's first block outermost, so that they hold all of it"


def _split_up(axis: str, buffer: Buffer, users: list[_Access]) -> tuple[Block, str] | None:
    """Memory of a thread's own is used under one loop on the axis, or under none; what each thread
    computes all of for itself it may use anywhere, and under another loop what it has made."""
    if all(user.threads.get(axis) is None for user in users if user.writes):
        return None
    first = users[0].threads.get(axis)
    for user in users[1:]:
        if user.threads.get(axis) is not first and not _is_of_same_thread(axis, users[0], user):
            return user.block, (
                f"each thread of {axis} would hold just its part of %{buffer.name}, which is in "
                f"{buffer.scope} memory and used beside the loop by @{user.block.name}"
            )
    return None


def _is_of_same_thread(axis: str, maker: _Access, user: _Access) -> bool:
    """Whether a thread uses under a loop nothing but what it has written under another one."""
    loops = [each.threads.get(axis) for each in (maker, user)]
    if user.writes or not maker.writes or maker.adds or None in loops:
        return False
    if any(block.predicate is not TRUE for block in (maker.block, *maker.around)):
        return False  # some of it may be left out
    made_by, used_by = (loop for loop in loops if loop is not None)
    if made_by.extent is not used_by.extent or made_by.start is not used_by.start:
        return False
    thread, common = sym.var("thread"), _common_loops([maker, user])
    ctx = sym.EMPTY.bind_all(loop_ranges(common))  # two forms of one index are equal in it
    made = _box(maker, made_by, thread, common, ctx)
    inside = [each.extent for each in maker.loops if each is not made_by and each not in common]
    written, whole = (sym.simplify(_product(dims)) for dims in (inside, _extents(made)))
    is_filled = isinstance(whole, Const) and written is whole
    return is_filled and contains(made, _box(user, used_by, thread, common, ctx), ctx)


def _extents(region: Region) -> list[Expr]:
    return [r.extent for r in region.ranges]


def _product(dims: Sequence[Expr]) -> Expr:
    total: Expr = ONE
    for dim in dims:
        total = sym.mul(total, dim)
    return total


def _repeated(axis: str, buffer: Buffer, users: list[_Access]) -> tuple[Block, str] | None:
    """Memory in common is added to by the threads of one loop on the axis, or by them together."""
    for user in users:
        together = level_of(axis) == THREAD_LEVEL and _is_instruction(user.block.body)
        if user.adds and user.threads.get(axis) is None and not together:
            return user.block, (
                f"@{user.block.name} would run in every thread of {axis}, and all would add to "
                f"%{buffer.name} in {buffer.scope} memory"
            )
    return None


def _is_instruction(stmt: Stmt) -> bool:
    """Whether the threads of a block carry it out together, as they do not loops of a behaviour."""
    return isinstance(stmt, TensorCall) and is_implemented(stmt)


def _is_independent(users: list[_Access]) -> bool:
    """Whether one block alone uses it, no instance of which meets another there."""
    block = users[0].block
    return all(user.block is block for user in users) and annotation(block, INDEPENDENT) is not None


def _unordered(axis: str, buffer: Buffer, users: list[_Access]) -> tuple[Block, str] | None:
    """Blocks of threads never meet: each reads only what it writes itself."""
    if len(users) == 1 or not any(user.adds or not user.writes for user in users):
        return None  # nobody reads it
    thread = sym.var("thread")
    boxes: list[Region] = []
    for user in users:
        loop = user.threads.get(axis)
        if loop is None:
            boxes = []
            break
        boxes.append(_box(user, loop, thread))
    if (boxes and _is_owned(boxes, thread)) or _touch_alike(users):
        return None
    reader = next(user for user in users if user.adds or not user.writes)
    return reader.block, (
        f"@{reader.block.name} may read elements of %{buffer.name} that other blocks along {axis} "
        "write, and blocks never wait for each other"
    )


def _touch_alike(users: list[_Access]) -> bool:
    """Whether an iteration of the same loops touches the same element in all blocks, as no other
    iteration does: the digits of one number, of which a thread has some."""
    first, *others = [single_place(_bound(user), user.loops) for user in users]
    if first is None or any(other != first for other in others):
        return False
    loops, index = first
    return is_injective(index, loop_ranges(loops), sym.EMPTY)


def _bound(user: _Access) -> Region:
    """What a user touches, by the loops around it."""
    region = user.region
    for block in (user.block, *reversed(user.around)):
        bound = {it.var: at for it, at in zip(block.iters, block.bindings, strict=True)}
        region = substitute_region(region, bound)
    return region


def _box(
    user: _Access, loop: For, thread: Var, fixed: Sequence[For] = (), ctx: sym.Context = sym.EMPTY
) -> Region:
    """What the user touches in one thread, while some loops around it stay where they are."""
    region = substitute_region(_bound(user), {loop.var: thread})
    inside = [each for each in user.loops if each is not loop and each not in fixed]
    return region_over(region, loop_ranges(inside), ctx)


def _is_owned(boxes: list[Region], thread: Var) -> bool:
    """Whether dimensions tell the thread, one of them or all together, the same for all boxes."""
    ranges: dict[Var, tuple[Expr, Expr]] = {thread: (sym.ZERO, sym.var("threads"))}
    known: list[Expr] = []
    for axis, r in enumerate(boxes[0].ranges):
        if not sym.uses_var(r.start, {thread}):
            continue
        same = all(
            box.ranges[axis].start is r.start
            and sym.prove(sym.le(stop_of(box.ranges[axis]), stop_of(r)))
            for box in boxes
        )
        if not same:
            continue
        index = r.start
        if r.extent is not ONE:
            offset = sym.var("offset")
            ranges[offset] = (sym.ZERO, r.extent)
            index = sym.add(r.start, offset)
        known.append(index)
    alone = [[index] for index in known]
    return any(thread in determined_vars(some, ranges, sym.EMPTY) for some in (*alone, known))
