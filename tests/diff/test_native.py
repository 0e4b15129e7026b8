"""Native code against the interpreter: flat programs by hand."""

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtype import DType, dtype
from tilewright.base.host import host_arch
from tilewright.base.processors import BASELINE
from tilewright.codegen.build import build
from tilewright.tensor import parse

Agree = Callable[..., None]
OLDEST = f"cpu -mcpu={BASELINE[host_arch()]}"  # of this architecture
FLOATS = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2")
INTS = ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")
NIBBLES = ("i4", "u4")
N = 37  # two vectors of 16 and a tail

SPECIAL_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-3, 448.0, -7.0, 1e-40, 1e30, 65504.0)


def numbers(of: DType, n: int, seed: int, *, special: bool = True) -> Any:
    """Values of a type: the awkward ones first, then random ones."""
    rng = np.random.default_rng(seed)
    if of.is_bool:
        return rng.integers(0, 2, n).astype(np.bool_)
    if of.is_float:
        values = rng.standard_normal(n) * 3
        if special:
            odd = [*SPECIAL_FLOATS, np.inf, -np.inf, np.nan]
            values[: min(n, len(odd))] = rng.permutation(odd)[:n]
        with np.errstate(all="ignore"):
            return values.astype(of.numpy)
    low, high = int(of.min), int(of.max)
    values = rng.integers(max(low, -(2**62)), min(high, 2**62), n, endpoint=True)
    if special:
        odd = [low, high, 0, 1, 2, 3, low + 1, high - 1]
        values = np.array([*rng.permutation(np.array(odd, object)), *values][:n], object)
    if of.bits == 4:
        return values.astype(np.int64).astype(np.int8).astype(of.numpy)
    return values.astype(of.numpy)


def elementwise(of: str, ops: list[str], *, vector: bool) -> str:
    """z[k, i] = op_k(x[i], y[i]), with vectors of 16 and a scalar tail, or scalars only."""
    rows = len(ops)
    scalar = [f"%z[{row}, %i] = " + op.format(x="%x[%i]", y="%y[%i]") for row, op in enumerate(ops)]
    wide = [
        f"%z[{row}, ramp(%v * 16, 1, 16)] = "
        + op.format(x="%x[ramp(%v * 16, 1, 16)]", y="%y[ramp(%v * 16, 1, 16)]")
        for row, op in enumerate(ops)
    ]
    head = f"func @f(%x: {of}[n], %y: {of}[n], %z: {of}[{rows}, n]) stage flat {{\n"
    tail = "for %i in n // 16 * 16..n {\n" if vector else "for %i in 0..n {\n"
    body = "for %v in 0..n // 16 {\n" + "\n".join(wide) + "\n}\n" if vector else ""
    return head + body + tail + "\n".join(scalar) + "\n}\n}"


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("of", FLOATS)
def test_float_arithmetic(agree: Agree, of: str, vector: bool) -> None:
    ops = ["{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / {y}", "min({x}, {y})", "max({x}, {y})"]
    ops += ["select({x} < {y}, {x}, {y})", "abs({x})", "copysign({x}, {y})"]
    ops += ["floor({x})", "ceil({x})", "trunc({x})", "round({x})"]
    kind = dtype(of)
    out = np.zeros((len(ops), N), kind.numpy)
    agree(elementwise(of, ops, vector=vector), numbers(kind, N, 1), numbers(kind, N, 2), out)


@pytest.mark.parametrize("of", ["f64", "f32", "f16", "bf16"])
def test_square_roots(agree: Agree, of: str) -> None:
    ops = ["sqrt({x})", "rsqrt({x})", "fmod({x}, {y})"]
    kind = dtype(of)
    out = np.zeros((len(ops), N), kind.numpy)
    agree(elementwise(of, ops, vector=True), numbers(kind, N, 1), numbers(kind, N, 2), out)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("of", INTS)
