"""Contexts are immutable, shared, and take facts in any order."""

import gc

from tilewright.sym import (
    EMPTY,
    TRUE,
    Context,
    bounds,
    const,
    eq,
    floordiv,
    logical_and,
    logical_not,
    logical_or,
    ne,
    prove,
    simplify,
    size,
    var,
)

i, j = var("i"), var("j")
n, m = size("n"), size("m")


def test_the_empty_context_is_one() -> None:
    assert Context() is EMPTY


def test_equal_extensions_are_one_object() -> None:
    assert EMPTY.bind(i, 0, n) is EMPTY.bind(i, 0, n)
    assert EMPTY.bind(i, 0, 8) is EMPTY.bind(i, const(0), const(8))
    assert EMPTY.assume(n <= m) is EMPTY.assume(n <= m)
    assert EMPTY.bind(i, 0, n) is not EMPTY.bind(i, 0, m)


def test_extending_leaves_the_context_as_it_was() -> None:
    base = EMPTY.bind(i, 0, n)
    base.bind(j, 0, 4).assume(n <= 4)
    assert bounds(i, base).upper is None
    assert j not in base.ranges


def test_bind_all_binds_in_order() -> None:
    ctx = EMPTY.bind_all({i: (0, n), j: (i, 8)})
    assert ctx is EMPTY.bind(i, 0, n).bind(j, i, 8)


def test_the_latest_range_counts() -> None:
    assert bounds(i, EMPTY.bind(i, 0, 8).bind(i, 4, 6)).lower == 4
    assert bounds(i, EMPTY.bind(i, 4, 6).bind(i, 0, 8)).lower == 0


def test_conjunctions_are_split() -> None:
    ctx = EMPTY.assume(logical_and(i < n, logical_and(n < m, i >= 2)))
    assert prove(i < m, ctx)
    assert prove(n >= 3, ctx)
    both = EMPTY.assume(logical_not(logical_or(n <= i, m <= i)))
    assert prove(i < n, both)
    assert prove(i < m, both)


def test_what_is_known_already_changes_nothing() -> None:
    ctx = EMPTY.bind(i, 0, n)
    assert ctx.assume(i >= 0) is ctx
    assert ctx.assume(TRUE) is ctx


def test_conditions_that_are_no_arithmetic_are_remembered() -> None:
    mask = var("mask", "bool")
    assert prove(mask, EMPTY.assume(mask))
    assert prove(logical_not(mask), EMPTY.assume(logical_not(mask)))
    either = logical_or(i < n, mask)
    assert prove(either, EMPTY.assume(either))


def test_equations_reach_facts_assumed_before() -> None:
    ctx = EMPTY.bind(i, 0, n).assume(m <= 4).assume(eq(n, m))
    assert bounds(i, ctx).upper == 3
    assert prove(i < 4, ctx)


def test_equations_give_loops_before_sizes_a_value() -> None:
    ctx = EMPTY.assume(eq(n - 1, i))
    assert simplify(i + 1, ctx) is n


def test_equations_without_a_lone_variable_are_facts() -> None:
    ctx = EMPTY.assume(eq(n * 2, m * 3))
    assert prove(n * 2 <= m * 3, ctx)
    assert prove(n * 4 <= m * 6 + 1, ctx)
    assert simplify(eq(n * 2, m * 3), ctx) is TRUE


def test_inequalities_are_remembered() -> None:
    ctx = EMPTY.assume(ne(i, j))
    assert simplify(ne(i, j), ctx) is TRUE
    assert prove(logical_not(eq(i, j)), ctx)


def test_values_of_quotients_are_remembered() -> None:
    ctx = EMPTY.assume(eq(floordiv(i, m), 3))
    assert simplify(i // m + 1, ctx) is const(4)


def test_facts_about_sums_of_sizes() -> None:
    ctx = EMPTY.assume(eq((n + m) % 8, 0))
    assert simplify((n + m) % 8, ctx) is const(0)


def test_contradictions_do_not_end_in_errors() -> None:
    ctx = EMPTY.bind(i, 5, 3).assume(i < 0).assume(eq(n, 3)).assume(eq(n, 4))
    simplify((i * 8 + n) // 8 % 3 + i // n, ctx)
    prove(i < n, ctx)


def test_contexts_no_longer_used_are_freed() -> None:
    before = EMPTY.bind(i, 0, 12345)
    assert EMPTY._children is not None
    count = len(EMPTY._children)
    for extent in range(1000, 2000):
        EMPTY.bind(j, 0, extent)
    gc.collect()
    assert len(EMPTY._children) < count + 400
    assert before.ranges[i] == (const(0), const(12345))


def test_a_context_shows_what_it_knows() -> None:
    text = repr(EMPTY.bind(i, 0, n).assume(eq(n % 8, 0)).assume(n <= m))
    assert text == "<Context 0 <= %i < n, n % 8 == 0, n % 8 == 0, 0 <= m - n>"
