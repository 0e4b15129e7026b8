"""Split loops where a condition inside changes, so that the main part runs without the condition.

    for io in 0..ceil(n / 8) { for ii in 0..8 { if io * 8 + ii < n { S } } }

    for io in 0..n // 8 { for ii in 0..8 { S } }
    for io in n // 8..ceil(n / 8) { for ii in 0..n - io * 8 { S } }

A linear condition holds from some iteration of a loop on, or up to one. So a loop has a prologue, a
steady part in which all its conditions hold, and an epilogue, each of which may be missing. In a
long prologue or epilogue, the part in which a condition certainly fails is split off; conditions
that fail long after one another, such as those of the operands of a concatenation, are split
recursively. If a condition guards the whole body, or the term of a sum, the part in which it fails
is empty, and the split has merely tightened the bounds. Parallel loops branch on the iteration
instead. Conditions that remain become masks when the inner loop is vectorized.

A condition is split at the innermost loop that leaves at most about two iterations undecided;
vector and unrolled loops keep their constant extent as long as another loop will do.

Code growth is counted in statements after unrolling: a program may grow to a few times its size,
and a version for where a condition holds is made only if it does in most iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.base.passes import PassContext
from tilewright.sym import (
    FALSE,
    ONE,
    TRUE,
    Const,
    Eq,
    Expr,
    FloorMod,
    Le,
    Lt,
    Select,
    Var,
    const,
)
from tilewright.tensor.divisors import is_total
from tilewright.tensor.ir import (
    PARALLEL,
    SERIAL,
    THREAD,
    THREAD_LEVEL,
    UNROLL,
    VECTOR,
    VTHREAD,
    For,
    Function,
    If,
    Seq,
    Stmt,
    Store,
)
from tilewright.tensor.passes.accumulations import adds_nothing
from tilewright.tensor.passes.facts import lasting
from tilewright.tensor.passes.rewriter import (
    Rewriter,
    join,
    with_body,
    with_branches,
)
from tilewright.tensor.passes.simplify_program import known
from tilewright.tensor.passes.tails import Tail, is_marked, try_tail
from tilewright.tensor.visit import fresh_copy, prefetched, rewrite, substitute, walk

_Span = tuple[Expr, Expr, dict[Expr, Expr]]  # from, to, known values of conditions there

_KEPT = (VECTOR, VTHREAD, THREAD)  # kinds of loops that are not split
_COPIED_STATEMENTS = 2048  # that any program may grow to, after unrolling
_COPIED_TIMES = 4  # growth factor that any program may have
_SHORT = 2  # iterations that do not get a version of their own
_TRIED_ITERATIONS = 64  # iterations sampled to estimate how often a condition holds


def partition_loops(fn: Function, ctx: PassContext) -> Function:
    if not any(conditions_of(stmt) for stmt in walk(fn.body)):
        return fn
    room = _COPIED_STATEMENTS + _COPIED_TIMES * _unrolled(fn.body)
    limit: int = ctx.option("partition_loops.limit", room)
    partition = _Partition(limit, known(fn))
    body = partition(fn.body)
    if body is fn.body:
        return fn
    return replace(fn, body=Seq(()) if body is None else body)


_selects = sym.holds(lambda node: isinstance(node, Select))


def conditions_of(stmt: Stmt) -> list[Expr]:
    """The index comparisons that a statement branches or selects on."""
    conditions: list[Expr] = []
    if isinstance(stmt, If) and not _is_prefetch(stmt):
        conditions += sym.conjuncts(stmt.cond)
    conditions += [
        part
        for node in sym.walk(*filter(_selects, stmt.exprs()))
        if isinstance(node, Select)
        for part in sym.conjuncts(node.cond)
    ]
    return [c for c in conditions if isinstance(c, (Lt, Le, Eq)) and c.a.dtype is INDEX]


def _is_prefetch(stmt: If) -> bool:
    """Whether a branch guards only a prefetch: the test is cheaper than another version of the
    loop."""
    return all(prefetched(leaf) is not None for leaf in walk(stmt) if not leaf.children())


@dataclass(eq=False, slots=True)
class _Bound:
    """Where a condition holds along a loop, for all iterations of the loops inside.

    `certain` is the first iteration from which it holds (rising) or from which it may fail
    (falling), `possible` the first from which it may hold or certainly fails. They are one, and
    exact, when the condition depends on no loop inside.
    """

    cond: Expr
    certain: Expr
    possible: Expr
    is_rising: bool
    is_exact: bool


class _Partition(Rewriter):
    def __init__(self, limit: int, ctx: sym.Context) -> None:
        super().__init__(ctx)
        self.room = limit  # statements that may still be copied
        self.rolled_up = 0  # unrolled loops whose extent is no longer constant
        self.threads: set[Var] = set()
        self.copied: set[Var] = set()  # variables of unrolled loops

    def visit_if(self, stmt: If) -> Stmt | None:
        if stmt.cond is TRUE:
            return self(stmt.then)
        if stmt.cond is FALSE:
            return None if stmt.otherwise is None else self(stmt.otherwise)
        otherwise = None if stmt.otherwise is None else self(stmt.otherwise)
        return with_branches(stmt, self(stmt.then), otherwise)

    def visit_for(self, loop: For) -> Stmt | None:
        if loop.level == THREAD_LEVEL:
            self.threads.add(loop.var)
        if loop.kind in _KEPT:
            return super().visit_for(loop)
        if loop.kind == PARALLEL:
            outer, self.ctx = self.ctx, self.ctx.bind(loop.var, loop.start, loop.stop)
            body = self._versioned_body(loop)
            self.ctx = outer
            return with_body(loop, body)
        parts = self._parts(loop)
        if len(parts) == 1 and parts[0] is loop:
            return self._whole(loop)
        return join(*[self._part(part) for part in parts])

    def _part(self, loop: For) -> Stmt | None:
        """A part of a loop; with one iteration it is no loop, and conditions inside may be
        decided."""
        if sym.simplify(loop.extent, self.ctx) is ONE and isinstance(loop.start, Const):
            return self(substitute(loop.body, {loop.var: loop.start}))
        return self._whole(loop)

    def _whole(self, loop: For) -> Stmt | None:
        before = self.rolled_up
        if loop.kind == UNROLL:
            self.copied.add(loop.var)
        done = super().visit_for(loop)
        if loop.kind == UNROLL and self.rolled_up > before and isinstance(done, For):
            return replace(done, kind=SERIAL)  # a tail is not worth unrolling
        return done

    # ------------------------------------------------------------------ which conditions

    def _conditions(self, loop: For) -> list[tuple[Expr, list[For]]]:
        """The conditions to split this loop by, each with the inner loops around it."""
        found = []
        for cond, inner in _conditions_below(loop):
            if not any(self._is_better_at(cond, loop, inner, at) for at in range(len(inner))):
                found.append((cond, inner))
        kept = set(lasting((cond for cond, _ in found), loop.body))
        return [(cond, inner) for cond, inner in found if cond in kept]

    def _is_better_at(self, cond: Expr, loop: For, inner: list[For], at: int) -> bool:
        """Whether splitting an inner loop decides the condition for all but a few iterations."""
        deeper = inner[at]
        if deeper.kind in (UNROLL, *_KEPT) or not sym.uses_var(cond, {deeper.var}):
            return False
        ctx = self.ctx
        for around in (loop, *inner[:at]):
            ctx = ctx.bind(around.var, around.start, around.stop)
        return self._bound(cond, deeper, inner[at + 1 :], ctx) is not None

    def _bound(self, cond: Expr, loop: For, inner: list[For], ctx: sym.Context) -> _Bound | None:
        assert isinstance(cond, (Lt, Le, Eq))
        gap = sym.sub(cond.b, cond.a)
        if isinstance(cond, Lt):
            gap = sym.sub(gap, 1)
        # The condition is gap == slope * var + rest >= 0 (or == 0).
        found = sym.linear(gap, (loop.var,))
        slope_expr = None if found is None else found[0].get(loop.var)
        if found is None or not isinstance(slope_expr, Const):
            return None
        slope, rest = int(slope_expr.value), found[1]
        around = ctx
        ctx = ctx.bind(loop.var, loop.start, loop.stop)
        running = {one.var: (one.start, one.stop) for one in inner}
        is_exact = not sym.uses_var(rest, running)
        if isinstance(cond, Eq):
            if not is_exact or abs(slope) != 1:
                return None
            hit = sym.simplify(sym.mul(rest, -slope), ctx)
            return _Bound(cond, hit, hit, False, True) if is_total(hit, around) else None
        if not is_exact:
            ends = sym.symbolic_bounds(rest, running, ctx)
            if ends is None or any(sym.uses_var(end, {loop.var}) for end in ends):
                return None
            width = sym.bounds(sym.sub(ends[1], ends[0]), ctx).upper
            if width is None or width > 2 * abs(slope):
                return None  # undecided in too many iterations
            turns = [self._crossover(slope, end) for end in ends]
        else:
            turns = [self._crossover(slope, rest)] * 2
        if not all(is_total(turn, around) for turn in turns):
            return None  # the bounds may divide by zero where the loops are empty
        return _Bound(cond, turns[0], turns[1], slope > 0, is_exact)

    def _crossover(self, slope: int, rest: Expr) -> Expr:
        """The iteration at which slope * var + rest >= 0 starts or ceases to hold."""
        if slope > 0:  # iff  var >= ceil(-rest / slope)
            turn = sym.ceildiv(sym.mul(rest, -1), slope)
        else:  # iff  var < rest // -slope + 1
            turn = sym.add(sym.floordiv(rest, -slope), 1)
        return sym.simplify(turn, self.ctx)

    # ------------------------------------------------------------------ serial loops

    def _parts(self, loop: For) -> list[For]:
        """Prologue, steady part and epilogue, as far as they exist; or the loop itself."""
        if len(lasting({loop.start, loop.stop}, loop.body)) < len({loop.start, loop.stop}):
            return [loop]
        bounds: list[_Bound] = []
        around: dict[Expr, list[For]] = {}
        for cond, inner in self._conditions(loop):
            around[cond] = inner
            found = self._bound(cond, loop, inner, self.ctx)
            if found is None or self._differs(found, loop):
                continue
            if loop.kind == UNROLL and not found.is_exact:
                continue  # masks serve, and unrolled copies keep constant extents
            if loop.kind == UNROLL and self._is_certain_in_copies(cond, loop, inner):
                continue
            if isinstance(cond, Eq):
                peeled = self._peeled(loop, found)
                if peeled is not None:
                    return [part for piece in peeled for part in self._parts(piece)]
                continue
            bounds.append(found)
        if not bounds:
            return [loop]
        rising = [bound for bound in bounds if bound.is_rising]
        falling = [bound for bound in bounds if not bound.is_rising]
        first, last = loop.start, loop.stop
        for bound in rising:
            first = sym.maximum(first, bound.certain)
        first = sym.simplify(sym.minimum(first, loop.stop) if rising else first, self.ctx)
        for bound in falling:
            last = sym.minimum(last, bound.certain)
        last = sym.simplify(sym.maximum(last, first) if falling else last, self.ctx)
        spans: list[_Span] = [
            *self._failing(loop.start, first, rising),
            (first, last, {bound.cond: TRUE for bound in bounds}),
            *self._failing(last, loop.stop, falling),
        ]
        # Drop empty parts, whose ends simplify to the same expression.
        spans = [span for span in spans if span[0] is not span[1]]
        if first is last and not self._is_worth_parts(loop, spans):
            return [loop]
        if len(spans) > 1 and not self._try_spend(loop.body, len(spans) - 1):
            return [loop]
        parts = []
        for start, stop, known_values in spans:
            body = _assuming(loop.body, known_values) if known_values else loop.body
            if body is not None and start is last and not known_values and is_marked(loop):
                ctx = self._in_tail(loop, start, stop, falling)
                tail = try_tail([(bound.cond, around[bound.cond]) for bound in falling], ctx)
                body = body if tail is None else _specialized_tails(body, tail)
            if body is None:
                continue
            part = self._with_range(loop, start, stop, body)
            is_open = stop is loop.stop and 0 < len(known_values) < len(falling)
            parts += self._parts(part) if is_open else [part]
        return _renamed(parts)

    def _failing(self, start: Expr, stop: Expr, bounds: list[_Bound]) -> list[_Span]:
        """The parts of a loop in which some conditions may fail, and in which all certainly do."""
        if not bounds:
            return []
        is_short = self._is_short(start, stop)
        if len(bounds) > 1 and not bounds[0].is_rising and not is_short:
            bounds = self._first_to_fail(bounds)
        if len(bounds) == 1 and bounds[0].is_exact:
            return [(start, stop, {bounds[0].cond: FALSE})]
        if is_short:
            return [(start, stop, {})]
        failed: dict[Expr, Expr] = {bound.cond: FALSE for bound in bounds}
        turn = bounds[0].possible
        pick = sym.minimum if bounds[0].is_rising else sym.maximum
        for bound in bounds[1:]:
            turn = pick(turn, bound.possible)
        turn = self._clamped(turn, start, stop)
        if bounds[0].is_rising:
            return [(start, turn, failed), (turn, stop, {})]
        return [(start, turn, {}), (turn, stop, failed)]

    def _first_to_fail(self, bounds: list[_Bound]) -> list[_Bound]:
        """The conditions that fail long before the others, as those of a concatenation's first
        operand; all of them, if that is not known."""
        for first in bounds:
            if all(sym.prove(sym.le(first.certain, b.certain), self.ctx) for b in bounds):
                soon = sym.add(first.possible, _SHORT)
                near = [b for b in bounds if sym.prove(sym.le(b.certain, soon), self.ctx)]
                return near if first in near else bounds
        return bounds

    def _in_tail(self, loop: For, start: Expr, stop: Expr, bounds: list[_Bound]) -> sym.Context:
        """The facts in an iteration in which falling conditions may fail."""
        ctx = self.ctx.bind(loop.var, start, stop)
        if len({(bound.certain, bound.possible) for bound in bounds}) > 1:
            return ctx
        # start is min(certain, loop.stop), or more; stop is no more than the same of `possible`.
        ctx = ctx.assume(sym.le(bounds[0].certain, loop.var))
        return ctx if stop is loop.stop else ctx.assume(sym.lt(loop.var, bounds[0].possible))

    def _is_short(self, start: Expr, stop: Expr) -> bool:
        """Whether a part has few iterations, such as the tail of a tiled loop."""
        upper = sym.bounds(sym.sub(stop, start), self.ctx).upper
        return upper is not None and upper <= _SHORT

    def _is_worth_parts(self, loop: For, spans: list[_Span]) -> bool:
        """Without a steady part, whether both parts are single iterations, whose conditions may be
        decided."""
        if is_marked(loop):
            return True
        return len(spans) > 1 and all(self._is_single(start, stop) for start, stop, _ in spans)

    def _is_single(self, start: Expr, stop: Expr) -> bool:
        return isinstance(start, Const) and sym.simplify(sym.sub(stop, start), self.ctx) is ONE

    def _is_certain_in_copies(self, cond: Expr, loop: For, inner: list[For]) -> bool:
        """Whether only unrolled loops decide a condition, so that it is constant in each copy."""
        if not isinstance(sym.simplify(loop.extent, self.ctx), Const):
            return False
        copied = self.copied | {loop.var} | {one.var for one in inner if one.kind == UNROLL}
        return all(v in copied for v in sym.free_vars(sym.simplify(cond, self.ctx)))

    def _differs(self, bound: _Bound, loop: For) -> bool:
        """Whether threads would split at different points, or unrolling would be prevented."""
        if not self.threads:
            return False
        return loop.kind == UNROLL or sym.uses_var(bound.certain, self.threads)

    def _peeled(self, loop: For, bound: _Bound) -> list[For] | None:
        """The loop in three: before, at and after the one iteration where an equality holds."""
        if not self._try_spend(loop.body, 2):
            return None
        hit = self._clamped(bound.certain, loop.start, loop.stop)
        after = self._clamped(sym.add(bound.certain, 1), hit, loop.stop)
        parts = []
        for start, stop, value in (
            (loop.start, hit, FALSE),
            (hit, after, TRUE),
            (after, loop.stop, FALSE),
        ):
            if start is stop:
                continue
            body = _assuming(loop.body, {bound.cond: value})
            if body is not None:
                parts.append(self._with_range(loop, start, stop, body))
        return _renamed(parts)

    def _with_range(self, loop: For, start: Expr, stop: Expr, body: Stmt) -> For:
        made = replace(loop, start=start, stop=stop, body=body)
        if made.kind == UNROLL and not isinstance(sym.simplify(made.extent), Const):
            self.rolled_up += 1
            return replace(made, kind=SERIAL)
        return made

    def _clamped(self, value: Expr, low: Expr, high: Expr) -> Expr:
        return sym.simplify(sym.maximum(low, sym.minimum(value, high)), self.ctx)

    def _try_spend(self, body: Stmt, copies: int) -> bool:
        """Whether the budget allows more copies of the body; if so, it is charged."""
        size = copies * _unrolled(body)
        if size > self.room:
            return False
        self.room -= size
        return True

    # ------------------------------------------------------------------ other loops

    def _versioned_body(self, loop: For) -> Stmt | None:
        """The body; where conditions are uniform, in two versions: assuming that they hold, and
        without."""
        holding: dict[Expr, Const] = {}
        around: dict[Expr, list[For]] = {}
        always: Expr = TRUE
        all_exact = True
        for cond, inner in self._conditions(loop):
            found = self._for_all(cond, inner)
            if found is None or not self._is_usual(found, loop):
                continue
            holding[cond], around[cond] = TRUE, inner
            always = sym.logical_and(always, found)
            all_exact = all_exact and not any(sym.uses_var(cond, {one.var}) for one in inner)
        then = _assuming(loop.body, holding) if holding else loop.body
        if always is TRUE:
            return None if then is None else self(then)
        if not self._try_spend(loop.body, 1):
            return self(loop.body)
        otherwise: Stmt | None = loop.body
        if all_exact and len(holding) == 1:
            otherwise = _assuming(loop.body, dict.fromkeys(holding, FALSE))
        outer = self.ctx
        self.ctx = outer.assume(always)
        yes = None if then is None else self(fresh_copy(then))
        self.ctx = outer.assume(sym.logical_not(always))
        if otherwise is not None:
            otherwise = self._settled(otherwise, (loop.var, *holding))
        tail = try_tail(list(around.items()), self.ctx) if is_marked(loop) else None
        if tail is not None and otherwise is not None:
            otherwise = _specialized_tails(otherwise, tail)
        no = None if otherwise is None else self(otherwise)
        self.ctx = outer
        return with_branches(If(always, loop.body, loop.body, loop.loc), yes, no)

    def _is_usual(self, cond: Expr, loop: For) -> bool:
        """Whether a condition holds in most iterations, as far as can be sampled."""
        if cond is FALSE:
            return False
        if not isinstance(loop.start, Const) or not isinstance(loop.stop, Const):
            return True
        if any(var is not loop.var for var in sym.free_vars(cond)):
            return True
        start, stop = int(loop.start.value), int(loop.stop.value)
        tried = range(start, stop, max(1, (stop - start) // _TRIED_ITERATIONS))
        return 2 * sum(bool(sym.evaluate(cond, {loop.var: at})) for at in tried) >= len(tried)

    def _settled(self, body: Stmt, exprs: Iterable[Expr]) -> Stmt:
        """The body with variables and remainders replaced that have a single value, such as the
        number of the last tile. Conditions inside may then be decided."""
        values: dict[Expr, Expr] = {}
        for node in sym.walk(*exprs):
            if isinstance(node, (Var, FloorMod)):
                value = sym.simplify(node, self.ctx)
                if isinstance(value, Const):
                    values[node] = value
        if not values:
            return body
        return rewrite(body, None, lambda expr: sym.rewrite(expr, sym.rebuild, dict(values)))

    def _for_all(self, cond: Expr, inner: list[For]) -> Expr | None:
        """The condition that `cond` holds in all iterations of the inner loops."""
        assert isinstance(cond, (Lt, Le, Eq))
        running = {one.var: (one.start, one.stop) for one in inner}
        always: Expr = cond
        if sym.uses_var(cond, running):
            if isinstance(cond, Eq):
                return None
            ends = sym.symbolic_bounds(sym.sub(cond.b, cond.a), running, self.ctx)
            if ends is None:
                return None
            always = sym.le(const(1 if isinstance(cond, Lt) else 0), ends[0])
        always = sym.simplify(always, self.ctx)
        return always if is_total(always, self.ctx) else None


def _unrolled(root: Stmt) -> int:
    """The number of statements after unrolling."""
    total = 0
    stack = [(root, 1)]
    while stack:
        stmt, times = stack.pop()
        total += times
        if isinstance(stmt, For) and stmt.kind == UNROLL and isinstance(stmt.extent, Const):
            times *= int(stmt.extent.value)
        stack.extend((child, times) for child in stmt.children())
    return total


def _conditions_below(loop: For) -> Iterator[tuple[Expr, list[For]]]:
    """Conditions on the loop's variable, each with the inner loops around it."""
    stack: list[tuple[Stmt, list[For]]] = [(loop.body, [])]
    seen: set[Expr] = set()
    while stack:
        stmt, inner = stack.pop()
        for cond in conditions_of(stmt):
            if cond not in seen and sym.uses_var(cond, {loop.var}):
                seen.add(cond)
                yield cond, inner
        if isinstance(stmt, For):
            inner = [*inner, stmt]
        stack.extend((child, inner) for child in reversed(stmt.children()))


