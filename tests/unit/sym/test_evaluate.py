"""Values of expressions, on integers and on arrays."""

import itertools

import numpy as np
import pytest

from tilewright.base.errors import UserTypeError
from tilewright.sym import (
    FloorDiv,
    FloorMod,
    cast,
    const,
    eq,
    evaluate,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    ne,
    select,
    simplify,
    var,
)

i, j = var("i"), var("j")


def test_integers() -> None:
    env = {i: 5, j: -3}
    assert evaluate(i * 8 + j, env) == 37
    assert evaluate(minimum(i, j) - maximum(i, j), env) == -8
    assert evaluate(select(i < j, i, j), env) == -3
    assert evaluate(logical_and(j < i, ne(i, j)), env) is True
    assert evaluate(logical_or(i < j, eq(i, j)), env) is False
    assert evaluate(logical_not(i < j), env) is True


@pytest.mark.parametrize(("x", "y"), list(itertools.product(range(-9, 10), [-4, -3, -1, 1, 3, 4])))
def test_floor_division_of_every_sign(x: int, y: int) -> None:
    env = {i: x, j: y}
    quotient, remainder = evaluate(FloorDiv(i, j), env), evaluate(FloorMod(i, j), env)
    assert (quotient, remainder) == divmod(x, y)
    by = const(y)
    assert evaluate(simplify(FloorDiv(i, by)), env) == quotient
    assert evaluate(simplify(FloorMod(i, by)), env) == remainder
    assert evaluate(simplify(FloorDiv(i * 2 + 1, by)), env) == (2 * x + 1) // y
    assert evaluate(simplify(FloorMod(i * 2 + 1, by)), env) == (2 * x + 1) % y


def test_arrays_element_by_element() -> None:
    rows = np.arange(-4, 5)
    assert evaluate(i * 8 + j, {i: rows, j: 3}).tolist() == [x * 8 + 3 for x in range(-4, 5)]
    assert evaluate(i // 3, {i: rows}).tolist() == [x // 3 for x in range(-4, 5)]
    assert evaluate(i % -3, {i: rows}).tolist() == [x % -3 for x in range(-4, 5)]
    assert evaluate(select(i < 0, 0, i), {i: rows}).tolist() == [max(x, 0) for x in range(-4, 5)]


def test_an_arm_not_chosen_may_divide_by_zero() -> None:
    safe = select(eq(j, 0), 0, i // j)
    assert evaluate(safe, {i: 7, j: 0}) == 0
    assert evaluate(safe, {i: np.array([7, 8]), j: np.array([0, 4])}).tolist() == [0, 2]
    with pytest.raises(ZeroDivisionError):
        evaluate(i // j, {i: 7, j: 0})


def test_other_integers_wrap() -> None:
    assert evaluate(cast(i, "u8"), {i: 300}) == 44
    assert evaluate(cast(i, "i8"), {i: 200}) == -56
    assert evaluate(cast(cast(i, "i8") + 100, "index"), {i: 100}) == -56
    assert evaluate(cast(i, "i8"), {i: np.array([200, 100])}).tolist() == [-56, 100]
    assert evaluate(cast(i < 3, "index"), {i: 1}) == 1
    assert evaluate(cast(i, "bool"), {i: 2}) is True


def test_what_has_no_integer_value_is_refused() -> None:
    with pytest.raises(UserTypeError, match="not an integer expression") as caught:
        evaluate(i + j, {i: 1})
    assert caught.value.code == "TW0108"
    with pytest.raises(UserTypeError, match="not an integer expression"):
        evaluate(var("a", "f32") + 1.0, {})