def test_integer_arithmetic(agree: Agree, of: str, vector: bool) -> None:
    ops = ["{x} + {y}", "{x} - {y}", "{x} * {y}", "min({x}, {y})", "max({x}, {y})"]
    ops += ["{x} // {y}", "{x} % {y}", "{x} // 3", "{x} % 3", "{x} // 4", "{x} % 4"]
    ops += ["select({x} <= {y}, {y}, {x})", "abs({x})"]
    ops += [f"bit_{op}({{x}}, {{y}})" for op in ("and", "or", "xor")]
    ops += ["bit_not({x})", "truncdiv({x}, {y})", "truncmod({x}, {y})"]
    if vector:  # a bare literal does not broadcast
        ops = [op for op in ops if not op.endswith(("3", "4"))]
    kind = dtype(of)
    y = numbers(kind, N, 2)
    y[y == 0] = 1  # the interpreter refuses to divide by zero
    out = np.zeros((len(ops), N), kind.numpy)
    agree(elementwise(of, ops, vector=vector), numbers(kind, N, 1), y, out)


def test_division_by_zero_gives_zero() -> None:
    ops = ["{x} // {y}", "{x} % {y}", "truncdiv({x}, {y})", "truncmod({x}, {y})"]
    for of in ("i32", "u8", "i64"):
        x = numbers(dtype(of), N, 1)
        out = np.ones((len(ops), N), x.dtype)
        build(parse(elementwise(of, ops, vector=True)))(x, np.zeros_like(x), out)
        assert (out == 0).all()


@pytest.mark.parametrize("of", NIBBLES)
def test_four_bit_arithmetic_wraps(of: str) -> None:
    """Against Python's integers: NumPy knows four bits only from outside."""
    kind = dtype(of)
    x, y = (a.ravel() for a in np.meshgrid(*(np.arange(int(kind.min), int(kind.max) + 1),) * 2))
    ops = ["{x} + {y}", "{x} - {y}", "{x} * {y}", "min({x}, {y})", "{x} // {y}", "{x} % {y}"]
    ops += ["abs({x})", "bit_not({x})", "bit_xor({x}, {y})"]
    with np.errstate(divide="ignore"):
        want = [x + y, x - y, x * y, np.minimum(x, y), x // y, x % y, np.abs(x), ~x, x ^ y]
    out = np.zeros((len(ops), len(x)), kind.numpy)
    narrow = [a.astype(np.int8).astype(kind.numpy) for a in (x, y)]
    build(parse(elementwise(of, ops, vector=True)))(*narrow, out)
    for got, exact in zip(out, want, strict=True):
        wrapped = exact & 15
        wrapped = np.where((wrapped > 7) & (of == "i4"), wrapped - 16, wrapped)
        np.testing.assert_array_equal(got.astype(np.int64), wrapped)


@pytest.mark.parametrize("of", ["i64", "i32", "i8", "u32", "u8"])
def test_shifts_beyond_the_width(agree: Agree, of: str) -> None:
    kind = dtype(of)
    counts = (np.arange(N) % (kind.bits + 3)).astype(kind.numpy)
    ops = ["shift_left({x}, {y})", "shift_right({x}, {y})", "popcount({x})"]
    out = np.zeros((len(ops), N), kind.numpy)
    agree(elementwise(of, ops, vector=True), numbers(kind, N, 3), counts, out)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 8, -1, -2, -3])
def test_floor_division_by_constants(agree: Agree, divisor: int) -> None:
    program = f"""
    func @f(%x: i32[n], %q: i32[n], %r: i32[n]) stage flat {{
      for %i in 0..n {{
        %q[%i] = %x[%i] // ({divisor})
        %r[%i] = %x[%i] % ({divisor})
      }}
    }}"""
    x = np.array([-(2**31), -9, -8, -7, -1, 0, 1, 7, 8, 9, 2**31 - 1], np.int32)
    agree(program, x, np.zeros_like(x), np.zeros_like(x))


def test_negative_indices_divide_downwards(agree: Agree) -> None:
    program = """
    func @f(%q: index[n], %r: index[n], %s: index[n]) stage flat {
      for %i in 0..n {
        %q[%i] = (%i - 9) // 4
        %r[%i] = (%i - 9) % 5
        %s[%i] = (%i - 9) // (%i % 3 * 2 - 3)
      }
    }"""
    agree(program, *(np.zeros(20, np.int64) for _ in range(3)))


