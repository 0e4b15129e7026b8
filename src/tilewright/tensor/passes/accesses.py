"""All accesses of given buffers, with their places in the program.

`collect(body, buffers)` walks once and lists, per buffer and in execution order of one iteration,
what is read and written where. A `Place` knows its parent, so the loops and conditions between two
statements are found by climbing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tilewright import sym
from tilewright.sym import ONE, Context, Expr, Select
from tilewright.tensor.intrin import UPDATE
from tilewright.tensor.ir import (
    Address,
    Buffer,
    ExternCall,
    For,
    If,
    Let,
    Load,
    MaskedLoad,
    Range,
    Stmt,
    Store,
    TensorCall,
    Update,
)
from tilewright.tensor.passes.facts import in_branch, in_let, in_loop
from tilewright.tensor.regions import called_regions
from tilewright.tensor.visit import prefetched


@dataclass(eq=False, slots=True)
class Place:
    """A statement with its ancestors in the program."""

    stmt: Stmt
    parent: Place | None
    position: int  # among the parent's children
    depth: int

    def ancestors(self) -> Iterator[Place]:
        """This place and those around it, innermost first."""
        at: Place | None = self
        while at is not None:
            yield at
            at = at.parent

    def below(self, top: Place | None) -> list[Place]:
        """The places from just inside `top` down to this one."""
        path = []
        for place in self.ancestors():
            if place is top:
                break
            path.append(place)
        path.reverse()
        return path


def common(a: Place, b: Place) -> Place:
    """The innermost place around both."""
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None
            a = a.parent
        else:
            assert b.parent is not None
            b = b.parent
    return a


@dataclass(eq=False, slots=True)
class Access:
    """A box of a buffer touched at a place; `guards` are conditions inside the expression."""

    buffer: Buffer
    ranges: tuple[Range, ...]
    place: Place
    is_write: bool
    guards: tuple[Expr, ...] = ()
    is_opaque: bool = False  # through its address: any element may be read or written


def collect(root: Stmt, wanted: Collection[Buffer] | None) -> dict[Buffer, list[Access]]:
    """The accesses of the wanted buffers (None: of all) below `root`."""
    found: dict[Buffer, list[Access]] = defaultdict(list) if wanted is None else {}
    if wanted is not None:
        found.update((buffer, []) for buffer in wanted)
    stack = [Place(root, None, 0, 0)]
    while stack:
        place = stack.pop()
        stmt = place.stmt
        for buffer, ranges, guards, opaque in reads_of(stmt):
            if wanted is None or buffer in found:
                found[buffer].append(Access(buffer, ranges, place, False, guards, opaque))
        for buffer, ranges in writes_of(stmt):
            if wanted is None or buffer in found:
                found[buffer].append(Access(buffer, ranges, place, True))
        children = stmt.children()
        depth = place.depth + 1
        stack += [Place(child, place, at, depth) for at, child in enumerate(children)][::-1]
    return found


def _points(index: tuple[Expr, ...]) -> tuple[Range, ...]:
    return tuple([Range(at, ONE) for at in index])


Read = tuple[Buffer, tuple[Range, ...], tuple[Expr, ...], bool]


def reads_of(stmt: Stmt) -> Iterator[Read]:
    """Buffer, box, guards and whether by address, of all a statement itself reads."""
    if isinstance(stmt, (TensorCall, ExternCall)):
        inputs, outputs = called_regions(stmt)
        for region in inputs:
            yield region.buffer, region.ranges, (), False
        if isinstance(stmt, ExternCall) or stmt.phase == UPDATE:
            for region in outputs:
                yield region.buffer, region.ranges, (), False
    elif isinstance(stmt, Update):
        for buffer in stmt.buffers:
            yield buffer, _points(stmt.index), (), False
    if prefetched(stmt) is not None:
        return  # a prefetch reads nothing
    has_select = False
    plain: list[Expr] = []
    for node in sym.walk(*stmt.exprs()):
        if isinstance(node, (Load, MaskedLoad, Address)):
            plain.append(node)
        elif isinstance(node, Select):
            has_select = True
    if not has_select:
        for node in plain:
            yield _read(node, ())
    elif plain:
        yield from _guarded_reads(stmt.exprs())


def _read(node: Expr, guards: tuple[Expr, ...]) -> Read:
    assert isinstance(node, (Load, MaskedLoad, Address))
    return node.buffer, _points(node.index), guards, isinstance(node, Address)


def _guarded_reads(roots: tuple[Expr, ...]) -> Iterator[Read]:
    """Loads, with the conditions of the selects that guard them."""
    seen: set[tuple[Expr, tuple[Expr, ...]]] = set()
    stack: list[tuple[Expr, tuple[Expr, ...]]] = [(root, ()) for root in reversed(roots)]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        node, guards = item
        if isinstance(node, Select):
            stack.append((node.b, (*guards, sym.logical_not(node.cond))))
            stack.append((node.a, (*guards, node.cond)))
            stack.append((node.cond, guards))
            continue
        if isinstance(node, (Load, MaskedLoad, Address)):
            yield _read(node, guards)
        stack.extend((child, guards) for child in reversed(node.children()))


def writes_of(stmt: Stmt) -> Iterator[tuple[Buffer, tuple[Range, ...]]]:
    """The boxes that a statement itself writes."""
    if isinstance(stmt, Store):
        yield stmt.buffer, _points(stmt.index)
    elif isinstance(stmt, Update):
        for buffer in stmt.buffers:
            yield buffer, _points(stmt.index)
    elif isinstance(stmt, (TensorCall, ExternCall)):
        for region in called_regions(stmt)[1]:
            yield region.buffer, region.ranges


def touched_buffers(stmt: Stmt) -> list[Buffer]:
    """The buffers of all that a statement itself reads and writes."""
    found = [buffer for buffer, _ in writes_of(stmt)]
    if isinstance(stmt, (TensorCall, ExternCall)):
        found += [read[0] for read in reads_of(stmt)]
    elif prefetched(stmt) is None:
        nodes = sym.walk(*stmt.exprs())
        found += [x.buffer for x in nodes if isinstance(x, (Load, MaskedLoad, Address))]
    return found


def conditions_between(path: list[Place]) -> list[Expr]:
    """The conditions under which control flows from the first place of a path to its last."""
    found = []
    for outer, inner in pairwise(path):
        if isinstance(outer.stmt, If):
            cond = outer.stmt.cond
            found.append(cond if inner.position == 0 else sym.logical_not(cond))
    return found


def context_at(access: Access, ctx: Context = sym.EMPTY) -> Context:
    """The facts that hold where an access happens."""
    path = access.place.below(None)
    for outer, inner in zip(path, [*path[1:], None], strict=True):
        stmt = outer.stmt
        if inner is None:
            break
        if isinstance(stmt, For):
            ctx = in_loop(ctx, stmt)
        elif isinstance(stmt, If):
            ctx = in_branch(ctx, stmt, taken=inner.position == 0)
        elif isinstance(stmt, Let):
            ctx = in_let(ctx, stmt)
    for guard in access.guards:
        ctx = ctx.assume(guard)
    return ctx
