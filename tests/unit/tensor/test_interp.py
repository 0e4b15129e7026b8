"""What programs of one thread of control compute."""

from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import ExecutionError
from tilewright.tensor import interpret, parse
from tilewright.tensor.interp import source

MATMUL = """
func @matmul(%A: f32[n, k], %B: f32[k, m], %C: f32[n, m]) stage scheduled {
  for %i in 0..n {
    for %j in 0..m {
      for %r in 0..k {
        block @C(%vi: spatial n = %i, %vj: spatial m = %j, %vr: reduce k = %r) {
          reads %A[%vi, %vr], %B[%vr, %vj]
          writes %C[%vi, %vj]
          init {
            %C[%vi, %vj] = 0.0
          }
          %C[%vi, %vj] sum= %A[%vi, %vr] * %B[%vr, %vj]
        }
      }
    }
  }
}
"""


def run(text: str, *args: Any, seed: int = 0) -> None:
    interpret(parse(text), *args, seed=seed)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("n", "m", "k"), [(3, 4, 5), (1, 1, 1), (7, 2, 9)])
def test_matmul_takes_its_sizes_from_the_arguments(n: int, m: int, k: int) -> None:
    a, b, c = random(n, k), random(k, m), np.full((n, m), np.nan, np.float32)
    run(MATMUL, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_sums_in_lanes_go_on_with_what_they_held() -> None:
    """Loops over a reduction lie around the intermediate that it fills, used elsewhere or not."""
    text = """
func @f(%x: f32[5, 8], %y: f32[8]) stage scheduled {
  reducer both(%a0: f32, %a1: f32, %b0: f32, %b1: f32) = (
    %a0 + %b0, max(%a1, %b1)) identity (f32(0.0), f32(-inf))
  alloc %most: f32[8]
  for %k in 0..5 {
    for %i in vector 0..8 {
      block @b(%vi: spatial 8 = %i, %vk: reduce 5 = %k) {
        reads %x[%vk, %vi]
        writes %y[%vi], %most[%vi]
        init {
          %y[%vi] = 0.0
          %most[%vi] = -inf
        }
        (%y[%vi], %most[%vi]) both= (%x[%vk, %vi], %x[%vk, %vi])
      }
    }
  }
}
"""
    x, y = random(5, 8), np.empty(8, np.float32)
    run(text, x, y)
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-5, atol=1e-5)


