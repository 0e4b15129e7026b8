"""Estimate the area of a design on a Xilinx 7 series chip, without running yosys.

    estimate(Geometry())  # {'DSP48': 192, 'RAMB36': 126, 'LUT': 35678}

Multipliers follow from the RTL: two products of the array share one, a lane of the ALU has four for
its 32-bit product, shared with `mac`. Memories follow from their shapes and the configurations of
block memories. Look-up tables are a linear function of lanes, products, bus bytes, memories too
shallow for block memory, instruction bits, and taps; the coefficients are fitted to yosys results
of some designs, and validated on others (`bench/accel_area.py --synthesize --luts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.accel.isa.table import ACC_BANKS, OPCODES, depth, widths
from tilewright.base.geometry import ACC_BYTES, Geometry

RESOURCES = ("DSP48", "RAMB36", "LUT")
PRODUCTS_PER_DSP = 2
DSPS_PER_LANE = 4
# Word widths of half a block memory (RAMB18), by maximal depth.
HALF_WIDTHS = ((512, 36), (1024, 18), (2048, 9), (4096, 4), (8192, 2), (16384, 1))
LEAST_DEPTH = 128  # of a block memory; shallower ones are made of look-up tables
# For 1, lanes, products, bus bytes, kilobits in look-up tables, bits of one instruction of each
# kind, and taps per lane after the first.
LUT_COEFFICIENTS = (5141.36, 1375.07, 16.94, 51.77, 22.00, 3.03, 76.62)


def estimate(geometry: Geometry) -> dict[str, int]:
    """Estimated amounts of every resource."""
    g = geometry
    halves = sum(count * _halves(words, bits) for words, bits, count in _memories(g))
    return {
        "DSP48": -(-g.macs_per_cycle // PRODUCTS_PER_DSP) + DSPS_PER_LANE * g.batch * g.block_out,
        "RAMB36": -(-halves // 2),
        "LUT": round(float(np.dot(LUT_COEFFICIENTS, _features(g)))),
    }


def fit_luts(designs: Sequence[Geometry], counted: Sequence[float]) -> list[float]:
    """Fit coefficients by least relative error; among several solutions, the most uniform one."""
    rows = np.array([_features(one) for one in designs]) / np.array(counted)[:, None]
    scale = np.maximum(rows.mean(axis=0), np.finfo(float).tiny)
    ones = np.ones(len(designs))
    found: np.ndarray[Any, Any] = np.linalg.lstsq(rows / scale, ones, rcond=None)[0]
    return [float(one) for one in found / scale]


def _memories(g: Geometry) -> list[tuple[int, int, int]]:
    """Depth, width in bits, and number of every memory of the RTL."""
    lanes, bus = g.batch * g.block_out, g.bus_bits
    inp, wgt = 8 * g.batch * g.block_in, 8 * g.block_out * g.block_in
    return [
        (depth("inp", g), min(inp, bus), max(1, inp // bus)),
        (depth("wgt", g), min(wgt, bus), max(1, wgt // bus)),
        (depth("acc", g) // ACC_BANKS, 8 * ACC_BYTES * lanes, ACC_BANKS),
        (depth("out", g), 8 * lanes, 1),
        (depth("uop", g), 64, 2),  # of GEMM and ALU
    ]


def _halves(words: int, bits: int) -> int:
    """Number of half block memories of a memory."""
    if words < LEAST_DEPTH:
        return 0
    most, width = next((one for one in HALF_WIDTHS if words <= one[0]), HALF_WIDTHS[-1])
    return -(-bits // width) * -(-words // most)


def _features(g: Geometry) -> tuple[float, ...]:
    lanes, width = g.batch * g.block_out, widths(g)
    shallow = sum(w * bits * count for w, bits, count in _memories(g) if w < LEAST_DEPTH)
    fields = sum(width[field.width] for opcode in OPCODES for field in opcode.fields)
    more_taps = lanes * (g.taps - 1)
    return (1.0, lanes, g.macs_per_cycle, g.bus_bytes, shallow / 1024, fields, more_taps)
