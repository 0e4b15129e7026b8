"""What is emitted, by ordered substrings of LLVM IR and assembly."""

import re

import numpy as np
import pytest

from tilewright.base.dtype import dtype
from tilewright.base.host import host_arch
from tilewright.base.target import Target
from tilewright.codegen import llvm
from tilewright.codegen.build import Options, build, emit_module
from tilewright.tensor import parse

ADD = """
func @add(%x: f32[n], %y: f32[n], %z: f32[n]) stage flat {
  for %i in 0..n {
    %z[%i] = %x[%i] + %y[%i]
  }
}"""


def emitted(program, target="x86_64-linux-gnu -mcpu=skylake-avx512", **options):
    machine = llvm.machine_of(Target.parse(target))
    text = emit_module(parse(program), machine, Options(**options))
    llvm.parse(text)
    return text


def check(text, *parts):
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"{part!r} is missing after:\n{text[max(0, at - 300) : at]}"
        at = found + len(part)


def test_a_loop_has_one_header_one_body_and_no_checks_inside():
    check(
        emitted(ADD),
        "define internal i32 @add_kernel(ptr noalias readonly %x, ptr noalias readonly %y",
        "icmp slt i64 0, %n",
        "i.loop:",
        "phi i64",
        "load float",
        "load float",
        "fadd contract float",
        "store float",
        "i.next:",
        "ret i32 0",
        "define i32 @add(ptr %args, i32 %n_args)",
        "call i32 @tw_check_args",
        "call i32 @add_kernel",
    )


def test_a_condition_on_prefetches_is_no_branch():
    program = """
    func @f(%x: f32[64, 16], %y: f32[n]) stage flat {{
      for %i in 0..n {{
        {}
        %y[%i] = 1.0
      }}
    }}"""
    asked = "eval prefetch(address(%x[%i + 1, 0]))"
    text = emitted(program.format("if %i < 63 { " + asked + " if %i < 9 { " + asked + " } }"))
    assert text.count("br i1") == emitted(program.format("")).count("br i1")
    assert text.count("call void @llvm.prefetch") == 2


@pytest.mark.parametrize(("around", "is_kept"), [("%x[%j", True), ("%x[%p * 64 + %j", False)])
def test_a_short_loop_stays_one_where_unrolled_it_would_read_all_before_the_loop_around(
    around, is_kept
):
    """Rows of A that all panels of B meet: LLVM would hold them in registers it does not have."""
    rows = "\n".join(
        f"""%s[ramp({16 * at}, 1, 16)] = %s[ramp({16 * at}, 1, 16)]
            + broadcast({around} + {16 * at}], 16) * %w[ramp((%p * 4 + %j) * 16, 1, 16)]"""
        for at in range(16)
    )
    program = f"""
    func @f(%x: f32[1024], %w: f32[1024], %y: f32[n, 256]) stage flat {{
      for %p in 0..n {{
        alloc %s: f32[256] in local
        for %j in 0..4 {{
          {rows}
        }}
        %y[%p, ramp(0, 1, 256)] = %s[ramp(0, 1, 256)]
      }}
    }}"""
    text = emitted(program)
    (note,) = re.findall(r"br i1 .*label %j\.\w+.*!llvm.loop (!\d+)", text) or [""]
    of_loop = re.findall(rf"^{note} = .*", text, re.MULTILINE) if note else []
    disabled = re.findall(r"^(!\d+) = .*unroll.disable", text, re.MULTILINE)
    assert any(name in line for line in of_loop for name in disabled) == is_kept


@pytest.mark.parametrize(
    ("processor", "written", "stays_scalar"),
    [
        ("skylake-avx512", "%at", True),
        ("sapphirerapids", "%at", False),
        ("skylake-avx512", "%y", False),
    ],
)
def test_walks_are_no_gathers_where_lanes_load_faster_one_by_one(processor, written, stays_scalar):
    program = f"""
    func @f(%next: i32[1024], %at: i32[16], %y: i32[16]) stage flat {{
      for %i in 0..16 {{
        {written}[%i] = %next[index(%at[%i])]
      }}
    }}"""
    text = emitted(program, f"x86_64-linux-gnu -mcpu={processor}")
    assert ('"llvm.loop.vectorize.enable", i1 false' in text) == stays_scalar


