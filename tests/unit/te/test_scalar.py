"""Scalar functions: every known call has a name in `te`, under TVM's spelling."""

import numpy as np
import pytest

from tilewright import sym, te
from tilewright.base.dtype import F16, F32, I32
from tilewright.base.errors import TilewrightError
from tilewright.tensor.calls import CALLS, result_type

RENAMED = {
    "bit_and": "bitwise_and",
    "bit_or": "bitwise_or",
    "bit_xor": "bitwise_xor",
    "bit_not": "bitwise_not",
}


@pytest.mark.parametrize("spec", [s for s in CALLS.values() if s.numpy], ids=lambda s: s.name)
def test_every_call_has_a_function(spec):
    of = I32 if spec.domain == "int" else F32
    operands = [sym.var(name, of) for name in "xyz"[: spec.arity]]
    made = getattr(te, RENAMED.get(spec.name, spec.name))(*operands)
    assert made.op == spec.name
    assert made.args == tuple(operands)
    assert made.dtype is result_type(spec, made.args)


def test_numbers_take_the_type_of_the_other_operand():
    x = sym.var("x", F16)
    assert te.pow(x, 2).args[1] is sym.const(2, F16)
    assert te.pow(2, x).args[0] is sym.const(2, F16)
    assert te.exp(1.0).args[0] is sym.const(1.0, F32)


def test_division():
    x, i = sym.var("x", F32), sym.var("i")
    assert str(te.div(x, 2)) == "%x / 2.0"
    assert str(te.div(i, 2)) == "truncdiv(%i, 2)"
    assert str(te.floordiv(i, 2)) == str(te.indexdiv(i, 2)) == "%i // 2"
    assert str(te.floormod(i, 2)) == str(te.indexmod(i, 2)) == "%i % 2"
    assert str(te.truncdiv(i, 2)) == "truncdiv(%i, 2)"
    assert str(te.truncmod(i, 2)) == "truncmod(%i, 2)"
    assert str(te.ceildiv(i, 4)) == "(%i + 3) // 4"


def test_conditions():
    i, x = sym.var("i"), sym.var("x", F32)
    assert str(te.all(i > 0, i < 4, te.ne(i, 2))) == "0 < %i and %i < 4 and %i != 2"
    assert str(te.any(i > 0, te.eq(i, -1))) == "0 < %i or %i == -1"
    assert str(te.logical_not(i > 0)) == "not 0 < %i"
    assert str(te.if_then_else(i > 0, x, 0.0)) == "select(0 < %i, %x, 0.0)"
    assert str(te.select(i > 0, 1, x)) == "select(0 < %i, 1.0, %x)"
    assert te.if_then_else(i > 0, 1.0, 2.0).dtype is F32
    assert str(te.isfinite(x)) == "not (isnan(%x) or isinf(%x))"


def test_casts_accept_numpy_names():
    x = sym.var("x", F32)
    assert te.cast(x, "float16").dtype is F16
    assert te.cast(x, "float32") is x
    assert te.cast(3, "int32") is sym.const(3, I32)


def test_extreme_values():
    assert te.max_value("float32").value == float(np.finfo(np.float32).max)
    assert te.min_value("float32").value == float(np.finfo(np.float32).min)
    assert te.min_value("int8").value == -128
    assert te.max_value("uint8").value == 255
    assert te.max_value("bfloat16").value > 3e38
    assert te.max_value("float8_e4m3fn").value == 448
    assert te.infinity("f32").value == float("inf")


def test_constants():
    assert te.const(1, "float32") is sym.const(1, F32)
    assert te.const(1) is sym.const(1, I32)
    assert te.const(1.5) is sym.const(1.5, F32)
    assert te.const(True) is sym.TRUE


@pytest.mark.parametrize(
    ("value", "dtype", "code"),
    [
        (300, "int8", "TW2426"),
        (-1, "uint8", "TW2426"),
        (2**31, "int32", "TW2426"),
        (float("inf"), "int32", "TW2426"),
        (float("nan"), "int32", "TW2408"),
        ("x", "int32", "TW2408"),
    ],
)
def test_a_constant_fits_its_type(value, dtype, code):
    with pytest.raises(TilewrightError) as caught:
        te.const(value, dtype)
    assert caught.value.code == code
    assert te.const(-128, "int8").value == -128
    assert te.const(255, "uint8").value == 255
