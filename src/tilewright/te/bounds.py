"""Check that index expressions are in bounds, symbolically over a block's domain, as in Halide.

A read proved to be in bounds needs no check; one proved to be out of bounds is an error. Otherwise
the minimum and maximum of the index over the domain give conditions on the sizes, which are checked
at function entry. Conditions of an enclosing `select` are assumed. An index that is itself read
from memory cannot be checked at entry: clamps and conditions must bound it, or the program is
rejected.

    C[y, x] = sum of A[k, y] * B[k, x],  A: (m, h), k in 0..h, y in 0..m        h <= m, m <= h
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.base.errors import UserTypeError
from tilewright.base.loc import Loc
from tilewright.sym import ZERO, Const, Context, Expr, Size, Var
from tilewright.te.guards import Guards, guarded
from tilewright.te.source import value_error
from tilewright.tensor.ir import Call, Iter, Load
from tilewright.tensor.regions import is_data_dependent

Domain = dict[Var, tuple[Expr, Expr]]

TRIED_PLACES = 1 << 16  # index values enumerated to decide reachability, if nothing else does


@dataclass(frozen=True, slots=True)
class Stage:
    """A block to be checked: its iterators, with their names in the user's program."""

    name: str
    iters: tuple[Iter, ...]
    axes: Mapping[Var, Expr]  # iterator -> its value in terms of the axes
    loc: Loc

    def spoken(self, expr: Expr) -> str:
        """The expression in terms of the user's axes."""
        text = str(sym.simplify(sym.substitute(expr, self.axes)))
        return re.sub(r"%(?=[A-Za-z_])", "", text)


