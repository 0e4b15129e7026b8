"""Compile rewrite rules to closures that match normal forms, check conditions, and build results.

Integer subjects are polynomials, conditions are expressions; a match binds the rule's variables. A
sum in a pattern is matched as a sum: one of its terms anchors the match (a quotient or remainder
with its coefficient, or a multiple `x * d`), the other terms follow from the bound variables, and a
lone variable matches the rest.

The closures are given the simplifier, which builds normal forms and proves conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilewright.base.dtype import INDEX
from tilewright.sym import expr as e
from tilewright.sym.context import Context
from tilewright.sym.divide import common_divisors, exact_quotient, split
from tilewright.sym.expr import TRUE, ZERO, Const, Expr, Mul, Var
from tilewright.sym.poly import Poly, divide_monomial, factors, poly_of, term
from tilewright.sym.rules import Rule
from tilewright.sym.visit import walk

Value = Poly | Expr
Env = dict[Var, Value]


class Engine(Protocol):
    """The simplifier's interface for the closures."""

    ctx: Context

    def count(self, rule: Rule) -> None: ...
    def finish(self, poly: Poly) -> Poly: ...
    def is_within(self, value: Poly, stop: Poly) -> bool: ...
    def is_nonnegative(self, poly: Poly) -> bool: ...
    def is_positive_divisor(self, divisor: Poly) -> bool: ...
    def divides(self, divisor: Poly, whole: Poly) -> bool: ...


Match = Callable[[Engine, Any, Env], Sequence[Env]]
Test = Callable[[Engine, Env], bool]
Build = Callable[[Engine, Env], Any]
Apply = Callable[[Engine, Any], Value | None]
Handlers = dict[type[Expr], Callable[..., Any]]
NO_MATCH: tuple[Env, ...] = ()


def compile_rule(rule: Rule, handlers: Handlers) -> list[Apply]:
    """Functions from the operands of a node (or from a sum) to the right side, or None."""
    compiler = _Compiler(rule, handlers)
    build = compiler.build(rule.rhs)
    test = compiler.test(rule.when)
    if isinstance(rule.lhs, e.Add):
        return [_applier(rule, compiler.sum(rule.lhs, set()), test, build)]
    return [
        _applier(rule, compiler.operands(patterns, set()), test, build)
        for patterns in orders(rule.lhs)
    ]


def _applier(rule: Rule, match: Match, test: Test | None, build: Build) -> Apply:
    def apply(engine: Engine, subject: Any) -> Value | None:
        for env in match(engine, subject, {}):
            if test is None or test(engine, env):
                engine.count(rule)
                made: Value = build(engine, env)
                return made
        return None

    return apply


def orders(pattern: Expr) -> list[tuple[Expr, ...]]:
    """The orders of operands to try: both for commutative min, max, and, or."""
    operands = pattern.children()
    if isinstance(pattern, (e.Min, e.Max, e.And, e.Or, e.Eq, e.Ne)):
        return [operands, operands[::-1]]
    return [operands]


