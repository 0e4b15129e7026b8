"""`simplify`: a polynomial normal form, then the rule table, using bounds and proofs.

    simplify((io * 8 + ii) // 8, EMPTY.bind(ii, 0, 8))      io

The expression is folded bottom up. Integer nodes become polynomials; every other operator has a
normalizing constructor here, which applies the rules of its kind to a fixed point. So the result of
a rule is in normal form when built, and nothing is traversed twice. Floats are never reassociated:
inside of them and of other layers' nodes only integer operands change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import gcd
from typing import Any

from tilewright.base.dtype import INDEX
from tilewright.base.errors import CompilerBug
from tilewright.sym import expr as e
from tilewright.sym import ops
from tilewright.sym.bounds import bounds, monomial_bounds, poly_bounds
from tilewright.sym.context import EMPTY, Context
from tilewright.sym.deduce import QUICK, THOROUGH, is_positive_divisor, nonnegative
from tilewright.sym.divide import exact_quotient, without_small_rest
from tilewright.sym.expr import FALSE, TRUE, Const, Expr, Size, Var
from tilewright.sym.match import Apply, Value, compile_rule
from tilewright.sym.poly import Monomial, Poly, constant, number, poly_of
from tilewright.sym.rules import TABLE, Rule

_KEEP = 1 << 15
_BUDGET = 2000


def simplify(expr: Expr, ctx: Context = EMPTY) -> Expr:
    """Return an equivalent expression in normal form, given the facts in `ctx`."""
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
    """One simplification: the context, the remaining budget, the last rules applied."""

    __slots__ = ("budget", "ctx", "finished", "fired")

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.budget = _BUDGET
        self.fired: list[str] = []
        self.finished: dict[int, Poly] = {}  # sums that match no rule, by id, kept alive here

    def run(self, root: Expr) -> Expr:
        memo = self.ctx._normal
        done: dict[Expr, Value] = {}
        stack = [root]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            children = node.children()
            ready = True
            for child in children:
                if child in done:
                    continue
                kind = type(child)
                if kind is Var or kind is Size:
                    done[child] = self.variable(child)
                elif kind is Const:
                    done[child] = poly_of(child) if child.dtype is INDEX else child
                else:
                    known = memo.get(child)
                    if known is None:
                        stack.append(child)
                        ready = False
                    else:
                        done[child] = poly_of(known) if known.dtype is INDEX else known
            if ready:
                stack.pop()
                done[node] = self.node(node, children, done)
        return self.expr(done[root])

    # ---- one node over operands in normal form

    def node(self, node: Expr, children: tuple[Expr, ...], done: dict[Expr, Value]) -> Value:
        kind = type(node)
        if node.dtype is INDEX and kind in _ARITHMETIC:
            a, b = done[children[0]], done[children[1]]
            assert type(a) is Poly
            assert type(b) is Poly
            if kind is e.Add:
                return a.plus(b)
            if kind is e.Sub:
                return a.plus(b, -1)
            return a.times(b)
        found: Value
        if kind in _HANDLERS and children[-1].dtype is INDEX:
            values = [self.value(done[child]) for child in children]
            found = _HANDLERS[kind](self, *values)
        elif kind in _LOGIC and not node.dtype.is_vector:
            found = _LOGIC[kind](self, *[self.value(done[child]) for child in children])
        elif not children:
            found = self.variable(node) if isinstance(node, Var) else self.opaque(node, ())
        else:
            found = self.opaque(node, tuple([self.expr(done[child]) for child in children]))
        self.ctx._normal[node] = self.expr(found)
        return found

    def variable(self, node: Expr) -> Value:
        ctx = self.ctx
        known = ctx.values.get(node)
        if known is not None:
            return poly_of(known) if node.dtype is INDEX else known
        if node.dtype is not INDEX:
            return node
        if node in ctx.intervals:
            only = monomial_bounds(node, ctx).value
            if only is not None:
                return constant(only)
        return poly_of(node)

    def opaque(self, node: Expr, new: tuple[Expr, ...]) -> Value:
        """Fold a node of another layer, or return it with the new operands."""
        old = node.children()
        if any(a is not b for a, b in zip(old, new, strict=True)):
            node = node.with_children(new)
        if not _divides_by_zero(node):
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
        """Return a node, or a constant if its bounds leave only one value."""
        known = self.ctx.values.get(node)
        if known is not None:
            return poly_of(known)
        only = bounds(node, self.ctx).value
        return poly_of(node) if only is None else constant(only)

    # ---- values

    def expr(self, value: Value) -> Expr:
        return self.finish(value).expr() if type(value) is Poly else value  # type: ignore[return-value]

    def value(self, value: Value) -> Value:
        return self.finish(value) if type(value) is Poly else value

    def finish(self, poly: Poly) -> Poly:
        """Finish a sum: combine quotients and remainders, and multiply out if that is shorter."""
        several = len(poly.terms) > 1
        quotients = 0
        for monomial in poly.terms:
            if type(monomial) is tuple:
                quotients += e.FloorDiv in map(type, monomial)
                if several and _SUMS.intersection(map(type, monomial)):
                    spread = poly.expanded()
                    if spread.cost() < poly.cost():
                        return self.finish(spread)
                    several = False
            elif type(monomial) is e.FloorDiv:
                quotients += 1
        # Every rule about sums involves a quotient.
        if not quotients or id(poly) in self.finished:
            return poly
        found: Value | None = poly
        while found is not None:
            assert isinstance(found, Poly)
            poly = found
            found = self.apply(e.Add, poly)
        self.finished[id(poly)] = poly
        return poly

    # ---- rules

    def apply(self, kind: type[Expr], subject: Any) -> Value | None:
        """The right side of the first rule that matches, or None."""
        for rule in _COMPILED[kind]:
            found = rule(self, subject)
            if found is not None:
                return found
        return None

    def count(self, rule: Rule) -> None:
        self.fired.append(rule.name)
        if len(self.fired) > self.budget:
            last = ", ".join(self.fired[-8:])
            raise CompilerBug("TW0107", f"simplification does not end: the last rules were {last}")

    def is_within(self, value: Poly, stop: Poly) -> bool:
        """Prove 0 <= value < stop, given that `stop` is a divisor."""
        ctx = self.ctx
        if value.is_const:
            if value.const == 0:  # a nonnegative divisor is at least 1
                return is_positive_divisor(stop, ctx)
            return value.const > 0 and nonnegative(stop.shifted(-value.const - 1), ctx, QUICK)
        if stop.is_const:
            span = poly_bounds(value, ctx)
            low, high = span.lower, span.upper
            if low is not None and low >= 0 and high is not None and high < stop.const:
                return True
        return nonnegative(stop.plus(value, -1).shifted(-1), ctx, QUICK) and nonnegative(
            value, ctx, QUICK
        )

    def is_nonnegative(self, poly: Poly) -> bool:
        return nonnegative(poly, self.ctx, QUICK)

    def is_positive_divisor(self, divisor: Poly) -> bool:
        return is_positive_divisor(divisor, self.ctx)

    def divides(self, divisor: Poly, whole: Poly) -> bool:
        if exact_quotient(whole, divisor) is not None:
            return True
        if not divisor.is_const or not self.ctx.residues:
            return False
        return self.mod(whole, divisor).is_nil

    # normalizing constructors

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
        """`0 <= gap`, with positive terms on the right and negative ones on the left."""
        gap = self._shared_factor_removed(self.finish(gap))
        if nonnegative(gap, self.ctx, THOROUGH):
            return TRUE
        if nonnegative(gap.scaled(-1).shifted(-1), self.ctx, THOROUGH):
            return FALSE
        left, right = _sides(gap)
        if not left.terms:
            node: Expr = e.Le(number(-gap.const), right.expr())
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
        self, kind: type[e.Binary], make: Callable[[Expr, Expr], Expr], a: Expr, b: Expr
    ) -> Expr:
        node = make(a, b)
        if node is a or node is b:
            return node
        parts: list[Expr] = []
        for part in (*_chain(kind, a), *_chain(kind, b)):
            if not self._merge(kind, parts, part):
                return FALSE if kind is e.And else TRUE
        return self.known_condition(reduce(kind, parts))

    def _merge(self, kind: type[e.Binary], parts: list[Expr], new: Expr) -> bool:
        """Add a condition to a conjunction or disjunction, and drop redundant ones.

        False if the result is constant: an unsatisfiable conjunction, or a valid disjunction.
        Written as gaps, a: f >= 0 and b: g >= 0, `a` implies `b` if f <= g; they are disjoint if f
        + g < 0, and exhaustive if f + g >= -1.
        """
        if new in parts:
            return True
        gap = _gap(new)
        for place, old in enumerate(parts):
            other = _gap(old)
            if gap is None or other is None:
                joined = self.apply(kind, (old, new))
                if joined is None:
                    continue
                assert isinstance(joined, Expr)
                if isinstance(joined, Const):
                    return False
                del parts[place]
                return all(self._merge(kind, parts, part) for part in _chain(kind, joined))
            if not any(m in other.terms for m in gap.terms):
                continue
            total = gap.plus(other)
            settled = total.scaled(-1).shifted(-1) if kind is e.And else total.shifted(1)
            if self.is_nonnegative(settled):
                return False
            weaker = gap.plus(other, -1)  # >= 0: the old one implies the new one
            if kind is e.Or:
                weaker = weaker.scaled(-1)
            if self.is_nonnegative(weaker):
                return True
            if self.is_nonnegative(weaker.scaled(-1)):
                del parts[place]
                return self._merge(kind, parts, new)
        parts.append(new)
        return True

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


def _chain(kind: type[e.Binary], cond: Expr) -> list[Expr]:
    """The operands of a nested conjunction or disjunction, in order."""
    parts: list[Expr] = []
    stack = [cond]
    while stack:
        node = stack.pop()
        if isinstance(node, kind):
            stack += [node.b, node.a]
        else:
            parts.append(node)
    return parts


def _gap(cond: Expr) -> Poly | None:
    """The polynomial that is >= 0 iff an index comparison holds."""
    if isinstance(cond, (e.Lt, e.Le)) and cond.a.dtype is INDEX:
        gap = poly_of(cond.b).plus(poly_of(cond.a), -1)
        return gap.shifted(-1) if isinstance(cond, e.Lt) else gap
    return None


def _divides_by_zero(node: Expr) -> bool:
    if isinstance(node, (e.FloorDiv, e.FloorMod)):
        return isinstance(node.b, Const) and node.b.value == 0
    return False


def _sides(gap: Poly) -> tuple[Poly, Poly]:
    """(left, right) without the constant: gap == right - left + constant, with positive
    coefficients."""
    left: dict[Monomial, int] = {}
    right: dict[Monomial, int] = {}
    for monomial, coefficient in gap.terms.items():
        if coefficient < 0:
            left[monomial] = -coefficient
        else:
            right[monomial] = coefficient
    return Poly(left, 0), Poly(right, 0)


_ARITHMETIC = frozenset((e.Add, e.Sub, e.Mul))
_SUMS = frozenset((e.Add, e.Sub))
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
_COMPILED: dict[type[Expr], tuple[Apply, ...]] = {
    kind: tuple(apply for rule in rules for apply in compile_rule(rule, {**_HANDLERS, **_LOGIC}))
    for kind, rules in TABLE.items()
}
