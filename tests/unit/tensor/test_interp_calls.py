"""Tensor intrinsics by their declared behaviour; external kernels and instructions."""

from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import ExecutionError
from tilewright.tensor import externs, interpret, parse
from tilewright.tensor.intrin import TensorIntrin, declare

DOT = """
func @dot4(%a: f32[4, 4], %b: f32[4, 4], %c: f32[4, 4]) stage scheduled {
  for %i in 0..4 {
    for %j in 0..4 {
      for %k in 0..4 {
        block @dot(%vi: spatial 4 = %i, %vj: spatial 4 = %j, %vk: reduce 4 = %k) {
          reads %a[%vi, %vk], %b[%vk, %vj]
          writes %c[%vi, %vj]
          init {
            %c[%vi, %vj] = 0.0
          }
          %c[%vi, %vj] sum= %a[%vi, %vk] * %b[%vk, %vj]
        }
      }
    }
  }
}
"""
TILED = """
func @tiled(%A: f32[8, 8], %B: f32[1, 8, 8], %C: f32[8, 8]) stage scheduled {
  for %i in 0..2 {
    for %j in 0..2 {
      for %k in 0..2 {
        block @C(%vi: spatial 2 = %i, %vj: spatial 2 = %j, %vk: reduce 2 = %k) {
          reads %A[%vi * 4 +: 4, %vk * 4 +: 4], %B[0, %vk * 4 +: 4, %vj * 4 +: 4]
          writes %C[%vi * 4 +: 4, %vj * 4 +: 4]
          init {
            call test.dot4.reset(
              %A[%vi * 4 +: 4, 0 +: 4],
              %B[0, 0 +: 4, %vj * 4 +: 4],
              %C[%vi * 4 +: 4, %vj * 4 +: 4])
          }
          call test.dot4.update(
            %A[%vi * 4 +: 4, %vk * 4 +: 4],
            %B[0, %vk * 4 +: 4, %vj * 4 +: 4],
            %C[%vi * 4 +: 4, %vj * 4 +: 4])
        }
      }
    }
  }
}
"""


@pytest.fixture(autouse=True)
def _declared() -> None:
    declare(TensorIntrin("test.dot4", parse(DOT)))


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def failure(text: str, *args: Any) -> ExecutionError:
    with pytest.raises(ExecutionError) as caught:
        interpret(parse(text), *args)
    return caught.value


@pytest.mark.parametrize("threads", [False, True])
def test_reset_and_update_make_a_matmul(threads: bool) -> None:
    a, b, c = random(8, 8), random(1, 8, 8), np.zeros((8, 8), np.float32)
    text = TILED
    if threads:
        text = text.replace("%i in 0..2", "%i in thread(blockIdx.x) 0..2")
        text = text.replace("%j in 0..2", "%j in thread(threadIdx.x) 0..2")
    interpret(parse(text), a, b, c)
    np.testing.assert_allclose(c, a @ b[0], rtol=1e-5, atol=1e-5)


def test_a_missing_reset_is_an_uninitialised_read() -> None:
    head = "%C: f32[8, 8]) stage scheduled {"
    text = TILED.replace(head, "%Y: f32[1]) stage scheduled {\n alloc %C: f32[8, 8]")
    start, end = text.index("init {"), text.index("call test.dot4.update")
    error = failure(text[:start] + text[end:], random(8, 8), random(1, 8, 8), random(1))
    assert error.code == "TW2302"
    assert error.excerpt is not None
    assert "call test.dot4.update" in error.excerpt.lines[error.excerpt.line - 1]


def test_an_update_that_runs_twice() -> None:
    text = TILED.replace("%vk: reduce 2 = %k", "%vk: reduce 2 = (%k + 1) // 2").replace(
        "%k in 0..2", "%k in 0..3"
    )
    assert failure(text, random(8, 8), random(1, 8, 8), random(8, 8)).code == "TW2309"


def test_compute_overwrites() -> None:
    text = """
    func @f(%A: f32[4, 4], %B: f32[4, 4], %C: f32[8, 8]) stage scheduled {
      call test.dot4.compute(%A[0 +: 4, 0 +: 4], %B[0 +: 4, 0 +: 4], %C[3 +: 4, 2 +: 4])
    }
    """
    a, b, c = random(4, 4), random(4, 4), np.ones((8, 8), np.float32)
    interpret(parse(text), a, b, c)
    np.testing.assert_allclose(c[3:7, 2:6], a @ b, rtol=1e-5, atol=1e-6)
    assert c[0, 0] == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("test.dot4.compute(%A[0 +: 4, 0 +: 4])", "test.dot4 takes 3 regions, the call gives 1"),
        (
            "test.dot4.compute(%A[0 +: 4, 0 +: 4], %A[0 +: 4, 0 +: 2], %A[0 +: 4, 0 +: 4])",
            "test.dot4 takes f32[4, 4] for %b, the call gives a tile of [4, 2] of %A",
        ),
    ],
)
def test_tiles_must_match(call: str, message: str) -> None:
    text = f"func @f(%A: f32[4, 4]) stage scheduled {{ call {call} }}"
    error = failure(text, random(4, 4))
    assert (error.code, error.message) == ("TW2313", message)


