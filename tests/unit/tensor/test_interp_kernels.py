"""Kernels: thread blocks, shared memory, barriers, and what goes wrong with them."""

from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import ExecutionError
from tilewright.tensor import interpret, parse
from tilewright.tensor.intrin import TensorIntrin, declare
from tilewright.tensor.scopes import MemoryScope, Owner, declare_scope

BARRIER = "            eval barrier.shared()\n"
MATMUL = f"""
func @matmul(%A: f32[n, n], %B: f32[n, n], %C: f32[n, n]) stage device {{
  for %by in thread(blockIdx.y) 0..n // 16 {{
    for %bx in thread(blockIdx.x) 0..n // 16 {{
      alloc %As: f32[256] in shared
      alloc %Bs: f32[256] in shared
      for %ty in thread(threadIdx.y) 0..16 {{
        for %tx in thread(threadIdx.x) 0..16 {{
          alloc %acc: f32[1] in local
          %acc[0] = 0.0
          for %ko in 0..n // 16 {{
{BARRIER}            %As[%ty * 16 + %tx] = %A[(%by * 16 + %ty) * n + %ko * 16 + %tx]
            %Bs[%ty * 16 + %tx] = %B[(%ko * 16 + %ty) * n + %bx * 16 + %tx]
{BARRIER}            for %ki in 0..16 {{
              %acc[0] = %acc[0] + %As[%ty * 16 + %ki] * %Bs[%ki * 16 + %tx]
            }}
          }}
          %C[(%by * 16 + %ty) * n + %bx * 16 + %tx] = %acc[0]
        }}
      }}
    }}
  }}
}}
"""


def failure(text: str, *args: Any, seed: int = 0) -> ExecutionError:
    with pytest.raises(ExecutionError) as caught:
        interpret(parse(text), *args, seed=seed)
    return caught.value


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_a_cooperative_matmul_of_128() -> None:
    a, b, c = random(128, 128), random(128, 128), zeros(128, 128)
    interpret(parse(MATMUL), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-4)


def test_a_removed_barrier_before_the_tiles_are_read() -> None:
    before, second = MATMUL.rsplit(BARRIER, 1)
    error = failure(before + second, random(32, 32), random(32, 32), zeros(32, 32))
    assert error.code == "TW2304"
    assert error.message == (
        "race between threads: %As[0] is written by thread (threadIdx.x = 0, threadIdx.y = 0) "
        "and read by thread (threadIdx.x = 1, threadIdx.y = 0) with no barrier between"
    )
    assert error.excerpt is not None
    assert "%As[%ty * 16 + %ki]" in error.excerpt.lines[error.excerpt.line - 1]


def test_a_removed_barrier_before_the_tiles_are_overwritten() -> None:
    before, second = MATMUL.split(BARRIER, 1)
    error = failure(before + second, random(32, 32), random(32, 32), zeros(32, 32))
    assert error.code == "TW2304"
    assert "%As[0] is read by thread" in error.message
    assert "written by thread" in error.message
    assert "%ko = 1" in error.context


def test_scheduled_kernels_need_no_barriers_yet() -> None:
    text = """
    func @reverse(%x: f32[4, 8], %y: f32[4, 8]) stage scheduled {
      alloc %s: f32[8] in shared
      for %b in thread(blockIdx.x) 0..4 {
        for %t in thread(threadIdx.x) 0..8 {
          block @copy(%vb: spatial 4 = %b, %vt: spatial 8 = %t) {
            reads %x[%vb, %vt]
            writes %s[%vt]
            %s[%vt] = %x[%vb, %vt]
          }
          for %u in thread(threadIdx.x) 0..8 {
            block @back(%wb: spatial 4 = %b, %wt: spatial 8 = %u) {
              reads %s[7 - %wt]
              writes %y[%wb, %wt]
              %y[%wb, %wt] = %s[7 - %wt]
            }
          }
        }
      }
    }
    """
    x, y = random(4, 8), zeros(4, 8)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_a_prefetch_is_no_use_of_what_a_thread_has_for_itself() -> None:
    text = """
    func @f(%x: f32[4], %y: f32[4, 2]) stage scheduled {
      alloc %s: f32[4]
      for %t in thread(threadIdx.x) 0..4 {
        block @copy(%v: spatial 4 = %t) {
          reads %x[%v]
          writes %s[%v]
          %s[%v] = %x[%v]
        }
        for %b in thread(blockIdx.x) 0..2 {
          block @back(%w: spatial 4 = %t, %wb: spatial 2 = %b) {
            reads %s[%w]
            writes %y[%w, %wb]
            %y[%w, %wb] = %s[%w]
          }
        }
      }
      block @ahead() { eval prefetch(address(%s[0])) }
    }
    """
    x, y = random(4), zeros(4, 2)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, np.stack([x, x], axis=1))