def test_a_matmul_of_64() -> None:
    a, b, c = random(64, 64), random(64, 64), np.empty((64, 64), np.float32)
    run(MATMUL, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_arrays_of_no_elements_are_fine() -> None:
    c = np.ones((0, 4), np.float32)
    run(MATMUL, random(0, 3), random(3, 4), c)
    zero = np.full((2, 2), 7, np.float32)
    run(MATMUL, random(2, 0), random(0, 2), zero)
    assert (zero == 0).all()  # the sum of nothing


def test_rank_zero() -> None:
    x, y = np.array(3.0, np.float32), np.array(0.0, np.float32)
    run("func @f(%x: f32[], %y: f32[]) stage scheduled { %y[] = %x[] * 2.0 }", x, y)
    assert y == 6


def test_arguments_need_not_be_contiguous() -> None:
    a, b = random(8, 6)[::2, ::3], random(5, 2).T
    c = np.zeros((8, 10), np.float32)
    run(MATMUL, a, b, c[1:5, ::2])
    np.testing.assert_allclose(c[1:5, ::2], a @ b, rtol=1e-5, atol=1e-6)
    assert (c[1:5, 1::2] == 0).all()
    assert (c[0] == 0).all()


def test_scalar_parameters() -> None:
    y = np.zeros(4, np.float32)
    text = """
    func @f(%y: f32[n], %a: f32, %b: index, m: index) stage scheduled {
      for %i in 0..n { %y[%i] = f32(%i + %b) * %a + f32(m) }
    }
    """
    run(text, y, 0.5, 3, 100)
    np.testing.assert_array_equal(y, (np.arange(4) + 3) * 0.5 + 100)


def test_a_guarded_load_is_not_evaluated() -> None:
    x, y = random(4), np.zeros(6, np.float32)
    text = """
    func @pad(%x: f32[4], %y: f32[6]) stage scheduled {
      for %i in 0..6 { %y[%i] = select(1 <= %i and %i < 5, %x[%i - 1], 0.0) }
    }
    """
    run(text, x, y)
    np.testing.assert_array_equal(y, np.pad(x, 1))


def test_let_if_and_alloc() -> None:
    x, y = random(8), np.zeros(8, np.float32)
    text = """
    func @f(%x: f32[8], %y: f32[8]) stage flat {
      alloc %t: f32[8]
      for %i in 0..8 {
        let %v: f32 = %x[%i]
        if %v < 0.0 {
          %t[%i] = %v * -1.0
        } else {
          let %j: index = 7 - %i
          %t[7 - %j] = %v
        }
      }
      for %i2 in 0..8 { %y[%i2] = %t[%i2] }
    }
    """
    run(text, x, y)
    np.testing.assert_array_equal(y, np.abs(x))


@pytest.mark.parametrize("seed", range(4))
def test_parallel_loops_run_in_random_order(seed: int) -> None:
    x, y = random(5, 3), np.zeros((5, 3), np.float32)
    text = """
    func @f(%x: f32[n, m], %y: f32[n, m]) stage scheduled {
      for %i in parallel 0..n {
        for %j in vector 0..m { %y[%i, %j] = %x[%i, %j] + 1.0 }
      }
    }
    """
    run(text, x, y, seed=seed)
    np.testing.assert_array_equal(y, x + 1)


def test_an_intermediate_inside_a_parallel_loop_is_private_to_each_iteration() -> None:
    x, y = random(6, 4), np.zeros((6, 4), np.float32)
    text = """
    func @f(%x: f32[6, 4], %y: f32[6, 4]) stage scheduled {
      alloc %t: f32[4]
      for %i in parallel 0..6 {
        for %j in 0..4 { %t[%j] = %x[%i, %j] * 2.0 }
        for %k in 0..4 { %y[%i, %k] = %t[3 - %k] }
      }
    }
    """
    run(text, x, y)
    np.testing.assert_array_equal(y, 2 * x[:, ::-1])


def test_argmax_updates_both_buffers_at_once() -> None:
    x = np.array([3, 9, 2, 9, 1], np.float32)
    at, best = np.zeros((), np.int64), np.zeros((), np.float32)
    text = """
    func @f(%x: f32[5], %at: i64[], %best: f32[]) stage scheduled {
      for %i in 0..5 {
        block @A(%v: reduce 5 = %i) {
          reads %x[%v]
          writes %at[], %best[]
          init {
            %at[] = 9223372036854775807
            %best[] = -inf
          }
          (%at[], %best[]) argmax= (i64(%v), %x[%v])
        }
      }
    }
    """
    run(text, x, at, best)
    assert (at, best) == (1, 9)


def test_a_reducer_of_the_user() -> None:
    x, y = random(7), np.zeros((), np.float32)
    text = """
    func @f(%x: f32[7], %y: f32[]) stage scheduled {
      reducer norm(%a: f32, %b: f32) = (%a + %b * %b) identity (0.0)
      %y[] = 0.0
      for %i in 0..7 { %y[] norm= %x[%i] }
    }
    """
    run(text, x, y)
    np.testing.assert_allclose(y, (x * x).sum(), rtol=1e-6)


def test_predicates_exclude_instances() -> None:
    x, y = random(10), np.zeros(10, np.float32)
    text = """
    func @f(%x: f32[n], %y: f32[n]) stage scheduled {
      for %o in 0..(n + 3) // 4 {
        for %i in unroll 0..4 {
          block @B(%v: spatial n = %o * 4 + %i) {
            where %o * 4 + %i < n
            reads %x[%v]
            writes %y[%v]
            %y[%v] = %x[%v]
          }
        }
      }
    }
    """
    run(text, x, y)
    np.testing.assert_array_equal(y, x)


def test_a_scan_reads_what_earlier_iterations_wrote() -> None:
    x, y = random(6), np.zeros(6, np.float32)
    text = """
    func @cumsum(%x: f32[n], %y: f32[n]) stage scheduled {
      for %t in 0..n {
        block @S(%v: scan n = %t) {
          reads %x[%v], %y[max(%v - 1, 0)]
          writes %y[%v]
          %y[%v] = select(%v == 0, %x[%v], %y[%v - 1] + %x[%v])
        }
      }
    }
    """
    with pytest.raises(ExecutionError, match="TW2307"):  # @ the load of y[v - 1] is not covered
        run(text.replace("%y[max(%v - 1, 0)]", "%y[%v]"), x, y)
    run(text, x, y)
    np.testing.assert_allclose(y, np.cumsum(x), rtol=1e-6)


def test_nested_blocks() -> None:
    x, y = random(8), np.zeros(8, np.float32)
    text = """
    func @f(%x: f32[8], %y: f32[8]) stage scheduled {
      for %o in 0..2 {
        block @outer(%vo: spatial 2 = %o) {
          reads %x[%vo * 4 +: 4]
          writes %y[%vo * 4 +: 4]
          for %i in 0..4 {
            block @inner(%v: spatial 8 = %vo * 4 + %i) {
              reads %x[%v]
              writes %y[%v]
              %y[%v] = %x[%v] + 1.0
            }
          }
        }
      }
    }
    """
    run(text, x, y)
    np.testing.assert_array_equal(y, x + 1)
    with pytest.raises(ExecutionError) as caught:
        run(text.replace("writes %y[%vo * 4 +: 4]", "writes %y[%vo * 4 +: 3]"), x, y)
    assert caught.value.code == "TW2307"
    assert "block @outer" in caught.value.message


def test_a_deep_nest() -> None:
    depth = 30
    heads = "".join(f"for %i{d} in 0..{2 if d < 3 else 1} {{\n" for d in range(depth))
    index = " * 2 + ".join(["(%i0", "%i1)", "%i2"])
    text = (
        f"func @deep(%y: i32[8]) stage scheduled {{ {heads} %y[{index}] = i32(%i{depth - 1}) + 1 "
        + "}" * (depth + 1)
    )
    y = np.zeros(8, np.int32)
    run(text, y)
    assert (y == 1).all()
    with pytest.raises(ExecutionError) as caught:
        run(text.replace("0..2", "0..3"), y)
    assert "%i2 = 2" in caught.value.context


def test_short_vectors() -> None:
    x, y = random(10), np.zeros(10, np.float32)
    text = """
    func @f(%x: f32[n], %y: f32[n]) stage flat {
      for %i in 0..(n + 3) // 4 {
        let %at: indexx4 = ramp(%i * 4, 1, 4)
        let %m: boolx4 = %at < broadcast(n, 4)
        %y[%at] = masked(%x[%at], %m) * broadcast(2.0, 4) where %m
      }
    }
    """
    run(text, x, y)
    np.testing.assert_array_equal(y, 2 * x)


def test_a_vector_select_loads_only_where_chosen() -> None:
    x, y = random(4), np.zeros(8, np.float32)
    text = """
    func @f(%x: f32[4], %y: f32[8]) stage flat {
      let %at: indexx8 = ramp(0, 1, 8)
      %y[%at] = select(%at < broadcast(4, 8), %x[%at], broadcast(1.0, 8))
    }
    """
    run(text, x, y)
    np.testing.assert_array_equal(y, [*x, 1, 1, 1, 1])


def test_gather_and_scatter() -> None:
    x, y = random(8), np.zeros(8, np.float32)
    text = """
    func @f(%x: f32[8], %p: i64[8], %y: f32[8]) stage flat {
      let %i: indexx8 = ramp(0, 1, 8)
      %y[%i] = %x[indexx8(%p[%i])]
    }
    """
    order = np.random.default_rng(1).permutation(8)
    run(text, x, order, y)
    np.testing.assert_array_equal(y, x[order])


def test_flat_accesses_are_row_major_offsets() -> None:
    x, y = random(3, 4), np.zeros((3, 4), np.float32)
    text = """
    func @f(%x: f32[n, m], %y: f32[n, m]) stage flat {
      for %i in 0..n * m { %y[%i] = %x[n * m - 1 - %i] }
    }
    """
    run(text, x, y)
    np.testing.assert_array_equal(y, x[::-1, ::-1])


def test_virtual_threads_run_together() -> None:
    x, y = random(4, 4), np.zeros((4, 4), np.float32)
    text = """
    func @f(%x: f32[4, 4], %y: f32[4, 4]) stage scheduled {
      alloc %t: f32[4] in local
      for %v in vthread 0..4 {
        for %i in 0..4 { %t[%i] = %x[%v, %i] }
        for %j in 0..4 { %y[%v, %j] = %t[3 - %j] }
      }
    }
    """
    run(text, x, y)
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_the_code_that_runs_can_be_read() -> None:
    assert "for v_i in range(0, v_n):" in source(parse(MATMUL))


def test_nothing_is_written_when_execution_fails() -> None:
    y = np.zeros(4, np.float32)
    with pytest.raises(ExecutionError):
        run("func @f(%y: f32[4]) stage scheduled { for %i in 0..5 { %y[%i] = 1.0 } }", y)
    assert (y == 0).all()


@pytest.mark.parametrize("loop", ["", "thread(threadIdx.x) "])
def test_and_and_or_guard_their_second_operand(loop: str) -> None:
    x, y = np.array([1, -1, 2], np.float32), np.zeros(5, np.float32)
    text = f"""
    func @f(%x: f32[3], %y: f32[5]) stage flat {{
      for %i in {loop}0..5 {{
        %y[%i] = select(%i < 3 and %x[%i] > 0.0, 1.0, 0.0)
          + select(%i >= 3 or %x[%i] > 1.0, 2.0, 0.0)
      }}
    }}
    """
    run(text, x, y)
    assert y.tolist() == [1, 0, 3, 2, 2]


@pytest.mark.parametrize("n", [0, 2])
def test_a_number_under_a_vector_condition_is_evaluated_if_a_lane_needs_it(n: int) -> None:
    text = """
    func @f(%x: f32[2], %y: f32[4], %n: index) stage flat {
      let %at: indexx4 = ramp(0, 1, 4)
      let %m: boolx4 = %at < broadcast(%n, 4)
      %y[%at] = select(%m, broadcast(%x[%n - 1] + f32(8 // %n), 4), broadcast(0.0, 4))
    }
    """
    x, y = np.array([1, 2], np.float32), np.zeros(4, np.float32)
    run(text, x, y, n)
    assert y.tolist() == ([6, 6, 0, 0] if n else [0, 0, 0, 0])
    with pytest.raises(ExecutionError, match="TW2301"):
        run(text, x, y, 3)
