"""What rules read off a block: its loops, and the strides of its accesses.

The stride of an access along an iterator is the distance in memory, in elements, between successive
values of it. It decides which loop is vectorized, and which neighbouring loops can be fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilewright import sym
from tilewright.base.extents import ASSUMED, likely_extent
from tilewright.sym import ONE, ZERO, Const, Expr, Select, Size, Var
from tilewright.tensor.ir import (
    REDUCE,
    SERIAL,
    SPATIAL,
    Block,
    Buffer,
    For,
    Function,
    Load,
    Seq,
    Store,
    Update,
)
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.schedule.analysis.tree import find_block
from tilewright.tensor.visit import blocks, exprs, walk


@dataclass(frozen=True)
class Access:
    """A read or write of a block: a buffer and an offset in elements."""

    buffer: Buffer
    offset: Expr
    is_write: bool

    def stride(self, var: Var) -> Expr | None:
        """The distance between successive values of an iterator; None if it is not constant."""
        if not sym.uses_var(self.offset, {var}):
            return ZERO
        found = sym.linear(self.offset, (var,))
        return None if found is None else found[0].get(var, ZERO)


@dataclass(frozen=True)
class Nest:
    """A block with its own loops: the innermost ones around it, one per iterator."""

    block: Block
    loops: dict[int, LoopRef]  # position of an iterator -> its loop
    # The likely value of dynamic sizes with a known range.
    likely: Mapping[Var, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.block.name

    def of_kind(self, kind: str) -> list[int]:
        """The iterators of a kind that have loops."""
        return [at for at in self.loops if self.block.iters[at].kind == kind]

    @property
    def spatial(self) -> list[int]:
        return self.of_kind(SPATIAL)

    @property
    def reduce(self) -> list[int]:
        return self.of_kind(REDUCE)

    def var(self, at: int) -> Var:
        return self.block.iters[at].var

    def extent(self, at: int) -> Expr:
        return self.block.iters[at].extent

    def guess(self, at: int) -> int:
        """The extent, or what is assumed of a dynamic one."""
        return self.assumed(at, ASSUMED.elements)

    def assumed(self, at: int, unknown: int) -> int:
        """The extent; for a dynamic one, the likely value in its range, or `unknown` without a
        range."""
        return assumed(self.extent(at), unknown, self.likely)

    def positions(self, at: int) -> int:
        """The extent of a spatial axis of an image. Dynamic ones are evaluated with one assumed
        image size, so that successive layers divide the same number."""
        return self.computed(at, ASSUMED.image_pixels)

    def computed(self, at: int, unknown: int) -> int:
        """The extent, evaluated with likely values of dynamic sizes, or `unknown` for those without
        any. If that is too small for one window, with the square of `unknown`: audio has more
        samples than an image has rows."""
        extent = self.extent(at)
        for number in (unknown, unknown**2):
            sizes = {size: self.likely.get(size, number) for size in sym.free_vars(extent)}
            made = int(sym.evaluate(extent, sizes))
            if made > 0:
                return made
        return 1

    @cached_property
    def summed_share(self) -> float:
        """The share of a reduction's instances whose condition holds; others add nothing."""
        value = self.block.body.values[0] if isinstance(self.block.body, Update) else None
        if not isinstance(value, Select):
            return 1.0
        used = sym.free_vars(value.cond)
        extents = {self.var(at): self.guess(at) for at in self.loops if self.var(at) in used}
        sizes = {v: self.likely.get(v, ASSUMED.elements) for v in used if v not in extents}
        return sym.share_where(value.cond, extents, sizes)

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        return tuple(accesses_of(self.block))

    @property
    def writes(self) -> list[Access]:
        return [access for access in self.accesses if access.is_write]

    @property
    def reads(self) -> list[Access]:
        return [access for access in self.accesses if not access.is_write]

    def is_dynamic(self, positions: Sequence[int]) -> bool:
        """Whether some of these extents are dynamic."""
        return not all(isinstance(self.extent(at), Const) for at in positions)

    def has_range(self, positions: Sequence[int]) -> bool:
        """Whether all dynamic sizes in these extents have a likely value."""
        sizes = sym.free_vars(*(self.extent(at) for at in positions))
        return all(size in self.likely for size in sizes)

    def touched(self, buffer: Buffer) -> int:
        """The elements of a buffer that all iterations touch, at most: of a slice not all of it."""
        own = [access.offset for access in self.accesses if access.buffer is buffer]
        used = {at for at in self.loops if any(sym.uses_var(each, {self.var(at)}) for each in own)}
        whole = [int(dim.value) for dim in buffer.shape if isinstance(dim, Const)]
        count = math.prod(self.guess(at) for at in used)
        return min(count, math.prod(whole)) if len(whole) == buffer.rank else count

    @property
    def instances(self) -> int:
        total = 1
        for at in self.loops:
            total *= self.guess(at)
        return total


def total(nest: Nest, part: Sequence[int]) -> int:
    """The product of some iterators' extents; dynamic ones are guessed."""
    out = 1
    for at in part:
        out *= nest.guess(at)
    return out


def guess(extent: Expr, likely: Mapping[Var, int]) -> int:
    """An extent, or what is assumed of a dynamic one."""
    return assumed(extent, ASSUMED.elements, likely)


