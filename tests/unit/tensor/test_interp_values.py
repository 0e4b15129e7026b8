"""What scalar operations mean, type by type, in one thread and in lock step."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import dtype
from tilewright.tensor import interpret, parse
from tilewright.tensor.calls import CALLS

FLOATS = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2")
INTS = ("i64", "i32", "i16", "i8", "i4", "u64", "u32", "u16", "u8", "u4", "index")
LOOPS = ("", "thread(threadIdx.x) ")


def evaluate(expr: str, out: str, loop: str = "", **inputs: tuple[str, list[Any]]) -> np.ndarray:
    """The elements that `expr` gives, written over arrays indexed by `%i`."""
    count = len(next(iter(inputs.values()))[1])
    params = [f"%{name}: {of}[{count}]" for name, (of, _) in inputs.items()]
    text = f"""
    func @f({", ".join(params)}, %out: {out}[{count}]) stage flat {{
      for %i in {loop}0..{count} {{ %out[%i] = {expr} }}
    }}
    """
    arrays = [_array(x, of) for of, x in inputs.values()]
    result = np.zeros(count, dtype(out).numpy)
    interpret(parse(text), *arrays, result)
    return result


def _array(values: list[Any], of: str) -> np.ndarray:
    wide = np.array(values, "uint64") if of == "u64" else np.array(values)
    return wide.astype(dtype(of).numpy)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("of", FLOATS)
def test_floats_round_after_every_operation(of: str, loop: str) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(16).astype(dtype(of).numpy) for _ in range(2))
    inputs = {"x": (of, list(x)), "y": (of, list(y))}
    for symbol, function in (("+", np.add), ("-", np.subtract), ("*", np.multiply)):
        got = evaluate(f"(%x[%i] {symbol} %y[%i]) * %x[%i]", of, loop, **inputs)
        np.testing.assert_array_equal(got.astype(float), (function(x, y) * x).astype(float))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("of", INTS)
def test_integers_wrap_around(of: str, loop: str) -> None:
    kind = dtype(of)
    x, y = [kind.max, kind.min, 3], [2, 1, 2]
    modulus = 1 << kind.bits

    def wrapped(value: int) -> int:
        value %= modulus
        return value - modulus if kind.kind == "int" and value >= modulus // 2 else value

    inputs = {"x": (of, x), "y": (of, y)}
    if of != "index":
        got = evaluate("%x[%i] * %y[%i]", of, loop, **inputs)
        assert [int(v) for v in got] == [wrapped(int(a) * b) for a, b in zip(x, y, strict=True)]
        got = evaluate("%x[%i] + %y[%i]", of, loop, **inputs)
        assert [int(v) for v in got] == [wrapped(int(a) + b) for a, b in zip(x, y, strict=True)]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("of", ["i64", "i32", "i8", "i4", "index"])
def test_division_floors(of: str, loop: str) -> None:
    x, y = [7, -7, 7, -7, 0], [2, 2, -2, -2, 3]
    inputs = {"x": (of, x), "y": (of, y)}
    assert evaluate("%x[%i] // %y[%i]", of, loop, **inputs).tolist() == [3, -4, -4, 3, 0]
    assert evaluate("%x[%i] % %y[%i]", of, loop, **inputs).tolist() == [1, 1, -1, -1, 0]
    assert evaluate("truncdiv(%x[%i], %y[%i])", of, loop, **inputs).tolist() == [3, -3, -3, 3, 0]
    assert evaluate("truncmod(%x[%i], %y[%i])", of, loop, **inputs).tolist() == [1, -1, 1, -1, 0]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("target", INTS)
@pytest.mark.parametrize("source", ["f64", "f32", "f16", "bf16"])
def test_floats_become_integers(source: str, target: str, loop: str) -> None:
    values = [1.9, -1.9, 0.0, math.nan, math.inf, -math.inf, 1e4, -1e4]
    stored = np.array(values).astype(dtype(source).numpy).astype(float)
    kind = dtype(target)
    want = [
        0 if math.isnan(v) else int(min(max(v, kind.min), kind.max)) if math.isfinite(v) else
        int(kind.max if v > 0 else kind.min)
        for v in stored
    ]  # fmt: skip
    got = evaluate(f"{target}(%x[%i])", target, loop, x=(source, values))
    assert [int(v) for v in got] == want


@pytest.mark.parametrize("loop", LOOPS)
def test_limits_of_64_bits_are_exact(loop: str) -> None:
    x = ("f64", [2.0**63, -(2.0**63), 2.0**62, 1e300])
    top = 2**63 - 1
    assert evaluate("i64(%x[%i])", "i64", loop, x=x).tolist() == [top, -(2**63), 2**62, top]
    assert evaluate("u64(%x[%i])", "u64", loop, x=x).tolist() == [2**63, 0, 2**62, 2**64 - 1]


@pytest.mark.parametrize("loop", LOOPS)
def test_integers_become_narrower_by_wrapping(loop: str) -> None:
    x = ("i32", [300, -129, 127])
    assert evaluate("i8(%x[%i])", "i8", loop, x=x).tolist() == [44, 127, 127]
    assert evaluate("u8(%x[%i])", "u8", loop, x=x).tolist() == [44, 127, 127]
    assert evaluate("bool(%x[%i] - 127)", "bool", loop, x=x).tolist() == [True, True, False]
    assert evaluate("f32(bool(%x[%i]))", "f32", loop, x=x).tolist() == [1, 1, 1]
    assert evaluate("i8(%i + 254)", "i8", loop, x=x).tolist() == [-2, -1, 0]


@pytest.mark.parametrize("loop", LOOPS)
def test_nan_spreads_through_min_and_max(loop: str) -> None:
    x, y = ("f32", [math.nan, 1.0, 2.0]), ("f32", [1.0, math.nan, 3.0])
    for function, last in (("min", 2.0), ("max", 3.0)):
        got = evaluate(f"{function}(%x[%i], %y[%i])", "f32", loop, x=x, y=y)
        np.testing.assert_array_equal(got, [math.nan, math.nan, last])


@pytest.mark.parametrize("loop", LOOPS)
def test_float_division_by_zero_is_ieee(loop: str) -> None:
    x, y = ("f32", [1.0, -1.0, 0.0]), ("f32", [0.0, 0.0, 0.0])
    got = evaluate("%x[%i] / %y[%i]", "f32", loop, x=x, y=y)
    np.testing.assert_array_equal(got, [math.inf, -math.inf, math.nan])


@pytest.mark.parametrize("loop", LOOPS)
def test_logic(loop: str) -> None:
    x = ("i32", [0, 1, 2, 3])
    got = evaluate("not (%x[%i] == 1) and (%x[%i] < 2 or %x[%i] >= 3)", "bool", loop, x=x)
    assert got.tolist() == [True, False, False, True]


UNARY = [s.name for s in CALLS.values() if s.arity == 1 and s.domain == "float" and not s.same_bits]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("of", ["f64", "f32", "bf16"])
@pytest.mark.parametrize("name", UNARY)
def test_calls_of_floats(name: str, of: str, loop: str) -> None:
    values = np.array([0.25, 0.5, 1.5, -0.75]).astype(dtype(of).numpy)
    spec = CALLS[name]
    assert spec.numpy is not None
    with np.errstate(all="ignore"):
        want = np.asarray(spec.numpy(values))
    out = "bool" if spec.boolean else of
    got = evaluate(f"{name}(%x[%i])", out, loop, x=(of, list(values)))
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-6)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("of", ["i32", "u8", "i4"])
def test_calls_of_integers(of: str, loop: str) -> None:
    x, y = np.array([5, 3, 6, 1]), np.array([3, 1, 2, 1])
    inputs = {"x": (of, list(x)), "y": (of, list(y))}
    for name, want in {
        "bit_and": x & y,
        "bit_or": x | y,
        "bit_xor": x ^ y,
        "shift_right": x >> y,
    }.items():
        got = evaluate(f"{name}(%x[%i], %y[%i])", of, loop, **inputs)
        assert [int(v) for v in got] == want.tolist()
    got = evaluate("popcount(%x[%i])", of, loop, **inputs)
    assert [int(v) for v in got] == [2, 2, 2, 1]
    got = evaluate("min(%x[%i], %y[%i])", of, loop, **inputs)
    assert [int(v) for v in got] == np.minimum(x, y).tolist()


@pytest.mark.parametrize("loop", LOOPS)
def test_bits_of_floats(loop: str) -> None:
    x = np.array([1.0, -0.0, math.pi], np.float32)
    bits = evaluate("bits_of(%x[%i])", "i32", loop, x=("f32", list(x)))
    assert bits.tolist() == x.view(np.int32).tolist()
    back = evaluate("from_bits(%b[%i])", "f32", loop, b=("i32", list(bits)))
    assert back.tobytes() == x.tobytes()


def test_a_product_of_small_floats_is_rounded_each_time() -> None:
    x = np.full(3, 1 + 2**-7).astype(ml_dtypes.bfloat16)
    got = evaluate("%x[%i] * %x[%i] * %x[%i]", "bf16", x=("bf16", list(x)))
    assert got[0] == x[0] * x[0] * x[0]
