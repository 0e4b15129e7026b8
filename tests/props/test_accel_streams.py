"""Any tiling gives a right stream; any flipped bit gives one error or one memory."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.accel.build import build_gemm
from tilewright.accel.build.pack import pack_matrix, pack_parameters, requantize, unpack_matrix
from tilewright.accel.cycle import cycles
from tilewright.accel.isa import Stream
from tilewright.accel.isa.encode import decode, encode
from tilewright.accel.simulate import simulate
from tilewright.accel.verify import verify
from tilewright.base.errors import TilewrightError
from tilewright.base.geometry import Geometry

SMALL = Geometry(1, 4, 4, inp_bytes=1024, wgt_bytes=4096, acc_bytes=4096, uop_bytes=512)
WIDE = Geometry(2, 4, 8, inp_bytes=2048, wgt_bytes=4096, acc_bytes=8192, uop_bytes=512)
sizes = st.integers(1, 6)
tiles = st.integers(1, 4)


def fill(stream, seed):
    random = np.random.default_rng(seed)
    return {
        one.name: random.integers(0, 256, one.size_bytes).astype(np.uint8)
        for one in stream.buffers
        if one.role == "in"
    }


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([SMALL, WIDE]),
    st.tuples(sizes, sizes, sizes),
    st.tuples(tiles, tiles, tiles),
    st.sampled_from([1, 2]),
    st.integers(0, 1000),
)
def test_any_tiling_of_a_gemm_is_accepted_and_right(g, blocks, tile, slots, seed):
    stream = build_gemm(g, blocks, tile, slots)
    verify(stream)
    random = np.random.default_rng(seed)
    m, n, k = blocks
    x = random.integers(-128, 128, (m * g.batch, k * g.block_in)).astype(np.int8)
    w = random.integers(-128, 128, (n * g.block_out, k * g.block_in)).astype(np.int8)
    channels = n * g.block_out
    bias = random.integers(-(2**15), 2**15, channels)
    multiplier, shift = random.integers(0, 2**20, channels), random.integers(0, 30, channels)
    inputs = {
        "x": pack_matrix(x, g.batch, g.block_in),
        "w": pack_matrix(w, g.block_out, g.block_in),
        "params": pack_parameters(bias, multiplier, shift, g),
    }
    want = requantize(x.astype(np.int64) @ w.T.astype(np.int64), bias, multiplier, shift)
    for outputs in (simulate(stream, inputs, seed), cycles(stream, inputs, seed).outputs):
        made = outputs["y"].reshape(m, n, g.batch, g.block_out)
        np.testing.assert_array_equal(unpack_matrix(made), want)


STREAM = build_gemm(SMALL, (3, 2, 2), (2, 1, 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(STREAM.instructions) - 1), st.integers(0, 8 * 64 - 1), st.integers(0, 9))
def test_a_flipped_bit_ends_in_one_error_or_in_one_memory(number, bit, seed):
    words = [bytearray(encode(one, SMALL)) for one in STREAM.instructions]
    bit %= 8 * len(words[number])
    words[number][bit // 8] ^= 1 << bit % 8
    try:
        tasks = tuple(decode(bytes(word), SMALL) for word in words)
        changed = Stream(SMALL, STREAM.buffers, STREAM.microcode, tasks)
        verify(changed)
    except TilewrightError:
        return
    inputs = fill(changed, seed)
    results = [simulate(changed, inputs, order)["y"] for order in (None, seed)]
    results.append(cycles(changed, inputs, seed).outputs["y"])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