class EntryChecks:
    """The conditions on sizes so far; each may assume the earlier ones."""

    def __init__(self) -> None:
        self._conditions: list[Expr] = []
        self.ctx = Context()

    @property
    def requires(self) -> tuple[Expr, ...]:
        """The conditions to check at entry, without redundant ones."""
        kept = list(self._conditions)
        for cond in reversed(self._conditions):
            others = [other for other in kept if other is not cond]
            if sym.prove(cond, _assuming(Context(), others)):
                kept = others
        return tuple(kept)

    def add(self, cond: Expr) -> None:
        """Add a condition, unless it is implied by the others."""
        for part in sym.conjuncts(cond):
            if not sym.prove(part, self.ctx):
                self._conditions.append(part)
                self.ctx = self.ctx.assume(part)

    # ------------------------------------------------------------------ shapes

    def add_shape(self, what: str, shape: Iterable[Expr], loc: Loc, *, given: bool) -> None:
        """Require that dimensions are nonnegative; those of arguments (`given`) are assumed to
        be."""
        for dim in shape:
            for part in sym.walk(dim):
                if _is_index_division(part):
                    self._add_divisor(Stage(what, (), {}, loc), part.children()[1], self.ctx, ())
            if sym.prove(sym.le(ZERO, dim), self.ctx):
                continue
            if given:  # a dimension of an array argument, checked against its actual shape first
                self.ctx = self.ctx.assume(sym.le(ZERO, dim))
                continue
            if sym.prove(sym.lt(dim, ZERO), self.ctx):
                raise value_error("TW2402", f"a dimension of {what} is {dim}, below zero", loc=loc)
            self.add(_at_most(ZERO, dim, self.ctx))

    def add_steps(self, name: str, steps: Expr, total: Expr, loc: Loc) -> None:
        """Require that a scan has at least as many steps as its init."""
        if sym.prove(sym.lt(total, steps), self.ctx):
            raise value_error(
                "TW2415", f"{name} has {total} steps, its init gives {steps}", loc=loc
            )
        self.add(_at_most(steps, total, self.ctx))

    # ------------------------------------------------------------------ accesses

    def add_reads(self, stage: Stage, exprs: tuple[Expr, ...]) -> None:
        """Require that the reads in `exprs` are in bounds for all iterators in their domains."""
        iters = stage.iters
        if any(isinstance(it.extent, Const) and it.extent.value <= 0 for it in iters):
            return  # empty domain
        domain: Domain = {it.var: (ZERO, it.extent) for it in iters}
        extents = tuple([it.extent for it in iters])
        for part, guards in guarded(*exprs):
            if isinstance(part, Load):
                for axis in range(len(part.index)):
                    self._add_read(stage, part, axis, domain, guards)
            elif _is_index_division(part):
                ctx = _assuming(self.ctx.bind_all(domain), guards)
                self._add_divisor(stage, part.children()[1], ctx, extents)

    def _add_read(
        self, stage: Stage, load: Load, axis: int, domain: Domain, guards: Guards
    ) -> None:
        index, dim = load.index[axis], load.buffer.shape[axis]
        if isinstance(index, Var) and index in domain and domain[index][1] is dim:
            return  # A[i], where i ranges over that dimension
        from_memory = is_data_dependent(index)
        known = _integer_facts(index, guards) if from_memory else guards
        inside = _assuming(self.ctx.bind_all(domain), (*known, *self._factors(domain)))
        above = sym.prove(sym.le(ZERO, index), inside)
        below = sym.prove(sym.lt(index, dim), inside)
        if above and below:
            return
        if from_memory:
            _refuse_data(stage, load, axis)
        if _is_unsatisfiable(guards, index, domain):
            return
        tightened = _narrowed(domain, guards, self.ctx)
        found = sym.symbolic_bounds(index, tightened, self.ctx)
        if found is None:
            raise value_error(
                "TW2421",
                f"cannot tell whether {stage.name} reads inside {load.buffer.name}: no bounds are "
                f"known for index {axis} of {stage.spoken(load)}",
                loc=stage.loc,
                help=_guard_help(stage.spoken(index), dim),
            )
        first, last = found
        wanted = []
        if not above:
            wanted.append(_at_most(ZERO, first, self.ctx))
        if not below:
            wanted.append(_at_most(sym.add(last, 1), dim, self.ctx))
        running = [sym.le(1, stop) for _, stop in domain.values()]
        nonempty = _assuming(self.ctx, running)
        for cond in wanted:
            if sym.prove(sym.logical_not(cond), nonempty):
                exact = not guards and _is_affine(index, domain)
                _refuse_read(stage, load, axis, found, exact)
        for cond in wanted:
            if not self._holds_unless_empty(cond, dim, domain):
                self.add(cond)

    def _factors(self, domain: Domain) -> list[Expr]:
        """Nonzero factors of loop extents that are products, given that the loops run. Sizes are
        omitted."""
        found: list[Expr] = []
        for _, stop in domain.values():
            factors = [part for part in _factors_of(stop) if not isinstance(part, (Const, Size))]
            if all(sym.prove(sym.le(ZERO, factor), self.ctx) for factor in factors):
                found += [sym.le(1, factor) for factor in factors if factor is not stop]
        return found

    def _holds_unless_empty(self, cond: Expr, dim: Expr, domain: Domain) -> bool:
        """Whether a condition can fail only where a size is zero and the loops are empty."""
        for size in sym.free_vars(dim):
            if not isinstance(size, Size):
                continue
            stops = [_end_if_zero(size, stop) for _, stop in domain.values()]
            idle = any(isinstance(stop, Const) and stop.value <= 0 for stop in stops)
            if idle and sym.prove(cond, self.ctx.assume(sym.le(1, size))):
                return True
        return False

    # ------------------------------------------------------------------ divisors

    def _add_divisor(
        self, stage: Stage, divisor: Expr, ctx: Context, extents: tuple[Expr, ...]
    ) -> None:
        """Require a nonzero divisor; a size may be zero where the loops are empty."""
        if isinstance(divisor, Const) or is_data_dependent(divisor):
            return
        if sym.prove(sym.le(1, divisor), ctx) or sym.prove(sym.le(divisor, -1), ctx):
            return
        if not all(isinstance(v, Size) for v in sym.free_vars(divisor)):
            raise value_error(
                "TW2421",
                f"cannot show that the divisor {stage.spoken(divisor)} in {stage.name} is not zero",
                loc=stage.loc,
                help=f"write te.max({stage.spoken(divisor)}, 1), or guard it with te.if_then_else",
            )
        empty = [sym.eq(extent, 0) for extent in extents if not isinstance(extent, Const)]
        zero = self.ctx.assume(sym.le(divisor, 0))
        if not any(sym.prove(cond, zero) for cond in empty):  # otherwise the loops are empty
            self.add(sym.any_of(sym.le(1, divisor), *dict.fromkeys(empty)))