class _Compiler:
    """Compiles one rule. `bound` is the set of variables bound at that point."""

    def __init__(self, rule: Rule, handlers: Handlers) -> None:
        self.rule = rule
        self.handlers = handlers
        divisors = [n.children()[1] for n in walk(rule.lhs) if isinstance(n, _DIVISIONS)]
        self.divisors = {v for node in divisors for v in walk(node) if isinstance(v, Var)}

    # ---- left sides

    def operands(self, patterns: tuple[Expr, ...], bound: set[Var]) -> Match:
        """Match several operands, the last first: divisors are bound before dividends."""
        *fronts, last = patterns
        if isinstance(last, Mul) and not bound:
            return self._factored(last, fronts[0], bound)
        places = range(len(patterns) - 1, -1, -1)
        return _in_turn([(place, self.pattern(patterns[place], bound)) for place in places])

    def _factored(self, divisor: Mul, dividend: Expr, bound: set[Var]) -> Match:
        """Match a divisor `k * d`, for every `d` that also divides part of the dividend."""
        k, d = _variables(divisor)
        bound |= {k, d}
        inner = self.pattern(dividend, bound)

        def match(engine: Engine, subject: Any, env: Env) -> Sequence[Env]:
            found: list[Env] = []
            for part in common_divisors(subject[0], subject[1]):
                times = exact_quotient(subject[1], part)
                if times is not None:
                    found.extend(inner(engine, subject[0], {**env, d: part, k: times}))
            return found

        return match

    def pattern(self, pattern: Expr, bound: set[Var]) -> Match:
        if isinstance(pattern, Var):
            return self._variable(pattern, bound)
        if isinstance(pattern, Const):
            return _constant(pattern)
        if isinstance(pattern, e.Add):
            return self.sum(pattern, bound)
        if isinstance(pattern, Mul):
            return self._multiple_of_bound(pattern, bound)
        return self._node(pattern, bound)

    def _variable(self, pattern: Var, bound: set[Var]) -> Match:
        if pattern in bound:
            return lambda engine, subject, env: (env,) if _same(env[pattern], subject) else NO_MATCH
        bound.add(pattern)
        if pattern.name[0] == "c":
            return lambda engine, subject, env: (
                NO_MATCH if subject.terms else ({**env, pattern: subject},)
            )
        if pattern.dtype is INDEX:
            return lambda engine, subject, env: (
                ({**env, pattern: subject},) if type(subject) is Poly else NO_MATCH
            )
        return lambda engine, subject, env: ({**env, pattern: subject},)

    def _multiple_of_bound(self, pattern: Mul, bound: set[Var]) -> Match:
        """Match `k * d` with `d` bound."""
        k, d = _variables(pattern)
        assert d in bound
        inner = self.pattern(k, bound)

        def match(engine: Engine, subject: Any, env: Env) -> Sequence[Env]:
            times = exact_quotient(subject, _poly(env[d]))
            return NO_MATCH if times is None else inner(engine, times, env)

        return match

    def _node(self, pattern: Expr, bound: set[Var]) -> Match:
        kind = type(pattern)
        before = set(bound)
        choices = []
        for patterns in orders(pattern):
            bound.clear()
            bound |= before
            choices.append(self.operands(patterns, bound))

        def match(engine: Engine, subject: Any, env: Env) -> Sequence[Env]:
            node = subject.atom() if type(subject) is Poly else subject
            if type(node) is not kind:
                return NO_MATCH
            operands = _operands(node)
            if len(choices) == 1:
                return choices[0](engine, operands, env)
            return [found for one in choices for found in one(engine, operands, env)]

        return match

    def sum(self, pattern: Expr, bound: set[Var]) -> Match:
        """Match the terms of a sum: the anchor, dependent terms, the rest."""
        anchor, *others = _addends(pattern)
        kernel, scale = (anchor.a, anchor.b) if isinstance(anchor, Mul) else (anchor, None)
        if isinstance(kernel, Var):
            assert isinstance(scale, Var)
            return self._split(kernel, scale, others, bound)
        return self._anchored(kernel, scale, others, bound)

    def _split(self, kernel: Var, scale: Var, others: list[Expr], bound: set[Var]) -> Match:
        # Known remainders make more terms divisible; for a remainder these terms vanish, but a
        # quotient would gain divisions: see `without_small_rest`.
        use_context = len(bound) == 1 and isinstance(self.rule.lhs, e.FloorMod)
        bound.add(kernel)
        rest = self._rest(others, bound)

        def match(engine: Engine, subject: Any, env: Env) -> Sequence[Env]:
            known = engine.ctx if use_context else None
            quotient, left = split(subject, _poly(env[scale]), known)
            if quotient.is_nil:
                return NO_MATCH
            return rest(engine, left, {**env, kernel: quotient})

        return match

    def _anchored(
        self, kernel: Expr, scale: Expr | None, others: list[Expr], bound: set[Var]
    ) -> Match:
        kind = type(kernel)
        inner = self.operands(kernel.children(), bound)
        times_match = _is_one if scale is None else self._scale(scale, bound)
        rest = self._rest(others, bound)

        def match(engine: Engine, subject: Any, env: Env) -> Sequence[Env]:
            results: list[Env] = []
            for monomial, coefficient in subject.terms.items():
                for atom in factors(monomial):
                    if type(atom) is not kind:
                        continue
                    left = divide_monomial(monomial, atom)
                    assert left is not None
                    times = term(left, coefficient)
                    others_of_it: Poly | None = None
                    for found in inner(engine, _operands(atom), env):
                        for scaled in times_match(engine, times, found):
                            if others_of_it is None:
                                others_of_it = subject.without(monomial)
                            results.extend(rest(engine, others_of_it, scaled))
            return results

        return match

    def _scale(self, scale: Expr, bound: set[Var]) -> Match:
        """Match the coefficient of an anchor: `z`, or `d * z` with `d` bound."""
        if isinstance(scale, Mul):
            return self._multiple_of_bound(Mul(scale.b, scale.a), bound)
        return self.pattern(scale, bound)

    def _rest(self, parts: list[Expr], bound: set[Var]) -> Match:
        *known, last = parts
        builds = [self.build(part) for part in known]
        assert isinstance(last, (Var, Const))
        take = self.pattern(last, bound)

        def match(engine: Engine, subject: Any, env: Env) -> Sequence[Env]:
            left = subject
            for build in builds:
                part = build(engine, env)
                left = left.plus(part, -1)
                if part.is_const or any(monomial in left.terms for monomial in part.terms):
                    return NO_MATCH
            return take(engine, left, env)

        return match

    # ---- conditions

    def test(self, cond: Expr) -> Test | None:
        """Compile a condition; None if it always holds."""
        if cond is TRUE or isinstance(cond, e.Ne):
            return None  # divisors of the left side are nonzero where it has a value
        if isinstance(cond, e.And):
            within = self._within(cond)
            return within if within is not None else self._both(cond)
        if isinstance(cond, e.Eq):  # x % d == 0
            assert isinstance(cond.a, e.FloorMod)
            whole, divisor = self.build(cond.a.a), self.build(cond.a.b)
            return lambda engine, env: engine.divides(divisor(engine, env), whole(engine, env))
        assert isinstance(cond, (e.Lt, e.Le))
        if isinstance(cond, e.Lt) and cond.a is ZERO and cond.b in self.divisors:
            positive = cond.b
            return lambda engine, env: engine.is_positive_divisor(_poly(env[positive]))
        low, high = self.build(cond.a), self.build(cond.b)
        least = 1 if isinstance(cond, e.Lt) else 0
        return lambda engine, env: engine.is_nonnegative(
            high(engine, env).plus(low(engine, env), -1).shifted(-least)
        )

    def _both(self, cond: e.And) -> Test | None:
        first, second = self.test(cond.a), self.test(cond.b)
        if first is None or second is None:
            return second if first is None else first
        return lambda engine, env: first(engine, env) and second(engine, env)

    def _within(self, cond: e.And) -> Test | None:
        """0 <= x and x < d, the most frequent condition."""
        low, high = cond.a, cond.b
        if not (isinstance(low, e.Le) and low.a is ZERO and isinstance(high, e.Lt)):
            return None
        x, d = high.a, high.b
        if low.b is not x or not isinstance(x, Var) or not isinstance(d, Var):
            return None
        return lambda engine, env: engine.is_within(_poly(env[x]), _poly(env[d]))

    # ---- right sides

    def build(self, pattern: Expr) -> Build:
        if isinstance(pattern, Var):
            return lambda engine, env: env[pattern]
        if isinstance(pattern, Const):
            value = poly_of(pattern) if pattern.dtype is INDEX else pattern
            return lambda engine, env: value
        parts = [self.build(child) for child in pattern.children()]
        if isinstance(pattern, (e.Add, e.Sub, Mul)):
            a, b = parts
            if isinstance(pattern, Mul):
                return lambda engine, env: a(engine, env).times(b(engine, env))
            sign = 1 if isinstance(pattern, e.Add) else -1
            return lambda engine, env: a(engine, env).plus(b(engine, env), sign)
        handler = self.handlers[type(pattern)]

        def build(engine: Engine, env: Env) -> Any:
            values = []
            for part in parts:
                value = part(engine, env)
                values.append(engine.finish(value) if type(value) is Poly else value)
            return handler(engine, *values)

        return build