def test_every_buffer_has_an_alias_scope_of_its_own():
    text = emitted(ADD)
    loads = re.findall(r"load float.*!alias.scope (!\d+), !noalias (!\d+)", text)
    assert len(set(loads)) == 2


def test_only_contraction_is_allowed_of_fast_math():
    text = emitted(ADD.replace("%x[%i] + %y[%i]", "%x[%i] * %y[%i] + %x[%i] / %y[%i]"))
    for flag in ("fast", "reassoc", "nnan", "ninf", "arcp", "afn"):
        assert not re.search(rf"\bf(add|mul|div|sub) [^=]*\b{flag}\b", text)


def test_functions_name_their_processor():
    text = emitted(ADD, "aarch64-linux-gnu -mcpu=cortex-a53")
    check(text, 'target triple = "aarch64-unknown-linux-gnu"', '"target-cpu"="cortex-a53"')


def test_local_buffers_are_on_the_stack_and_large_ones_are_not():
    program = """
    func @f(%x: f32[n]) stage flat {
      alloc %small: f32[16] in local
      alloc %large: f32[n * 4]
      for %i in 0..n {
        %small[0] = %x[%i]
        %large[%i] = %small[0]
        %x[%i] = %large[%i]
      }
    }"""
    check(
        emitted(program),
        "%small = alloca [16 x float], align 64",
        "call ptr @tw_workspace_alloc",
        "call void @tw_workspace_free",
    )


def test_parallel_loops_are_outlined_and_inner_ones_are_not():
    program = """
    func @f(%x: f32[n, m]) stage flat {
      for %i in parallel 0..n {
        for %j in parallel 0..m {
          %x[%i, %j] = 0
        }
      }
    }"""
    text = emitted(program)
    assert text.count("call i32 @tw_parallel_for") == 1
    check(text, "define internal i32 @f.i.", "define internal i32 @f_kernel", "tw_parallel_for")


@pytest.mark.parametrize(
    ("expr", "instruction"),
    [
        ("%i // 8", "ashr i64"),
        ("%i % 8", "and i64"),
        ("%i // 7", "udiv i64"),
        ("(%i - 9) // 7", "sdiv i64"),
    ],
)
def test_divisions_by_constants(expr, instruction):
    program = f"""
    func @f(%x: index[n]) stage flat {{
      for %i in 0..n {{
        %x[%i] = {expr}
      }}
    }}"""
    assert instruction in emitted(program)


def test_a_loop_invariant_select_without_loads_is_no_branch():
    text = emitted(ADD.replace("%x[%i] + %y[%i]", "select(%i < 3, 1, 0)"))
    check(text, "i.loop:", "select i1")


def test_a_guarded_load_is_behind_a_branch():
    text = emitted(ADD.replace("%x[%i] + %y[%i]", "select(%i < 3, %x[%i + 1], 0)"))
    check(text, "i.loop:", "br i1", "then:", "load float", "phi float")


def test_relu_is_one_instruction():
    program = """
    func @relu(%x: f32[n], %y: f32[n]) stage flat {
      for %i in 0..n // 16 {
        let %zero: f32x16 = broadcast(f32(0), 16)
        %y[ramp(%i * 16, 1, 16)] = max(%x[ramp(%i * 16, 1, 16)], %zero)
      }
    }"""
    text = build(parse(program), "x86_64-linux-gnu -mcpu=skylake-avx512").assembly
    assert "vmaxps" in text
    assert "vcmp" not in text


def test_wide_vectors_stay_whole():
    program = """
    func @f(%x: f32[n], %y: f32[n]) stage flat {
      for %i in 0..n // 16 {
        %y[ramp(%i * 16, 1, 16)] = %x[ramp(%i * 16, 1, 16)] * %x[ramp(%i * 16, 1, 16)]
      }
    }"""
    text = build(parse(program), "x86_64-linux-gnu -mcpu=skylake-avx512").assembly
    assert re.search(r"vmulps.*%zmm", text)


