"""Everything a program must not do is caught, at the statement that does it."""

from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import ExecutionError
from tilewright.tensor import interpret, parse


def failure(text: str, *args: Any, seed: int = 0) -> ExecutionError:
    with pytest.raises(ExecutionError) as caught:
        interpret(parse(text), *args, seed=seed)
    return caught.value


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_an_out_of_bounds_store() -> None:
    error = failure(
        """
func @f(%y: f32[4, 4]) stage scheduled {
  for %i in 0..4 {
    for %j in 0..4 {
      %y[%i, %j + 1] = 1.0
    }
  }
}
""",
        zeros(4, 4),
    )
    assert str(error) == (
        "error[TW2301]: store to %y[0, 4] is out of bounds: dimension 1 has 4 elements\n"
        "  --> <text>:5:7\n"
        "  in @f, where %i = 0, %j = 3\n"
        " 2 |   for %i in 0..4 {\n"
        " 3 |     for %j in 0..4 {\n"
        " 4 |       %y[%i, %j + 1] = 1.0\n"
        "   |       ^^^^^^^^^^^^^^^^^^^^\n"
        " 5 |     }\n"
        " 6 |   }\n"
        "help: guard the access with select, if or a block predicate, or enlarge the buffer"
    )


@pytest.mark.parametrize(
    ("access", "shown"), [("%x[%i - 1]", "%x[-1]"), ("%x[2 * %i]", "%x[4]"), ("%x[7]", "%x[7]")]
)
def test_an_out_of_bounds_load(access: str, shown: str) -> None:
    text = f"""
    func @f(%x: f32[4], %y: f32[4]) stage scheduled {{
      for %i in 0..4 {{ %y[%i] = {access} }}
    }}
    """
    error = failure(text, zeros(4), zeros(4))
    assert error.code == "TW2301"
    assert error.message.startswith(f"load of {shown} is out of bounds")


def test_an_out_of_bounds_offset() -> None:
    text = "func @f(%y: f32[2, 3]) stage flat { for %i in 0..7 { %y[%i] = 1.0 } }"
    assert failure(text, zeros(2, 3)).message == (
        "store to %y[6] is out of bounds: it has 6 elements"
    )


def test_an_out_of_bounds_vector() -> None:
    text = """
    func @f(%x: f32[6], %y: f32[8]) stage flat {
      let %i: indexx8 = ramp(0, 1, 8)
      %y[%i] = %x[%i]
    }
    """
    assert failure(text, zeros(6), zeros(8)).message.startswith("load of %x[6] is out of bounds")


def test_an_uninitialised_read() -> None:
    error = failure(
        """
        func @f(%y: f32[4]) stage scheduled {
          alloc %t: f32[4]
          for %i in 0..3 { %t[%i] = 1.0 }
          for %j in 0..4 { %y[%j] = %t[%j] }
        }
        """,
        zeros(4),
    )
    assert error.code == "TW2302"
    assert error.message == "%t[3] is read before anything is stored there"
    assert error.context == "@f, where %j = 3"
    assert error.excerpt is not None
    assert error.excerpt.lines[error.excerpt.line - 1].strip() == "%y[%j] = %t[%j]"


def test_an_uninitialised_accumulator() -> None:
    text = """
    func @f(%x: f32[4], %y: f32[]) stage scheduled {
      alloc %t: f32[]
      for %i in 0..4 { %t[] sum= %x[%i] }
      %y[] = %t[]
    }
    """
    assert failure(text, zeros(4), zeros()).code == "TW2302"


def test_an_uninitialised_vector() -> None:
    text = """
    func @f(%y: f32[4]) stage flat {
      alloc %t: f32[4]
      for %i in 0..3 { %t[%i] = 1.0 }
      %y[ramp(0, 1, 4)] = %t[ramp(0, 1, 4)]
    }
    """
    assert failure(text, zeros(4)).message == "%t[3] is read before anything is stored there"


def test_an_alloc_statement_starts_without_values() -> None:
    text = """
    func @f(%y: f32[4]) stage flat {
      for %i in 0..4 {
        alloc %t: f32[1]
        if %i == 0 { %t[0] = 1.0 }
        %y[%i] = %t[0]
      }
    }
    """
    assert failure(text, zeros(4)).context == "@f, where %i = 1"


def test_a_parameter_may_be_read_before_it_is_written() -> None:
    y = np.arange(3, dtype=np.float32)
    interpret(
        parse("func @f(%y: f32[3]) stage scheduled { for %i in 0..3 { %y[%i] = %y[%i] + 1.0 } }"), y
    )
    assert y.tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", ["parallel", "vector"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("body", "first"),
    [
        ("%y[0] = f32(%i)", "written"),
        ("%y[%i] = %y[(%i + 1) % 4]", "read"),
        ("%y[0] sum= %x[%i]", "written"),
    ],
)
def test_a_race_between_iterations(kind: str, seed: int, body: str, first: str) -> None:
    text = f"""
    func @f(%x: f32[4], %y: f32[4]) stage scheduled {{
      for %i in {kind} 0..4 {{ {body} }}
    }}
    """
    error = failure(text, zeros(4), zeros(4), seed=seed)
    assert error.code == "TW2303"
    assert error.message.startswith(f"race in {kind} loop %i: %y[")
    assert "by iteration" in error.message
    assert first in error.message