def test_a_copy_has_no_update() -> None:
    copy = """
    func @copy(%a: f32[4], %b: f32[4]) stage scheduled {
      for %i in 0..4 { %b[%i] = %a[%i] }
    }
    """
    text = """
    func @f(%x: f32[4], %y: f32[4]) stage scheduled {
      call test.copy4.compute(%x[0 +: 4], %y[0 +: 4])
    }
    """
    declare(TensorIntrin("test.copy4", parse(copy)))
    x, y = random(4), np.zeros(4, np.float32)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(x, y)
    error = failure(text.replace("copy4.compute", "copy4.update"), x, y)
    assert error.message == "test.copy4 is no reduction: it has no phase update"


def test_an_external_kernel_works_on_regions() -> None:
    externs.register("test_scale", lambda x, y: np.multiply(x, 2, out=y))
    text = """
    func @f(%x: f32[4, 4], %y: f32[4, 4]) stage scheduled {
      alloc %t: f32[4, 4]
      for %i in parallel 0..4 {
        extern test_scale(%x[%i, 0 +: 4]) -> (%t[%i, 0 +: 4])
      }
      for %j in 0..16 { %y[%j // 4, %j % 4] = %t[%j // 4, %j % 4] }
    }
    """
    x, y = random(4, 4), np.zeros((4, 4), np.float32)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, 2 * x)
    assert failure(text.replace("%x[%i, 0 +: 4]", "%x[%i, 1 +: 4]"), x, y).code == "TW2301"
    half = text.replace("%t[%i, 0 +: 4])", "%t[%i, 0 +: 2])").replace("%x[%i, 0", "%x[%i, 2")
    assert failure(half.replace("2 +: 4", "2 +: 2"), x, y).code == "TW2302"


def test_an_external_kernel_in_threads() -> None:
    externs.register("test_scale", lambda x, y: np.multiply(x, 2, out=y))
    text = """
    func @f(%x: f32[4, 4], %y: f32[4, 4]) stage scheduled {
      for %t in thread(threadIdx.x) 0..4 {
        extern test_scale(%x[%t, 0 +: 4]) -> (%y[%t, 0 +: 4])
      }
    }
    """
    x, y = random(4, 4), np.zeros((4, 4), np.float32)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, 2 * x)


def test_an_unknown_external_kernel() -> None:
    text = "func @f(%x: f32[4]) stage scheduled { extern test_nothing() -> (%x[0 +: 4]) }"
    error = failure(text, random(4))
    assert (error.code, error.message) == (
        "TW2312",
        "the interpreter has no definition of test_nothing",
    )


@pytest.mark.parametrize("loop", ["", "thread(threadIdx.x) "])
def test_an_instruction_on_addresses(loop: str) -> None:
    def add4(x: np.ndarray, y: np.ndarray, z: np.ndarray, count: int) -> None:
        z[:count] = x[:count] + y[:count]

    externs.register("test.add", add4)
    text = f"""
    func @f(%x: f32[16], %y: f32[16]) stage flat {{
      for %i in {loop}0..4 {{
        alloc %t: f32[4] in local
        eval test.add:bool(address(%x[%i * 4]), address(%x[%i * 4]), address(%t[0]), 4)
        eval prefetch(address(%x[0]))
        for %j in 0..4 {{ %y[%i * 4 + %j] = %t[%j] }}
      }}
    }}
    """
    x, y = random(16), np.zeros(16, np.float32)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, 2 * x)


def test_external_kernels_race_and_leave_their_regions_too() -> None:
    externs.register("test_fill", lambda y: y.fill(1))
    text = """
    func @f(%y: f32[8]) stage scheduled {
      for %i in parallel 0..2 {
        block @F(%v: spatial 2 = %i) {
          writes %y[%v * 4 +: 4]
          extern test_fill() -> (%y[%v * 4 +: 4])
        }
      }
    }
    """
    y = np.zeros(8, np.float32)
    interpret(parse(text), y)
    assert (y == 1).all()
    outside = text.replace("-> (%y[%v * 4 +: 4])", "-> (%y[%v * 4 +: 4 + %v])")
    assert failure(outside.replace("f32[8]", "f32[9]"), np.zeros(9, np.float32)).code == "TW2307"
    wide = text.replace("%v * 4 +: 4", "%v * 3 +: 4")
    assert failure(wide, y).message.startswith("race in parallel loop %i: %y[3]")


def test_a_reduction_may_start_over_after_an_external_kernel() -> None:
    externs.register("test_clear", lambda y: y.fill(0))
    text = """
    func @f(%x: f32[4], %y: f32[1]) stage scheduled {
      for %again in 0..2 {
        extern test_clear() -> (%y[0])
        for %k in 0..4 {
          block @S(%v: reduce 4 = %k) {
            reads %x[%v]
            writes %y[0]
            %y[0] sum= %x[%v]
          }
        }
      }
    }
    """
    x, y = random(4), np.zeros(1, np.float32)
    interpret(parse(text), x, y)
    np.testing.assert_allclose(y[0], x.sum(), rtol=1e-5)
