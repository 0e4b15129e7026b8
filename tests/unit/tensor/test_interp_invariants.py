"""Index arithmetic and checks stand outside of the loops that they do not depend on."""

import itertools
from typing import Any

import numpy as np
import pytest

from tilewright import sym
from tilewright.base.errors import ExecutionError
from tilewright.sym import Expr, const
from tilewright.tensor import interpret, parse
from tilewright.tensor.interp import source
from tilewright.tensor.interp.intervals import interval, lies_below, lies_in
from tilewright.tensor.ir import Range

I, J, N = sym.var("i"), sym.var("j"), sym.var("n")
EXTENTS = {I: const(4), J: const(3), N: sym.var("m")}


def arithmetic() -> list[Expr]:
    five = const(5)
    leaves = [I, J, five, sym.sub(I, five), sym.mul(J, const(-2))]
    made = [op(a, b) for op in (sym.add, sym.sub, sym.mul) for a in leaves for b in leaves]
    parts = [op(a, const(c)) for op in (sym.floordiv, sym.floormod) for a in made for c in (3, 7)]
    return [*made, *parts]


def test_bounds_hold_for_every_value() -> None:
    known = 0
    for expr in arithmetic():
        values = [
            int(str(sym.substitute(expr, {I: const(i), J: const(j)})))
            for i, j in itertools.product(range(4), range(3))
        ]
        found = interval(expr, EXTENTS)
        if found is not None:
            known += 1
            assert found[0] <= min(values), expr
            assert max(values) <= found[1], expr
    assert known > 50


def test_what_is_not_known_is_not_claimed() -> None:
    assert interval(N, EXTENTS) is None
    assert interval(sym.floordiv(I, sym.sub(J, const(1))), EXTENTS) is None
    assert not lies_below(sym.add(I, const(1)), const(4), EXTENTS)
    assert not lies_below(sym.sub(I, const(1)), const(4), EXTENTS)
    assert not lies_below(I, N, EXTENTS)
    assert lies_in(sym.add(sym.mul(N, const(4)), I), Range(sym.mul(N, const(4)), const(4)), EXTENTS)
    assert not lies_in(sym.add(N, I), Range(N, const(3)), EXTENTS)


def run(text: str, *args: Any) -> None:
    interpret(parse(text), *args)


COPY = """
func @copy(%x: f32[12], %n: index, %y: f32[12]) stage scheduled {
  for %i in 0..3 {
    for %j in 0..%n {
      %y[%i * 4 + %j] = %x[%i * 4 + %j]
    }
  }
}
"""


def test_what_a_loop_does_not_change_is_computed_before_it() -> None:
    lines = source(parse(COPY)).splitlines()
    (product,) = (line for line in lines if "v_i * 4" in line)
    assert lines.index(product) < next(n for n, line in enumerate(lines) if "for v_j" in line)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_loops_that_do_not_run_read_nothing(n: int) -> None:
    x, y = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
    run(COPY, x, n, y)
    wanted = np.where(np.arange(12) % 4 < n, x, 0)
    np.testing.assert_array_equal(y, wanted)


def test_an_index_outside_is_found_wherever_it_is_computed() -> None:
    x, y = np.zeros(12, np.float32), np.zeros(12, np.float32)
    with pytest.raises(ExecutionError, match=r"load of %x\[12\] is out of bounds"):
        run(COPY, x, 5, y)
    guarded = """
    func @f(%x: f32[4], %k: index, %y: f32[8]) stage scheduled {
      for %i in 0..2 {
        for %j in 0..4 {
          if %k + %i < 4 { %y[%i * 4 + %j] = %x[%k + %i] }
          else { %y[%i * 4 + %j] = %x[%k - 4 + %i] + 1.0 }
        }
      }
    }
    """
    x, y = np.arange(4, dtype=np.float32), np.zeros(8, np.float32)
    run(guarded, x, 3, y)
    np.testing.assert_array_equal(y, [3] * 4 + [1] * 4)
    with pytest.raises(ExecutionError, match=r"load of %x\[4\] is out of bounds"):
        run(guarded, x, 7, y)


def test_a_region_too_small_is_found_by_the_element_outside() -> None:
    with pytest.raises(ExecutionError, match=r"load of %x\[2\] lies outside") as caught:
        run(
            """
            func @f(%x: f32[8], %y: f32[2]) stage scheduled {
              for %o in 0..2 {
                block @b(%v: spatial 2 = %o) {
                  reads %x[%v * 4 +: 2]
                  writes %y[%v]
                  for %r in 0..4 { %y[%v] = %x[%v * 4 + %r] }
                }
              }
            }
            """,
            np.zeros(8, np.float32),
            np.zeros(2, np.float32),
        )
    assert "%r = 2" in str(caught.value)


def test_iterators_of_one_block_in_two_places() -> None:
    y = np.zeros(6, np.float32)
    run(
        """
        func @f(%y: f32[6]) stage scheduled {
          for %i in 0..3 {
            block @a(%v: spatial 6 = %i) { writes %y[%v] %y[%v] = 1.0 }
            block @a(%v: spatial 6 = %i + 3) { writes %y[%v] %y[%v] = 2.0 }
          }
        }
        """,
        y,
    )
    np.testing.assert_array_equal(y, [1, 1, 1, 2, 2, 2])
