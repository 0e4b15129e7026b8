"""What rules read off a block: its loops, and how far apart its accesses are.

The stride of an access along an iterator is the distance in memory between two neighbouring
values of it; it decides which loop becomes lanes, and which loops are one loop in truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilewright import sym
from tilewright.graph.rates import NOMINAL
from tilewright.sym import ONE, ZERO, Const, Expr, Size, Var
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

# What is dynamic counts as, in estimates: any extent (as in the graph), and sizes known to be
DYNAMIC_EXTENT = NOMINAL
DYNAMIC_SPATIAL = 224  # positions of an image along an axis
DYNAMIC_SEQUENCES = 4  # sequences that are worked on together


@dataclass(frozen=True)
class Access:
    """A place that a block reads or writes: an offset in elements."""

    buffer: Buffer
    offset: Expr
    is_write: bool

    def stride(self, var: Var) -> Expr | None:
        """The distance between neighbours along an iterator; None if it is not the same for all."""
        if not sym.uses_var(self.offset, {var}):
            return ZERO
        found = sym.linear(self.offset, (var,))
        return None if found is None else found[0].get(var, ZERO)


@dataclass(frozen=True)
class Nest:
    """A block, and the loops of its own around it: the innermost ones, one per iterator."""

    block: Block
    loops: dict[int, LoopRef]  # position of an iterator -> the loop that runs through it
    likely: Mapping[Var, int] = field(default_factory=dict)  # sizes whose range is known

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
        return self.assumed(at, DYNAMIC_EXTENT)

    def assumed(self, at: int, unknown: int) -> int:
        """The extent; of a dynamic one, what is likely in its range, or a number without any."""
        return assumed(self.extent(at), unknown, self.likely)

    def positions(self, at: int) -> int:
        """The extent of an axis of an image; of dynamic ones, layers that follow one another divide
        the same size."""
        return self.computed(at, DYNAMIC_SPATIAL)

    def computed(self, at: int, unknown: int) -> int:
        """The extent, computed from what is likely of dynamic sizes, or from a number; from its
        square where that is too short for one window: a signal has more samples than images rows.
        """
        extent = self.extent(at)
        for number in (unknown, unknown**2):
            sizes = {size: self.likely.get(size, number) for size in sym.free_vars(extent)}
            made = int(sym.evaluate(extent, sizes))
            if made > 0:
                return made
        return 1

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
        """Whether the extent of some iterators is known at run time only."""
        return not all(isinstance(self.extent(at), Const) for at in positions)

    @property
    def instances(self) -> int:
        total = 1
        for at in self.loops:
            total *= self.guess(at)
        return total


def total(nest: Nest, part: Sequence[int]) -> int:
    """The number of combinations of some iterators; dynamic extents are guessed."""
    out = 1
    for at in part:
        out *= nest.guess(at)
    return out


def guess(extent: Expr) -> int:
    return assumed(extent, DYNAMIC_EXTENT, {})


def assumed(extent: Expr, unknown: int, likely: Mapping[Var, int]) -> int:
    """An extent in numbers: as it is, for likely sizes, or what an unknown one counts as."""
    if isinstance(extent, Const):
        return int(extent.value)
    sizes = sym.free_vars(extent)
    if not likely or not all(size in likely for size in sizes):
        return unknown
    return max(1, int(sym.evaluate(extent, {size: likely[size] for size in sizes})))


def likely_sizes(fn: Function) -> dict[Var, int]:
    """Sizes that a function bounds from both sides, each with the middle of its range.

    Ranges reach over orders of magnitude, and all of them count alike: the middle is the geometric
    one.
    """
    least: dict[Var, int] = {}
    most: dict[Var, int] = {}
    for cond in fn.requires:
        match cond:
            case sym.Le(Const() as low, Size() as size):
                least[size] = max(least.get(size, 0), int(low.value))
            case sym.Le(Size() as size, Const() as high):
                most[size] = min(most.get(size, int(high.value)), int(high.value))
    return {
        size: round(math.sqrt(max(1, least[size]) * max(1, most[size])))
        for size in most
        if size in least
    }


def accesses_of(block: Block) -> Iterator[Access]:
    """Every place that the body of a block touches, the written ones first."""
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
    """The block and its loops, if nobody has scheduled it and no other block shares them."""
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
    """A block under `depth` loops that it shares with others, and the loops of its own there."""
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
    """Whether the body stores expressions, without loops or conditions of its own."""
    return all(isinstance(stmt, (Store, Update, Seq)) for stmt in walk(block.body))


# ------------------------------------------------------------------------------------ contiguity


def can_fuse(nest: Nest, outer: int, inner: int) -> bool:
    """Whether two neighbouring loops walk over memory like one, in every access."""
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
    """Neighbours among the iterators that are one loop in truth; those of extent 1 join any.

    Of dynamic extents only two become one: quotients by products of them are hard to see
    through later.
    """
    found: list[list[int]] = []
    for at in reversed(order):
        if found and _joins(nest, at, found[0]):
            found[0].insert(0, at)
        else:
            found.insert(0, [at])
    return found


def _joins(nest: Nest, at: int, group: Sequence[int]) -> bool:
    """Whether a loop may join those right inside of it."""
    kept = [each for each in group if nest.extent(each) is not ONE]
    if not kept or nest.extent(at) is ONE:
        return True
    if len(kept) > 1 and not all(isinstance(nest.extent(each), Const) for each in kept):
        return False
    return can_fuse(nest, at, kept[0])


# ------------------------------------------------------------------------------------ steps


def attempt(sch: Schedule, step: Callable[..., Any], *args: Any) -> bool:
    """Apply a step that only makes things faster, if it is legal here."""
    return sch.attempt(step, *args)


def fused(sch: Schedule, loops: Sequence[LoopRef]) -> LoopRef:
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]