@pytest.mark.parametrize("of", [*FLOATS, *INTS, *NIBBLES, "bool"])
def test_casts(agree: Agree, of: str) -> None:
    """To every type, one element at a time, and eight."""
    # NumPy has no cast between the two of four bits.
    types = [to for to in (*FLOATS, *INTS, *NIBBLES, "bool") if {of, to} != set(NIBBLES)]
    ramp, one, eight = "ramp(%i * 8, 1, 8)", "%x[%i]", "%x[ramp(%i * 8, 1, 8)]"
    loops = [
        f"""
      for %i in 0..n {{
        %{to}_one[%i] = {one if of == to else f"{to}({one})"}
      }}
      for %i in 0..n // 8 {{
        %{to}_eight[{ramp}] = {eight if of == to else f"{to}x8({eight})"}
      }}"""
        for to in types
    ]
    results = ", ".join(f"%{to}_one: {to}[n], %{to}_eight: {to}[n]" for to in types)
    program = f"func @f(%x: {of}[n], {results}) stage flat {{{''.join(loops)}}}"
    outs = [np.zeros(32, dtype(to).numpy) for to in types for _ in range(2)]
    agree(program, numbers(dtype(of), 32, 5), *outs)


def test_every_small_float_converts_exactly(agree: Agree) -> None:
    for of, n in (("f16", 1 << 16), ("bf16", 1 << 16), ("f8e4m3", 256), ("f8e5m2", 256)):
        kind = dtype(of)
        bits = np.arange(n).astype(np.uint16 if n > 256 else np.uint8)
        program = f"""
        func @f(%x: {of}[n], %w: f32[n], %z: {of}[n]) stage flat {{
          for %i in 0..n // 16 {{
            %w[ramp(%i * 16, 1, 16)] = f32x16(%x[ramp(%i * 16, 1, 16)])
            %z[ramp(%i * 16, 1, 16)] = {of}x16(f32x16(%x[ramp(%i * 16, 1, 16)]))
          }}
        }}"""
        x = bits.view(kind.numpy)
        for target in ("cpu", OLDEST):
            w, z = np.zeros(n, np.float32), np.zeros(n, kind.numpy)
            build(parse(program), target)(x, w, z)
            with np.errstate(invalid="ignore"):  # of signalling NaNs, on some processors
                wide = x.astype(np.float32)
            np.testing.assert_array_equal(w, wide)
            same = (z.view(bits.dtype) == bits) | np.isnan(w)
            if of == "bf16" and target == "cpu":  # the instruction flushes subnormals
                same |= np.abs(w) < 1.2e-38
            assert same.all()