@pytest.mark.parametrize(
    ("size", "index", "loads"),
    [
        ("64", "%i * 16 + 3", "load <16 x float>"),  # inside of 16 elements that are all there
        ("n", "%i * 16 + 3", "call <16 x float> @llvm.masked.gather"),  # the last may not be
        ("64", "%i * 16 + 8", "call <16 x float> @llvm.masked.gather"),  # beyond the 16
        ("64", "%i * 2 + 3", "call <16 x float> @llvm.masked.gather"),  # anywhere
    ],
)
def test_lanes_in_one_aligned_part_of_a_buffer_are_loaded_whole(size, index, loads):
    groups = "ramp(0, 1, 16) // broadcast(4, 16) * broadcast(4, 16)"
    program = f"""
    func @f(%x: f32[{size}], %y: f32[64]) stage flat {{
      for %i in 0..4 {{
        %y[ramp(%i * 16, 1, 16)] = %x[broadcast({index}, 16) + {groups}]
      }}
    }}"""
    assert loads in emitted(program)


@pytest.mark.parametrize(
    ("target", "gathers"),
    [
        ("x86_64-linux-gnu -mcpu=sapphirerapids", True),
        ("aarch64-linux-gnu -mcpu=neoverse-n1", False),
    ],
)
def test_positions_of_lanes_leave_loops_that_do_not_change_them(target, gathers):
    """Without gathers every lane is a load of its own, whose number is known outside of rows."""
    program = """
    func @f(%x: f32[8, 64], %at: index[4], %y: f32[8, 4]) stage flat {
      for %i in 0..8 {
        %y[%i, ramp(0, 1, 4)] = %x[broadcast(%i, 4), max(min(%at[ramp(0, 1, 4)],
          broadcast(63, 4)), broadcast(0, 4))]
      }
    }"""
    text = emitted(program, target)
    assert ("masked.gather" in text) == gathers
    assert text.count("extractelement") == (0 if gathers else 4)


@pytest.mark.parametrize(
    ("limit", "is_stored"),
    [(56, True), (48, False), (52, True)],
    ids=["all lanes", "no lane", "some lanes"],
)
def test_masks_that_are_known_settle_what_is_emitted(limit, is_stored):
    mask = f"broadcast(48, 16) + ramp(0, 1, 16) // broadcast(2, 16) < broadcast({limit}, 16)"
    pairs = "broadcast(%i * 2, 16) + ramp(0, 1, 16) % broadcast(2, 16)"
    program = f"""
    func @f(%x: f32[64], %y: f32[64]) stage flat {{
      for %i in 0..4 {{
        %y[ramp(%i * 16, 1, 16)] = masked(%x[{pairs}], {mask}) where {mask}
      }}
    }}"""
    text = emitted(program)
    assert ("store" in text[: text.index("ret i32")]) == is_stored
    assert "masked.gather" not in text


@pytest.mark.parametrize(("cpu", "gathers"), [("cascadelake", False), ("sapphirerapids", True)])
def test_lanes_whose_indices_leave_a_loop_are_loaded_one_by_one_where_gathers_are_slow(
    cpu, gathers
):
    """Rows of an image at the same positions."""
    at = "max(min(indexx16(%at[ramp(%j * 16, 1, 16)]), broadcast(%m - 1, 16)), broadcast(0, 16))"
    program = f"""
    func @f(%x: f32[8, m], %at: i32[n], %y: f32[8, n], m: index, n: index) stage flat {{
      for %j in 0..n // 16 {{
        for %i in 0..8 {{
          %y[%i, ramp(%j * 16, 1, 16)] = %x[broadcast(%i, 16), {at.replace("%m", "m")}]
        }}
      }}
    }}"""
    assert ("gather" in emitted(program, f"x86_64-linux-gnu -mcpu={cpu}")) == gathers
    x = np.random.default_rng(0).random((8, 40)).astype(np.float32)
    at, y = np.random.default_rng(1).integers(-3, 44, 32).astype(np.int32), np.zeros((8, 32), "f4")
    build(parse(program), "cpu")(x, at, y, 40, 32)
    np.testing.assert_array_equal(y, x[:, np.clip(at, 0, 39)])


