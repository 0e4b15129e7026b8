"""Integers that remember how they were computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import sym
from tilewright.sym.traced import Tape


def test_numbers_are_computed_again_for_other_arguments():
    tape = Tape()
    n, m = tape.argument(20), tape.argument(3)
    tiles = (n + 15) // 16 * m - 1
    run = tape.compiled([(tiles, 7, n), (-m,)])
    assert run(20, 3) == [(5, 7, 20), (-3,)]
    assert run(40, 2) == [(5, 7, 40), (-2,)]


@pytest.mark.parametrize(
    ("decide", "others", "result"),
    [
        (lambda n: n <= 64, [(64, True), (65, False)], True),
        (lambda n: n > 64, [(64, True), (65, False)], False),
        (lambda n: n <= 64, [(65, False)], True),
        (lambda n: n < 20, [(19, False), (21, True)], False),
        (lambda n: n == 20, [(20, True), (21, False)], True),
        (lambda n: n != 20, [(20, True), (21, False)], False),
        (bool, [(1, True), (0, False)], True),
        (lambda n: 0 in (n, 1), [(5, True), (0, False)], False),
        (lambda n: len(range(n)), [(20, True), (21, False)], 20),
    ],
)
def test_decisions_are_conditions(decide, others, result):
    tape = Tape()
    n = tape.argument(20)
    assert decide(n) == result
    run = tape.compiled([(n,)])
    for value, holds in others:
        assert run(value) == ([(value,)] if holds else None)


def test_reading_a_number_is_no_condition():
    tape = Tape()
    n = tape.argument(20)
    assert int(n * 2) == 40
    assert tape.compiled([(n,)])(3) == [(3,)]


def test_values_of_all_numbers_whatever_the_conditions():
    tape = Tape()
    n = tape.argument(20)
    made = n * 3 if n < 30 else n
    assert tape.values([50])[made.at] == 150


n, m = sym.var("n"), sym.var("m")
EXPRS = [
    n * 3 + m,
    (n + 15) // 16 * 4 % 7,
    sym.minimum(n, m * 2) + sym.maximum(n, 5),
    sym.Select(sym.lt(n, m), n + 1, m - n),
    sym.cast(n * 1_000_003, "i32"),
    sym.cast(sym.lt(n, m), "i64"),
]


@pytest.mark.parametrize("expr", EXPRS, ids=str)
@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_expressions_are_traced(expr, a, b, c, d):
    tape = Tape()
    found = sym.evaluate(expr, {n: tape.argument(a), m: tape.argument(b)})
    assert int(found) == sym.evaluate(expr, {n: a, m: b})
    again = tape.compiled([(found,)])(c, d)
    if again is not None:
        assert again == [(int(sym.evaluate(expr, {n: c, m: d})),)]