@pytest.mark.parametrize("of", ["f16", "bf16", "f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("target", ["cpu", OLDEST])
def test_rounding_to_small_floats(agree: Agree, of: str, target: str) -> None:
    """Numbers half way between neighbours and just beside, from f32 and from f64."""
    kind = dtype(of)
    n = 1 << min(kind.bits, 12)
    bits = (np.arange(n) << (kind.bits - min(kind.bits, 12))).astype(f"u{kind.size_bytes}")
    with np.errstate(all="ignore"):
        values = bits.view(kind.numpy).astype(np.float64)
    values = np.sort(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    near = [middles, np.nextafter(middles, -np.inf), np.nextafter(middles, np.inf)]
    x = np.concatenate([*near, values * 1.5])
    x = x[: len(x) // 16 * 16]
    program = f"""
    func @f(%x: f64[n], %y: f32[n], %z: {of}[n], %w: {of}[n]) stage flat {{
      for %i in 0..n // 16 {{
        %z[ramp(%i * 16, 1, 16)] = {of}x16(%x[ramp(%i * 16, 1, 16)])
        %w[ramp(%i * 16, 1, 16)] = {of}x16(%y[ramp(%i * 16, 1, 16)])
      }}
    }}"""
    with np.errstate(all="ignore"):
        y = x.astype(np.float32)
        z, w = np.zeros(len(x), kind.numpy), np.zeros(len(x), kind.numpy)
        build(parse(program), target)(x, y, z, w)
        want = y.astype(kind.numpy)
        flushed = (np.abs(y) < 1.2e-38) & (of == "bf16") & (target == "cpu")
        same = (w == want) | (np.isnan(w) & np.isnan(want)) | flushed
    assert same.all(), (y[~same][:4], w[~same][:4], want[~same][:4])
    if of == "f16":  # NumPy rounds f64 to f16 in one step
        with np.errstate(all="ignore"):
            once = x.astype(np.float16)
        assert ((z == once) | (np.isnan(z) & np.isnan(once))).all()


# --------------------------------------------------------------------------- memory


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, -1, -2, -3])
@pytest.mark.parametrize("of", ["f32", "i8", "bool", "f64"])
def test_strided_accesses(agree: Agree, stride: int, of: str) -> None:
    start = 0 if stride > 0 else -7 * stride
    program = f"""
    func @f(%x: {of}[64], %y: {of}[8], %z: {of}[64]) stage flat {{
      %y[ramp(0, 1, 8)] = %x[ramp({start}, {stride}, 8)]
      %z[ramp({start}, {stride}, 8)] = %x[ramp(8, 1, 8)]
    }}"""
    kind = dtype(of)
    agree(program, numbers(kind, 64, 7), np.zeros(8, kind.numpy), np.zeros(64, kind.numpy))


def test_gather_and_scatter(agree: Agree) -> None:
    program = """
    func @f(%x: f32[n], %at: i32[n], %y: f32[n], %z: f32[n]) stage flat {
      for %i in 0..n // 8 {
        %y[ramp(%i * 8, 1, 8)] = %x[indexx8(%at[ramp(%i * 8, 1, 8)])]
        %z[indexx8(%at[ramp(%i * 8, 1, 8)])] = %x[ramp(%i * 8, 1, 8)]
      }
    }"""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(32).astype(np.float32)
    at = rng.permutation(32).astype(np.int32)
    agree(program, x, at, np.zeros(32, np.float32), np.zeros(32, np.float32))


@pytest.mark.parametrize("of", ["f32", "f64", "i8", "bf16", "bool"])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 40])
def test_masked_tails(agree: Agree, of: str, n: int) -> None:
    zero = "false" if of == "bool" else "0"
    program = f"""
    func @f(%x: {of}[n], %y: {of}[n], %z: {of}[n]) stage flat {{
      for %i in 0..(n + 15) // 16 {{
        let %m: boolx16 = ramp(%i * 16, 1, 16) < broadcast(n, 16)
        %y[ramp(%i * 16, 1, 16)] = masked(%x[ramp(%i * 16, 1, 16)], %m) where %m
        %z[ramp(n - 1 - %i * 16, -1, 16)] = masked(%x[ramp(%i * 16, 1, 16)], %m) where %m
      }}
      if n < 0 {{
        %y[0] = {zero}
      }}
    }}"""
    kind = dtype(of)
    agree(program, numbers(kind, n, 7), np.zeros(n, kind.numpy), np.zeros(n, kind.numpy))


TESTS = {  # of places, that pass for the first lanes or the last ones
    "first": "ramp({at}, 1, 16) < broadcast(n, 16)",
    "first, and one": "ramp({at}, 1, 16) <= broadcast(n, 16)",
    "last": "broadcast(n, 16) < ramp({at}, 1, 16)",
    "last, and one": "broadcast(n, 16) <= ramp({at}, 1, 16)",
    "backwards": "ramp(40 - {at}, -1, 16) < broadcast(n, 16)",
    "both move": "ramp({at}, 3, 16) < ramp(n, 2, 16)",
    "two apart": "ramp({at}, 2, 16) < broadcast(n, 16)",
}


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_comparisons_of_places(agree: Agree, test: str) -> None:
    """Far on both sides, and everywhere between; one number for all lanes is loaded if any may."""
    mask = test.format(at="%i * 16 - 16")
    program = f"""
    func @f(%size: f32[n], %x: f32[5], %y: f32[80]) stage flat {{
      for %i in 0..5 {{
        let %m: boolx16 = {mask}
        %y[ramp(%i * 16, 1, 16)] = masked(%x[broadcast(%i, 16)], %m) + broadcast(f32(1.0), 16)
      }}
    }}"""
    x = np.arange(2, 7).astype(np.float32)
    for n in (*range(40), 63, 64, 65, 200):
        agree(program, np.zeros(n, np.float32), x, np.zeros(80, np.float32))