def _factors_of(product: Expr) -> list[Expr]:
    """The factors of a nested product."""
    stack, found = [product], []
    while stack:
        part = stack.pop()
        if isinstance(part, sym.Mul):
            stack += (part.a, part.b)
        else:
            found.append(part)
    return found


def _end_if_zero(size: Size, stop: Expr) -> Expr | None:
    """The end of a loop if a size is zero; None if that is a divisor."""
    try:
        return sym.simplify(sym.substitute(stop, {size: ZERO}))
    except UserTypeError:  # TW0106
        return None


def _is_index_division(expr: Expr) -> bool:
    if expr.dtype is not INDEX:
        return False
    if isinstance(expr, Call):
        return expr.op in ("truncdiv", "truncmod")
    return isinstance(expr, (sym.FloorDiv, sym.FloorMod))


def _refuse_read(
    stage: Stage, load: Load, axis: int, found: tuple[Expr, Expr], exact: bool
) -> NoReturn:
    index, dim = stage.spoken(load.index[axis]), load.buffer.shape[axis]
    first, last = found
    span = f"runs from {first} to {last}" if first is not last else f"is {first}"
    place = f"index {axis} of {stage.spoken(load)}"
    if exact:
        raise value_error(
            "TW2420",
            f"{stage.name} reads outside {load.buffer.name}: {place} {span}, "
            f"the dimension has extent {dim}",
            loc=stage.loc,
            help=_guard_help(index, dim),
        )
    raise value_error(
        "TW2421",
        f"cannot show that {stage.name} reads inside {load.buffer.name}: {place} {span} "
        f"for all we can tell, the dimension has extent {dim}",
        loc=stage.loc,
        help=_guard_help(index, dim),
    )


def _refuse_data(stage: Stage, load: Load, axis: int) -> NoReturn:
    index, dim = stage.spoken(load.index[axis]), load.buffer.shape[axis]
    clamp = f"te.min(te.max({index}, 0), {sym.simplify(sym.sub(dim, 1))})"
    if not sym.prove(sym.le(1, dim)):
        clamp += f" where {dim} >= 1"
    raise value_error(
        "TW2425",
        f"cannot show that {stage.name} reads inside {load.buffer.name}: index {axis} of "
        f"{stage.spoken(load)} is read from memory, the dimension has extent {dim}",
        loc=stage.loc,
        help=f"{_guard_help(index, dim)}, or clamp the index: {clamp}",
    )


def _guard_help(index: str, dim: Expr) -> str:
    return f"guard the read: te.if_then_else(te.all({index} >= 0, {index} < {dim}), ..., 0)"


def _integer_facts(index: Expr, guards: Guards) -> Guards:
    """The conditions, plus those on integers of other types restated for indices.

    The conversion to index preserves values of all types except u64.
    """
    found = list(guards)
    parts = [part for guard in guards for part in sym.conjuncts(sym.simplify(guard))]
    found += [
        type(part)(sym.cast(part.a, INDEX), sym.cast(part.b, INDEX))
        for part in parts
        if isinstance(part, (sym.Lt, sym.Le, sym.Eq)) and _fits_index(part.a)
    ]
    for node in sym.walk(index):
        if isinstance(node, sym.Cast) and node.dtype is INDEX and _fits_index(node.value):
            of = node.value.dtype
            found += [sym.le(int(of.min), node), sym.le(node, int(of.max))]
    return tuple(found)


def _fits_index(expr: Expr) -> bool:
    of = expr.dtype
    if of is INDEX or of.is_vector or not of.is_int:
        return False
    return of.bits < 64 or int(of.min) < 0