def test_threads_of_one_block_race_in_a_scheduled_reduction() -> None:
    text = """
    func @sum(%x: f32[8], %y: f32[1]) stage scheduled {
      for %t in thread(threadIdx.x) 0..8 {
        block @S(%v: reduce 8 = %t) {
          reads %x[%v]
          writes %y[0]
          init {
            %y[0] = 0.0
          }
          %y[0] sum= %x[%v]
        }
      }
    }
    """
    assert failure(text, random(8), zeros(1)).code == "TW2304"


def test_storing_the_same_value_twice_is_harmless() -> None:
    text = """
    func @f(%x: f32[1], %y: f32[1]) stage device {
      for %b in thread(blockIdx.x) 0..3 {
        for %t in thread(threadIdx.x) 0..4 { %y[0] = %x[0] }
      }
    }
    """
    y = zeros(1)
    interpret(parse(text), np.full(1, np.nan, np.float32), y)
    assert np.isnan(y[0])


def test_threads_that_store_different_values() -> None:
    text = """
    func @f(%y: f32[4]) stage device {
      for %t in thread(threadIdx.x) 0..8 { %y[%t % 4] = f32(%t) }
    }
    """
    error = failure(text, zeros(4))
    assert error.code == "TW2304"
    assert "%y[0] is written by thread (threadIdx.x = 4)" in error.message


@pytest.mark.parametrize("seed", range(4))
def test_blocks_that_touch_the_same_element(seed: int) -> None:
    text = """
    func @f(%y: f32[4]) stage device {
      for %b in thread(blockIdx.x) 0..4 {
        for %t in thread(threadIdx.x) 0..2 { if %t == 0 { %y[%b] = %y[(%b + 1) % 4] + 1.0 } }
      }
    }
    """
    error = failure(text, zeros(4), seed=seed)
    assert error.code == "TW2305"
    assert error.message.startswith("race between blocks: %y[")


def test_a_barrier_does_not_order_blocks() -> None:
    text = """
    func @f(%y: f32[4]) stage device {
      for %b in thread(blockIdx.x) 0..4 {
        for %t in thread(threadIdx.x) 0..2 {
          %y[%b] = 1.0
          eval barrier.shared()
          %y[3 - %b] = 2.0
        }
      }
    }
    """
    assert failure(text, zeros(4)).code == "TW2305"


def test_a_barrier_of_the_grid_does() -> None:
    text = """
    func @f(%y: f32[4], %z: f32[4]) stage device {
      for %b in thread(blockIdx.x) 0..4 {
        for %t in thread(threadIdx.x) 0..2 {
          %y[%b] = f32(%b)
          eval barrier.global()
          %z[%b] = %y[3 - %b]
        }
      }
    }
    """
    z = zeros(4)
    interpret(parse(text), zeros(4), z)
    assert z.tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
    "body",
    [
        "if %t < 3 { eval barrier.shared() }",
        "for %i in 0..%t { eval barrier.shared() }",
        "if %t < 3 { eval barrier.shared() } else { eval barrier.shared() }",
    ],
)
def test_a_divergent_barrier(body: str) -> None:
    text = f"""
    func @f(%y: f32[4]) stage device {{
      for %b in thread(blockIdx.x) 0..2 {{
        for %t in thread(threadIdx.x) 0..4 {{
          {body}
          %y[%t] = 1.0
        }}
      }}
    }}
    """
    error = failure(text, zeros(4))
    assert error.code == "TW2306"
    assert error.message.startswith("divergent barrier: thread (threadIdx.x = ")


def test_a_barrier_that_whole_blocks_skip_is_fine() -> None:
    text = """
    func @f(%x: f32[8], %y: f32[8]) stage device {
      for %b in thread(blockIdx.x) 0..2 {
        alloc %s: f32[4] in shared
        for %t in thread(threadIdx.x) 0..4 {
          if %b == 1 {
            %s[%t] = %x[4 + %t]
            eval barrier.shared()
            %y[4 + %t] = %s[3 - %t]
          } else {
            %y[%t] = %x[%t]
          }
        }
      }
    }
    """
    x, y = random(8), zeros(8)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, [*x[:4], *x[:3:-1]])