@pytest.mark.parametrize("of", ["u8", "i8", "u16", "i16", "f32", "bool"])
@pytest.mark.parametrize("lane", [0, 3, 15])
def test_one_lane_of_a_vector_leaves_its_neighbours_alone(agree: Agree, of: str, lane: int) -> None:
    first, last = f"broadcast({lane + 8}, 16)", f"broadcast({lane + 9}, 16)"
    program = f"""
    func @f(%x: i32[16], %y: {of}[40]) stage flat {{
      %y[ramp(8, 1, 16)] = {of}x16(%x[ramp(0, 1, 16)])
          where {first} <= ramp(8, 1, 16) and ramp(8, 1, 16) < {last}
    }}"""
    values = np.random.default_rng(0).integers(0, 100, 16).astype(np.int32)
    agree(program, values, np.full(40, 1, dtype(of).numpy))


@pytest.mark.parametrize("to", ["bf16", "f16", "f32"])
@pytest.mark.parametrize(("first", "stop"), [(0, 8), (0, 16), (3, 12), (0, 31), (5, 6), (8, 32)])
def test_some_lanes_of_rounded_values(agree: Agree, to: str, first: int, stop: int) -> None:
    tests = f"broadcast({first}, 32) <= ramp(0, 1, 32) and ramp(0, 1, 32) < broadcast({stop}, 32)"
    program = f"""
    func @f(%x: f32[32], %y: {to}[40]) stage flat {{
      let %m: boolx32 = {tests}
      %y[ramp(0, 1, 32)] = {to}x32(masked(%x[ramp(0, 1, 32)], %m) + broadcast(f32(1.0), 32))
          where {tests}
    }}"""
    values = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    agree(program, values, np.ones(40, dtype(to).numpy))


