"""What kernels take at least, by the machine model."""

from __future__ import annotations

import pytest

from tilewright.base.dtype import BF16, F32, I8
from tilewright.base.target import Target
from tilewright.driver.tuning.roofline import element_of, floor_ns
from tilewright.graph.parser import parse

AMX = Target.parse("x86_64-linux-gnu -mcpu=sapphirerapids")
AVX = Target.parse("x86_64-linux-gnu -mcpu=haswell")


def test_arithmetic_at_the_peak():
    machine = AVX.machine
    peak = 2 * machine.fma_per_cycle * 8 * machine.frequency_ghz  # per ns
    assert floor_ns(10**9, 64, F32, AVX, 1) == pytest.approx(10**9 / peak)
    assert floor_ns(10**9, 64, F32, AVX, 2) == pytest.approx(10**9 / peak / 2)


def test_tiles_multiply_faster_than_vectors():
    vectors, tiles, bytes_ = (floor_ns(10**9, 64, each, AMX, 1) for each in (F32, BF16, I8))
    assert vectors > 4 * tiles > 4 * bytes_ > 0
    assert floor_ns(10**9, 64, BF16, AVX, 1) == floor_ns(10**9, 64, F32, AVX, 1)


def test_bytes_from_memory_count_where_there_is_little_arithmetic():
    machine = AVX.machine
    rate = machine.memory_bytes_per_cycle * machine.frequency_ghz
    assert floor_ns(10, 10**9, F32, AVX, 1) == pytest.approx(10**9 / rate)


def test_the_shortest_matrix_tells_the_kind_of_arithmetic():
    text = (
        "graph @main(%x: bf16[4, 8], %w: bf16[8, 4], %b: f32[4]) { %y = matmul(%x, %w) return %y }"
    )
    assert element_of(parse(text).main) is BF16
    assert element_of(parse("graph @main(%b: f32[4]) { %y = exp(%b) return %y }").main) is None
