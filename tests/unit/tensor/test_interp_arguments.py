"""What a function accepts; nothing runs before all of it is checked."""

from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import ExecutionError, TilewrightError, UserTypeError
from tilewright.tensor import interpret, parse

COPY = """
func @copy(%x: f32[n, 4], %y: f32[n, 4], %a: i8) stage scheduled {
  require n % 2 == 0
  for %i in 0..n {
    for %j in 0..4 { %y[%i, %j] = %x[%i, %j] }
  }
}
"""


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


SAME = zeros(2, 4)


@pytest.mark.parametrize(
    ("args", "kind", "code", "message"),
    [
        ((), UserTypeError, "TW2320", "@copy takes 3 arguments, got 0"),
        (
            ([0.0], zeros(2, 4), 1),
            UserTypeError,
            "TW2321",
            "argument %x of @copy must be a numpy array, got list",
        ),
        (
            (zeros(2, 4), zeros(2, 4), "1"),
            UserTypeError,
            "TW2321",
            "argument a of @copy must be a number of type i8, got str",
        ),
        (
            (zeros(2, 4), zeros(2, 4, dtype=np.float64), 1),
            UserTypeError,
            "TW2322",
            "argument %y of @copy is f32, got an array of float64",
        ),
        (
            (zeros(2, 4), zeros(2, 4), 300),
            ExecutionError,
            "TW2322",
            "argument a of @copy is i8: 300 does not fit",
        ),
        (
            (zeros(2), zeros(2, 4), 1),
            ExecutionError,
            "TW2323",
            "argument %x of @copy has 2 dimensions, got shape (2,)",
        ),
        (
            (zeros(2, 4), zeros(3, 4), 1),
            ExecutionError,
            "TW2323",
            "argument %y of @copy has 3 elements along dimension 0, but n is 2 from dimension 0 "
            "of %x",
        ),
        (
            (zeros(2, 5), zeros(2, 5), 1),
            ExecutionError,
            "TW2323",
            "argument %x of @copy has 5 elements along dimension 1, expected 4",
        ),
        (
            (zeros(2, 4), read_only(zeros(2, 4)), 1),
            ExecutionError,
            "TW2324",
            "@copy writes argument %y, but the array is read-only",
        ),
        (
            (zeros(3, 4), zeros(3, 4), 1),
            ExecutionError,
            "TW2325",
            "@copy requires n % 2 == 0, but n = 3",
        ),
        (
            (SAME, SAME, 1),
            ExecutionError,
            "TW2326",
            "arguments %x and %y of @copy share memory, and one of them is written",
        ),
    ],
)
def test_arguments_are_refused(
    args: tuple[Any, ...], kind: type[TilewrightError], code: str, message: str
) -> None:
    with pytest.raises(kind) as caught:
        interpret(parse(COPY), *args)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_inputs_may_be_read_only() -> None:
    interpret(parse(COPY), read_only(np.ones((2, 4), np.float32)), zeros(2, 4), np.int8(1))


def test_a_dimension_may_be_an_expression() -> None:
    text = """
    func @f(%x: f32[n], %y: f32[n * 2]) stage scheduled {
      for %i in 0..n * 2 { %y[%i] = %x[%i // 2] }
    }
    """
    y = zeros(4)
    interpret(parse(text), np.array([1, 2], np.float32), y)
    assert y.tolist() == [1, 1, 2, 2]
    with pytest.raises(ExecutionError, match="expected 4"):
        interpret(parse(text), zeros(2), zeros(5))
