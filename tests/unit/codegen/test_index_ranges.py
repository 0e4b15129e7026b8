"""Indices of 32 bits: where ranges prove it, and nowhere else."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright import sym
from tilewright.base.target import Target
from tilewright.codegen import llvm
from tilewright.codegen.build import emit_module, load_object
from tilewright.codegen.index_ranges import fits, index_ranges, is_natural, sizes_in_memory
from tilewright.codegen.nvptx import LAUNCH_LIMITS, device_code, emit_kernels
from tilewright.tensor import interpret, ir, parse
from tilewright.tensor.passes.simplify_program import known
from tilewright.tensor.visit import walk

REACH = (1 << 31) // 128  # rows of 128 elements that an index of 32 bits reaches


def kernel_text(program):
    text, _ = emit_kernels(parse(program), Target.parse("cuda"))
    llvm.parse(text)
    return text


def copied(rows, of="f32", requires=()):
    """A copy of so many rows, by a block of 128 threads each."""
    conditions = "".join(f"  require {cond}\n" for cond in requires)
    return f"""
func @copied(%x: {of}[{rows}, 128], %y: {of}[{rows}, 128]) stage device {{
{conditions}
  for %b in thread(blockIdx.x) 0..{rows} {{
    for %t in thread(threadIdx.x) 0..128 {{
      %y[%b, %t] = %x[%b, %t]
    }}
  }}
}}"""


def addressed(text):
    """The types of the indices that the rows of blocks are found by."""
    return set(re.findall(r"getelementptr \w+, ptr %[xy], (i\d+)", text))


@pytest.mark.parametrize(
    ("rows", "of", "wanted"),
    [
        (REACH, "f32", "i32"),  # 8 GB: elements are counted, not bytes
        (REACH - 1, "i8", "i32"),
        (REACH, "i8", "i32"),  # to the last element that 32 bits reach
        (REACH + 1, "f32", "i64"),
        (REACH + 1, "i8", "i64"),
        (2 * REACH, "i8", "i64"),
    ],
)
def test_elements_are_found_by_32_bits_as_long_as_all_are_in_reach(rows, of, wanted):
    assert addressed(kernel_text(copied(rows, of))) == {wanted}


@pytest.mark.parametrize(("most", "wanted"), [(REACH, "i32"), (REACH + 1, "i64"), (None, "i64")])
def test_a_symbolic_size_needs_a_range_that_is_checked_at_entry(most, wanted):
    requires = () if most is None else (f"n <= {most}",)
    assert addressed(kernel_text(copied("n", requires=requires))) == {wanted}


def test_a_place_that_memory_tells_has_64_bits_unless_its_type_has_fewer():
    program = """
func @taken(%x: f32[1000], %at: {of}[128], %y: f32[128]) stage device {{
  for %t in thread(threadIdx.x) 0..128 {{
    %y[%t] = %x[index(%at[%t])]
  }}
}}"""
    wide = kernel_text(program.format(of="i64"))
    assert re.search(r"getelementptr inbounds float, ptr %x, i64", wide)
    narrow = kernel_text(program.format(of="i32"))
    assert re.search(r"getelementptr inbounds float, ptr %x, i32", narrow)


@pytest.mark.parametrize("rows", [1 << 10, 4 * REACH])
def test_threads_of_a_block_are_some_bytes_from_its_own_pointer(rows):
    """Blocks that are far apart too: the bytes of a thread are few, and one number for both."""
    text = kernel_text(copied(rows))
    (distance,) = re.findall(r"(\S+) = zext i32 \S+ to i64", text)
    starts = re.findall(r"(\S+) = getelementptr float, ptr %[xy], i(?:32|64) \S+", text)
    found = re.findall(r"getelementptr i8, ptr (\S+), i64 (\S+)", text)
    assert sorted(found) == sorted((start, distance) for start in starts)


def test_what_threads_do_not_have_in_common_is_not_added_to_the_pointer_of_a_block():
    """A number of a loop, of memory, of a thread by another name: none is the block's."""
    text = kernel_text(
        """
func @f(%x: f32[4096], %at: i32[128], %y: f32[128]) stage device {
  for %b in thread(blockIdx.x) 0..2 {
    for %t in thread(threadIdx.x) 0..64 {
      let %u: index = %t * 2
      for %i in 0..2 {
        %y[%b * 64 + %t] = %x[%b * 2048 + %u + %i] + %x[%b * 2048 + index(%at[%b])]
      }
    }
  }
}"""
    )
    starts = re.findall(r"getelementptr float, ptr %[xy], i32 (\S+)", text)
    factors = [re.search(rf"{re.escape(start)} = mul .* (\d+)$", text, re.M)[1] for start in starts]
    assert sorted(factors) == ["2048", "64"]


