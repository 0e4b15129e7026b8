"""Between real numbers and few bits."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import BF16, F16, F32, F64, I8, U8, dtype
from tilewright.base.errors import UserError
from tilewright.graph import Builder


def test_quantize_rounds_to_even_and_saturates(run_op):
    x = np.float32([0.5, 1.5, 2.5, -300, 300, 1.26])
    made = run_op("quantize", x, np.float32(1), np.int8(3), to=I8)
    assert made.tolist() == [3, 5, 5, -128, 127, 4]
    assert run_op("quantize", x, np.float32(0.5), to=U8).tolist() == [1, 3, 5, 0, 255, 3]
    assert run_op("quantize", x, None, np.int8(3), to=I8).tolist() == made.tolist()
    assert run_op("quantize", x, to=U8).tolist() == [0, 2, 2, 0, 255, 1]


def test_a_scale_along_an_axis(run_op, rng):
    x = rng.uniform(-9, 9, (2, 3, 4)).astype(np.float32)
    scale, zero = np.float32([0.1, 0.2, 0.3]), np.uint8([100, 110, 120])
    made = run_op("quantize", x, scale, zero, to=U8, axis=1)
    each = [run_op("quantize", x[:, c], scale[c], zero[c], to=U8) for c in range(3)]
    assert (made == np.stack(each, axis=1)).all()
    back = run_op("dequantize", made, scale, zero, to=F32, axis=-2)
    assert (np.abs(back - x) <= scale[:, None] / 2 + 1e-6).all()


@pytest.mark.parametrize("length", [6, 5])
def test_a_scale_for_each_block(run_op, rng, length):
    x = rng.standard_normal((2, length)).astype(np.float32) * 10
    scale, zero = np.float32([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), np.zeros((2, 3), np.int8)
    made = run_op("quantize", x, scale, zero, to=I8, axis=1, block_size=2)
    spread = np.repeat(scale, 2, axis=1)[:, :length]
    assert (made == np.clip(np.rint(x / spread), -128, 127)).all()
    back = run_op("dequantize", made, scale, zero, to=F32, axis=1, block_size=2)
    np.testing.assert_allclose(back, made * spread, rtol=1e-6)


@pytest.mark.parametrize("of", ["i4", "u4", "i2", "u2", "i16", "u16", "f8e4m3", "f8e5m2", "f4e2m1"])
def test_every_type_it_can_be_stored_in(run_op, of):
    x = np.float32([0.2, 1.0, 2.4, 1e9])
    made = run_op("quantize", x, np.float32(1), to=dtype(of))
    assert made.dtype == dtype(of).numpy
    most = 57344 if of == "f8e5m2" else dtype(of).max
    assert float(made[3]) == most
    back = run_op("dequantize", made, np.float32(2), to=F32)
    assert back[3] == 2.0 * most


@pytest.mark.parametrize("to", [F16, BF16, F64])
def test_dequantize_gives_the_type_asked_for(run_op, to):
    made = run_op("dequantize", np.int8([-3, 100]), np.float32(0.5), np.int8(1), to=to)
    assert made.dtype == to.numpy
    assert made.astype(float).tolist() == [-2.0, 49.5]


def test_precision_of_the_division(run_op):
    x, scale = np.float32([1.0]), np.array(3, ml_dtypes.bfloat16)
    coarse = run_op("quantize", x * 1000, scale, to=dtype("i16"))
    fine = run_op("quantize", x * 1000, scale, to=dtype("i16"), precision=F32)
    assert (coarse.tolist(), fine.tolist()) == ([334], [333])


@pytest.mark.parametrize(
    ("arrays", "attributes", "error"),
    [
        ([(2, 3), (4,)], {}, "TW1015.*scale and axis"),
        ([(2, 3), (3,)], {"axis": 2}, "TW1206.*axis 2 of quantize is not one of 2"),
        ([(2, 3), (2, 3)], {}, "TW1206.*needs a block size"),
        ([(2, 3), (3,)], {"block_size": 2}, "TW1206.*need a scale of rank 2"),
    ],
)
def test_scales_that_do_not_fit(run_op, arrays, attributes, error):
    inputs = (np.ones(shape, np.float32) for shape in arrays)
    with pytest.raises(UserError, match=error):
        run_op("quantize", *inputs, to=U8, **attributes)


def test_a_zero_point_of_another_type(run_op):
    with pytest.raises(UserError, match=r"TW1206.*quantize to u8 has a zero point of i8"):
        run_op("quantize", np.ones(2, np.float32), np.float32(1), np.int8(0), to=U8)


def test_a_product_of_two_tensors_of_bytes_is_exact_and_rounded_once(run_op, rng):
    x, y = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 3, 40), (2, 40, 5)))
    given = {"multiplier": 1 << 30, "shift": 42, "x_zero": 100, "y_zero": -128, "zero": 3}
    made = run_op("quantized_batch_matmul", x, y, **given)
    sums = np.matmul(x.astype(np.int64) - 100, y.astype(np.int64) + 128)
    np.testing.assert_array_equal(made, np.clip(np.floor(sums / 4096 + 0.5) + 3, -128, 127))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((3, 4), (4, 5), "TW1204.*rank 2 and 2, not 3"),
        ((2, 3, 4), (3, 4, 5), "the batch"),
        ((2, 3, 4), (2, 3, 5), "the depth"),
    ],
)
def test_products_of_other_tensors_are_refused(x, y, message):
    builder = Builder()
    operands = [builder.constant(np.zeros(shape, np.int8)) for shape in (x, y)]
    with pytest.raises(UserError, match=message):
        builder.add("quantized_batch_matmul", *operands, multiplier=1, shift=0)
