"""Pack arrays in the layouts of streams; reference for their integer arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.accel.isa.table import REQUANT_ENTRIES
from tilewright.base.geometry import Geometry

Array = np.ndarray[Any, Any]


def pack_matrix(matrix: Array, rows: int, columns: int) -> Array:
    """(m, k) as (m / rows, k / columns, rows, columns)."""
    m, k = matrix.shape
    return matrix.reshape(m // rows, rows, k // columns, columns).transpose(0, 2, 1, 3)


def unpack_matrix(packed: Array) -> Array:
    m, n, rows, columns = packed.shape
    return packed.transpose(0, 2, 1, 3).reshape(m * rows, n * columns)


def pack_image(image: Array, block: int) -> Array:
    """(batch, c, h, w) as (c / block, h, w, batch, block)."""
    batch, c, h, w = image.shape
    return image.reshape(batch, c // block, block, h, w).transpose(1, 3, 4, 0, 2)


def unpack_image(packed: Array) -> Array:
    blocks, h, w, batch, block = packed.shape
    return packed.transpose(3, 0, 4, 1, 2).reshape(batch, blocks * block, h, w)


def pack_kernel(kernel: Array, block_out: int, block_in: int) -> Array:
    """(o, c, kh, kw) as (o / out, c / in, kh, kw, out, in)."""
    o, c, kh, kw = kernel.shape
    blocks = kernel.reshape(o // block_out, block_out, c // block_in, block_in, kh, kw)
    return blocks.transpose(0, 2, 4, 5, 1, 3)


def pack_parameters(bias: Array, multiplier: Array, shift: Array, geometry: Geometry) -> Array:
    """Bias, multiplier and shift of every channel as entries of `acc`, repeated over the batch."""
    stacked = np.stack((bias, multiplier, shift)).astype(np.int32)
    blocks = stacked.reshape(REQUANT_ENTRIES, -1, geometry.block_out).transpose(1, 0, 2)
    shape = (*blocks.shape[:2], geometry.batch, geometry.block_out)
    return np.ascontiguousarray(np.broadcast_to(blocks[:, :, None, :], shape))


def requantize(total: Array, bias: Array, multiplier: Array, shift: Array) -> Array:
    """Reference of requantization to i8, channels last, zero point 0."""
    scaled = (total.astype(np.int64) + bias) * multiplier
    rounded = (scaled + np.where(shift > 0, 1 << np.maximum(shift - 1, 0), 0)) >> shift
    made: Array = np.clip(rounded, -128, 127).astype(np.int8)
    return made
