"""Loop-carried dependences: which values pass between the iterations of loops.

Iterations are independent where every element of a buffer that they write is either

- owned: accessed by a single iteration, as its index shows, or as its block declares of its
  instances (`independent`), where indices are data-dependent; or
- privatizable: whatever an iteration reads, it has written itself before.

Privatizable elements may be written by several iterations. In sequence that is harmless;
concurrently it is not, unless each iteration has a private buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.sym import ONE, Context, Expr, Var
from tilewright.tensor.injectivity import determined_vars
from tilewright.tensor.ir import (
    INDEPENDENT,
    REDUCE,
    Block,
    Buffer,
    For,
    Function,
    Range,
    Region,
    Stmt,
    Update,
    annotation,
)
from tilewright.tensor.regions import range_over, stop_of, substitute_region
from tilewright.tensor.schedule.analysis.intervals import contains, read_box, written_box
from tilewright.tensor.schedule.analysis.tree import Path, loop_ranges, scope_blocks
from tilewright.tensor.visit import walk


@dataclass(frozen=True, slots=True)
class Conflict:
    """A buffer through which iterations depend on each other."""

    buffer: Buffer
    writer: Block
    other: Block  # the writer itself, or one that reads or writes the same elements


class _Access:
    """What a block touches in one iteration of the loops in question."""

    __slots__ = ("_box", "block", "bound", "loops", "place", "ranges", "region")

    def __init__(
        self, block: Block, region: Region, bound: Region, loops: tuple[For, ...], place: int
    ) -> None:
        self.block = block
        self.region = region  # as the block declares it
        self.bound = bound  # in terms of the loops
        self.loops = loops  # between the loops in question and the block
        self.place = place  # in program order
        self._box: dict[int, Range] = {}

    def range_of(self, axis: int, ctx: Context) -> Range:
        """A range that holds one dimension of the region while the loops run."""
        found = self._box.get(axis)
        if found is None:
            found = self._box[axis] = range_over(self.bound, axis, loop_ranges(self.loops), ctx)
        return found


def conflict(
    loops: Sequence[For],
    ctx: Context,
    *,
    body: Stmt,
    inside: Sequence[For] = (),
    outside: Sequence[For] | None = (),
    private: set[Buffer] | None = None,
    about: Buffer | None = None,
) -> Conflict | None:
    """The buffer through which iterations of `loops` depend on each other, in whatever order they
    nest.

    `body` is inside of the loops and of those of `inside`, which run within each iteration. `ctx`
    has the facts outside. With `private`, iterations are to run concurrently, each with private
    copies of these buffers, so that nothing in them outlives an iteration of the loops `outside`
    either (None: unknown loops). Without, they are to run sequentially in another order, and
    reductions may continue from one to the next. With `about`, only that buffer is examined.
    """
    inner = ctx.bind_all(loop_ranges(loops))
    found = list(_blocks(body))
    written_here = {region.buffer for block, _ in found for region in block.writes}
    reads: dict[Buffer, list[_Access]] = {}
    writes: dict[Buffer, list[_Access]] = {}
    for place, (block, below) in enumerate(found):
        _note(block, (*inside, *below), place, written_here, reads, writes)
    for buffer, written in writes.items():
        if about is not None and buffer is not about:
            continue
        read = reads.get(buffer, [])
        shared = private is not None and buffer not in private
        if not shared and not read and len(written) == 1:
            continue
        alone = len({access.block for access in (*read, *written)}) == 1
        if private is None and alone and _only_adds(written[0].block, buffer):
            continue
        if alone and _is_instance_own(written[0], loops, ctx):
            continue
        alone = alone and not _reads_elsewhere(written, read)
        alike = alone or _touch_alike([*written, *read])
        if shared and alike and _identifies_iteration(written[0], loops, ctx):
            continue
        if private is None or shared:
            owned = _is_owned(written, read, loops, ctx)
        else:
            owned = outside is not None and _is_owned(written, read, [*outside, *loops], ctx)
        if owned:
            continue
        if shared:
            return Conflict(buffer, written[0].block, (*read, *written)[0].block)
        bad = _not_overwritten(written, read, inner)
        if bad is not None:
            return Conflict(buffer, written[0].block, bad.block)
    return None


def _note(
    block: Block,
    below: tuple[For, ...],
    place: int,
    written: set[Buffer],
    reads: dict[Buffer, list[_Access]],
    writes: dict[Buffer, list[_Access]],
) -> None:
    bound = {it.var: value for it, value in zip(block.iters, block.bindings, strict=True)}
    for region in block.reads:
        if region.buffer in written:
            moved = substitute_region(region, bound)
            access = _Access(block, region, moved, below, place)
            reads.setdefault(region.buffer, []).append(access)
    goes_on = block.init is None and any(it.kind == REDUCE for it in block.iters)
    for region in block.writes:
        access = _Access(block, region, substitute_region(region, bound), below, place)
        writes.setdefault(region.buffer, []).append(access)
        if goes_on or _updates(block, region.buffer):  # it reads what it adds to
            reads.setdefault(region.buffer, []).append(access)


def _updates(block: Block, buffer: Buffer) -> bool:
    return block.init is None and any(
        isinstance(stmt, Update) and buffer in stmt.buffers for stmt in walk(block.body)
    )


def _reads_elsewhere(written: list[_Access], read: list[_Access]) -> bool:
    """Whether a block reads other elements of the buffer than it is about to write."""
    return any(all(access is not one for one in written) for access in read)


def _touch_alike(accesses: list[_Access]) -> bool:
    """Whether blocks in the same loops all touch the same element in an iteration of these; each
    may have loops of one iteration of its own."""
    first, *others = [single_place(access.bound, access.loops) for access in accesses]
    return first is not None and all(other == first for other in others)


def single_place(
    region: Region, loops: Sequence[For]
) -> tuple[tuple[For, ...], tuple[Expr, ...]] | None:
    """The indices of the only element that an iteration of these loops touches, and those loops
    that have several iterations; None where it touches more."""
    if any(r.extent is not ONE for r in region.ranges):
        return None
    once = {loop.var: loop.start for loop in loops if loop.extent is ONE}
    index = tuple([sym.simplify(sym.substitute(r.start, once)) for r in region.ranges])
    return tuple([loop for loop in loops if loop.var not in once]), index


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
    return any(_owns(one, written, read, loops, ctx) for one in written)


def _owns(
    one: _Access,
    written: list[_Access],
    read: list[_Access],
    loops: Sequence[For],
    ctx: Context,
) -> bool:
    """Whether the dimensions that move with the iterations tell them apart, for all accesses."""
    moving = {loop.var for loop in loops}
    axes = [axis for axis, r in enumerate(one.bound.ranges) if sym.uses_var(r.start, moving)]
    if not axes:
        return _all_determined(loops, set(), ctx)
    inner = ctx.bind_all(loop_ranges(loops))
    ranges = loop_ranges(loops)
    known = _places([one.range_of(axis, inner) for axis in axes], ranges)
    if not _all_determined(loops, determined_vars(known, ranges, ctx), ctx):
        return False
    return all(_within(access, one, axes, inner) for access in (*written, *read))


def _within(access: _Access, hull: _Access, axes: Sequence[int], ctx: Context) -> bool:
    if access is hull:
        return True
    for axis in axes:
        mine, theirs = access.range_of(axis, ctx), hull.range_of(axis, ctx)
        if mine.start is theirs.start and mine.extent is theirs.extent:
            continue
        if not sym.prove(sym.le(theirs.start, mine.start), ctx):
            return False
        if not sym.prove(sym.le(stop_of(mine), stop_of(theirs)), ctx):
            return False
    return True


def _is_instance_own(access: _Access, loops: Sequence[For], ctx: Context) -> bool:
    """Whether a block whose instances are declared independent has another in each iteration."""
    block = access.block
    if annotation(block, INDEPENDENT) is None:
        return False
    ranges = {**loop_ranges(loops), **loop_ranges(access.loops)}
    return _all_determined(loops, determined_vars(tuple(block.bindings), ranges, ctx), ctx)


def _identifies_iteration(access: _Access, loops: Sequence[For], ctx: Context) -> bool:
    """Whether each single element that is touched tells the iteration."""
    ranges = {**loop_ranges(loops), **loop_ranges(access.loops)}
    known = _places(access.bound.ranges, ranges)
    found = determined_vars((*known, _offset(access.bound, known)), ranges, ctx)
    return _all_determined(loops, found, ctx)


def _places(box: Iterable[Range], ranges: dict[Var, tuple[Expr, Expr]]) -> list[Expr]:
    """The indices of any element of the box; `ranges` learns of the offsets inside it."""
    known: list[Expr] = []
    for r in box:
        if r.extent is ONE:
            known.append(r.start)
            continue
        offset = sym.var("offset")
        ranges[offset] = (sym.ZERO, r.extent)
        known.append(sym.add(r.start, offset))
    return known


def _offset(box: Region, known: Sequence[Expr]) -> Expr:
    """Where the indices lead in memory: digits of one number may be easier to see together."""
    offset: Expr = sym.ZERO
    for dim, at in zip(box.buffer.shape, known, strict=True):
        offset = sym.add(sym.mul(offset, dim), at)
    return offset


def _all_determined(loops: Sequence[For], found: set[Var], ctx: Context) -> bool:
    return all(loop.var in found or sym.prove(sym.le(loop.extent, 1), ctx) for loop in loops)


# --------------------------------------------------------------------------- recomputed


def _not_overwritten(written: list[_Access], read: list[_Access], ctx: Context) -> _Access | None:
    """A read of what the iteration may not have written before; None if there is none."""
    adding = {access.block for access in read}
    overwriting = [access for access in written if access.block not in adding]
    if len(overwriting) > 1:
        return overwriting[1]
    for access in read:
        before = [one for one in written if one.place < access.place]
        if not any(
            _is_direct_forward(one, access, ctx) or _fills(one, access, ctx) for one in before
        ):
            return access
    return None


def _fills(writer: _Access, reader: _Access, ctx: Context) -> bool:
    """Whether all that is read in an iteration is certainly written in it, and before.

    The writer stands before the reader, so that is so in each iteration of the loops around both;
    what either does while they run would not tell in which order. Where a condition on those loops
    that both have does not hold, neither runs.
    """
    common = _common_loops(writer, reader)
    inner = ctx.bind_all(loop_ranges(common))
    own = {loop.var for loop in writer.loops[len(common) :]}
    same = set(sym.conjuncts(reader.block.predicate))
    rest = [
        cond
        for cond in sym.conjuncts(writer.block.predicate)
        if cond not in same or sym.uses_var(cond, own)
    ]
    block = replace(writer.block, predicate=sym.all_of(*rest))
    filled = written_box(block, writer.region, writer.loops[len(common) :], inner)
    if filled is None:
        return False
    needed = read_box(reader.block, reader.region, reader.loops[len(common) :], inner)
    return contains(filled, needed, inner)


def _common_loops(writer: _Access, reader: _Access) -> list[For]:
    """The loops around both, outermost first."""
    found = []
    for a, b in zip(writer.loops, reader.loops, strict=False):
        if a is not b:
            break
        found.append(a)
    return found


def _is_direct_forward(writer: _Access, reader: _Access, ctx: Context) -> bool:
    """Whether the reader takes, in the same iteration of all loops, what was just written."""
    common = {loop.var for loop in _common_loops(writer, reader)}
    own = {loop.var for loop in (*writer.loops, *reader.loops)} - common
    inner = ctx.bind_all(loop_ranges((*writer.loops, *reader.loops)))
    return (
        all(
            _is_same(a, b, own, inner)
            for a, b in zip(writer.bound.ranges, reader.bound.ranges, strict=True)
        )
        and not sym.uses_var(writer.block.predicate, own)
        and set(sym.conjuncts(writer.block.predicate)) <= set(sym.conjuncts(reader.block.predicate))
    )


def _is_same(a: Range, b: Range, own: set[Var], ctx: Context) -> bool:
    """Whether two ranges are one that `own` loops do not move; those of one iteration may show."""
    if a.extent is not b.extent:
        return False
    if a.start is b.start and not sym.uses_var(a.start, own):
        return True
    start = sym.simplify(a.start, ctx)
    return start is sym.simplify(b.start, ctx) and not sym.uses_var(start, own)


# --------------------------------------------------------------------------- private


def private_buffers(fn: Function, path: Path) -> set[Buffer]:
    """The intermediates that nothing outside of the last statement of `path` touches."""
    loop = path[-1]
    inside = {
        region.buffer for block in scope_blocks(loop) for region in (*block.reads, *block.writes)
    }
    around = set(path[:-1])
    stack: list[Stmt] = [fn.body]
    while stack:
        stmt = stack.pop()
        if stmt is loop:
            continue
        if isinstance(stmt, Block) and stmt not in around:
            for region in (*stmt.reads, *stmt.writes):
                inside.discard(region.buffer)
        else:
            stack.extend(stmt.children())
    return {buffer for buffer in fn.allocs if buffer in inside}
