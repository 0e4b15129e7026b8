"""Exact boxes: precisely the elements that a block writes while the loops around it run.

    for ax0 in 0..3 { for ax1 in 0..4 {
      block T(v = y * 8 + (ax0 * 4 + ax1)) where ax0 * 4 + ax1 < 10 { T[v] = ... } } }
    written_box(T, ...)                                 T[y * 8 +: 10]

`regions.py` computes conservative boxes. Here a box is exact, or there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright import sym
from tilewright.sym import (
    ONE,
    TRUE,
    ZERO,
    Const,
    Context,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Var,
)
from tilewright.sym.affine import is_bijective, linear, split_terms
from tilewright.sym.poly import Monomial, Poly, poly_of
from tilewright.tensor.injectivity import is_injective
from tilewright.tensor.ir import (
    REDUCE,
    Block,
    ExternCall,
    For,
    Range,
    Region,
    Seq,
    Stmt,
    Store,
    TensorCall,
    Update,
)
from tilewright.tensor.regions import (
    called_regions,
    clipped,
    is_data_dependent,
    point,
    region_over,
    stop_of,
    substitute_region,
)

Ranges = dict[Var, tuple[Expr, Expr]]


def bindings_of(block: Block) -> dict[Var, Expr]:
    """Iterator -> its value as a function of the loops."""
    return {it.var: at for it, at in zip(block.iters, block.bindings, strict=True)}


def bound_region(block: Block, region: Region) -> Region:
    """A region of the block as a function of the loops around it."""
    return substitute_region(region, bindings_of(block))


def written_box(block: Block, region: Region, loops: Sequence[For], ctx: Context) -> Region | None:
    """The exact box that `block` writes through `region` while `loops` run; None if there may be
    none.

    `ctx` has the ranges of the loops around `loops`.
    """
    loose = bounding_box(block, region, loops, ctx)
    return loose if loose is None or block.predicate is TRUE else clipped(loose, ctx)


def bounding_box(block: Block, region: Region, loops: Sequence[For], ctx: Context) -> Region | None:
    """A box whose intersection with its buffer is what is written: simpler at the ends of loops."""
    if not writes_surely(block, region):
        return None
    ranges: Ranges = {}
    shift: dict[Var, Expr] = {}
    for loop in loops:
        if sym.uses_var(loop.start, ranges) or sym.uses_var(loop.stop, ranges):
            return None
        if loop.start is not ZERO:
            shift[loop.var] = sym.add(loop.var, loop.start)
        ranges[loop.var] = (ZERO, loop.extent)
    box = substitute_region(bound_region(block, region), shift)
    conditions = [
        cond
        for cond in sym.conjuncts(sym.substitute(block.predicate, shift))
        if not _keeps_inside(cond, box) and not _limits_reduction(cond, block)
    ]
    restricted = _restricted(box, conditions, ranges, ctx)
    if restricted is None:
        return None
    box, ranges = restricted
    return _image(box, ranges, ctx)


def _limits_reduction(cond: Expr, block: Block) -> bool:
    """Whether a condition only restricts reduction iterators: an empty reduction still writes its
    identity."""
    if block.init is None:
        return False
    spatial: set[Var] = set()
    reduce: set[Var] = set()
    for it, binding in zip(block.iters, block.bindings, strict=True):
        (reduce if it.kind == REDUCE else spatial).update(sym.free_vars(binding))
    return sym.uses_var(cond, reduce) and not sym.uses_var(cond, spatial)


def writes_surely(block: Block, region: Region) -> bool:
    """Whether every instance of the block writes all of its declared region."""
    if sum(other.buffer is region.buffer for other in block.writes) != 1:
        return False
    ctx = sym.EMPTY.bind_all({it.var: (ZERO, it.extent) for it in block.iters})
    stack: list[tuple[Stmt, tuple[For, ...]]] = [(block.body, ())]
    while stack:
        stmt, loops = stack.pop()
        if isinstance(stmt, Seq):
            stack.extend((child, loops) for child in stmt.stmts)
        elif isinstance(stmt, For):
            stack.append((stmt.body, (*loops, stmt)))
        elif any(_fills(written, region, loops, stmt, ctx) for written in _written(stmt)):
            return True
    return False


def _written(stmt: Stmt) -> Sequence[Region]:
    """The regions that a statement writes unconditionally."""
    if isinstance(stmt, Store):
        return () if stmt.mask is not None else (point(stmt.buffer, stmt.index),)
    if isinstance(stmt, Update):
        return tuple([point(buffer, stmt.index) for buffer in stmt.buffers])
    if isinstance(stmt, (TensorCall, ExternCall)):
        return called_regions(stmt)[1]
    return stmt.writes if isinstance(stmt, Block) else ()


def _fills(written: Region, region: Region, loops: Sequence[For], stmt: Stmt, ctx: Context) -> bool:
    """Whether a statement inside of the block's own loops writes all of the region."""
    if written.buffer is not region.buffer:
        return False
    if isinstance(stmt, Block):
        made = bounding_box(stmt, written, loops, ctx)
        return made is not None and contains(made, region, ctx)
    if isinstance(stmt, (Store, Update)) and any(map(is_data_dependent, stmt.index)):
        return False  # `point` takes such a dimension whole, one element of it is written
    made = _image(written, {loop.var: (loop.start, loop.stop) for loop in loops}, ctx)
    return made is not None and contains(made, region, ctx)