def test_a_masked_access_stays_inside_its_page() -> None:
    """The last element lies at the end of a page behind which nothing may be touched."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    view = np.frombuffer(memory, np.float32)[: page // 4]
    view[:] = np.arange(page // 4)
    program = """
    func @f(%x: f32[n], %y: f32[n]) stage flat {
      for %i in 0..(n + 15) // 16 {
        let %m: boolx16 = ramp(%i * 16, 1, 16) < broadcast(n, 16)
        %y[ramp(%i * 16, 1, 16)] = masked(%x[ramp(%i * 16, 1, 16)], %m) where %m
      }
    }"""
    run = build(parse(program))
    libc = ctypes.CDLL(None, use_errno=True)
    start = view.ctypes.data + page
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0) == 0
    try:
        for n in (1, 5, 16, 23):
            y = np.zeros(n, np.float32)
            run(view[-n:], y)
            np.testing.assert_array_equal(y, view[-n:])
    finally:
        libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 3)


def test_a_select_guards_its_loads(agree: Agree) -> None:
    program = """
    func @f(%x: f32[n], %y: f32[n], %z: f32[n]) stage flat {
      for %i in 0..n {
        %y[%i] = select(1 <= %i and %i < n - 1, %x[%i - 1] + %x[%i + 1], 0)
      }
      for %i in 0..n // 8 {
        let %p: indexx8 = ramp(%i * 8 - 2, 1, 8)
        let %m: boolx8 = broadcast(0, 8) <= %p
        %z[ramp(%i * 8, 1, 8)] = select(%m, masked(%x[%p], %m), broadcast(f32(7), 8))
      }
    }"""
    x = np.random.default_rng(0).standard_normal(24).astype(np.float32)
    agree(program, x, np.zeros_like(x), np.zeros_like(x))


def test_broadcast_loads(agree: Agree) -> None:
    program = """
    func @f(%x: f32[n], %y: f32[n, 8]) stage flat {
      for %i in 0..n {
        %y[%i, ramp(0, 1, 8)] = broadcast(%x[%i], 8)
      }
    }"""
    x = np.arange(5, dtype=np.float32)
    agree(program, x, np.zeros((5, 8), np.float32))


# --------------------------------------------------------------------------- structure


MATMUL = """
func @matmul(%A: f32[n, k], %B: f32[k, m], %C: f32[n, m]) stage flat {
  for %i in parallel 0..n {
    alloc %acc: f32[16] in local
    for %j in 0..m // 16 {
      %acc[ramp(0, 1, 16)] = broadcast(f32(0), 16)
      for %r in 0..k {
        let %b: f32x16 = %B[%r, ramp(%j * 16, 1, 16)]
        %acc[ramp(0, 1, 16)] = %acc[ramp(0, 1, 16)] + broadcast(%A[%i, %r], 16) * %b
      }
      %C[%i, ramp(%j * 16, 1, 16)] = %acc[ramp(0, 1, 16)]
    }
    for %j in m // 16 * 16..m {
      %acc[0] = 0
      for %r in 0..k {
        %acc[0] = %acc[0] + %A[%i, %r] * %B[%r, %j]
      }
      %C[%i, %j] = %acc[0]
    }
  }
}"""


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 37, 5), (0, 4, 4), (4, 4, 0), (4, 0, 4)])
def test_parallel_matmul(agree: Agree, shape: tuple[int, int, int]) -> None:
    n, m, k = shape
    rng = np.random.default_rng(0)
    a = rng.standard_normal((n, k)).astype(np.float32)
    b = rng.standard_normal((k, m)).astype(np.float32)
    agree(MATMUL, a, b, np.zeros((n, m), np.float32), reduction=max(1, k) * 16)


def test_nested_parallel_loops_and_workspaces(agree: Agree) -> None:
    program = """
    func @f(%x: f32[n, m], %y: f32[n, m]) stage flat {
      alloc %all: f32[n * m]
      for %i in parallel 0..n {
        alloc %row: f32[m]
        for %j in parallel 0..m {
          %row[%j] = %x[%i, %j] * 2
        }
        for %j in 0..m {
          %all[%i * m + %j] = %row[m - 1 - %j]
        }
      }
      for %i in parallel 1..n {
        for %j in 0..m {
          %y[%i, %j] = %all[%i * m + %j] + f32(%i)
        }
      }
    }"""
    x = np.random.default_rng(0).standard_normal((9, 13)).astype(np.float32)
    agree(program, x, np.zeros_like(x))


def test_scalar_parameters(agree: Agree) -> None:
    program = """
    func @f(%x: f32[n], %a: f32, k: index, %flag: bool, %y: f32[n]) stage flat {
      for %i in 0..min(n, k) {
        %y[%i] = select(%flag, %x[%i] * %a, %x[%i])
      }
    }"""
    x = np.arange(6, dtype=np.float32)
    run = build(parse(program))
    for flag in (False, True):
        y = np.zeros_like(x)
        run(x, 3.0, 4, flag, y)
        np.testing.assert_array_equal(y, np.where(np.arange(6) < 4, x * (3.0 if flag else 1.0), 0))


def test_rank_zero_arrays(agree: Agree) -> None:
    program = """
    func @f(%x: f32[], %y: f64[]) stage flat {
      %y[] = f64(%x[]) * 2
    }"""
    agree(program, np.array(1.5, np.float32), np.array(0.0))


def test_zero_size_arrays(agree: Agree) -> None:
    program = """
    func @f(%x: f32[n, m], %y: f32[n]) stage flat {
      for %i in parallel 0..n {
        %y[%i] = 0
        for %j in 0..m {
          %y[%i] = %y[%i] + %x[%i, %j]
        }
      }
    }"""
    for n, m in ((0, 0), (0, 3), (3, 0)):
        agree(program, np.zeros((n, m), np.float32), np.ones(n, np.float32))


def test_updates_with_reducers(agree: Agree) -> None:
    program = """
    func @f(%x: f32[n], %at: i64[1], %best: f32[1], %total: f32[1]) stage flat {
      %at[0] = 9223372036854775807
      %best[0] = -inf
      %total[0] = 0
      for %i in 0..n {
        (%at[0], %best[0]) argmax= (i64(%i), %x[%i])
        %total[0] sum= %x[%i]
      }
    }"""
    x = np.random.default_rng(0).standard_normal(33).astype(np.float32)
    agree(program, x, np.zeros(1, np.int64), np.zeros(1, np.float32), np.zeros(1, np.float32))


def test_unrolled_loops_and_branches(agree: Agree) -> None:
    program = """
    func @f(%x: i32[n], %y: i32[n]) stage flat {
      for %i in 0..n // 4 {
        for %u in unroll 0..4 {
          if %x[%i * 4 + %u] % 2 == 0 {
            %y[%i * 4 + %u] = %x[%i * 4 + %u] // 2
          } else {
            %y[%i * 4 + %u] = 3 * %x[%i * 4 + %u] + 1
          }
        }
      }
    }"""
    x = np.arange(-8, 8, dtype=np.int32)
    agree(program, x, np.zeros_like(x))


def check_quotients(op: str, loop: str, x: Any, by: np.float32) -> None:
    """Bytes are those of a division, rounded."""
    run = build(
        parse(
            f"""
            func @quotients(%x: f32[n], %by: f32[], %zero: u8[], %out: u8[n]) stage scheduled {{
              for %at in 0..n // 64 {{
                for %lane in {loop} {{
                  %out[%at * 64 + %lane] =
                    u8(round({op}(%x[%at * 64 + %lane], %by[])) + f32(%zero[]))
                }}
              }}
            }}
            """
        )
    )
    x = x[: x.size // 64 * 64]
    got = np.zeros(x.shape, np.uint8)
    run(x, np.array(by), np.array(128, np.uint8), got)
    with np.errstate(all="ignore"):
        want = np.nan_to_num(np.rint(x / by) + 128, nan=0.0)
    np.testing.assert_array_equal(got, np.clip(want, 0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    "scale", [0.013, 1e-3, 255 / 7, 1e30, 3.4e38, 1e-30, 3e-39, 1e-45, 0.0, np.inf, np.nan]
)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("vector", [False, True])
def test_quotients_that_saturate_round_as_divisions_do(
    scale: float, sign: int, vector: bool
) -> None:
    rng, by = np.random.default_rng(0), np.float32(sign * scale)
    ties = (rng.integers(-300, 300, 4096) + 0.5) * float(by)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-40]
    with np.errstate(over="ignore"):
        x = np.concatenate([ties, np.nextafter(ties, 0), rng.normal(size=4096), ends])
        x = x.astype(np.float32)
    check_quotients("saturating_div", "vector 0..64" if vector else "0..64", x, by)


@pytest.mark.parametrize(
    "scale", [1.0, 1 / 3, 0.1, 2.0**-63, 2.0**63, 1e-38, 1e-44, 1e38, np.inf, np.nan]
)
@pytest.mark.parametrize("vector", [False, True])
def test_quotients_by_a_scale_of_the_range_round_as_divisions_do(
    scale: float, vector: bool
) -> None:
    rng, by = np.random.default_rng(0), np.float32(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        ties = (rng.integers(-256, 256, 4096) + 0.5) * float(by)
        near = [np.nextafter(ties.astype(np.float32), to) for to in (np.float32(0), ties * 2)]
        x = np.concatenate([ties, *near, ties * rng.random(4096)]).astype(np.float32)
    check_quotients("ranged_div", "vector 0..64" if vector else "0..64", x, by)