def _assuming(ctx: Context, conditions: Iterable[Expr]) -> Context:
    for cond in conditions:
        ctx = ctx.assume(cond)
    return ctx


def _at_most(a: Expr, b: Expr, ctx: Context) -> Expr:
    """a <= b, with both sides simplified."""
    return sym.simplify(sym.le(sym.simplify(a, ctx), sym.simplify(b, ctx)), ctx)


def _is_affine(index: Expr, domain: Domain) -> bool:
    """Whether interval bounds are exact: affine, with each variable occurring once."""
    seen: set[Expr] = set()
    stack = [sym.simplify(index, Context())]
    while stack:
        part = stack.pop()
        if isinstance(part, (sym.Add, sym.Sub)):
            stack += [part.a, part.b]
            continue
        if isinstance(part, sym.Mul):
            moving = [x for x in (part.a, part.b) if sym.uses_var(x, set(domain))]
            if len(moving) == 2:
                return False
            stack += moving
            continue
        if not sym.uses_var(part, set(domain)):
            continue
        if part not in domain or part in seen:
            return False
        seen.add(part)
    return True


def _is_unsatisfiable(guards: Guards, index: Expr, domain: Domain) -> bool:
    """Whether conditions on an index are unsatisfiable, by enumerating a small domain.

    With large strides, windows at a small image's edges may contain only padding.
    """
    ends = {var: domain[var][1] for var in sym.free_vars(index) if var in domain}
    sizes = [int(end.value) for end in ends.values() if isinstance(end, Const)]
    parts = [part for guard in guards for part in sym.conjuncts(guard)]
    known = [part for part in parts if _depends_only_on(part, ends)]
    if not known or len(sizes) < len(ends) or math.prod(sizes) > TRIED_PLACES:
        return False
    places = dict(zip(ends, np.indices(sizes), strict=True))
    met = [np.asarray(sym.evaluate(part, places), bool) for part in known]
    return not np.logical_and.reduce(np.broadcast_arrays(*met)).any()


def _depends_only_on(part: Expr, known: Collection[Var]) -> bool:
    """Whether a condition depends on these variables only."""
    return not is_data_dependent(part) and all(var in known for var in sym.free_vars(part))


def _narrowed(domain: Domain, guards: Guards, ctx: Context) -> Domain:
    """The domain, narrowed by conditions on single variables."""
    found = dict(domain)
    running = set(domain)
    for guard in guards:
        for part in sym.conjuncts(sym.simplify(guard, ctx)):
            if not isinstance(part, (sym.Lt, sym.Le)) or part.a.dtype is not INDEX:
                continue
            strict = isinstance(part, sym.Lt)
            for var in domain:
                limit = _limit(part.a, part.b, var, ctx)
                if limit is None or sym.uses_var(limit[1], running):
                    continue
                upper, end = limit
                start, stop = found[var]
                if upper:  # var < end, or var <= end
                    end = end if strict else sym.add(end, 1)
                    found[var] = (start, sym.simplify(sym.minimum(stop, end), ctx))
                else:  # end < var, or end <= var
                    end = sym.add(end, 1) if strict else end
                    found[var] = (sym.simplify(sym.maximum(start, end), ctx), stop)
    return found


def _limit(a: Expr, b: Expr, var: Var, ctx: Context) -> tuple[bool, Expr] | None:
    """Solve a < b for `var`: (True, e) for var < e, (False, e) for e < var."""
    gap = sym.sub(b, a)  # positive
    rest = sym.substitute(gap, {var: ZERO})
    slope = sym.simplify(sym.sub(sym.substitute(gap, {var: sym.ONE}), rest), ctx)
    if not isinstance(slope, Const) or slope.value not in (1, -1):
        return None
    if not sym.equal(gap, sym.add(rest, sym.mul(slope, var)), ctx):
        return None
    rest = sym.simplify(rest, ctx)
    if slope.value == -1:
        return True, rest
    return False, sym.simplify(sym.mul(rest, -1), ctx)