def _keeps_inside(cond: Expr, box: Region) -> bool:
    """Whether a condition is just the bounds check of the element written."""
    if not isinstance(cond, (Lt, Le)):
        return False
    gap = poly_of(cond.b).plus(poly_of(cond.a), -1).shifted(-1 if isinstance(cond, Lt) else 0)
    for r, dim in zip(box.ranges, box.buffer.shape, strict=True):
        start = poly_of(r.start)
        behind = poly_of(dim).plus(start, -1).shifted(-1)
        if r.extent is ONE and (gap.same(start) or gap.same(behind)):
            return True
    return False


def _image(box: Region, ranges: Ranges, ctx: Context) -> Region | None:
    """The box touched over the variables' ranges, if it has no gaps."""
    if not ranges:
        return box
    if _counts_all(box, ranges, ctx):
        return region_over(box, ranges, ctx)
    inner = ctx.bind_all(ranges)
    indices: list[Expr] = []
    extents: dict[Var, Expr] = {}
    for r in box.ranges:
        start = sym.simplify(r.start, inner)
        if r.extent is not ONE:  # a tile: one more digit
            if sym.uses_var(r.extent, ranges):
                return None
            digit = sym.var("x")
            extents[digit] = r.extent
            start = sym.add(start, digit)
        indices.append(start)
    zeros = {}
    for variable, (first, stop) in ranges.items():
        if any(sym.uses_var(index, {variable}) for index in indices):
            extents[variable] = sym.sub(stop, first)
            if first is not ZERO:
                zeros[variable] = sym.add(variable, first)
    if not is_bijective([sym.substitute(index, zeros) for index in indices], extents, ctx):
        return None
    return region_over(box, ranges, ctx)


def _counts_all(box: Region, ranges: Ranges, ctx: Context) -> bool:
    """Whether all indices are digits of one number that counts through the loops: what a fused
    loop, split again by other factors, was before. Simplified by itself, each digit would depend
    on other parts of that number."""
    if not box.ranges:  # a scalar
        return False
    number = _dividend(box.ranges[0].start)
    if any(r.extent is not ONE or _dividend(r.start) is not number for r in box.ranges):
        return False
    if isinstance(number, Var) or any(first is not ZERO for first, _ in ranges.values()):
        return False
    zeros: dict[Var, Expr] = dict.fromkeys(ranges, ZERO)
    if sym.simplify(sym.substitute(number, zeros)) is not ZERO:
        return False  # it begins elsewhere, and may carry
    extents = {variable: stop for variable, (_, stop) in ranges.items()}
    if not is_bijective((number,), extents, ctx):
        return False
    count: Expr = ONE
    for extent in extents.values():
        count = sym.mul(count, extent)
    whole = sym.var("counted")
    digits = [_with_dividend(r.start, whole) for r in box.ranges]
    return is_bijective(digits, {whole: count}, ctx)


def _dividend(index: Expr) -> Expr:
    """What an index is a quotient or a remainder of."""
    while isinstance(index, (FloorDiv, FloorMod)):
        index = index.a
    return index


def _with_dividend(index: Expr, number: Expr) -> Expr:
    if isinstance(index, FloorDiv):
        return sym.floordiv(_with_dividend(index.a, number), index.b)
    if isinstance(index, FloorMod):
        return sym.floormod(_with_dividend(index.a, number), index.b)
    return number


# --------------------------------------------------------------------------- predicates