@pytest.mark.parametrize("lanes", ["ramp(0, 1, 16)", "broadcast(15, 16) - ramp(0, 1, 16)"])
def test_lanes_of_a_known_mask_are_loaded_without_what_the_others_would_read(lanes):
    """The last vector of a row, by nearest interpolation: its other half is beyond the buffer."""
    mask = f"{lanes} < broadcast(8, 16)"
    program = f"""
    func @f(%x: f32[4], %y: f32[16]) stage flat {{
      %y[ramp(0, 1, 16)] = masked(%x[({lanes}) // broadcast(2, 16)], {mask}) + broadcast(1.0, 16)
    }}"""
    text = emitted(program)
    assert "load <4 x float>" in text
    assert "gather" not in text
    x, y = np.arange(4, dtype=np.float32), np.zeros(16, np.float32)
    build(parse(program), "cpu")(x, y)
    want = np.repeat([1, 2, 3, 4, 1], [2, 2, 2, 2, 8])
    np.testing.assert_array_equal(y, want if lanes.startswith("ramp") else want[::-1])


@pytest.mark.parametrize("pitch", ["40", "n"])
@pytest.mark.parametrize("masked", ["", " where ramp(%i * 16, 1, 16) < broadcast(m, 16)"])
def test_lanes_in_a_few_runs_are_stored_run_by_run(pitch, masked):
    """Even lanes to one row, odd ones to the next."""
    lanes = "ramp(%i * 16, 1, 16)"
    program = f"""
    func @f(%x: f32[64], %y: f32[2, {pitch}], m: index) stage flat {{
      for %i in 0..4 {{
        %y[{lanes} % broadcast(2, 16), {lanes} // broadcast(2, 16)] = %x[{lanes}]{masked}
      }}
    }}"""
    assert "scatter" not in emitted(program)
    x, y = np.arange(64, dtype=np.float32), np.full((2, 40), -1, np.float32)
    count = 23 if masked else 64
    build(parse(program), "cpu")(x, y, count)
    want = np.full((2, 40), -1, np.float32)
    want[np.arange(64) % 2, np.arange(64) // 2] = np.where(np.arange(64) < count, x, -1)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(
    "cpu", ["", " -mcpu=haswell", " -mcpu=x86-64"] if host_arch() == "x86_64" else [""]
)
@pytest.mark.parametrize(("of", "lanes"), [("u8", 16), ("u8", 64), ("f16", 8), ("f16", 32)])
def test_bytes_and_words_at_a_stride_of_three_are_loaded_from_pieces(cpu, of, lanes):
    """Colours of an image, plane by plane; nothing is read beyond the last one."""
    count = 2 * lanes
    program = f"""
    func @f(%x: {of}[{3 * count}], %y: {of}[3, {count}]) stage flat {{
      for %c in 0..3 {{
        for %i in 0..2 {{
          %y[%c, ramp(%i * {lanes}, 1, {lanes})] = %x[ramp(%i * {3 * lanes} + %c, 3, {lanes})]
        }}
      }}
    }}"""
    text = emitted(program)
    assert ("<16 x i8>" if of == "u8" else "<8 x i16>") in text
    x = np.random.default_rng(0).integers(0, 255, 3 * count).astype(dtype(of).numpy)
    y = np.zeros((3, count), x.dtype)
    build(parse(program), f"cpu{cpu}")(x, y)
    np.testing.assert_array_equal(y, x.reshape(count, 3).T)


@pytest.mark.parametrize("stride", [2, 3, -2])
def test_masked_strided_lanes_are_loaded_whole_and_shuffled(stride):
    """What is between the lanes may be beyond the buffer."""
    first = 0 if stride > 0 else 40
    program = f"""
    func @f(%x: f32[41], %y: f32[16], m: index) stage flat {{
      %y[ramp(0, 1, 16)] = masked(%x[ramp({first}, {stride}, 16)],
        ramp(0, 1, 16) < broadcast(m, 16))
    }}"""
    text = emitted(program)
    assert ("masked.load" in text) == ("masked.gather" not in text) == (stride > 0)
    x, y = np.arange(41, dtype=np.float32), np.zeros(16, np.float32)
    build(parse(program), "cpu")(x, y, 13)
    want = [first + lane * stride if lane < 13 else 0 for lane in range(16)]
    np.testing.assert_array_equal(y, want)


