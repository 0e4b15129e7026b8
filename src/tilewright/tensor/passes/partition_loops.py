"""Splits loops where a condition inside changes, so that the main part runs without it.

    for io in 0..ceil(n / 8) { for ii in 0..8 { if io * 8 + ii < n { S } } }

    for io in 0..n // 8 { for ii in 0..8 { S } }
    for io in n // 8..ceil(n / 8) { for ii in 0..n - io * 8 { S } }

A condition on one side of a linear bound holds for all inner iterations up to some iteration of a
loop, for none from another one on, and may go either way between: up to three loops. Where the
guarded code is all there is, the part in which the condition fails is empty, and the split has
merely tightened the bounds. Iterations of a parallel loop choose by a branch instead. What is left
open becomes masks when the inner loop is vectorised.

A condition is settled at the innermost loop where at most about two iterations stay open; vector
and unrolled loops keep their constant extent as long as another loop will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.base.passes import PassContext
from tilewright.sym import FALSE, TRUE, Const, Eq, Expr, Le, Lt, Select, Var, const
from tilewright.tensor.ir import (
    SERIAL,
    UNROLL,
    VECTOR,
    VTHREAD,
    For,
    Function,
    If,
    Seq,
    Stmt,
)
from tilewright.tensor.passes.rewriter import (
    Rewriter,
    conjuncts,
    fresh_copy,
    join,
    with_body,
    with_branches,
)
from tilewright.tensor.passes.simplify_program import known
from tilewright.tensor.visit import rewrite, walk

Span = tuple[Expr, Expr]  # start, stop


def partition_loops(fn: Function, ctx: PassContext) -> Function:
    if not any(_conditions_of(stmt) for stmt in walk(fn.body)):
        return fn
    limit: int = ctx.option("partition_loops.limit", 1024)
    partition = _Partition(limit, known(fn))
    body = partition(fn.body)
    if body is fn.body:
        return fn
    return replace(fn, body=Seq(()) if body is None else body)


def _conditions_of(stmt: Stmt) -> list[Expr]:
    """The comparisons of indices that a statement branches or selects by."""
    conditions: list[Expr] = []
    if isinstance(stmt, If):
        conditions += conjuncts(stmt.cond)
    conditions += [
        part
        for node in sym.walk(*stmt.exprs())
        if isinstance(node, Select)
        for part in conjuncts(node.cond)
    ]
    return [c for c in conditions if isinstance(c, (Lt, Le, Eq)) and c.a.dtype is INDEX]


@dataclass(eq=False, slots=True)
class _Gap:
    """A condition as slope * var + rest >= 0, with bounds of the rest over the inner loops."""

    slope: int
    lowest: Expr
    highest: Expr
    is_equality: bool


class _Partition(Rewriter):
    def __init__(self, limit: int, ctx: sym.Context) -> None:
        super().__init__(ctx)
        self.room = limit  # statements that may still be copied
        self.settled: set[tuple[Var, Expr]] = set()  # nothing more to gain at this loop
        self.rolled_up = 0  # unrolled loops that lost their constant extent

    def visit_if(self, stmt: If) -> Stmt | None:
        if stmt.cond is TRUE:
            return self(stmt.then)
        if stmt.cond is FALSE:
            return None if stmt.otherwise is None else self(stmt.otherwise)
        return super().visit_if(stmt)

    def visit_for(self, loop: For) -> Stmt | None:
        if loop.kind in (VECTOR, VTHREAD):
            return super().visit_for(loop)
        if loop.kind not in (SERIAL, UNROLL):
            outer, self.ctx = self.ctx, self.ctx.bind(loop.var, loop.start, loop.stop)
            body = self._versions(loop, loop.body, frozenset())
            self.ctx = outer
            return with_body(loop, body)
        for cond, inner in _conditions_below(loop.var, loop.body):
            if (loop.var, cond) in self.settled or not self._belongs_here(cond, loop, inner):
                continue
            self.settled.add((loop.var, cond))
            split = self._split(loop, cond, inner)
            if split is not loop:
                return None if split is None else self(split)
        before = self.rolled_up
        done = super().visit_for(loop)
        if loop.kind == UNROLL and self.rolled_up > before and isinstance(done, For):
            return replace(done, kind=SERIAL)  # a tail: repeating it would only make code
        return done

    # ------------------------------------------------------------------ where

    def _belongs_here(self, cond: Expr, loop: For, inner: list[For]) -> bool:
        """Whether no loop further in is a better place to settle the condition."""
        for at in range(len(inner) - 1, -1, -1):
            deeper = inner[at]
            if (deeper.var, cond) in self.settled or not sym.uses_var(cond, {deeper.var}):
                continue
            if deeper.kind not in (VECTOR, UNROLL, VTHREAD) and self._is_sharp(
                cond, deeper, inner[at + 1 :], [loop, *inner[:at]]
            ):
                return False
        return self._is_sharp(cond, loop, inner, [])

    def _is_sharp(self, cond: Expr, loop: For, inner: list[For], outer: list[For]) -> bool:
        """Whether the condition is open for a few iterations only."""
        found = self._gap(cond, loop, inner, outer)
        if found is None:
            return loop.kind not in (SERIAL, UNROLL)  # an iteration can still choose
        width = sym.bounds(sym.sub(found.highest, found.lowest), self.ctx).upper
        return width is not None and width <= 2 * abs(found.slope)

    def _gap(self, cond: Expr, loop: For, inner: list[For], outer: list[For]) -> _Gap | None:
        assert isinstance(cond, (Lt, Le, Eq))
        gap = sym.sub(cond.b, cond.a)
        if isinstance(cond, Lt):
            gap = sym.sub(gap, 1)
        found = sym.linear(gap, (loop.var,))
        slope = None if found is None else found[0].get(loop.var)
        if found is None or not isinstance(slope, Const):
            return None
        ctx = self.ctx
        for around in outer:
            ctx = ctx.bind(around.var, around.start, around.stop)
        ctx = ctx.bind(loop.var, loop.start, loop.stop)
        running = {one.var: (one.start, one.stop) for one in inner}
        rest = found[1]
        if sym.uses_var(rest, running):
            bounds = sym.symbolic_bounds(rest, running, ctx)
            if bounds is None or any(sym.uses_var(end, {loop.var}) for end in bounds):
                return None
        else:
            bounds = (rest, rest)
        is_equality = isinstance(cond, Eq)
        if is_equality and (bounds[0] is not bounds[1] or abs(int(slope.value)) != 1):
            return None
        return _Gap(int(slope.value), *bounds, is_equality)

    # ------------------------------------------------------------------ how

    def _split(self, loop: For, cond: Expr, inner: list[For]) -> Stmt | None:
        """The loop in parts, or the loop itself where that gains nothing."""
        gap = self._gap(cond, loop, inner, [])
        if gap is None:
            return loop
        parts = [(value, span) for value, span in self._zones(loop, gap) if self._may_run(span)]
        copies = len(parts) - 1
        if all(value is None for value, _ in parts) or not (copies < 1 or self._afford(loop.body)):
            return loop
        made: list[Stmt] = []
        for value, (start, stop) in parts:
            if value is None:
                made.append(self._with_range(loop, start, stop, loop.body))
            else:
                body = _assuming(loop.body, cond, value)
                if body is not None:
                    part = self._with_range(loop, start, stop, body)
                    made.append(fresh_copy(part) if len(parts) > 1 else part)
        return join(*made)

    def _with_range(self, loop: For, start: Expr, stop: Expr, body: Stmt) -> For:
        made = replace(loop, start=start, stop=stop, body=body)
        if made.kind == UNROLL and not isinstance(sym.simplify(made.extent), Const):
            self.rolled_up += 1
            return replace(made, kind=SERIAL)
        return made

    def _zones(self, loop: For, gap: _Gap) -> Iterator[tuple[Const | None, Span]]:
        """Parts of the range in which the condition is true, false or open (None)."""
        if gap.is_equality:
            # slope * v + rest == 0 with slope 1 or -1.
            hit = self._clamped(sym.mul(gap.lowest, -gap.slope), loop.start, loop.stop)
            after = self._clamped(sym.add(sym.mul(gap.lowest, -gap.slope), 1), hit, loop.stop)
            yield FALSE, (loop.start, hit)
            yield TRUE, (hit, after)
            yield FALSE, (after, loop.stop)
        elif gap.slope < 0:
            # slope * v + rest >= 0  just when  v <= rest // -slope
            steep = -gap.slope
            true_until = sym.add(sym.floordiv(gap.lowest, steep), 1)
            false_from = sym.add(sym.floordiv(gap.highest, steep), 1)
            first = self._clamped(true_until, loop.start, loop.stop)
            second = self._clamped(false_from, first, loop.stop)
            yield TRUE, (loop.start, first)
            yield None, (first, second)
            yield FALSE, (second, loop.stop)
        else:
            # slope * v + rest >= 0  just when  v >= ceil(-rest / slope)
            false_until = sym.ceildiv(sym.mul(gap.highest, -1), gap.slope)
            true_from = sym.ceildiv(sym.mul(gap.lowest, -1), gap.slope)
            first = self._clamped(false_until, loop.start, loop.stop)
            second = self._clamped(true_from, first, loop.stop)
            yield FALSE, (loop.start, first)
            yield None, (first, second)
            yield TRUE, (second, loop.stop)

    def _clamped(self, value: Expr, low: Expr, high: Expr) -> Expr:
        inside = sym.maximum(low, sym.minimum(value, high))
        return sym.simplify(inside, self.ctx)

    def _may_run(self, span: Span) -> bool:
        return not sym.prove(sym.le(span[1], span[0]), self.ctx)

    def _versions(self, loop: For, body: Stmt, tried: frozenset[Expr]) -> Stmt | None:
        """Each iteration chooses between code that assumes a condition and code that does not."""
        for cond, inner in _conditions_below(loop.var, body):
            if cond in tried or not self._belongs_here(cond, loop, inner):
                continue
            always = self._for_all(cond, inner)
            if always is None or always is FALSE:
                continue
            if always is not TRUE and not self._afford(body):
                continue
            then = _assuming(body, cond, TRUE)
            if then is None:
                continue
            tried |= {cond}
            if always is TRUE:
                return self._versions(loop, then, tried)
            is_exact = not any(sym.uses_var(cond, {one.var}) for one in inner)
            otherwise = _assuming(body, cond, FALSE) if is_exact else body
            outer = self.ctx
            self.ctx = outer.assume(always)
            yes = self._versions(loop, fresh_copy(then), tried)
            self.ctx = outer.assume(sym.logical_not(always))
            no = None if otherwise is None else self._versions(loop, otherwise, tried)
            self.ctx = outer
            return with_branches(If(always, body, body, loop.loc), yes, no)
        return self(body)

    def _for_all(self, cond: Expr, inner: list[For]) -> Expr | None:
        """The condition that `cond` holds in all iterations of the inner loops."""
        assert isinstance(cond, (Lt, Le, Eq))
        running = {one.var: (one.start, one.stop) for one in inner}
        always: Expr = cond
        if sym.uses_var(cond, running):
            if isinstance(cond, Eq):
                return None
            bounds = sym.symbolic_bounds(sym.sub(cond.b, cond.a), running, self.ctx)
            if bounds is None:
                return None
            always = sym.le(const(1 if isinstance(cond, Lt) else 0), bounds[0])
        return sym.simplify(always, self.ctx)

    def _afford(self, body: Stmt) -> bool:
        """Whether there is room for another copy of the body; if so, it is taken."""
        size = sum(1 for _ in walk(body))
        if size > self.room:
            return False
        self.room -= size
        return True


def _conditions_below(variable: Var, body: Stmt) -> Iterator[tuple[Expr, list[For]]]:
    """Conditions on the variable, each with the loops that run inside around it."""
    stack: list[tuple[Stmt, list[For]]] = [(body, [])]
    seen: set[Expr] = set()
    while stack:
        stmt, inner = stack.pop()
        for cond in _conditions_of(stmt):
            if cond not in seen and sym.uses_var(cond, {variable}):
                seen.add(cond)
                yield cond, inner
        if isinstance(stmt, For):
            inner = [*inner, stmt]
        stack.extend((child, inner) for child in reversed(stmt.children()))


def _assuming(root: Stmt, cond: Expr, value: Const) -> Stmt | None:
    """The statement where `cond` is known; None when nothing is left to do."""
    memo: dict[Expr, Expr] = {cond: value}

    def rule(stmt: Stmt) -> Stmt | None:
        old = stmt.exprs()
        if old:
            new = tuple([sym.rewrite(expr, sym.rebuild, memo) for expr in old])
            if any(a is not b for a, b in zip(old, new, strict=True)):
                stmt = stmt.with_exprs(new)
        if isinstance(stmt, If) and isinstance(stmt.cond, Const):
            return stmt.then if stmt.cond.value else stmt.otherwise
        return stmt

    done = rewrite(root, rule)
    return None if isinstance(done, Seq) and not done.stmts else done