@dataclass(slots=True)
class _Digit:
    """A sum of variables that ranges over 0..count, restricted by the predicate to least..limit."""

    total: Expr
    variables: dict[Var, Expr]  # with their scales
    least: Expr
    limit: Expr


def _restricted(
    box: Region, conditions: Sequence[Expr], ranges: Ranges, ctx: Context
) -> tuple[Region, Ranges] | None:
    """The region with conditions folded into the ranges of fewer variables.

    A condition such as `a * 4 + b < 10` replaces the sum by one variable that ranges over 0..10, if
    the region uses a and b in no other way.
    """
    if not conditions:
        return box, ranges
    inner = ctx.bind_all(ranges)
    digits: dict[tuple[Var, ...], _Digit] = {}
    for cond in conditions:
        if not sym.prove(cond, inner) and not _note(cond, ranges, ctx, digits):
            return None
    if not digits:
        return box, ranges
    taken = [variable for digit in digits.values() for variable in digit.variables]
    if len(set(taken)) != len(taken):
        return None
    left = {v: span for v, span in ranges.items() if v not in taken}
    mapping: dict[Var, Expr] = {}
    for digit in digits.values():
        unit = next((v for v, scale in digit.variables.items() if scale is ONE), None)
        if unit is None:
            return None
        whole = sym.var(unit.name)
        left[whole] = (sym.simplify(digit.least, ctx), sym.simplify(digit.limit, ctx))
        others = sym.simplify(sym.sub(digit.total, unit))
        mapping[unit] = sym.sub(whole, others)
    narrow = ctx.bind_all({**ranges, **left})
    replaced = substitute_region(box, mapping)
    starts = [sym.simplify(r.start, narrow) for r in replaced.ranges]
    gone = set(taken)
    if any(sym.uses_var(start, gone) for start in starts):
        return None
    for variable, (least, limit) in left.items():
        # A condition on variables that the region does not depend on may prevent the write
        # altogether.
        moves = any(sym.uses_var(start, {variable}) for start in starts)
        if variable not in ranges and not moves and not sym.prove(sym.lt(least, limit), ctx):
            return None
    kept = [Range(start, r.extent) for start, r in zip(starts, replaced.ranges, strict=True)]
    return Region(box.buffer, tuple(kept)), left


def _note(cond: Expr, ranges: Ranges, ctx: Context, digits: dict[tuple[Var, ...], _Digit]) -> bool:
    """Take a condition into account; False if it is not a bound on one sum of loop variables."""
    if not isinstance(cond, (Lt, Le)):
        return False
    gap = sym.sub(cond.b, cond.a)  # > 0 or >= 0
    parts = split_terms(sym.simplify(gap), ranges)
    if parts is None:
        return False
    outer, moving = parts
    found = linear(moving, ranges)
    if found is None or not found[0]:
        return False
    scales, _ = found
    rises = all(sym.prove(sym.lt(0, scale), ctx) for scale in scales.values())
    if not rises:
        moving = sym.simplify(sym.mul(moving, -1))
        scales = {v: sym.simplify(sym.mul(scale, -1)) for v, scale in scales.items()}
        if not all(sym.prove(sym.lt(0, scale), ctx) for scale in scales.values()):
            return False
    extents = {v: sym.sub(ranges[v][1], ranges[v][0]) for v in scales}
    if not is_bijective((moving,), extents, ctx):
        return False
    key = tuple(scales)
    digit = digits.get(key)
    if digit is None:
        count: Expr = ONE
        for extent in extents.values():
            count = sym.mul(count, extent)
        digit = digits[key] = _Digit(moving, scales, ZERO, count)
    elif digit.total is not moving:
        return False
    strict = isinstance(cond, Lt)
    if rises:  # outer + total > 0: total >= 1 - outer
        digit.least = sym.maximum(digit.least, sym.sub(ONE if strict else ZERO, outer))
    else:  # outer - total > 0: total < outer
        digit.limit = sym.minimum(digit.limit, outer if strict else sym.add(outer, 1))
    return True


# --------------------------------------------------------------------------- coverage


def read_box(block: Block, region: Region, loops: Sequence[For], ctx: Context) -> Region:
    """A box that contains all that `block` reads through `region` while `loops` run."""
    ranges: Ranges = {loop.var: (loop.start, loop.stop) for loop in loops}
    box = bound_region(block, region)
    if block.predicate is not TRUE and all(start is ZERO for start, _ in ranges.values()):
        conditions = [cond for cond in sym.conjuncts(block.predicate) if sym.uses_var(cond, ranges)]
        restricted = _restricted(box, conditions, ranges, ctx)
        if restricted is not None:
            box, ranges = restricted
    return clipped(region_over(box, ranges, ctx), ctx)


