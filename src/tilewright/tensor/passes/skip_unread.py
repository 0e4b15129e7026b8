"""Skip iterations that compute what nothing reads.

    for j in 0..n { E[j] = exp(S[j]) }   for j in 0..n { if j < last { y += E[j] * v[j] } }
    for j in 0..min(n, last) { E[j] = exp(S[j]) }   ...

A condition on the reads of an intermediate result bounds what is needed of it, and so the loop that
makes it, and what that loop reads in turn: consumers come first. Attention with a causal mask or a
window computes no scores then that no query of a tile sees.

Where all that a loop does for others is under one condition, the condition comes first, so that
operands are not loaded in vain:

    for k { alloc A; load A; if k <= i { C += A } }
    for k { if k <= i { alloc A; load A; C += A } }
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import lcm

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, ZERO, Const, Context, Expr, Le, Lt, Size, Var
from tilewright.tensor.divisors import is_total
from tilewright.tensor.ir import (
    SERIAL,
    Alloc,
    Buffer,
    For,
    Function,
    If,
    Seq,
    Stmt,
    Store,
    TensorCall,
)
from tilewright.tensor.passes.accesses import (
    Access,
    Place,
    collect,
    conditions_between,
    writes_of,
)
from tilewright.tensor.passes.accumulations import adds_where
from tilewright.tensor.passes.partition_loops import conditions_of
from tilewright.tensor.passes.rewriter import Rewriter, with_body
from tilewright.tensor.regions import is_data_dependent
from tilewright.tensor.visit import walk

_LEAST_SKIPPED = 0.25  # of the iterations of a loop whose bounds vary from then on
_SAMPLES = 16  # of the values of outer loops, to see how many iterations are left out
_SOME_SIZE = 1024  # that a dynamic size is taken for there

Ranges = dict[Var, tuple[Expr, Expr]]
Span = tuple[Expr, Expr]  # first and last element, both included


def skip_unread(fn: Function, ctx: PassContext) -> Function:
    if not any(conditions_of(stmt) for stmt in walk(fn.body)):
        return fn
    body = _HoistConditions()(fn.body)
    assert body is not None
    needs = _Needs(body)
    if needs.loops:
        body = _Bounded(needs.loops)(body)
        assert body is not None
    return fn if body is fn.body else replace(fn, body=body)


# ------------------------------------------------------------------------------- conditions first


class _HoistConditions(Rewriter):
    tracks = False

    def visit_for(self, loop: For) -> Stmt | None:
        done = super().visit_for(loop)
        if not isinstance(done, For) or done.kind != SERIAL or isinstance(done.body, If):
            return done
        cond = _condition_of(done.body)
        if cond is None or not sym.uses_var(cond, {done.var}):
            return done
        return replace(done, body=If(cond, done.body, None, done.loc))


def _condition_of(body: Stmt) -> Expr | None:
    """The one condition under which a statement has any effect outside of it, if it always makes
    something else."""
    own = {stmt.buffer for stmt in walk(body) if isinstance(stmt, Alloc)}
    inside = {stmt.var for stmt in walk(body) if isinstance(stmt, For)}
    found: Expr | None = None
    makes_operands = False
    stack: list[Stmt] = [body]
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, If) and found in (None, stmt.cond) and _is_uniform(stmt, inside):
            found = stmt.cond
        elif isinstance(stmt, Alloc | For | Seq):
            stack.extend(stmt.children())
        elif isinstance(stmt, Store | TensorCall):
            makes_operands = True
            if any(buffer not in own for buffer, _ in writes_of(stmt)):
                return None
        else:
            return None
    return found if makes_operands else None


def _is_uniform(stmt: If, inside: set[Var]) -> bool:
    """Whether a branch has one arm and compares values that loops inside do not change."""
    compares = all(isinstance(part, Lt | Le) for part in sym.conjuncts(stmt.cond))
    return compares and stmt.otherwise is None and not sym.uses_var(stmt.cond, inside)


# ------------------------------------------------------------------------------- what is needed


class _Bounded(Rewriter):
    """Puts loops within their new bounds."""

    tracks = False

    def __init__(self, loops: dict[For, tuple[Expr, Expr]]) -> None:
        super().__init__()
        self.loops = loops

    def visit_for(self, loop: For) -> Stmt | None:
        done = with_body(loop, self(loop.body))
        if loop not in self.loops or not isinstance(done, For):
            return done
        start, stop = self.loops[loop]
        return replace(done, start=start, stop=stop)


@dataclass
class _Needs:
    """The loops that may run for fewer iterations, with the bounds that suffice."""

    body: Stmt
    loops: dict[For, tuple[Expr, Expr]] = field(default_factory=dict)
    # The same of loops that read, kept where they leave less to make.
    readers: dict[For, tuple[Expr, Expr]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bound_reductions(Place(self.body, None, 0, 0), sym.EMPTY)
        buffers = [stmt.buffer for stmt in walk(self.body) if isinstance(stmt, Alloc)]
        found = collect(self.body, buffers)
        for buffer in reversed(_by_first_write(found)):  # consumers before producers
            accesses = found[buffer]
            if not any(access.is_opaque for access in accesses):
                self._bound_makers(buffer, accesses)

    def _bound_reductions(self, place: Place, ctx: Context) -> None:
        """Bound loops that only add to something where a condition holds."""
        stmt = place.stmt
        if isinstance(stmt, For):
            if stmt.kind == SERIAL and stmt.extent is not ONE:
                self._bound_reduction(place, stmt, ctx)
            ctx = ctx.bind(stmt.var, *self._ends(stmt))
        for at, child in enumerate(stmt.children()):
            self._bound_reductions(Place(child, place, at, place.depth + 1), ctx)

    def _bound_reduction(self, place: Place, loop: For, ctx: Context) -> None:
        spans: dict[Span, None] = {}
        own = (loop.var, (loop.start, loop.stop))
        for inner, cond in _conditional(loop):
            parts = [part for part in sym.conjuncts(cond) if isinstance(part, Lt | Le)]
            parts = [part for part in parts if not is_data_dependent(part)]
            running = dict([own, *((each.var, (each.start, each.stop)) for each in inner)])
            low, high = (end(loop.var, parts, running, ctx) for end in (_least, _most))
            if not parts or low is None or high is None:
                return
            spans[low, high] = None
        if spans:
            low, high = _union(spans, ctx)
            ends = _limited(loop, (loop.start, loop.stop), low, sym.add(high, 1), ctx)
            if ends is not None:
                self.readers[loop] = ends

    def _ends(self, loop: For) -> tuple[Expr, Expr]:
        """The bounds of a loop, as far as known."""
        return self.loops.get(loop) or self.readers.get(loop) or (loop.start, loop.stop)

    def _bound_makers(self, buffer: Buffer, accesses: list[Access]) -> None:
        home = _home(buffer, accesses[0])
        reads = [access for access in accesses if not access.is_write and not _is_own(access)]
        writes = [access for access in accesses if access.is_write]
        around = [loop for read in reads for loop in _loops(read, home)]
        is_bounded = any(loop in self.loops or loop in self.readers for loop in around)
        ctx = self._context(home)
        for axis in range(len(buffer.shape)):
            if not is_bounded and not any(self._limits(read, axis) for read in reads):
                continue
            makers: dict[For, list[Access]] = {}
            for write in writes:
                loop = self._maker(write, axis, home)
                if loop is not None:
                    makers.setdefault(loop, []).append(write)
            span = self._needed(reads, axis, home, ctx) if reads and makers else None
            if span is None:
                continue
            is_less = [self._bound(each, makers[each], axis, span, ctx, home) for each in makers]
            if any(is_less):
                self.loops |= {x: self.readers[x] for x in around if x in self.readers}

    def _context(self, home: Place) -> Context:
        ctx = sym.EMPTY
        for place in home.below(None):
            if isinstance(place.stmt, For):
                ctx = ctx.bind(place.stmt.var, place.stmt.start, place.stmt.stop)
        return ctx

    def _running(self, place: Place, top: Place) -> Ranges:
        """The loops between two places, in the bounds known so far."""
        found: Ranges = {}
        for each in place.below(top):
            if isinstance(each.stmt, For) and each is not place:
                loop = each.stmt
                found[loop.var] = self._ends(loop)
        return found

    # --------------------------------------------------------------------------- reads

    def _limits(self, read: Access, axis: int) -> list[Expr]:
        """Conditions of a read on the variables that its place along an axis depends on."""
        variables = sym.free_vars(read.ranges[axis].start)
        conditions = (*read.guards, *conditions_between(read.place.below(None)))
        return [
            part
            for cond in conditions
            for part in sym.conjuncts(cond)
            if isinstance(part, Lt | Le)
            and part.a.dtype is INDEX
            and not is_data_dependent(part)
            and sym.uses_var(part, set(variables))
        ]

    def _needed(self, reads: list[Access], axis: int, home: Place, ctx: Context) -> Span | None:
        """The union of what is read along an axis."""
        spans: dict[Span, None] = {}
        seen: set[tuple[object, ...]] = set()
        for read in reads:
            r, limits = read.ranges[axis], self._limits(read, axis)
            running = self._running(read.place, home)
            key = (r.start, r.extent, tuple(limits), tuple(running.items()))
            if key in seen:
                continue
            seen.add(key)
            if is_data_dependent(r.start) or is_data_dependent(r.extent):
                return None
            last = sym.sub(sym.add(r.start, r.extent), 1)
            low, high = _least(r.start, limits, running, ctx), _most(last, limits, running, ctx)
            if low is None or high is None:
                return None
            spans[low, high] = None
        return _union(spans, ctx)

    # --------------------------------------------------------------------------- writes

    def _maker(self, write: Access, axis: int, home: Place) -> For | None:
        """The outermost loop inside of the allocation that moves along an axis, if it makes nothing
        else."""
        moving = set(sym.free_vars(write.ranges[axis].start))
        for loop in _loops(write, home):
            if loop.var in moving and loop.extent is not ONE:
                return loop if loop.kind == SERIAL and _makes_only(loop, write.buffer) else None
        return None

    def _bound(
        self, loop: For, writes: list[Access], axis: int, needed: Span, ctx: Context, home: Place
    ) -> bool:
        """Bound a loop to the iterations that write what is needed; whether that is less."""
        ends: set[tuple[int, Expr, Expr]] = set()
        place = next(p for p in writes[0].place.ancestors() if p.stmt is loop)
        outer = self._running(place, home)
        ctx = ctx.bind_all(outer)
        for write in writes:
            r, running = write.ranges[axis], self._running(write.place, place)
            found = sym.linear(r.start, (loop.var,))
            slope = None if found is None else found[0].get(loop.var)
            if found is None or not isinstance(slope, Const) or int(slope.value) < 1:
                return False
            last = sym.sub(sym.add(found[1], r.extent), 1)
            bounds = [sym.symbolic_bounds(each, running, ctx) for each in (found[1], last)]
            if bounds[0] is None or bounds[1] is None:
                return False
            ends.add((int(slope.value), bounds[0][0], bounds[1][1]))
        ((slope_value, first, last), *others) = ends
        # An extent may change with the loop, too: that of the last tile.
        if others or any(sym.uses_var(end, {*outer, loop.var}) for end in (first, last)):
            return False
        low = sym.ceildiv(sym.sub(needed[0], last), slope_value)
        high = sym.add(sym.floordiv(sym.sub(needed[1], first), slope_value), 1)
        limited = _limited(loop, self._ends(loop), low, high, ctx)
        if limited is None:
            return False
        self.loops[loop] = limited
        return True


def _limited(
    loop: For, ends: tuple[Expr, Expr], low: Expr, high: Expr, ctx: Context
) -> tuple[Expr, Expr] | None:
    """The bounds of a loop that need only run from `low` to before `high`, if it is worth it."""
    start, stop = ends
    begin = sym.simplify(sym.maximum(start, low), ctx)
    end = sym.simplify(sym.minimum(stop, high), ctx)
    if not sym.prove(sym.le(begin, end), ctx):
        end = sym.simplify(sym.maximum(begin, end), ctx)
    if begin is sym.simplify(start, ctx) and end is sym.simplify(stop, ctx):
        return None
    if not is_total(begin, ctx) or not is_total(end, ctx):
        return None
    return (begin, end) if _skips_enough(loop, begin, end, ctx) else None


def _skips_enough(loop: For, begin: Expr, end: Expr, ctx: Context) -> bool:
    """Whether bounds are constant, or leave enough out to be worth it that they are not: the edges
    of an image are not."""
    if isinstance(begin, Const) and isinstance(end, Const):
        return True
    whole = left = 0
    for at in range(_SAMPLES):
        values = _sampled((begin, end, loop.start, loop.stop), ctx, (at + 0.5) / _SAMPLES)
        left += values[1] - values[0]
        whole += values[3] - values[2]
    return whole - left >= _LEAST_SKIPPED * whole


def _sampled(exprs: Sequence[Expr], ctx: Context, where: float) -> list[int]:
    """Values of expressions, with all variables so far along their ranges."""
    env: dict[Var, int] = {}
    missing = list(sym.free_vars(*exprs))
    while missing:
        var = missing[-1]
        start, stop = ctx.ranges.get(var, (ZERO, sym.const(_SOME_SIZE)))
        before = [v for v in sym.free_vars(start, stop) if v not in env]
        if before:
            missing += before
            continue
        first, last = (int(sym.evaluate(each, env)) for each in (start, stop))
        env[var] = _SOME_SIZE if isinstance(var, Size) else int(first + where * (last - first))
        missing.pop()
    return [int(sym.evaluate(each, env)) for each in exprs]


def _union(spans: Iterable[Span], ctx: Context) -> Span:
    (low, high), *others = spans
    for first, last in others:
        low = sym.simplify(sym.minimum(low, first), ctx)
        high = sym.simplify(sym.maximum(high, last), ctx)
    return low, high


def _conditional(loop: For) -> list[tuple[list[For], Expr]]:
    """The conditions under which the parts of a loop have an effect, with the loops around them;
    empty if one always has."""
    found: list[tuple[list[For], Expr]] = []
    stack: list[tuple[Stmt, list[For]]] = [(loop.body, [])]
    while stack:
        stmt, inner = stack.pop()
        if isinstance(stmt, If) and stmt.otherwise is None:
            found.append((inner, stmt.cond))
        elif isinstance(stmt, For):
            stack.append((stmt.body, [*inner, stmt]))
        elif isinstance(stmt, Seq):
            stack.extend((child, inner) for child in stmt.stmts)
        elif isinstance(stmt, Store) and (cond := adds_where(stmt)) is not None:
            found.append((inner, cond))
        else:
            return []
    return found


def _by_first_write(found: dict[Buffer, list[Access]]) -> list[Buffer]:
    """Buffers in the order in which they are written first."""
    order = [(buffer, access) for buffer, accesses in found.items() for access in accesses]
    made = [(_position(access.place), buffer) for buffer, access in order if access.is_write]
    return list(dict.fromkeys(buffer for _, buffer in sorted(made, key=lambda each: each[0])))


def _position(place: Place) -> tuple[int, ...]:
    """Where a place is in program order."""
    return tuple([each.position for each in place.below(None)])


def _home(buffer: Buffer, access: Access) -> Place:
    """The allocation of a buffer."""
    return next(
        place
        for place in access.place.ancestors()
        if isinstance(place.stmt, Alloc) and place.stmt.buffer is buffer
    )


def _loops(access: Access, home: Place) -> Iterator[For]:
    for place in access.place.below(home):
        if isinstance(place.stmt, For):
            yield place.stmt


def _is_own(read: Access) -> bool:
    """Whether a statement reads what it writes: that matters only if another reads it."""
    return any(
        buffer is read.buffer and ranges == read.ranges
        for buffer, ranges in writes_of(read.place.stmt)
    )


def _makes_only(loop: For, buffer: Buffer) -> bool:
    """Whether a loop has no effect but on one buffer."""
    own = {stmt.buffer for stmt in walk(loop) if isinstance(stmt, Alloc)} | {buffer}
    for stmt in walk(loop):
        if isinstance(stmt, Store | TensorCall):
            if any(each not in own for each, _ in writes_of(stmt)):
                return False
        elif not isinstance(stmt, Alloc | For | Seq | If):
            return False
    return True


# ------------------------------------------------------------------------------- bounds


def _least(place: Expr, limits: Iterable[Expr], running: Ranges, ctx: Context) -> Expr | None:
    """The least value of an expression over loops, as far as conditions let them run."""
    found = sym.symbolic_bounds(place, running, ctx)
    low = None if found is None else found[0]
    for share, times, gap in _scaled(place, limits, running, ctx, sign=1):
        # gap >= 0, so share * place >= share * place - times * gap, where variables cancel
        value = sym.sub(sym.mul(place, share), sym.mul(gap, times))
        bounds = sym.symbolic_bounds(value, running, ctx)
        if bounds is not None:
            limit = sym.simplify(sym.ceildiv(bounds[0], share), ctx)
            low = limit if low is None else sym.simplify(sym.maximum(low, limit), ctx)
    return low


def _most(place: Expr, limits: Iterable[Expr], running: Ranges, ctx: Context) -> Expr | None:
    """The greatest value of an expression over loops, as far as conditions let them run."""
    found = sym.symbolic_bounds(place, running, ctx)
    high = None if found is None else found[1]
    for share, times, gap in _scaled(place, limits, running, ctx, sign=-1):
        value = sym.add(sym.mul(place, share), sym.mul(gap, times))
        bounds = sym.symbolic_bounds(value, running, ctx)
        if bounds is not None:
            limit = sym.simplify(sym.floordiv(bounds[1], share), ctx)
            high = limit if high is None else sym.simplify(sym.minimum(high, limit), ctx)
    return high


def _scaled(
    place: Expr, limits: Iterable[Expr], running: Ranges, ctx: Context, *, sign: int
) -> Iterator[tuple[int, int, Expr]]:
    """Conditions gap >= 0 whose slope along the loop that moves a place most has a sign, with
    the factors of both that let the loop's variable cancel."""
    inner = ctx.bind_all(running)
    moved = sym.linear(sym.simplify(place, inner), running)
    slopes = {} if moved is None else _constants(moved[0])
    if not slopes:
        return
    var = max(slopes, key=lambda each: abs(slopes[each]))
    for limit in limits:
        assert isinstance(limit, Lt | Le)
        gap = sym.sub(sym.sub(limit.b, limit.a), int(isinstance(limit, Lt)))
        gap = sym.simplify(gap, inner)
        changed = sym.linear(gap, running)
        slope = 0 if changed is None else _constants(changed[0]).get(var, 0)
        if slope * slopes[var] * sign > 0:
            whole = lcm(abs(slope), abs(slopes[var]))
            yield whole // abs(slopes[var]), whole // abs(slope), gap


def _constants(slopes: dict[Var, Expr]) -> dict[Var, int]:
    return {var: int(x.value) for var, x in slopes.items() if isinstance(x, Const)}