def _specialized_tails(body: Stmt, tail: Tail) -> Stmt | None:
    """A chain of branches between copies of a body, one per possible number of remaining
    iterations."""
    made: Stmt | None = None
    for at, height in enumerate(reversed(tail.heights)):
        lower = _with_extent(body, tail, height)
        if at == 0:
            made = lower
        elif lower is not None:
            made = If(sym.le(tail.left, height), fresh_copy(lower), made, body.loc)
        elif made is not None:
            made = If(sym.lt(height, tail.left), made, None, body.loc)
    return made


def _with_extent(body: Stmt, tail: Tail, height: int) -> Stmt | None:
    """The body with `height` iterations remaining; loops that do nothing more are shortened."""

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.var not in loops:
            return stmt
        conditions = loops[stmt.var]
        if _assuming(stmt.body, dict.fromkeys(conditions, FALSE)) is not None:
            return stmt
        inside = _assuming(stmt.body, dict.fromkeys(conditions, TRUE)) if height else None
        return None if inside is None else replace(stmt, stop=const(height), body=inside)

    loops = tail.loops
    return _assuming(rewrite(body, rule), tail.values_at(height))


def _renamed(parts: list[For]) -> list[For]:
    """Parts of one loop with fresh variables; the last keeps the old ones."""
    copies = [fresh_copy(part) for part in parts[:-1]]
    return [part for part in (*copies, *parts[-1:]) if isinstance(part, For)]


def _assuming(root: Stmt, known_values: Mapping[Expr, Expr]) -> Stmt | None:
    """The statement with known values of conditions substituted; None when nothing remains."""
    memo: dict[Expr, Expr] = dict(known_values)

    def rule(stmt: Stmt) -> Stmt | None:
        old = stmt.exprs()
        if old:
            new = tuple([sym.replaced(expr, memo) for expr in old])
            if any(a is not b for a, b in zip(old, new, strict=True)):
                stmt = stmt.with_exprs(new)
        if isinstance(stmt, If) and isinstance(stmt.cond, Const):
            return stmt.then if stmt.cond.value else stmt.otherwise
        return None if isinstance(stmt, Store) and adds_nothing(stmt) else stmt

    done = rewrite(root, rule)
    return None if isinstance(done, Seq) and not done.stmts else done
