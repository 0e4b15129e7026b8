"""Elementwise blocks: contiguous loops are fused and vectorized, chunks are split across threads.

    for f in parallel 0..chunks { for o in 0..n [unroll = 4] { for l in vector 0..16 { ... } } }

Loops along which all accesses are linear are fused into one. The result is contiguous along the
lanes; operands may be contiguous, broadcast, or strided. Where the innermost dimension is shorter
than a vector, outer ones are fused with it, and as many vectors are unrolled as the resulting
access pattern takes to repeat, so that every lane's address offset is static.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I8
from tilewright.base.machine import Machine
from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.gemm_model import strided_cycles
from tilewright.rules.match.nest import Access, Nest, fused, groups, is_expression, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import (
    NONE,
    Axes,
    Work,
    sharing_candidates,
    sharing_legal,
    sharing_terms,
)
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, unit
from tilewright.sym import ONE, ZERO, Const, Var
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

MAX_PATTERN_VECTORS = 6  # unrolled at most, to cover a repeating access pattern
ROWS, INNER = "rows", "inner"  # the axis split across threads: outer loops, or the innermost


@dataclass(frozen=True)
class ElementwisePlan:
    """The vectorization of a block without reductions."""

    unroll: int = unit("vectors", "per iteration of the inner loop")
    parallel: str = unit("axis", "split across threads")
    chunk: int = unit("rows or iterations", "in a thread's chunk")


@dataclass(frozen=True)
class Elementwise:
    """A block without reductions, its loops grouped into those that can be fused."""

    nest: Nest
    parts: tuple[tuple[int, ...], ...]
    lanes: int
    pattern: int  # vectors after which the access pattern repeats

    @property
    def rows(self) -> int:
        """Iterations of the loops outside of the innermost one; dynamic extents are guessed."""
        rows = 1
        for part in self.parts[:-1]:
            rows *= _guess(self.nest, part)
        return rows

    @property
    def turns(self) -> int:
        """Iterations of the innermost loop: vectors, or whole patterns of them."""
        return -(-_guess(self.nest, self.parts[-1]) // (self.lanes * self.pattern))

    def axes(self, context: RuleContext) -> Axes:
        each = costs.instance_cycles(self.nest, context.target)
        inner = _guess(self.nest, self.parts[-1])
        outer = [at for part in self.parts[:-1] for at in part]
        found: dict[str, Work] = {}
        if self.rows > 1:
            found[ROWS] = Work(self.rows, each * inner, self.nest.is_dynamic(outer))
        if self.turns > 1:
            is_dynamic = self.nest.is_dynamic(self.parts[-1])
            turn = each * self.lanes * self.pattern
            found[INNER] = Work(self.turns, turn, is_dynamic, self.rows)
        return found


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Elementwise | None:
    nest = nest_of(sch, block)
    if nest is None or not nest.loops or len(nest.spatial) != len(nest.block.iters):
        return None
    if not is_expression(nest.block):
        return None
    lanes = _lanes(nest, context)
    parts = _joined(nest, groups(nest, range(len(nest.loops))), lanes)
    inner = _extent(nest, parts[-1])
    if inner is not None:  # a vector as long as the row needs no mask
        lanes = min(lanes, inner)
    return Elementwise(
        nest, tuple(tuple(part) for part in parts), lanes, _pattern(nest, parts[-1], lanes)
    )


def _lanes(nest: Nest, context: RuleContext) -> int:
    """Lanes of the widest type's vector; several vectors where the result is narrow, to fill one of
    it."""
    lanes = costs.lanes_of(context.target, nest.block)
    written = max(region.buffer.dtype.bits for region in nest.block.writes)
    inner = _extent(nest, groups(nest, range(len(nest.loops)))[-1])
    many = lanes * costs.widest(nest.block).bits // max(I8.bits, written)
    is_whole = inner is not None and lanes > 1 and inner % many == 0
    return many if written == I8.bits and is_whole else lanes


def plans(found: Elementwise, context: RuleContext) -> Space[ElementwisePlan]:
    axes = found.axes(context)
    unrolls = unroll_candidates(found.nest, found.lanes, context.target.machine, found.pattern)
    return Space(
        ElementwisePlan,
        {"unroll": unrolls, **sharing_candidates(axes, context)},
        lambda c: sharing_legal(c, axes, context),
    )


def unroll_candidates(
    nest: Nest, lanes: int, machine: Machine, pattern: int = 1
) -> tuple[int, ...]:
    """Unroll factors in vectors: a whole pattern; else a few where the body is small, to amortize
    the loop overhead."""
    if pattern > 1:
        return (pattern,)
    is_short = lanes > 1 and costs.body_cycles(nest.block) < machine.branch_miss_cycles
    return doublings(machine.fma_latency_cycles)[::-1] if is_short else (1,)


def cost(found: Elementwise, c: Columns, context: RuleContext) -> Cost:
    nest, target = found.nest, context.target
    # An iteration ends with a branch.
    body = costs.body_cycles(nest.block) + _strided_cycles(found, context) + 1 / c["unroll"]
    loop = nest.instances / costs.lanes_of(target, nest.block) * body
    serial: Column = np.maximum(costs.nest_cycles(nest, target), loop)
    return Cost.of(**sharing_terms(c, found.axes(context), serial, context))


def _strided_cycles(found: Elementwise, context: RuleContext) -> float:
    """Extra cycles per vector for strided operands. A vector whose elements repeat, as by nearest
    interpolation, is one load and a shuffle; one that spans several rows, or whose positions are
    loaded, is loaded element by element."""
    nest, machine = found.nest, context.target.machine
    inner, total = nest.var(found.parts[-1][-1]), 0.0
    for access in nest.reads:
        if any(access.stride(nest.var(at)) is None for at in found.parts[-1]):
            is_alone = len(found.parts[-1]) == 1
            repeats = is_alone and _repeats(access, inner, found.lanes)
            total += 1 if repeats else found.lanes * machine.gather_lane_cycles
            continue
        stride = access.stride(inner)
        if not isinstance(stride, Const) or abs(int(stride.value)) <= 1:
            continue
        apart = found.lanes if found.pattern > 1 else abs(int(stride.value))
        total += strided_cycles(apart, found.lanes, machine)
    return total


def _repeats(access: Access, inner: Var, lanes: int) -> bool:
    """Whether the lanes of a vector are consecutive elements, each once or several times."""
    first = sym.mul(sym.var("vector"), lanes)
    at = (sym.substitute(access.offset, {inner: sym.add(first, lane)}) for lane in range(lanes))
    return all(sym.simplify(sym.sub(b, a)) in (ZERO, ONE) for a, b in pairwise(at))


def apply(
    sch: Schedule, found: Elementwise, plan: ElementwisePlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    loops = [fused(sch, [found.nest.loops[at] for at in part]) for part in found.parts]
    *outer, row = loops
    if plan.parallel == INNER:
        piece, row = sch.split(row, [None, plan.chunk * found.lanes * found.pattern])
        outer.append(piece)
    vectors(sch, row, found.lanes, plan.unroll, found.pattern)
    if plan.parallel != NONE:
        whole = fused(sch, outer)
        if plan.parallel == ROWS and plan.chunk > 1:
            whole, _ = sch.split(whole, [None, plan.chunk])
        sch.parallel(whole)
    return (BlockRef(found.nest.name),)


def vectors(sch: Schedule, row: LoopRef, lanes: int, unroll: int, pattern: int = 1) -> None:
    """Vectorize a loop and unroll a few vectors."""
    if lanes == 1:
        return
    if pattern > 1:
        _, step, lane = sch.split(row, [None, pattern, lanes])
        sch.vectorize(lane)
        sch.unroll(step)
        return
    step, lane = sch.split(row, [None, lanes])
    sch.vectorize(lane)
    if unroll > 1:
        sch.annotate(step, "unroll", unroll)


def _joined(nest: Nest, parts: list[list[int]], lanes: int) -> list[list[int]]:
    """The groups, with the innermost ones joined until they hold a vector."""
    while len(parts) > 1:
        inner = _extent(nest, parts[-1])
        if inner is None or 2 * inner > lanes:
            break
        joined = [*parts[:-2], [*parts[-2], *parts[-1]]]
        if _pattern(nest, joined[-1], lanes) > MAX_PATTERN_VECTORS:
            break
        parts = joined
    return parts


def _pattern(nest: Nest, part: Sequence[int], lanes: int) -> int:
    """After how many vectors the access pattern repeats, along loops that are joined but not
    linear."""
    within = groups(nest, part)
    if len(within) == 1:
        return 1
    period = 1
    for group in within[1:]:
        extent = _extent(nest, group)
        if extent is None:
            return MAX_PATTERN_VECTORS + 1
        period *= extent
    return period // gcd(period, lanes)


def _extent(nest: Nest, part: Sequence[int]) -> int | None:
    total = 1
    for at in part:
        extent = nest.extent(at)
        if not isinstance(extent, Const):
            return None
        total *= int(extent.value)
    return total


def _guess(nest: Nest, part: Sequence[int]) -> int:
    total = 1
    for at in part:
        total *= nest.guess(at)
    return total


ELEMENTWISE = Rule("elementwise", ElementwisePlan, match, plans, cost, apply)