def test_debug_information_points_at_lines_of_the_program():
    fn = parse(ADD)
    lines = str(fn).splitlines()
    text = build(fn, debug=True).assembly
    numbers = {int(n) for n in re.findall(r"\.loc\s+\d+\s+(\d+)", text)}
    store = next(k for k, line in enumerate(lines, 1) if "+" in line)
    assert store in numbers
    assert "add.tw" in text


@pytest.mark.parametrize(
    "target",
    [
        "x86_64-linux-gnu",
        "aarch64-linux-gnu",
        "riscv64-linux-gnu",
        "riscv64-linux-gnu -mattr=+v",
        "arm-linux-gnueabihf",
        "arm-none-eabi -mcpu=cortex-m7",
        "wasm32",
    ],
)
def test_every_target_compiles_vectors_masks_and_small_floats(target):
    program = """
    func @f(%x: f16[n], %y: bf16[n], %z: f32[n]) stage flat {
      for %i in parallel 0..(n + 7) // 8 {
        let %m: boolx8 = ramp(%i * 8, 1, 8) < broadcast(n, 8)
        let %a: f32x8 = f32x8(masked(%x[ramp(%i * 8, 1, 8)], %m))
        let %b: f32x8 = f32x8(masked(%y[ramp(%i * 8, 1, 8)], %m))
        %z[ramp(%i * 8, 1, 8)] = exp(%a) + tanh(%b) where %m
      }
    }"""
    run = build(parse(program), target)
    undefined = set(re.findall(r"(?:bl|call|callq|jal)\s+_*([a-z]\w*)", run.assembly))
    helpers = {name for name in undefined if name.endswith(("hf2", "bf2", "hf", "f"))}
    assert not helpers & {"expf", "tanhf", "extendhfsf2", "truncsfhf2", "fmaf"}


def test_what_control_has_passed_is_not_written_again():
    text = emitted("""
func @again(%x: f32[n], %y: f32[n], %z: f32[n]) stage flat {
  for %i in 0..n {
    %y[%i * 4 + 1] = %x[%i * 4 + 1]
    if %i * 4 + 1 < 9 { %z[%i * 4 + 1] = %x[%i * 8] }
    %z[%i * 8] = 1.0
  }
}""")
    kernel = text[: text.index("define i32 @again")]
    assert len(re.findall(r"= mul nsw i64 %i, 4\b", kernel)) == 1
    assert len(re.findall(r"= mul nsw i64 %i, 8\b", kernel)) == 2  # one of them not always passed


def test_updates_by_one_reducer_have_results_of_their_own():
    run = build(
        parse("""
func @f(%x: index[4], %y: index[4]) stage flat {
  %y[0] sum= %x[0]
  %y[0] sum= %x[1]
  %y[1] sum= %x[2]
}""")
    )
    y = np.zeros(4, np.int64)
    run(np.array([1, 10, 100, 1000]), y)
    assert y.tolist() == [11, 100, 0, 0]


TAIL = """
func @tail(%x: f32[n], %y: f32[n]) stage flat {
  for %i in 0..(n + 3) // 4 {
    %y[ramp(%i * 4, 1, 4)] = masked(%x[ramp(%i * 4, 1, 4)], M) * 2.0 where M
  }
}""".replace("M", "ramp(%i * 4, 1, 4) < broadcast(n, 4)").replace("2.0", "broadcast(f32(2.0), 4)")


def test_lanes_are_loaded_whole_where_there_are_no_masks_and_the_buffer_reaches_so_far():
    neon = emitted(TAIL, "aarch64-linux-gnu -mcpu=neoverse-n1")
    check(neon, "icmp slt i64", "br i1", "load <4 x float>", "select <4 x i1>", "llvm.masked.load")
    assert "llvm.masked.store" not in neon
    masked = emitted(TAIL)
    check(masked, "llvm.masked.load", "llvm.masked.store")
    assert "load <4 x float>" not in masked.replace("masked.load", "")


@pytest.mark.parametrize("size", range(10))
def test_tails_of_every_length_are_loaded_and_stored(size):
    x = np.arange(size, dtype=np.float32)
    room = np.full(size + 8, -1, np.float32)  # whose rest nobody touches
    y = room[:size]
    build(parse(TAIL), "cpu")(x, y)
    np.testing.assert_array_equal(y, 2 * x)
    assert (room[size:] == -1).all()


