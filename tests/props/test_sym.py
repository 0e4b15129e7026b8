"""Random integer expressions in random contexts: nothing the integer layer claims may be wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tilewright.base.dtype import BOOL
from tilewright.base.text import Names, Tokens
from tilewright.sym import (
    Context,
    Expr,
    Var,
    bounds,
    const,
    eq,
    equal,
    evaluate,
    expr,
    is_bijective,
    le,
    linear,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    ne,
    prove,
    select,
    simplify,
    size,
    split_terms,
    substitute,
    symbolic_bounds,
    uses_var,
    var,
)
from tilewright.sym.rules import RULES, Rule
from tilewright.sym.text import ExprParser, ExprPrinter

quick = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
long = settings(quick, max_examples=10_000, derandomize=False)

LOOPS = [var(name) for name in "ijkl"]
SIZES = [size(name) for name in "nmp"]
COEFFICIENTS = [-8, -4, -3, -2, -1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 24]


# ---- rules


@pytest.mark.parametrize("rule", RULES, ids=attrgetter("name"))
@settings(quick, max_examples=10)
@given(data=st.data())
def test_rule_preserves_value(rule: Rule, data: st.DataObject) -> None:
    env = {v: data.draw(_values(v)) for v in rule.variables}
    assume(_value(rule.when, env))
    assert evaluate(rule.lhs, env) == evaluate(rule.rhs, env)


@pytest.mark.parametrize("rule", RULES, ids=attrgetter("name"))
def test_rule_preserves_value_on_all_small_integers(rule: Rule) -> None:
    choices = [np.arange(2) != 0 if v.dtype is BOOL else np.arange(-5, 6) for v in rule.variables]
    grid = np.meshgrid(*choices, indexing="ij")
    env = dict(zip(rule.variables, grid, strict=True))
    holds = np.broadcast_to(evaluate(rule.when, env), grid[0].shape)
    assert holds.any()
    left, right = (
        np.broadcast_to(evaluate(side, env), grid[0].shape) for side in (rule.lhs, rule.rhs)
    )
    np.testing.assert_array_equal(left[holds], right[holds])


def _values(of: Var) -> st.SearchStrategy[Any]:
    return st.booleans() if of.dtype is BOOL else st.integers(-64, 64)


# ---- random expressions, contexts and assignments


@st.composite
def integers(draw: st.DrawFn, depth: int = 3, products: bool = True) -> Expr:
    if depth == 0 or draw(st.integers(0, 6)) == 0:
        if draw(st.integers(0, 4)) == 0:
            return const(draw(st.sampled_from([0, *COEFFICIENTS])))
        return draw(st.sampled_from(LOOPS + SIZES))
    a = draw(integers(depth=depth - 1))
    kind = draw(
        st.sampled_from(["+", "+", "-", "*c", "*c", "//", "//", "%", "%", "//s", "%s", "?"])
    )
    if kind == "*c":
        return a * draw(st.sampled_from(COEFFICIENTS))
    if kind in ("//", "%"):
        divisor = draw(st.sampled_from(COEFFICIENTS))
        return a // divisor if kind == "//" else a % divisor
    if kind in ("//s", "%s"):
        by = draw(st.sampled_from(SIZES)) * draw(st.sampled_from([1, 1, 2]))
        return a // by if kind == "//s" else a % by
    b = draw(integers(depth=depth - 1))
    if kind == "+":
        return a + b
    if kind == "-":
        return a - b
    kind = draw(st.sampled_from(["min", "max", "select", "*"]))
    if kind == "select":
        return select(draw(conditions(depth=depth - 1)), a, b)
    if kind == "*":
        return a * b
    return minimum(a, b) if kind == "min" else maximum(a, b)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> Expr:
    if depth <= 1 or draw(st.booleans()):
        make = draw(st.sampled_from([lt, le, eq, ne]))
        inner = max(depth - 1, 0)
        return make(draw(integers(depth=inner)), draw(integers(depth=inner)))
    kind = draw(st.sampled_from(["and", "or", "not"]))
    a = draw(conditions(depth=depth - 1))
    if kind == "not":
        return logical_not(a)
    b = draw(conditions(depth=depth - 1))
    return logical_and(a, b) if kind == "and" else logical_or(a, b)


@dataclass
class World:
    """A context with a random way to satisfy it."""

    ranges: dict[Var, tuple[Expr, Expr]]
    facts: list[Expr]

    def context(self) -> Context:
        """Built anew, so that no memo table of an earlier one helps."""
        ctx = Context._fresh().bind_all(self.ranges)
        for fact in self.facts:
            ctx = ctx.assume(fact)
        return ctx

    def assignments(self, data: st.DataObject, count: int = 6) -> Iterator[dict[Var, int]]:
        rng = data.draw(st.randoms(use_true_random=False))
        for _ in range(count * 8):
            env: dict[Var, int] = {
                s: rng.choice((0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17)) for s in SIZES
            }
            for v in LOOPS:
                start, stop = self._range(v, env)
                if start >= stop:
                    break
                env[v] = rng.randrange(start, stop)
            else:
                if all(_value(fact, env) for fact in self.facts):
                    yield env
                    count -= 1
            if count == 0:
                return

    def _range(self, v: Var, env: dict[Var, int]) -> tuple[int, int]:
        if v not in self.ranges:
            return -20, 40
        start, stop = (_value(end, env) for end in self.ranges[v])
        return (0, 0) if start is None or stop is None else (start, stop)


def _value(of: Expr, env: dict[Var, Any]) -> Any:
    """None where it divides by zero."""
    try:
        return evaluate(of, env)
    except ZeroDivisionError:
        return None


@st.composite
def worlds(draw: st.DrawFn) -> World:
    n, m, _ = SIZES
    ranges: dict[Var, tuple[Expr, Expr]] = {}
    for v in LOOPS:
        kind = draw(st.sampled_from(["constant", "constant", "size", "derived", "above", "free"]))
        if kind == "constant":
            start = draw(st.sampled_from([0, 0, 0, -3, 1]))
            stop = start + draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
            ranges[v] = (const(start), const(stop))
        elif kind == "size":
            ranges[v] = (const(0), draw(st.sampled_from(SIZES)))
        elif kind == "derived":
            stops = [n // 8, (n + 7) // 8, n * m, minimum(n, 4), n - 1]
            ranges[v] = (const(0), draw(st.sampled_from(stops)))
        elif kind == "above" and ranges:
            other = draw(st.sampled_from(list(ranges)))
            ranges[v] = (other, other + 4)
    facts = draw(st.lists(st.one_of(_plain_facts(), conditions(depth=1)), max_size=2))
    return World(ranges, facts)


def _plain_facts() -> st.SearchStrategy[Expr]:
    some = st.sampled_from(SIZES)
    return st.one_of(
        st.builds(
            lambda s, by, r: eq(s % by, r), some, st.sampled_from([2, 4, 8]), st.integers(0, 1)
        ),
        st.builds(eq, some, some),
        st.builds(le, some, some),
        st.builds(lambda s, low: s >= low, some, st.sampled_from([1, 4])),
        st.builds(lambda s: ne(s, 0), some),
        st.builds(lt, st.sampled_from(LOOPS), st.sampled_from(LOOPS + SIZES)),
    )


# ---- simplify, bounds, prove


def check_simplify(world: World, x: Expr, data: st.DataObject) -> None:
    ctx = world.context()
    y = simplify(x, ctx)
    assert simplify(y, ctx) is y
    assert simplify(y, world.context()) is y, "not a normal form"
    for env in world.assignments(data):
        value = _value(x, env)
        if value is None:
            continue
        assert evaluate(y, env) == value
        assert int(value) in bounds(x, ctx)
        assert int(value) in bounds(y, ctx)


@quick
@given(worlds(), integers(), st.data())
def test_simplify_keeps_the_value_of_integers(world: World, x: Expr, data: st.DataObject) -> None:
    check_simplify(world, x, data)


@quick
@given(worlds(), conditions(), st.data())
def test_simplify_keeps_the_value_of_conditions(world: World, x: Expr, data: st.DataObject) -> None:
    check_simplify(world, x, data)


@quick
@given(worlds(), conditions(depth=2), st.data())
def test_what_is_proved_is_true(world: World, cond: Expr, data: st.DataObject) -> None:
    ctx = world.context()
    if prove(cond, ctx):
        for env in world.assignments(data):
            assert _value(cond, env) in (True, None)


@quick
@given(worlds(), integers(depth=2), integers(depth=2), st.data())
def test_what_is_equal_has_the_same_value(
    world: World, a: Expr, b: Expr, data: st.DataObject
) -> None:
    if equal(a, b, world.context()):
        for env in world.assignments(data):
            values = (_value(a, env), _value(b, env))
            assert None in values or values[0] == values[1]


def check_symbolic_bounds(world: World, x: Expr, data: st.DataObject) -> None:
    some = [v for v in world.ranges if data.draw(st.booleans())]
    running = {v: world.ranges[v] for v in some}
    staying = {v: r for v, r in world.ranges.items() if v not in running}
    if any(uses_var(end, set(running)) for r in staying.values() for end in r):
        return
    ctx = Context().bind_all(staying)
    found = symbolic_bounds(x, running, ctx)
    if found is None:
        return
    low, high = found
    assert not uses_var(low, set(running))
    assert not uses_var(high, set(running))
    plain = World(world.ranges, [])
    for env in plain.assignments(data):
        value, least, most = _value(x, env), _value(low, env), _value(high, env)
        if None not in (value, least, most):
            assert least <= value <= most


@quick
@given(worlds(), integers(), st.data())
def test_symbolic_bounds_hold(world: World, x: Expr, data: st.DataObject) -> None:
    check_symbolic_bounds(world, x, data)


@quick
@given(
    st.lists(st.integers(-4, 4), min_size=4, max_size=4),
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.integers(-5, 5),
)
def test_symbolic_bounds_of_affine_indices_are_reached(
    slopes: list[int], extents: list[int], at: int
) -> None:
    *moving, fixed = LOOPS
    x = sum((v * c for v, c in zip(LOOPS, slopes, strict=True)), const(3))
    ranges = {v: (const(0), const(n)) for v, n in zip(moving, extents, strict=True)}
    found = symbolic_bounds(x, ranges)
    assert found is not None
    grid = np.meshgrid(*[np.arange(n) for n in extents])
    values = evaluate(x, {**dict(zip(moving, grid, strict=True)), fixed: np.int64(at)})
    assert evaluate(found[0], {fixed: at}) == np.min(values)
    assert evaluate(found[1], {fixed: at}) == np.max(values)


# ---- affine maps


@quick
@given(integers(depth=3), st.sets(st.sampled_from(LOOPS)), st.data())
def test_linear_parts_add_up(x: Expr, wanted: set[Var], data: st.DataObject) -> None:
    found = linear(x, [v for v in LOOPS if v in wanted])
    if found is None:
        return
    slopes, rest = found
    assert not any(uses_var(part, wanted) for part in (*slopes.values(), rest))
    again = sum((c * v for v, c in slopes.items()), rest)
    for env in World({}, []).assignments(data):
        assert _value(x, env) in (_value(again, env), None)


@quick
@given(integers(depth=3), st.sets(st.sampled_from(LOOPS), min_size=1), st.data())
def test_split_terms_add_up(x: Expr, inner: set[Var], data: st.DataObject) -> None:
    found = split_terms(x, inner)
    if found is None:
        return
    outside, inside = found
    assert not uses_var(outside, inner)
    assert not uses_var(inside, {v for v in LOOPS if v not in inner})
    for env in World({}, []).assignments(data):
        assert _value(x, env) in (_value(outside + inside, env), None)


@st.composite
def digits(draw: st.DrawFn) -> tuple[list[Expr], dict[Var, int]]:
    """Indices made of digits of variables, mostly from splits and fusions."""
    extents = {v: draw(st.sampled_from([1, 2, 3, 4, 6, 8])) for v in LOOPS[:3]}
    sources: list[tuple[Expr, int]] = list(extents.items())
    if draw(st.booleans()):  # two loops fused, then taken apart again
        (a, n), (b, m), *rest = draw(st.permutations(sources))
        fused = a * m + b + draw(st.sampled_from([0, 0, 1]))
        sources = [(draw(st.sampled_from([fused, fused, a * m - b])), n * m), *rest]
    parts: list[tuple[Expr, int]] = []
    for v, n in sources:
        by = draw(st.sampled_from([1, 2, 3, 4]))
        if by == 1:
            parts.append((v, n))
        else:
            parts += [(v // by, -(-n // by)), (v % by, by)]
    parts = draw(st.permutations(parts))
    exprs: list[Expr] = []
    while parts:
        count = draw(st.integers(1, len(parts)))
        index: Expr = const(draw(st.integers(-1, 1)))
        scale = 1
        for part, n in parts[:count]:
            index = part * scale + index
            scale *= n
        exprs.append(index)
        parts = parts[count:]
    if draw(st.integers(0, 3)) == 0:
        exprs = exprs[1:]
    return exprs, extents


@quick
@given(digits())
def test_bijective_indices_visit_a_box_once(case: tuple[list[Expr], dict[Var, int]]) -> None:
    exprs, extents = case
    if not is_bijective(exprs, extents):
        return
    grid = np.meshgrid(*[np.arange(n) for n in extents.values()], indexing="ij")
    env = {v: g.ravel() for v, g in zip(extents, grid, strict=True)}
    points = [np.broadcast_to(evaluate(x, env), grid[0].size) for x in exprs]
    visited = set(zip(*points, strict=True)) if points else {()}
    box = 1
    for axis in points:
        box *= int(axis.max() - axis.min()) + 1
    assert len(visited) == box == grid[0].size


# ---- text


@st.composite
def values(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Expressions of every type, as nodes rather than through the folding builders."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        of = draw(st.sampled_from(["f32", "f64", "i32", "u8", "bool"]))
        if of == "bool":
            return const(draw(st.booleans()), "bool")
        if of.startswith("f"):
            return const(draw(st.floats(width=32)), of)
        return const(draw(st.integers(0 if of == "u8" else -9, 100)), of)
    kind = draw(st.sampled_from(["integer", "condition", "cast", "float", "select", "wide"]))
    if kind == "integer":
        return draw(integers(depth=depth - 1))
    if kind == "condition":
        return draw(conditions(depth=depth - 1))
    if kind == "cast":
        return expr.Cast(
            draw(values(depth=depth - 1)), const(0, draw(st.sampled_from(["f32", "i32"]))).dtype
        )
    if kind == "select":
        a = draw(values(depth=depth - 1))
        return expr.Select(draw(conditions(depth=1)), a, draw(st.sampled_from([a, _plain(a)])))
    of = "f32" if kind == "float" else "i32"
    a, b = (_as(draw(values(depth=depth - 1)), of) for _ in range(2))
    nodes: list[Callable[[Expr, Expr], Expr]] = [expr.Add, expr.Sub, expr.Mul, expr.Min, expr.Lt]
    nodes.append(expr.Div if kind == "float" else expr.FloorDiv)
    return draw(st.sampled_from(nodes))(a, b)


def _plain(like: Expr) -> Expr:
    return const(1, like.dtype)


def _as(x: Expr, of: str) -> Expr:
    to = const(0, of).dtype
    return x if x.dtype is to else expr.Cast(x, to)


@settings(quick, max_examples=200)
@given(values())
def test_text_reads_back_as_the_same_expression(x: Expr) -> None:
    names = Names()
    for v in LOOPS + SIZES:
        names(v, v.name)
    text = ExprPrinter(names)(x, typed=True)
    parser = ExprParser(Tokens(text), {s.name: s for s in SIZES}, {v.name: v for v in LOOPS})
    again = parser.expr(x.dtype)
    assert parser.tokens.current.kind == "end", text
    assert again is x, f"{text} reads as {again!r}"


# ---- evaluate


@quick
@given(integers(), st.data())
def test_arrays_evaluate_like_their_elements(x: Expr, data: st.DataObject) -> None:
    envs = [env for env in World({}, []).assignments(data, 4) if _value(x, env) is not None]
    if not envs:
        return
    arrays = {v: np.array([env[v] for env in envs]) for v in LOOPS + SIZES}
    found = np.broadcast_to(evaluate(x, arrays), len(envs))
    assert found.tolist() == [evaluate(x, env) for env in envs]


@quick
@given(integers(), st.data())
def test_substitution_commutes_with_evaluation(x: Expr, data: st.DataObject) -> None:
    i, j, *_ = LOOPS
    for env in World({}, []).assignments(data, 2):
        inner = {**env, i: env[j] * 2 + 1}
        value = _value(x, inner)
        if value is not None:
            assert evaluate(substitute(x, {i: j * 2 + 1}), env) == value


# ---- long runs


@pytest.mark.fuzz
@long
@given(worlds(), st.one_of(integers(depth=4), conditions(depth=3)), st.data())
def test_simplify_keeps_the_value_for_long(world: World, x: Expr, data: st.DataObject) -> None:
    check_simplify(world, x, data)


@pytest.mark.fuzz
@long
@given(worlds(), integers(depth=4), st.data())
def test_symbolic_bounds_hold_for_long(world: World, x: Expr, data: st.DataObject) -> None:
    check_symbolic_bounds(world, x, data)


@pytest.mark.fuzz
@long
@given(values(depth=4))
def test_text_reads_back_for_long(x: Expr) -> None:
    test_text_reads_back_as_the_same_expression.hypothesis.inner_test(x)
