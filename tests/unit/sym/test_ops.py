"""Building expressions: types, folding, refusals."""

import pytest

from tilewright.base.errors import UserTypeError
from tilewright.sym import (
    FALSE,
    TRUE,
    Expr,
    Min,
    Sub,
    add,
    any_of,
    as_expr,
    cast,
    ceildiv,
    const,
    eq,
    floordiv,
    floormod,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
    var,
)

i, j = var("i"), var("j")
a, half = var("a", "f32"), var("h", "f16")


def refused(code: str, message: str, build: object, *operands: object) -> None:
    with pytest.raises(UserTypeError) as caught:
        build(*operands)  # type: ignore[operator]
    assert caught.value.code == code
    assert caught.value.message == message


def test_refusals() -> None:
    refused("TW0101", "cannot use str as an expression", add, i, "1")
    refused("TW0102", "the number 0.5 does not fit type index", add, i, 0.5)
    refused("TW0103", "%a + %h has operands of types f32 and f16", add, a, half)
    refused("TW0104", "/ is for floats, got index", lambda: i / 2)
    refused("TW0105", "// and % are for integers, got f32", floordiv, a, 2.0)
    refused("TW0106", "division by the constant zero", floormod, i, 0)


def test_constants_fold() -> None:
    assert const(3) + 4 is const(7)
    assert const(-7) // 2 is const(-4)
    assert const(-7) % 2 is const(1)
    assert const(250, "u8") + 10 is const(4, "u8")
    assert const(100, "i8") + 100 is const(-56, "i8")
    assert ceildiv(17, 8) is const(3)
    assert minimum(3, 4) is const(3)
    assert maximum(3, 4) is const(4)


def test_integers_keep_identities_floats_do_not() -> None:
    assert i + 0 is i
    assert i * 1 is i
    assert i - i is const(0)
    assert 0 * i is const(0)
    assert isinstance(a - a, Sub)
    assert a + 0.0 is not a
    assert isinstance(minimum(const(1.0, "f32"), const(2.0, "f32")), Min)


def test_numbers_take_the_type_beside_them() -> None:
    one = (a + 1).children()[1]
    assert one is const(1.0, "f32")
    assert as_expr(True) is TRUE


def test_conditions_fold() -> None:
    assert logical_and(TRUE, i < j) is (i < j)
    assert logical_and(i < j, FALSE) is FALSE
    assert logical_or(i < j, TRUE) is TRUE
    assert logical_not(logical_not(i < j)) is (i < j)
    assert any_of() is FALSE
    assert select(TRUE, i, j) is i
    assert select(i < j, i, i) is i
    assert eq(i, i) is TRUE


def test_casts_to_the_same_type_vanish() -> None:
    assert cast(i, "index") is i
    assert cast(const(300), "u8") is const(44, "u8")


def test_expressions_have_no_truth_value() -> None:
    condition: Expr = i < j
    with pytest.raises(TypeError, match="no truth value"):
        bool(condition)