def covers(
    writer: Block,
    written: Region,
    writer_loops: Sequence[For],
    reader: Block,
    read: Region,
    reader_loops: Sequence[For],
    ctx: Context,
) -> bool:
    """Whether all that the reader's loops read has certainly been written by the writer's loops.
    `ctx` has the ranges of the loops around both."""
    made = bounding_box(writer, written, writer_loops, ctx)
    if made is None:
        return False
    ranges = {loop.var: (loop.start, loop.stop) for loop in reader_loops}
    needed = region_over(bound_region(reader, read), ranges, ctx)
    if _same_starts(made, needed) and contains(made, needed, ctx):
        return True
    return contains(clipped(made, ctx), clipped(needed, ctx), ctx)


def _same_starts(a: Region, b: Region) -> bool:
    return all(x.start is y.start for x, y in zip(a.ranges, b.ranges, strict=True))


def contains(outer: Region, inner: Region, ctx: Context) -> bool:
    """Whether `inner` is certainly inside of `outer`."""
    return all(
        at_most(x.start, y.start, ctx) and at_most(stop_of(y), stop_of(x), ctx)
        for x, y in zip(outer.ranges, inner.ranges, strict=True)
    )


def at_most(a: Expr, b: Expr, ctx: Context) -> bool:
    """Whether a <= b certainly; bounds with min, max and floor division are decomposed.

    For f > 0, rest + f min(p, q) >= 0 iff rest + f p >= 0 and rest + f q >= 0; rest - f min(p, q)
    >= 0 iff rest - f p >= 0 or rest - f q >= 0; max vice versa. rest - x // c >= 0 iff rest * c + c
    - 1 - x >= 0; rest + x // c >= 0 iff rest * c + x >= 0, for a constant c > 0.
    """
    if sym.prove(sym.le(a, b), ctx):
        return True
    gap = poly_of(sym.simplify(sym.sub(b, a), ctx))
    return any(map(_can_split, gap.terms.items())) and _is_natural(gap, ctx, 4)


def _can_split(term: tuple[Monomial, int]) -> bool:
    atom, factor = term
    if isinstance(atom, FloorDiv):
        return factor in (1, -1) and isinstance(atom.b, Const) and atom.b.value > 0
    return isinstance(atom, (Min, Max))


def _is_natural(gap: Poly, ctx: Context, depth: int) -> bool:
    if sym.prove(sym.le(0, gap.expr()), ctx):
        return True
    # Where both cases are needed, each may need another case of the rest: these come first.
    splits = sorted(filter(_can_split, gap.terms.items()), key=lambda term: not _needs_both(*term))
    if not splits or not depth:
        return False
    atom, factor = splits[0]
    rest = gap.without(atom)
    if isinstance(atom, FloorDiv):
        divisor = atom.b
        assert isinstance(divisor, Const)
        by = int(divisor.value)
        slack = 0 if factor > 0 else by - 1
        return _is_natural(
            rest.scaled(by).plus(poly_of(atom.a), factor).shifted(slack), ctx, depth - 1
        )
    assert isinstance(atom, (Min, Max))
    ends = (atom.a, atom.b)
    cases = (_is_natural(rest.plus(poly_of(end), factor), ctx, depth - 1) for end in ends)
    return all(cases) if _needs_both(atom, factor) else any(cases)


def _needs_both(atom: Monomial, factor: int) -> bool:
    """Whether a sum is natural with a minimum or maximum only if it is with either of its ends."""
    return isinstance(atom, Min if factor > 0 else Max)


def are_disjoint(region: Region, ranges: Mapping[Var, tuple[Expr, Expr]], ctx: Context) -> bool:
    """Whether the boxes for different values of the variables are certainly disjoint."""
    inner = ctx.bind_all(ranges)
    places: list[Expr] = []
    for r in region.ranges:
        if r.extent is ONE:
            places.append(r.start)
            continue
        # Boxes that start at multiples of their extent, relative to a common origin.
        rest = sym.simplify(sym.floormod(r.start, r.extent), inner)
        if not sym.uses_var(r.extent, ranges) and not sym.uses_var(rest, ranges):
            places.append(sym.floordiv(r.start, r.extent))
    return is_injective(places, ranges, ctx)