def test_blocks_that_skip_a_barrier_are_not_ordered_by_it() -> None:
    text = """
    func @f(%x: f32[8], %y: f32[8]) stage device {
      for %b in thread(blockIdx.x) 0..2 {
        alloc %s: f32[4] in shared
        for %t in thread(threadIdx.x) 0..4 {
          %s[%t] = %x[%b * 4 + %t]
          if %b == 1 { eval barrier.shared() }
          %y[%b * 4 + %t] = %s[3 - %t]
        }
      }
    }
    """
    assert "%b = 0" in failure(text, random(8), zeros(8)).context


def test_local_memory_belongs_to_a_thread_and_shared_memory_to_a_block() -> None:
    text = """
    func @f(%y: f32[2, 4]) stage device {
      for %b in thread(blockIdx.x) 0..2 {
        alloc %s: f32[1] in shared
        alloc %l: f32[1] in local
        for %t in thread(threadIdx.x) 0..4 {
          %l[0] = f32(%t)
          if %t == 0 { %s[0] = f32(%b) * 10.0 }
          eval barrier.shared()
          %y[%b * 4 + %t] = %l[0] + %s[0]
        }
      }
    }
    """
    y = zeros(2, 4)
    interpret(parse(text), y)
    assert y.tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]


def test_an_uninitialised_read_of_shared_memory() -> None:
    text = """
    func @f(%y: f32[4]) stage device {
      for %t in thread(threadIdx.x) 0..4 {
        alloc %s: f32[4] in shared
        if %t < 3 { %s[%t] = 1.0 }
        eval barrier.shared()
        %y[%t] = %s[%t]
      }
    }
    """
    error = failure(text, zeros(4))
    assert error.code == "TW2302"
    assert error.context == "@f, where %t = 3"


def test_an_out_of_bounds_store_by_one_thread() -> None:
    text = """
    func @f(%y: f32[7]) stage device {
      for %t in thread(threadIdx.x) 0..8 { %y[%t] = 1.0 }
    }
    """
    error = failure(text, zeros(7))
    assert error.code == "TW2301"
    assert error.context == "@f, where %t = 7"


def test_loops_whose_trip_count_depends_on_the_thread() -> None:
    text = """
    func @f(%y: index[6]) stage device {
      for %t in thread(threadIdx.x) 0..6 {
        %y[%t] = 0
        for %i in %t // 2..%t { %y[%t] = %y[%t] + %i }
      }
    }
    """
    y = np.zeros(6, np.int64)
    interpret(parse(text), y)
    assert y.tolist() == [sum(range(t // 2, t)) for t in range(6)]


def test_a_select_guards_each_thread() -> None:
    text = """
    func @f(%x: f32[4], %y: f32[6]) stage device {
      for %t in thread(threadIdx.x) 0..6 {
        %y[%t] = select(%t < 4, %x[%t], 0.0) + select(%t // 4 == 1, 1.0, 2.0)
      }
    }
    """
    x, y = random(4), zeros(6)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, [*(x + 2), 1, 1])


def test_vector_loops_inside_threads() -> None:
    text = """
    func @f(%x: f32[32], %y: f32[32]) stage device {
      for %b in thread(blockIdx.x) 0..2 {
        for %t in thread(threadIdx.x) 0..4 {
          alloc %r: f32[4] in local
          let %at: index = (%b * 4 + %t) * 4
          for %v in vector 0..4 { %r[%v] = %x[%at + %v] }
          for %w in vector 0..4 { %y[%at + %w] = %r[3 - %w] }
        }
      }
    }
    """
    x, y = random(32), zeros(32)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y.reshape(8, 4), x.reshape(8, 4)[:, ::-1])
    clash = text.replace("%r[%v] = %x[%at + %v]", "%r[%v // 2] = %x[%at + %v]")
    assert "race in vector loop %v: %r[0]" in failure(clash, x, y).message


def test_virtual_threads_meet_at_barriers() -> None:
    text = """
    func @f(%x: f32[8], %y: f32[8]) stage device {
      for %b in thread(blockIdx.x) 0..1 {
        alloc %s: f32[8] in shared
        for %t in thread(threadIdx.x) 0..4 {
          for %v in vthread 0..2 {
            %s[%v * 4 + %t] = %x[%v * 4 + %t]
            eval barrier.shared()
            %y[%v * 4 + %t] = %s[7 - %v * 4 - %t]
          }
        }
      }
    }
    """
    x, y = random(8), zeros(8)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, x[::-1])
    error = failure(text.replace("eval barrier.shared()", ""), x, y)
    assert error.code == "TW2304"


