"""Streams of GEMMs and convolutions: accepted by the verifier, equal to integer arithmetic."""

import numpy as np
import pytest

from tilewright.accel.build import Conv, build_conv, build_gemm
from tilewright.accel.build.pack import (
    pack_image,
    pack_kernel,
    pack_matrix,
    pack_parameters,
    requantize,
    unpack_image,
    unpack_matrix,
)
from tilewright.accel.cycle import cycles
from tilewright.accel.isa import from_bytes, parse, print_stream, to_bytes
from tilewright.accel.simulate import simulate
from tilewright.accel.verify import verify
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry

SMALL = {"inp_bytes": 4096, "wgt_bytes": 8192, "acc_bytes": 8192, "uop_bytes": 1024}
GEOMETRIES = [
    Geometry(),
    Geometry(1, 4, 4, **SMALL),
    Geometry(1, 8, 16, **SMALL, bus_bits=128),
    Geometry(2, 16, 16, inp_bytes=16384, wgt_bytes=65536, acc_bytes=65536, uop_bytes=2048),
]
IDS = ["1x16x16", "1x4x4", "1x8x16", "2x16x16"]


def parameters(random, channels):
    bias = random.integers(-1000, 1000, channels)
    multiplier = random.integers(1 << 14, 1 << 15, channels)
    shift = random.integers(18, 22, channels)
    return bias, multiplier, shift


def gemm_case(geometry, blocks, seed=0):
    random = np.random.default_rng(seed)
    g, (m, n, k) = geometry, blocks
    x = random.integers(-128, 128, (m * g.batch, k * g.block_in)).astype(np.int8)
    w = random.integers(-128, 128, (n * g.block_out, k * g.block_in)).astype(np.int8)
    params = parameters(random, n * g.block_out)
    inputs = {
        "x": pack_matrix(x, g.batch, g.block_in),
        "w": pack_matrix(w, g.block_out, g.block_in),
        "params": pack_parameters(*params, g),
    }
    want = requantize(x.astype(np.int64) @ w.astype(np.int64).T, *params)
    return inputs, want


def gemm_result(geometry, blocks, outputs):
    m, n, _ = blocks
    return unpack_matrix(outputs["y"].reshape(m, n, geometry.batch, geometry.block_out))


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.sampled
def test_a_tiled_gemm_equals_integer_arithmetic(geometry, slots):
    blocks = (7, 5, 6)  # no tile divides them
    stream = build_gemm(geometry, blocks, (3, 2, 4), slots)
    verify(stream)
    assert from_bytes(to_bytes(stream)) == stream
    assert parse(print_stream(stream)) == stream
    inputs, want = gemm_case(geometry, blocks)
    for seed in (None, 1, 2):
        got = gemm_result(geometry, blocks, simulate(stream, inputs, seed))
        np.testing.assert_array_equal(got, want)
    timed = cycles(stream, inputs)
    np.testing.assert_array_equal(gemm_result(geometry, blocks, timed.outputs), want)


def convolve(x, w, conv):
    """NumPy's own: (batch, c, h, w) with (o, c, kh, kw)."""
    pads = ((0, 0), (0, 0), (conv.pad, conv.pad), (conv.pad, conv.pad))
    padded = np.pad(x.astype(np.int64), pads, constant_values=conv.zero_point)
    windows = np.lib.stride_tricks.sliding_window_view(padded, conv.kernel, axis=(2, 3))
    windows = windows[:, :, :: conv.stride, :: conv.stride]
    return np.einsum("bcyxij,ocij->byxo", windows, w.astype(np.int64))


CONVS = [
    Conv(4, 7, 9, 3),
    Conv(2, 8, 8, 2, stride=2, zero_point=-7),
    Conv(2, 5, 6, 2, kernel=(1, 1), pad=0),
    Conv(2, 9, 9, 1, kernel=(5, 3), pad=2, zero_point=128 - 1),
]


@pytest.mark.parametrize("conv", CONVS, ids=["3x3", "stride", "1x1", "5x3"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
def test_a_tiled_convolution_equals_integer_arithmetic(geometry, conv):
    random = np.random.default_rng(3)
    g = geometry
    shape = (g.batch, conv.channels * g.block_in, conv.height, conv.width)
    x = random.integers(-128, 128, shape).astype(np.int8)
    outputs = conv.outputs * g.block_out
    w = random.integers(-128, 128, (outputs, shape[1], *conv.kernel)).astype(np.int8)
    params = parameters(random, outputs)
    inputs = {
        "x": pack_image(x, g.block_in),
        "w": pack_kernel(w, g.block_out, g.block_in),
        "params": pack_parameters(*params, g),
    }
    stream = build_conv(geometry, conv, rows=2, outputs=1, channels=conv.channels // 2)
    verify(stream)
    made = simulate(stream, inputs)["y"]
    packed = (conv.outputs, conv.out_height, conv.out_width, g.batch, g.block_out)
    want = requantize(convolve(x, w, conv), *params).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(unpack_image(made.reshape(packed)), want)


def test_double_buffering_hides_the_latency_of_loads():
    conv = Conv(4, 28, 28, 4)
    shares = []
    for slots in (1, 2):
        stream = build_conv(Geometry(), conv, rows=7, outputs=2, channels=2, slots=slots)
        timed = cycles(stream)
        shares.append(conv.steps / timed.total)
    assert shares[0] < 0.76
    assert shares[1] > 0.95


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: build_gemm(Geometry(), (64, 64, 8), (64, 64, 1)), "entries of acc"),
        (lambda: build_gemm(Geometry(), (2, 2, 2), (1, 1, 1), slots=3), "1 or 2 slots"),
        (lambda: build_conv(Geometry(), Conv(3, 8, 8, 1), 1, 1, 2), "do not divide"),
    ],
)
def test_what_does_not_fit_is_refused(build, message):
    with pytest.raises(UserError, match=message) as caught:
        build()
    assert caught.value.code == "TW7021"