@pytest.mark.parametrize("place", ["", " + broadcast(1, 16) - broadcast(1, 16)"])
def test_lanes_in_rows_at_a_distance_that_the_run_tells_are_loaded_row_by_row(place):
    program = f"""
func @square(%x: f32[n], %y: f32[16], m: index) stage flat {{
  %y[ramp(0, 1, 16)] = %x[(ramp(0, 1, 16) % broadcast(4, 16)) * broadcast(m, 16)
    + ramp(0, 1, 16) // broadcast(4, 16){place}]
}}"""
    text = emitted(program)
    assert text.count("load <4 x float>") == 4
    assert "gather" not in text
    x, y = np.arange(40, dtype=np.float32), np.zeros(16, np.float32)
    build(parse(program), "cpu")(x, y, 9)
    np.testing.assert_array_equal(y.reshape(4, 4), x[:36].reshape(4, 9)[:, :4].T)


def test_masked_lanes_in_rows_are_loaded_whole_where_the_buffer_reaches_so_far():
    """A gather takes longer than a load of each row and a shuffle, whatever masks there are."""
    program = """
func @rows(%x: f32[n], %y: f32[16], m: index, first: index) stage flat {
  %y[ramp(0, 1, 16)] = masked(%x[(ramp(0, 1, 16) % broadcast(4, 16)) * broadcast(m, 16)
    + ramp(0, 1, 16) // broadcast(4, 16) - broadcast(1, 16)],
    broadcast(first, 16) <= ramp(0, 1, 16) // broadcast(4, 16))
}"""
    text = emitted(program)
    check(text, "br i1", "load <4 x float>", "select <16 x i1>", "llvm.masked.gather")
    x, y = np.arange(40, dtype=np.float32), np.zeros(16, np.float32)
    for size, first in ((40, 1), (40, 2), (35, 3), (32, 1), (31, 2), (30, 4)):
        build(parse(program), "cpu")(x[:size], y, 9, first)
        rows = np.arange(4)[None, :] * 9 + np.arange(4)[:, None] - 1
        want = np.where(np.arange(4)[:, None] >= first, rows, 0)
        np.testing.assert_array_equal(y.reshape(4, 4), want)


def test_rows_that_overlap_are_not_loaded_beyond_the_buffer():
    """The last element of all is one of the first row."""
    program = """
func @rows(%x: f32[12], %y: f32[8], m: index, n: index) stage flat {
  %y[ramp(0, 1, 8)] = masked(%x[(ramp(0, 1, 8) // broadcast(4, 8)) * broadcast(m, 8)
    + ramp(0, 1, 8) % broadcast(4, 8)], ramp(0, 1, 8) < broadcast(n, 8))
}"""
    x, room = np.arange(12, dtype=np.float32), np.zeros(8, np.float32)
    for m in (0, 1, 8, 9, 100):
        build(parse(program), "cpu")(x, room, m, 4)
        np.testing.assert_array_equal(room, [0, 1, 2, 3, 0, 0, 0, 0])


@pytest.mark.parametrize(("of", "is_gathered"), [("f32", True), ("i8", False), ("f16", False)])
def test_masked_lanes_without_gathers_are_read_without_branches(of, is_gathered):
    """LLVM makes a branch of each such lane, which took minutes to compile where there were 64."""
    program = f"""
func @apart(%x: {of}[n], %at: index[8], %y: {of}[8]) stage flat {{
  %y[ramp(0, 1, 8)] = masked(%x[%at[ramp(0, 1, 8)]], %at[ramp(0, 1, 8)] < broadcast(n, 8))
}}"""
    text = emitted(program)
    assert ("llvm.masked.gather" in text) == is_gathered
    x = np.arange(1, 8).astype({"f32": np.float32, "i8": np.int8, "f16": np.float16}[of])
    at, y = np.array([3, 6, 7, 0, 100, 2, 1 << 40, 5]), np.zeros(8, x.dtype)
    build(parse(program), "cpu")(x, at, y)
    assert y.tolist() == [4, 7, 0, 1, 0, 3, 0, 6]
    build(parse(program), "cpu")(x[:0], at, y)
    assert not y.any()