_DIVISIONS = (e.FloorDiv, e.FloorMod)


def _variables(product: Mul) -> tuple[Var, Var]:
    a, b = product.a, product.b
    assert isinstance(a, Var)
    assert isinstance(b, Var)
    return a, b


def _in_turn(steps: list[tuple[int, Match]]) -> Match:
    if len(steps) == 1:
        ((place, only),) = steps
        return lambda engine, subject, env: only(engine, subject[place], env)
    if len(steps) == 2:
        (first_place, first), (second_place, second) = steps

        def match_two(engine: Engine, subject: Any, env: Env) -> Sequence[Env]:
            found = first(engine, subject[first_place], env)
            if not found:
                return NO_MATCH
            if len(found) == 1:
                return second(engine, subject[second_place], found[0])
            return [last for one in found for last in second(engine, subject[second_place], one)]

        return match_two

    def match(engine: Engine, subject: Any, env: Env) -> Sequence[Env]:
        found: Sequence[Env] = (env,)
        for place, step in steps:
            found = [last for one in found for last in step(engine, subject[place], one)]
        return found

    return match


def _constant(pattern: Const) -> Match:
    if pattern.dtype is INDEX:
        return lambda engine, subject, env: (
            (env,) if not subject.terms and subject.const == pattern.value else NO_MATCH
        )
    return lambda engine, subject, env: (env,) if subject is pattern else NO_MATCH


def _is_one(engine: Engine, subject: Any, env: Env) -> Sequence[Env]:
    return (env,) if not subject.terms and subject.const == 1 else NO_MATCH


def _operands(node: Expr) -> list[Value]:
    return [poly_of(child) if child.dtype is INDEX else child for child in node.children()]


def _addends(pattern: Expr) -> list[Expr]:
    parts: list[Expr] = []
    while isinstance(pattern, e.Add):
        parts.append(pattern.b)
        pattern = pattern.a
    parts.append(pattern)
    return parts[::-1]


def _poly(value: Value) -> Poly:
    assert type(value) is Poly
    return value


def _same(a: Value, b: Value) -> bool:
    if type(a) is Poly:
        return type(b) is Poly and a.same(b)
    return a is b