def test_an_index_that_may_be_below_0_is_not_counted_in_bytes_from_there():
    text = kernel_text(
        """
func @f(%x: f32[64, 64], %y: f32[64, 64]) stage device {
  for %b in thread(blockIdx.x) 0..64 {
    for %t in thread(threadIdx.x) 0..64 {
      %y[%b, %t] = %x[%b, 63 - %t]
    }
  }
}"""
    )
    assert len(re.findall("getelementptr i8", text)) == 1


def test_accesses_that_differ_by_a_constant_share_an_address():
    """Whatever the constant, the rest of the index is written once, before the branches."""
    text = kernel_text(
        """
func @f(%x: f32[4096], %y: f32[128]) stage device {
  for %b in thread(blockIdx.x) 0..16 {
    for %t in thread(threadIdx.x) 0..128 {
      %y[%t] = %x[%b * 128 + %t + 3] + %x[%b * 128 + %t + 700] * %x[%b * 128 + %t]
    }
  }
}"""
    )
    (start,) = re.findall(r"(\S+) = getelementptr float, ptr %x, i32", text)
    (shared,) = re.findall(rf"(\S+) = getelementptr i8, ptr {start}, i64", text)
    beyond = re.findall(rf"getelementptr float, ptr {shared}, i64 (\d+)", text)
    assert beyond == ["3", "700"]


def test_code_for_gpus_multiplies_no_64_bit_indices():
    ptx = device_code(parse(copied(1 << 20))).ptx
    assert not re.search(r"(mul|mad)\.lo\.[su]64", ptx)


# --------------------------------------------------------------------------- ranges


def ranges_of(program, limits=LAUNCH_LIMITS):
    fn = parse(program)
    bound = {
        stmt.var.name: stmt.var for stmt in walk(fn.body) if isinstance(stmt, (ir.For, ir.Let))
    }
    return bound, index_ranges(fn.body, known(fn), limits)


def test_a_variable_that_two_loops_bind_has_the_range_of_both():
    i, j = sym.var("i"), sym.var("j")
    x = parse("func @f(%x: f32[64]) stage flat {\n}").buffers[0]

    def loop(start, stop):
        inner = ir.For(j, sym.ZERO, sym.add(i, 1), ir.Store(x, (j,), sym.const(0.0, "f32")))
        return ir.For(i, sym.const(start), sym.const(stop), inner)

    ranges = index_ranges(ir.Seq((loop(0, 4), loop(10, 20))))
    assert sym.bounds(i, ranges) == sym.Interval(0, 19)
    assert sym.bounds(j, ranges) == sym.Interval(0, 19)


def test_a_variable_whose_second_range_is_open_has_none():
    i, n = sym.var("i"), sym.size("n")
    x = parse("func @f(%x: f32[64]) stage flat {\n}").buffers[0]

    def loop(stop):
        return ir.For(i, sym.ZERO, stop, ir.Store(x, (i,), sym.const(0.0, "f32")))

    assert not fits(i, index_ranges(ir.Seq((loop(sym.const(4)), loop(n)))))
    assert not fits(i, index_ranges(ir.Seq((loop(n), loop(sym.const(4))))))


def test_threads_of_one_axis_see_all_of_it():
    bound, ranges = ranges_of(
        """
func @f(%x: f32[128], %y: f32[128]) stage device {
  for %t in thread(threadIdx.x) 0..128 {
    %x[%t] = f32(1.0)
    for %u in thread(threadIdx.x) 0..32 {
      %y[%u] = f32(1.0)
    }
  }
}"""
    )
    assert sym.bounds(bound["u"], ranges) == sym.Interval(0, 127)


def test_blocks_are_no_more_than_a_launch_has():
    bound, ranges = ranges_of(copied("n"))
    assert fits(bound["b"], ranges)
    assert not fits(sym.mul(bound["b"], 128), ranges)
    assert is_natural(sym.mul(bound["b"], 128), ranges)


# ------------------------------------------------------------------ against the interpreter

NUMBERS = (-(1 << 33), -(1 << 31), -4099, -7, -1, 1, 2, 3, 8, 100, 65537, (1 << 31) - 1, 1 << 31)
DIVISORS = tuple(number for number in NUMBERS if number not in (0, -1))