def test_virtual_threads_have_local_memory_of_their_own() -> None:
    text = """
    func @f(%x: f32[8], %y: f32[8]) stage device {
      for %t in thread(threadIdx.x) 0..4 {
        for %v in vthread 0..2 {
          alloc %r: f32[1] in local
          %r[0] = %x[%v * 4 + %t]
          eval barrier.shared()
          %y[%v * 4 + %t] = %r[0]
        }
      }
    }
    """
    x, y = random(8), zeros(8)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, x)


def test_one_axis_has_one_extent() -> None:
    text = """
    func @f(%y: f32[8]) stage device {
      for %t in thread(threadIdx.x) 0..8 {
        %y[%t] = 0.0
        for %u in thread(threadIdx.x) 0..4 { %y[%u] = 0.0 }
      }
    }
    """
    error = failure(text, zeros(8))
    assert error.code == "TW2314"
    assert error.message == (
        "thread axis threadIdx.x has extent 4 here and 8 elsewhere in the same kernel"
    )


def test_an_extent_must_be_known_at_launch() -> None:
    text = """
    func @f(%y: f32[8]) stage device {
      for %b in thread(blockIdx.x) 0..8 {
        for %t in thread(threadIdx.x) 0..%b { %y[%b] = 0.0 }
      }
    }
    """
    assert failure(text, zeros(8)).code == "TW2314"


def test_kernels_one_after_another() -> None:
    text = """
    func @f(%x: f32[n], %y: f32[n]) stage scheduled {
      alloc %t: f32[n]
      for %b in thread(blockIdx.x) 0..n {
        block @T(%v: spatial n = %b) {
          reads %x[%v]
          writes %t[%v]
          %t[%v] = %x[%v] * 2.0
        }
      }
      for %s in 0..2 {
        for %c in thread(blockIdx.x) 0..(n + 1) // 2 {
          block @Y(%w: spatial n = %c * 2 + %s) {
            where %c * 2 + %s < n
            reads %t[n - 1 - %w]
            writes %y[%w]
            %y[%w] = %t[n - 1 - %w]
          }
        }
      }
    }
    """
    x, y = random(7), zeros(7)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, 2 * x[::-1])


def test_a_scheduled_reduction_in_threads() -> None:
    text = """
    func @rows(%x: f32[6, 5], %y: f32[6]) stage scheduled {
      alloc %acc: f32[6] in local
      for %t in thread(threadIdx.x) 0..6 {
        for %k in 0..5 {
          block @S(%v: spatial 6 = %t, %r: reduce 5 = %k) {
            reads %x[%v, %r]
            writes %acc[%v]
            init {
              %acc[%v] = 0.0
            }
            %acc[%v] sum= %x[%v, %r]
          }
        }
        block @Y(%w: spatial 6 = %t) {
          reads %acc[%w]
          writes %y[%w]
          %y[%w] = %acc[%w]
        }
      }
    }
    """
    x, y = random(6, 5), zeros(6)
    interpret(parse(text), x, y)
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-5)
    again = text.replace("for %k in 0..5 {", "for %k0 in 0..10 {\n let %k: index = %k0 % 5")
    interpret(parse(again), x, y)  # starts over from the init
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-5)
    again = again.replace("%k0 % 5", "(%k0 + 1) % 5 * ((10 - %k0) // 10) + 1 + %k0 * 0")
    assert failure(again, x, y).code in ("TW2302", "TW2309")


@pytest.mark.parametrize("seed", range(3))
def test_more_threads_than_run_together(seed: int) -> None:
    text = """
    func @f(%y: index[n]) stage device {
      for %b in thread(blockIdx.x) 0..n // 1024 {
        alloc %s: index[1024] in shared
        for %t in thread(threadIdx.x) 0..1024 {
          %s[%t] = %b * 1024 + %t
          eval barrier.shared()
          %y[%b * 1024 + %t] = %s[1023 - %t]
        }
      }
    }
    """
    y = np.zeros(20 * 1024, np.int64)
    interpret(parse(text), y, seed=seed)
    np.testing.assert_array_equal(
        y.reshape(20, 1024), np.arange(20 * 1024).reshape(20, 1024)[:, ::-1]
    )


