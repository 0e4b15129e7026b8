"""`simplify`: a polynomial normal form, then the rule table, using bounds and proofs.

    simplify((io * 8 + ii) // 8, EMPTY.bind(ii, 0, 8))      io

The expression is folded bottom up. Integer nodes become polynomials; every other operator has a
normalising constructor here, which applies the rules of its kind until none fits. So the result of
a rule is in normal form as soon as it is built, and nothing is traversed twice. Floats are never
reassociated: inside them and inside nodes of other layers only the integer operands change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import reduce
from math import gcd
from typing import Any

from tilewright.base.dtype import INDEX
from tilewright.base.errors import CompilerBug
from tilewright.sym import expr as e
from tilewright.sym import ops
from tilewright.sym.bounds import bounds, lower_bound, monomial_bounds, poly_bounds
from tilewright.sym.context import EMPTY, Context
from tilewright.sym.deduce import QUICK, THOROUGH, is_positive_divisor, nonnegative
from tilewright.sym.expr import FALSE, TRUE, Const, Expr, Size, Var, const
from tilewright.sym.match import Env, Matcher, Value, exact_quotient, orders, without_small_rest
from tilewright.sym.poly import NO_TERMS, UNIT, Monomial, Poly, constant, factors, poly_of
from tilewright.sym.rules import TABLE, Rule
from tilewright.sym.visit import walk

_KEEP = 1 << 15
_BUDGET = 2000


def simplify(expr: Expr, ctx: Context = EMPTY) -> Expr:
    """An expression of equal value wherever `ctx` holds, in normal form."""
    memo = ctx._normal
    found = memo.get(expr)
    if found is None:
        if type(expr) is Const:
            return expr
        if len(memo) > _KEEP:
            memo.clear()
        found = _Simplifier(ctx).run(expr)
        memo[expr] = memo[found] = found
    return found


class _Simplifier:
    """One run: the context, the remaining budget, the rules fired last."""

    __slots__ = ("budget", "ctx", "dividing", "fired", "matcher")

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.budget = _BUDGET
        self.fired: deque[str] = deque(maxlen=8)
        self.matcher = Matcher(ctx, self.build)
        self.dividing = Matcher(ctx, self.build, dividing=True)

    def run(self, root: Expr) -> Expr:
        memo = self.ctx._normal
        done: dict[Expr, Value] = {}
        stack = [root]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            known = memo.get(node)
            if known is not None:
                done[node] = poly_of(known) if known.dtype is INDEX else known
                stack.pop()
                continue
            missing = [child for child in node.children() if child not in done]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            done[node] = self.node(node, done)
        return self.expr(done[root])

    # ---- one node over operands in normal form

    def node(self, node: Expr, done: dict[Expr, Value]) -> Value:
        kind = type(node)
        if kind in _ARITHMETIC and node.dtype is INDEX:
            a, b = done[node.a], done[node.b]  # type: ignore[attr-defined]
            if kind is e.Add:
                return a.plus(b)  # type: ignore[union-attr, arg-type]
            if kind is e.Sub:
                return a.plus(b, -1)  # type: ignore[union-attr, arg-type]
            return a.times(b)  # type: ignore[union-attr, arg-type]
        if kind is Var or kind is Size:
            return self.variable(node)
        if kind is Const:
            return constant(node.value) if node.dtype is INDEX else node  # type: ignore[attr-defined]
        handler = _HANDLERS.get(kind)
        old = node.children()
        if handler is not None and old[-1].dtype is INDEX:
            found = handler(self, *[self.finish(done[child]) for child in old])  # type: ignore[arg-type]
        elif kind in _LOGIC and not node.dtype.is_vector:
            found = _LOGIC[kind](self, *[self.value(done[child]) for child in old])
        else:
            found = self.opaque(node, tuple([self.expr(done[child]) for child in old]))
        if kind is not e.Not:
            self.ctx._normal[node] = self.expr(found)
        return found

    def variable(self, node: Expr) -> Value:
        known = self.ctx.values.get(node)
        if known is not None:
            return poly_of(known) if node.dtype is INDEX else known
        if node.dtype is not INDEX:
            return node
        inner = monomial_bounds(node, self.ctx)
        if inner.lower is not None and inner.lower == inner.upper:
            return constant(inner.lower)
        return poly_of(node)

    def opaque(self, node: Expr, new: tuple[Expr, ...]) -> Value:
        """A node this layer knows nothing about, or knows only to fold."""
        old = node.children()
        if any(a is not b for a, b in zip(old, new, strict=True)):
            node = node.with_children(new)
        node = ops.rebuild(node)
        if isinstance(node, e.Compare) and node.a.dtype.is_int:
            certain = bounds(node, self.ctx).value
            if certain is not None:
                return TRUE if certain else FALSE
        known = self.ctx.values.get(node)
        if known is not None:
            node = known
        return self.atom(node) if node.dtype is INDEX else node

    def atom(self, node: Expr) -> Poly:
        """A node that stays: unless only one value is left for it."""
        known = self.ctx.values.get(node)
        if known is not None:
            return poly_of(known)
        inner = bounds(node, self.ctx)
        if inner.lower is not None and inner.lower == inner.upper:
            return constant(inner.lower)
        return poly_of(node)

    # ---- values

    def expr(self, value: Value) -> Expr:
        if isinstance(value, Poly):
            return self.finish(value).expr()
        return value

    def value(self, value: Value) -> Value:
        return self.finish(value) if isinstance(value, Poly) else value

    def finish(self, poly: Poly) -> Poly:
        """A complete sum: quotients and remainders joined, multiplied out where that is shorter."""
        if len(poly.terms) > 1 and poly.has_factored_sums():
            spread = poly.expanded()
            if spread.cost() < poly.cost():
                poly = spread
        if not any(type(atom) in _DIVISIONS for m in poly.terms for atom in factors(m)):
            return poly
        while True:
            found = self.apply(e.Add, (poly,))
            if found is None:
                return poly
            assert isinstance(found, Poly)
            poly = found

    # ---- rules

    def apply(self, kind: type[Expr], subjects: tuple[Value, ...]) -> Value | None:
        """The right side of the first rule that fits, or None."""
        matcher = self.dividing if kind is e.FloorDiv else self.matcher
        for rule, patterns in _COMPILED[kind]:
            if kind is e.Add:
                matches = matcher.one(rule.lhs, subjects[0], {})
            else:
                matches = matcher.children(patterns, subjects, {})
            for env in matches:
                if rule.when is TRUE or self.holds(rule.when, rule, env):
                    self.count(rule)
                    return self.build(rule.rhs, env)
        return None

    def count(self, rule: Rule) -> None:
        self.fired.append(rule.name)
        self.budget -= 1
        if self.budget < 0:
            raise CompilerBug(
                "TW0107",
                f"simplification does not end: the last rules were {', '.join(self.fired)}",
            )

    def holds(self, cond: Expr, rule: Rule, env: Env) -> bool:
        """Whether the condition of a rule is proved for these values."""
        if isinstance(cond, e.And):
            return self.holds(cond.a, rule, env) and self.holds(cond.b, rule, env)
        if isinstance(cond, e.Ne):
            return True  # a divisor of the left side, which has a value
        assert isinstance(cond, e.Binary)
        if isinstance(cond, e.Eq):  # x % d == 0
            assert isinstance(cond.a, e.FloorMod)
            whole, divisor = self.build(cond.a.a, env), self.build(cond.a.b, env)
            assert isinstance(whole, Poly) and isinstance(divisor, Poly)
            return self.divides(divisor, whole)
        low, high = self.build(cond.a, env), self.build(cond.b, env)
        assert isinstance(low, Poly) and isinstance(high, Poly)
        gap = high.plus(low, -1)
        if isinstance(cond, e.Lt):
            gap = gap.shifted(-1)
            if isinstance(cond.b, Var) and cond.b in _divisors(rule):
                # A divisor that is not negative is at least 1.
                if low.is_const and low.const <= 0 and is_positive_divisor(high, self.ctx):
                    return True
        return nonnegative(gap, self.ctx, QUICK)

    def divides(self, divisor: Poly, whole: Poly) -> bool:
        if exact_quotient(whole, divisor) is not None:
            return True
        if not divisor.is_const or not self.ctx.residues:
            return False
        rest = self.mod(whole, divisor)
        return rest.is_const and rest.const == 0

    def build(self, pattern: Expr, env: Env) -> Value:
        """A pattern with its variables replaced, in normal form."""
        if isinstance(pattern, Var):
            return env[pattern]
        if isinstance(pattern, Const):
            return poly_of(pattern) if pattern.dtype is INDEX else pattern
        parts = [self.build(child, env) for child in pattern.children()]
        kind = type(pattern)
        if kind is e.Add:
            return parts[0].plus(parts[1])  # type: ignore[union-attr, arg-type]
        if kind is e.Sub:
            return parts[0].plus(parts[1], -1)  # type: ignore[union-attr, arg-type]
        if kind is e.Mul:
            return parts[0].times(parts[1])  # type: ignore[union-attr, arg-type]
        handler = _HANDLERS.get(kind) or _LOGIC[kind]
        return handler(self, *[self.value(part) for part in parts])

    # ---- normalising constructors

    def div(self, x: Poly, divisor: Poly) -> Poly:
        if divisor.is_const:
            if divisor.const == 1:
                return x
            if x.is_const and divisor.const != 0:
                return constant(x.const // divisor.const)
        if x.is_const and x.const == 0:
            return x
        if divisor.is_const and divisor.const == 0:
            return self.atom(e.FloorDiv(x.expr(), divisor.expr()))
        if self.ctx.residues and divisor.is_const and divisor.const > 0:
            x = without_small_rest(x, divisor.const, self.ctx)
        found = self.apply(e.FloorDiv, (x, divisor))
        if found is None:
            return self.atom(e.FloorDiv(x.expr(), divisor.expr()))
        assert isinstance(found, Poly)
        return self.finish(found)

    def mod(self, x: Poly, divisor: Poly) -> Poly:
        if divisor.is_const:
            if divisor.const == 1:
                return constant(0)
            if x.is_const and divisor.const != 0:
                return constant(x.const % divisor.const)
        if x.is_const and x.const == 0:
            return x
        if divisor.is_const and divisor.const == 0:
            return self.atom(e.FloorMod(x.expr(), divisor.expr()))
        found = self.apply(e.FloorMod, (x, divisor))
        if found is None:
            return self.atom(e.FloorMod(x.expr(), divisor.expr()))
        assert isinstance(found, Poly)
        return self.finish(found)

    def minimum(self, a: Poly, b: Poly) -> Poly:
        return self._extreme(e.Min, ops.minimum, a, b)

    def maximum(self, a: Poly, b: Poly) -> Poly:
        return self._extreme(e.Max, ops.maximum, a, b)

    def _extreme(
        self, kind: type[Expr], make: Callable[[Expr, Expr], Expr], a: Poly, b: Poly
    ) -> Poly:
        found = self.apply(kind, (a, b))
        if found is None:
            return self.atom(make(a.expr(), b.expr()))
        assert isinstance(found, Poly)
        return self.finish(found)

    def less(self, a: Poly, b: Poly) -> Expr:
        return self.at_least_zero(b.plus(a, -1).shifted(-1))

    def less_or_equal(self, a: Poly, b: Poly) -> Expr:
        return self.at_least_zero(b.plus(a, -1))

    def at_least_zero(self, gap: Poly) -> Expr:
        """`0 <= gap`, written with what is added on the right and subtracted on the left."""
        gap = self._shared_factor_removed(self.finish(gap))
        if nonnegative(gap, self.ctx, THOROUGH):
            return TRUE
        if nonnegative(gap.scaled(-1).shifted(-1), self.ctx, THOROUGH):
            return FALSE
        left, right = _sides(gap)
        if not left.terms:
            node: Expr = e.Le(const(-gap.const), right.expr())
        elif gap.const == 0 and right.terms:
            node = e.Le(left.expr(), right.expr())
        elif gap.const < 0 and right.terms:
            node = e.Lt(left.shifted(-gap.const - 1).expr(), right.expr())
        else:
            node = e.Lt(left.expr(), right.shifted(gap.const + 1).expr())
        return self.known_condition(node)

    def _shared_factor_removed(self, gap: Poly) -> Poly:
        divisor = reduce(gcd, gap.terms.values(), 0)
        if divisor > 1:
            terms = {m: c // divisor for m, c in gap.terms.items()}
            return Poly(terms, gap.const // divisor)
        return gap

    def equal(self, a: Poly, b: Poly) -> Expr:
        return self._equality(a, b, e.Eq, TRUE, FALSE)

    def unequal(self, a: Poly, b: Poly) -> Expr:
        return self._equality(a, b, e.Ne, FALSE, TRUE)

    def _equality(
        self, a: Poly, b: Poly, kind: type[e.Compare], same: Const, different: Const
    ) -> Expr:
        gap = self.finish(a.plus(b, -1))
        if gap.is_const:
            return same if gap.const == 0 else different
        divisor = reduce(gcd, gap.terms.values(), 0)
        if gap.const % divisor:
            return different
        if divisor > 1:
            gap = gap.divided(divisor)
        if self._is_never_zero(gap):
            return different
        left, right = _sides(gap.scaled(-1))
        if not right.terms:
            left, right = left, constant(-gap.const)
        elif not left.terms:
            left, right = right, constant(gap.const)
        elif gap.const > 0:
            left = left.shifted(gap.const)
        else:
            right = right.shifted(-gap.const)
        found = self.known_condition(kind(left.expr(), right.expr()))
        if isinstance(found, e.Compare):
            opposite = self.ctx.values.get((e.Ne if kind is e.Eq else e.Eq)(found.a, found.b))
            if isinstance(opposite, Const):
                return FALSE if opposite.value else TRUE
        return found

    def _is_never_zero(self, gap: Poly) -> bool:
        ctx = self.ctx
        if 0 not in poly_bounds(gap, ctx):
            return True
        if nonnegative(gap.shifted(-1), ctx, THOROUGH):
            return True
        if nonnegative(gap.scaled(-1).shifted(-1), ctx, THOROUGH):
            return True
        for modulus, _ in ctx.residues.values():
            rest = self.mod(gap, constant(modulus))
            if 0 not in poly_bounds(rest, ctx):
                return True
        return False

    def known_condition(self, node: Expr) -> Expr:
        return self.ctx.values.get(node, node)

    def both(self, a: Expr, b: Expr) -> Expr:
        return self._logical(e.And, ops.logical_and, a, b)

    def either(self, a: Expr, b: Expr) -> Expr:
        return self._logical(e.Or, ops.logical_or, a, b)

    def _logical(
        self, kind: type[Expr], make: Callable[[Expr, Expr], Expr], a: Expr, b: Expr
    ) -> Expr:
        node = make(a, b)
        if type(node) is not kind:
            return node
        found = self.apply(kind, (a, b))
        if found is None:
            return self.known_condition(node)
        assert isinstance(found, Expr)
        return found

    def invert(self, a: Expr) -> Expr:
        node = ops.logical_not(a)
        if type(node) is not e.Not:
            return node
        found = self.apply(e.Not, (a,))
        if found is None:
            return self.known_condition(node)
        assert isinstance(found, Expr)
        return found

    def select(self, cond: Expr, a: Value, b: Value) -> Value:
        x, y = self.expr(a), self.expr(b)
        node = ops.select(cond, x, y)
        if type(node) is e.Select and node.cond is cond:
            found = self.apply(e.Select, (cond, a, b))
            if found is not None:
                return found
        return self.atom(node) if node.dtype is INDEX else node


def _sides(gap: Poly) -> tuple[Poly, Poly]:
    """(left, right) without the constant: gap == right - left + constant, all signs positive."""
    left: dict[Monomial, int] = {}
    right: dict[Monomial, int] = {}
    for monomial, coefficient in gap.terms.items():
        if coefficient < 0:
            left[monomial] = -coefficient
        else:
            right[monomial] = coefficient
    return Poly(left, 0), Poly(right, 0)


_ARITHMETIC = frozenset((e.Add, e.Sub, e.Mul))
_DIVISIONS = frozenset((e.FloorDiv, e.FloorMod))
_HANDLERS: dict[type[Expr], Callable[..., Any]] = {
    e.FloorDiv: _Simplifier.div,
    e.FloorMod: _Simplifier.mod,
    e.Min: _Simplifier.minimum,
    e.Max: _Simplifier.maximum,
    e.Lt: _Simplifier.less,
    e.Le: _Simplifier.less_or_equal,
    e.Eq: _Simplifier.equal,
    e.Ne: _Simplifier.unequal,
}
_LOGIC: dict[type[Expr], Callable[..., Any]] = {
    e.And: _Simplifier.both,
    e.Or: _Simplifier.either,
    e.Not: _Simplifier.invert,
    e.Select: _Simplifier.select,
}
_COMPILED: dict[type[Expr], tuple[tuple[Rule, tuple[Expr, ...]], ...]] = {
    kind: tuple((rule, patterns) for rule in rules for patterns in orders(rule.lhs))
    for kind, rules in TABLE.items()
}
_divisor_table: dict[Rule, frozenset[Var]] = {}


def _divisors(rule: Rule) -> frozenset[Var]:
    """Variables of a rule that are divisors on its left side, alone or as a factor."""
    found = _divisor_table.get(rule)
    if found is None:
        nodes = [n.children()[1] for n in walk(rule.lhs) if type(n) in _DIVISIONS]
        found = frozenset(v for node in nodes for v in walk(node) if isinstance(v, Var))
        _divisor_table[rule] = found
    return found


__all__ = ["NO_TERMS", "UNIT", "lower_bound", "simplify"]
