"""Which values pass between the iterations of loops.

Iterations are independent of each other where every element of a buffer that they write is either

- owned: written and read by one iteration alone, as its place in the buffer tells; or
- made anew: whatever an iteration reads it has written itself before.

What is made anew may still be written by several iterations. That does no harm one after another;
at the same time it does, unless each iteration has the buffer to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright import sym
from tilewright.sym import ONE, TRUE, Context, Expr, Var
from tilewright.tensor.ir import (
    REDUCE,
    Block,
    Buffer,
    For,
    Function,
    Load,
    MaskedLoad,
    Region,
    Stmt,
    Store,
    Update,
)
from tilewright.tensor.passes.rewriter import conjuncts
from tilewright.tensor.regions import region_over, stop_of, substitute_region
from tilewright.tensor.schedule.inverse import told
from tilewright.tensor.schedule.tree import loop_ranges
from tilewright.tensor.visit import walk


@dataclass(frozen=True, slots=True)
class Conflict:
    """A buffer through which iterations depend on each other."""

    buffer: Buffer
    writer: Block
    other: Block  # the writer itself, or one that reads or writes the same elements


@dataclass(frozen=True, slots=True)
class _Access:
    """What a block touches in one iteration of the loops in question."""

    block: Block
    loops: tuple[For, ...]  # between those loops and the block
    box: Region
    place: int  # in program order


def conflict(
    loops: Sequence[For],
    ctx: Context,
    *,
    body: Stmt,
    inside: Sequence[For] = (),
    private: set[Buffer] | None = None,
) -> Conflict | None:
    """Through what iterations of `loops` depend on each other, in whatever order they nest.

    `body` stands inside the loops and inside those of `inside`, which run within each iteration.
    `ctx` is about everything outside. With `private`, the iterations shall run at the same time,
    each with these buffers to itself; without, they shall run one by one in another order, and
    reductions may go on from one to the next.
    """
    inner = ctx.bind_all(loop_ranges(loops))
    variables = [loop.var for loop in loops]
    reads: dict[Buffer, list[_Access]] = {}
    writes: dict[Buffer, list[_Access]] = {}
    for place, (block, below) in enumerate(_blocks(body)):
        _note(block, (*inside, *below), place, inner, reads, writes)
    for buffer, written in writes.items():
        read = reads.get(buffer, [])
        shared = private is not None and buffer not in private
        if not shared and not read and len(written) == 1:
            continue
        alone = len({access.block for access in (*read, *written)}) == 1
        if private is None and alone and _only_adds(written[0].block, buffer):
            continue
        if _is_owned(written, read, loops, ctx):
            continue
        if shared:
            return Conflict(buffer, written[0].block, (*read, *written)[0].block)
        bad = _not_made_anew(written, read, variables, inner)
        if bad is not None:
            return Conflict(buffer, written[0].block, bad.block)
    return None


def _note(
    block: Block,
    below: tuple[For, ...],
    place: int,
    ctx: Context,
    reads: dict[Buffer, list[_Access]],
    writes: dict[Buffer, list[_Access]],
) -> None:
    bound = {it.var: value for it, value in zip(block.iters, block.bindings, strict=True)}
    ranges = loop_ranges(below)

    def box(region: Region) -> Region:
        return region_over(substitute_region(region, bound), ranges, ctx)

    for region in block.reads:
        access = _Access(block, below, box(region), place)
        reads.setdefault(region.buffer, []).append(access)
    goes_on = block.init is None and any(it.kind == REDUCE for it in block.iters)
    for region in block.writes:
        access = _Access(block, below, box(region), place)
        writes.setdefault(region.buffer, []).append(access)
        if goes_on or _updates(block, region.buffer):  # it reads what it adds to
            reads.setdefault(region.buffer, []).append(access)


def _updates(block: Block, buffer: Buffer) -> bool:
    return block.init is None and any(
        isinstance(stmt, Update) and buffer in stmt.buffers for stmt in walk(block.body)
    )


def _only_adds(block: Block, buffer: Buffer) -> bool:
    """Whether the block touches the buffer as a reduction does: it may go on in any order."""
    return any(it.kind == REDUCE for it in block.iters) and not any(
        region.buffer is buffer for region in block.reads
    )


def _blocks(root: Stmt) -> Iterator[tuple[Block, tuple[For, ...]]]:
    """The blocks of a scope in program order, each with the loops around it below `root`."""
    stack: list[tuple[Stmt, tuple[For, ...]]] = [(root, ())]
    while stack:
        stmt, loops = stack.pop()
        if isinstance(stmt, Block):
            yield stmt, loops
            continue
        inside = (*loops, stmt) if isinstance(stmt, For) else loops
        stack.extend((child, inside) for child in reversed(stmt.children()))


# --------------------------------------------------------------------------- owned


def _is_owned(
    written: list[_Access], read: list[_Access], loops: Sequence[For], ctx: Context
) -> bool:
    """Whether the place of an element tells which iteration alone touches it."""
    return any(_owns(one.box, written, read, loops, ctx) for one in written)


def _owns(
    hull: Region,
    written: list[_Access],
    read: list[_Access],
    loops: Sequence[For],
    ctx: Context,
) -> bool:
    """Whether the dimensions that move with the iterations tell them apart, for all accesses."""
    moving = {loop.var for loop in loops}
    axes = [axis for axis, r in enumerate(hull.ranges) if sym.uses_var(r.start, moving)]
    ranges = dict(loop_ranges(loops))
    known: list[Expr] = []
    for axis in axes:
        r = hull.ranges[axis]
        if r.extent is ONE:
            known.append(r.start)
            continue
        offset = sym.var("offset")
        ranges[offset] = (sym.ZERO, r.extent)
        known.append(sym.add(r.start, offset))
    found = told(known, ranges, ctx)
    single = [loop for loop in loops if loop.var not in found]
    if any(not sym.prove(sym.le(loop.extent, 1), ctx) for loop in single):
        return False
    inner = ctx.bind_all(loop_ranges(loops))
    return all(_within(access.box, hull, axes, inner) for access in (*written, *read))


def _within(box: Region, hull: Region, axes: Sequence[int], ctx: Context) -> bool:
    for axis in axes:
        mine, theirs = box.ranges[axis], hull.ranges[axis]
        if mine.start is theirs.start and mine.extent is theirs.extent:
            continue
        if not sym.prove(sym.le(theirs.start, mine.start), ctx):
            return False
        if not sym.prove(sym.le(stop_of(mine), stop_of(theirs)), ctx):
            return False
    return True


# --------------------------------------------------------------------------- made anew


def _not_made_anew(
    written: list[_Access], read: list[_Access], variables: Sequence[Var], ctx: Context
) -> _Access | None:
    """A read of what the iteration may not have written before; None if there is none."""
    adding = {access.block for access in read}
    overwriting = [access for access in written if access.block not in adding]
    if len(overwriting) > 1:
        return overwriting[1]
    for access in read:
        axes = range(access.box.buffer.rank)
        if not any(
            one.place < access.place
            and _within(access.box, one.box, axes, ctx)
            and _covers_its_box(one, variables)
            for one in written
        ):
            return access
    return None


def _covers_its_box(access: _Access, variables: Sequence[Var]) -> bool:
    """Whether an element of the box that an iteration skips is skipped by every iteration.

    So it is where each part of the predicate is about the block's iterators: their values say
    which element it is, whatever the iteration.
    """
    block = access.block
    if block.predicate is TRUE:
        return True
    moving = {*variables, *(loop.var for loop in access.loops)}
    for part in conjuncts(block.predicate):
        if not sym.uses_var(part, moving):
            continue
        if not isinstance(part, (sym.Lt, sym.Le)):
            return False
        gap = sym.sub(part.a, part.b)
        remainders = [
            sym.simplify(each)
            for binding in block.bindings
            for each in (sym.sub(gap, binding), sym.add(gap, binding))
        ]
        if all(sym.uses_var(rest, moving) for rest in remainders):
            return False
    return True


# --------------------------------------------------------------------------- private


def private_buffers(fn: Function, loop: For) -> set[Buffer]:
    """The intermediates that nothing outside of the loop touches."""
    inside = _touches(loop)
    everywhere = _touches(fn.body)
    return {
        buffer for buffer in fn.allocs if inside.get(buffer, 0) == everywhere.get(buffer, 0) > 0
    }


def _touches(root: Stmt) -> dict[Buffer, int]:
    """How many statements touch each buffer."""
    found: dict[Buffer, int] = {}
    for stmt in walk(root):
        buffers: dict[Buffer, None] = {}
        if isinstance(stmt, Block):
            buffers.update(dict.fromkeys(r.buffer for r in (*stmt.reads, *stmt.writes)))
        elif isinstance(stmt, Store):
            buffers[stmt.buffer] = None
        elif isinstance(stmt, Update):
            buffers.update(dict.fromkeys(stmt.buffers))
        for node in sym.walk(*stmt.exprs()):
            if isinstance(node, (Load, MaskedLoad)):
                buffers[node.buffer] = None
        for buffer in buffers:
            found[buffer] = found.get(buffer, 0) + 1
    return found