def assumed(extent: Expr, unknown: int, likely: Mapping[Var, int]) -> int:
    """An extent as a number; dynamic sizes have their likely value or the assumed one."""
    if isinstance(extent, Const):
        return int(extent.value)
    sizes = sym.free_vars(extent)
    if not likely or not all(size in likely for size in sizes):
        return unknown
    return max(1, int(sym.evaluate(extent, {size: likely[size] for size in sizes})))


def likely_sizes(fn: Function) -> dict[Var, int]:
    """Likely values of sizes that a function bounds from both sides."""
    least: dict[Var, int] = {}
    most: dict[Var, int] = {}
    for cond in fn.requires:
        match cond:
            case sym.Le(Const() as low, Size() as size):
                least[size] = max(least.get(size, 0), int(low.value))
            case sym.Le(Size() as size, Const() as high):
                most[size] = min(most.get(size, int(high.value)), int(high.value))
    return {size: likely_extent(least[size], most[size]) for size in most if size in least}


def accesses_of(block: Block) -> Iterator[Access]:
    """Every access in a block's body, writes first."""
    for stmt in walk(block.body):
        if isinstance(stmt, Store):
            yield Access(stmt.buffer, offset_of(stmt.buffer, stmt.index), True)
        elif isinstance(stmt, Update):
            for buffer in stmt.buffers:
                yield Access(buffer, offset_of(buffer, stmt.index), True)
    for expr in exprs(block.body):
        if isinstance(expr, Load):
            yield Access(expr.buffer, offset_of(expr.buffer, expr.index), False)


def offset_of(buffer: Buffer, index: Sequence[Expr]) -> Expr:
    offset: Expr = ZERO
    for dim, at in zip(buffer.shape, index, strict=True):
        offset = sym.add(sym.mul(offset, dim), at)
    return offset


def block_of(fn: Function, name: str) -> Block:
    path = find_block(fn, name)
    assert path is not None
    block = path[-1]
    assert isinstance(block, Block)
    return block


def nest_of(sch: Schedule, reference: BlockRef) -> Nest | None:
    """The block and its loops, if it is not scheduled yet and shares its loops with no other
    block."""
    path = find_block(sch.function, reference.name)
    assert path is not None
    block = path[-1]
    assert isinstance(block, Block)
    loops = [stmt for stmt in path[:-1] if isinstance(stmt, For)]
    if [loop.var for loop in loops] != list(block.bindings):
        return None
    if any(loop.kind != SERIAL or loop.start is not ZERO for loop in loops):
        return None
    if loops and sum(1 for _ in blocks(loops[0])) != 1:
        return None
    if any(isinstance(stmt, Block) for stmt in path[:-1]):
        return None
    return Nest(block, dict(enumerate(sch.get_loops(reference))), likely_sizes(sch.function))


def inner_nest(sch: Schedule, reference: BlockRef, depth: int) -> Nest | None:
    """A block under `depth` loops that it shares with others, with its own loops inside of them."""
    block = block_of(sch.function, reference.name)
    loops: dict[int, LoopRef] = {}
    for loop in sch.get_loops(reference)[depth:]:
        found = [at for at, b in enumerate(block.bindings) if sym.uses_var(b, {loop.var})]
        if len(found) > 1 or any(at in loops for at in found):
            return None
        for at in found:
            loops[at] = loop
    return Nest(block, loops, likely_sizes(sch.function))


def loop_extents(sch: Schedule, reference: BlockRef) -> list[Expr]:
    """The extents of the loops around a block, outermost first."""
    path = find_block(sch.function, reference.name)
    assert path is not None
    return [stmt.extent for stmt in path if isinstance(stmt, For)]


def is_expression(block: Block) -> bool:
    """Whether the body only stores expressions, without loops or conditions of its own."""
    return all(isinstance(stmt, (Store, Update, Seq)) for stmt in walk(block.body))


# ------------------------------------------------------------------------------------ contiguity


def can_fuse(nest: Nest, outer: int, inner: int) -> bool:
    """Whether two neighbouring loops can be one: every access is linear in the fused index."""
    for access in nest.accesses:
        far, near = access.stride(nest.var(outer)), access.stride(nest.var(inner))
        if far is None or near is None:
            return False
        if far is near is ZERO:
            continue
        if not sym.equal(far, sym.mul(near, nest.extent(inner))):
            return False
    return True


def groups(nest: Nest, order: Sequence[int]) -> list[list[int]]:
    """Neighbouring iterators grouped into loops that can be fused; extents of 1 join any group.

    At most two dynamic extents are fused: divisions by products of them are hard to simplify.
    """
    found: list[list[int]] = []
    for at in reversed(order):
        if found and _joins(nest, at, found[0]):
            found[0].insert(0, at)
        else:
            found.insert(0, [at])
    return found


def _joins(nest: Nest, at: int, group: Sequence[int]) -> bool:
    """Whether a loop may be fused with the group right inside of it."""
    kept = [each for each in group if nest.extent(each) is not ONE]
    if not kept or nest.extent(at) is ONE:
        return True
    if len(kept) > 1 and not all(isinstance(nest.extent(each), Const) for each in kept):
        return False
    return can_fuse(nest, at, kept[0])


# ------------------------------------------------------------------------------------ primitives


def attempt(sch: Schedule, step: Callable[..., Any], *args: Any) -> bool:
    """Apply an optional primitive; returns whether it was legal."""
    return sch.attempt(step, *args)


def fused(sch: Schedule, loops: Sequence[LoopRef]) -> LoopRef:
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]