def test_virtual_threads_around_a_kernel() -> None:
    text = """
    func @f(%x: f32[8], %y: f32[8]) stage scheduled {
      for %v in vthread 0..2 {
        for %t in thread(threadIdx.x) 0..4 {
          block @Y(%w: spatial 8 = %v * 4 + %t) {
            reads %x[%w]
            writes %y[%w]
            %y[%w] = %x[%w]
          }
        }
      }
    }
    """
    x, y = random(8), zeros(8)
    interpret(parse(text), x, y)
    np.testing.assert_array_equal(y, x)


def test_vector_iterations_must_not_share_an_element_even_for_one_value() -> None:
    text = """
    func @f(%y: f32[4]) stage device {
      for %t in thread(threadIdx.x) 0..4 {
        for %v in vector 0..2 { %y[%t] = 1.0 }
      }
    }
    """
    assert "race in vector loop %v: %y[0]" in failure(text, zeros(4)).message


COLLECTIVE = """
func @collective(%x: f32[16], %y: f32[2, 16]) stage scheduled {{
  alloc %s: f32[16] in shared
  alloc %acc: f32[2, 16] in {scope}
  for %b in thread(blockIdx.x) 0..1 {{
    for %t in thread(threadIdx.y) 0..2 {{
      for %u in thread(threadIdx.x) 0..16 {{
        block @s(%v: spatial 16 = %u) {{
          reads %x[%v]
          writes %s[%v]
          %s[%v] = %x[%v]
        }}
      }}
      block @zero(%vt: spatial 2 = %t) {{
        writes %acc[%vt, 0 +: 16]
        call test.add16.reset(%acc[%vt, 0 +: 16])
      }}
      for %k in 0..3 {{
        block @acc(%vt: spatial 2 = %t, %vk: reduce 3 = %k) {{
          {where}
          reads %s[0 +: 16], %acc[%vt, 0 +: 16]
          writes %acc[%vt, 0 +: 16]
          call test.add16.update(%s[0 +: 16], %acc[%vt, 0 +: 16])
        }}
      }}
      for %u in thread(threadIdx.x) 0..16 {{
        block @y(%vt: spatial 2 = %t, %vu: spatial 16 = %u) {{
          reads %acc[%vt, %vu]
          writes %y[%vt, %vu]
          %y[%vt, %vu] = %acc[%vt, %vu]
        }}
      }}
    }}
  }}
}}
"""
ADD16 = """
func @add16(%x: f32[16], %y: f32[16]) stage scheduled {
  for %i in 0..16 {
    for %k in 0..1 {
      block @y(%vi: spatial 16 = %i, %vk: reduce 1 = %k) {
        reads %x[%vi]
        writes %y[%vi]
        init {
          %y[%vi] = 0.0
        }
        %y[%vi] sum= %x[%vi]
      }
    }
  }
}
"""


declare_scope(MemoryScope("unit.sum", Owner.UNIT))


@pytest.mark.parametrize("scope", ["unit.sum", "shared", "local"])
def test_a_tensor_call_is_carried_out_once_by_the_threads_of_a_group(scope: str) -> None:
    declare(TensorIntrin("test.add16", parse(ADD16)))
    x, y = random(16), zeros(2, 16)
    interpret(parse(COLLECTIVE.format(scope=scope, where="")), x, y)
    np.testing.assert_allclose(y, np.stack([3 * x] * 2), rtol=1e-6)


def test_all_threads_of_a_group_come_to_a_tensor_call() -> None:
    declare(TensorIntrin("test.add16", parse(ADD16)))
    text = """
func @some(%x: f32[16], %y: f32[16]) stage scheduled {
  alloc %acc: f32[16] in unit.sum
  alloc %mine: f32[1] in local
  for %b in thread(blockIdx.x) 0..1 {
    for %u in thread(threadIdx.x) 0..16 {
      block @mine(%v: spatial 16 = %u) {
        reads %x[%v]
        writes %mine[0]
        %mine[0] = %x[%v]
      }
    }
    if %mine[0] < 3.0 {
      block @zero(%z: spatial 1 = 0) {
        writes %acc[0 +: 16]
        call test.add16.reset(%acc[0 +: 16])
      }
    }
  }
}
"""
    interpret(parse(text), zeros(16), zeros(16))
    error = failure(text, np.arange(16, dtype=np.float32), zeros(16))
    assert error.code == "TW2306"
    assert "divergent tensor call: thread (threadIdx.x = 0) waits here" in error.message