def test_a_race_names_buffer_index_and_both_iterations() -> None:
    text = """
    func @f(%y: f32[4]) stage scheduled {
      for %i in 0..1 {
        for %j in parallel 0..2 { %y[3] = f32(%j) }
      }
    }
    """
    messages = {failure(text, zeros(4), seed=seed).message for seed in range(8)}
    assert messages == {
        "race in parallel loop %j: %y[3] is written by iteration 0 and written by iteration 1",
        "race in parallel loop %j: %y[3] is written by iteration 1 and written by iteration 0",
    }


def test_a_race_on_an_element_that_many_iterations_read() -> None:
    text = """
    func @f(%x: f32[4], %y: f32[4]) stage scheduled {
      for %i in parallel 0..3 {
        %y[%i] = %x[0]
        if %i == 2 { %x[0] = 1.0 }
      }
    }
    """
    for seed in range(6):
        assert failure(text, zeros(4), zeros(4), seed=seed).code == "TW2303"


def test_reading_the_same_element_everywhere_is_no_race() -> None:
    text = """
    func @f(%x: f32[4], %y: f32[4]) stage scheduled {
      for %i in parallel 0..4 { %y[%i] = %x[0] + %x[1] }
    }
    """
    interpret(parse(text), zeros(4), zeros(4))


def test_inner_serial_loops_of_a_parallel_loop_may_write_again() -> None:
    text = """
    func @f(%y: f32[4]) stage scheduled {
      for %i in parallel 0..4 {
        for %j in 0..3 {
          for %v in vector 0..1 { %y[%i + %v] = f32(%j) }
        }
      }
    }
    """
    interpret(parse(text), zeros(4))


def test_a_race_through_a_vector_access() -> None:
    text = """
    func @f(%y: f32[8]) stage flat {
      for %i in parallel 0..2 { %y[ramp(%i * 3, 1, 4)] = broadcast(1.0, 4) }
    }
    """
    assert failure(text, zeros(8)).message.startswith("race in parallel loop %i: %y[3]")


def test_virtual_threads_race_too() -> None:
    text = """
    func @f(%y: f32[4]) stage scheduled {
      for %v in vthread 0..4 { %y[0] = f32(%v) }
    }
    """
    error = failure(text, zeros(4))
    assert error.code == "TW2303"
    assert "vthread loop %v: %y[0]" in error.message


BLOCK = """
func @f(%x: f32[8], %y: f32[8]) stage scheduled {
  for %i in 0..8 {
    block @B(%v: spatial 8 = %i) {
      reads %x[%v]
      writes %y[%v]
      %y[%v] = %x[%v]
    }
  }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("%y[%v] = %x[%v]", "%y[%v] = %x[(%v + 1) % 8]", "load of %x[1]"),
        ("%y[%v] = %x[%v]", "%y[7 - %v] = %x[%v]", "store to %y[7]"),
        ("reads %x[%v]", "", "load of %x[0]"),
    ],
)
def test_an_access_outside_the_declared_regions(old: str, new: str, what: str) -> None:
    error = failure(BLOCK.replace(old, new), zeros(8), zeros(8))
    assert error.code == "TW2307"
    assert error.message.startswith(f"{what} lies outside what block @B declares")


def test_an_iterator_outside_its_domain() -> None:
    error = failure(BLOCK.replace("= %i)", "= %i + 1)"), zeros(8), zeros(8))
    assert error.code == "TW2308"
    assert error.message == "iterator %v of block @B is 8, outside 0..8"


SUM = """
func @f(%x: f32[4], %y: f32[1]) stage scheduled {
  for %again in 0..2 {
    for %k in 0..4 {
      block @S(%v: reduce 4 = %k) {
        reads %x[%v]
        writes %y[0]
        init {
          %y[0] = 0.0
        }
        %y[0] sum= %x[%v]
      }
    }
  }
}
"""


def test_a_reduction_may_be_computed_again_from_its_init() -> None:
    y = zeros(1)
    interpret(parse(SUM), np.ones(4, np.float32), y)
    assert y[0] == 4


def test_a_reduction_instance_executed_twice() -> None:
    text = SUM.replace("%v: reduce 4 = %k", "%v: reduce 4 = (%k + %again) % 4").replace(
        "for %k in 0..4", "for %k in 1..4"
    )
    text = text.replace("init {\n          %y[0] = 0.0\n        }", "")
    error = failure(text, zeros(4), zeros(1))
    assert error.code == "TW2309"
    assert error.message == "block @S adds to %y[0] twice with iterators [2]"


def test_division_by_zero_in_an_index() -> None:
    text = """
    func @f(%x: f32[4], %y: f32[4], %d: index) stage scheduled {
      for %i in 0..4 { %y[%i] = %x[%i // %d] }
    }
    """
    interpret(parse(text), zeros(4), zeros(4), 2)
    assert failure(text, zeros(4), zeros(4), 0).code == "TW2310"


def test_a_barrier_outside_a_kernel() -> None:
    text = "func @f(%y: f32[1]) stage flat { eval barrier.shared() %y[0] = 1.0 }"
    assert failure(text, zeros(1)).code == "TW2311"