@st.composite
def programs(draw):
    """A function that stores a random index of two loops, some of which need more than 32 bits."""
    extents = [draw(st.integers(1, 5)) for _ in range(2)]
    starts = [draw(st.sampled_from((0, -3, (1 << 31) - 2, 1 << 29))) for _ in range(2)]
    shown = [f"(%i + {starts[0]})", f"(%j + {starts[1]})"]
    for _ in range(draw(st.integers(1, 6))):
        a, b = draw(st.sampled_from(shown)), draw(st.sampled_from(shown))
        number, divisor = draw(st.sampled_from(NUMBERS)), draw(st.sampled_from(DIVISORS))
        shown.append(
            draw(
                st.sampled_from(
                    [
                        f"({a} + {b})",
                        f"({a} - {b})",
                        f"({a} * {number})",
                        f"({a} // {divisor})",
                        f"({a} % {divisor})",
                        f"min({a}, {b})",
                        f"max({a}, {number})",
                        f"select({a} < {b}, {a}, {number})",
                        f"({a} % 4099 // ({b} % 9 + 1))",
                    ]
                )
            )
        )
    return f"""
func @f(%y: i64[{extents[0]}, {extents[1]}]) stage flat {{
  for %i in 0..{extents[0]} {{
    for %j in 0..{extents[1]} {{
      %y[%i, %j] = i64({shown[-1]})
    }}
  }}
}}"""


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(programs())
def test_narrow_indices_have_the_values_that_the_interpreter_finds(program):
    fn = parse(program)
    shape = tuple(int(str(dim)) for dim in fn.buffers[0].shape)
    wanted, found = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    try:
        interpret(fn, wanted)
    except OverflowError:
        return  # beyond what any register has
    if abs(wanted.astype(object)).max() >= 1 << 62:
        return
    target = Target.host()
    machine = replace(llvm.machine_of(target), narrows_indices=True)
    module = llvm.parse(emit_module(fn, machine))
    llvm.optimize(module, machine)
    load_object(fn, target, llvm.to_object(module, machine))(found)
    assert np.array_equal(found, wanted)


def test_threads_beyond_a_warpgroup_come_to_their_branch():
    text = kernel_text("""
func @upper(%x: f32[256], %y: f32[256]) stage device {
  for %i in thread(threadIdx.x) 0..256 { if 128 <= %i { %y[%i] = %x[%i] } }
}""")
    assert "st.global" in text


def test_nobody_comes_to_a_branch_beyond_all_threads():
    text = kernel_text("""
func @beyond(%x: f32[512], %y: f32[512]) stage device {
  for %i in thread(threadIdx.x) 0..256 { if 256 <= %i { %y[%i] = %x[%i] } }
}""")
    assert "st.global" not in text
    assert "store float" not in text


def test_lanes_that_store_to_one_place_store_to_the_right_one():
    texts = [
        kernel_text(f"""
func @last(%x: f32[64], %y: f32[67]) stage device {{
  for %i in thread(threadIdx.x) 0..64 {{
    %y[broadcast(%i + {by}, 4)] = broadcast(%x[%i], 4)
  }}
}}""")
        for by in (0, 3)
    ]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("shapes", "is_word"),
    [
        (["bf16[b, 16, n, 64]"], True),
        (["f32[n]"], False),
        (["bf16[b, 16, n, 64]", "i8[n]"], False),  # the first may have no elements
        (["f32[n, 512]", "f16[m, n, 4096]"], True),
    ],
)
def test_no_array_is_larger_than_the_memory_of_a_gpu(shapes, is_word):
    params = ", ".join(f"%x{at}: {shape}" for at, shape in enumerate(shapes))
    fn = parse(f"func @f({params}) stage device {{\n}}")
    (n,) = {dim for buffer in fn.buffers for dim in buffer.shape if str(dim) == "n"}
    assert fits(n, sizes_in_memory(fn)) == is_word


WAVES_OF_TILES = """
func @tiles(%x: f32[b, n, 512], %y: f32[b, n, 512]) stage device {{
  for %block in thread(blockIdx.x) 0..132 {{
    for %t in thread(threadIdx.x) 0..128 {{
      for %wave in 0..(b * n + 131 - %block) // 132{annotation} {{
        let %tile: index = %wave * 132 + %block {{
          %y[%tile // n, %tile % n, %t] = %x[%tile // n, %tile % n, %t]
        }}
      }}
    }}
  }}
}}"""


@pytest.mark.parametrize(("annotation", "wanted"), [(" [waves = 132]", "i32"), ("", "i64")])
def test_tiles_that_blocks_take_in_turns_are_counted_by_32_bits(annotation, wanted):
    text = kernel_text(WAVES_OF_TILES.format(annotation=annotation))
    assert set(re.findall(r"[su](?:div|rem) (i\d+) \S+ %", text)) == {wanted}
