"""Stateless random number generator.

Element i of a tensor is a function of i and the seed only, so that any part of a tensor can be
generated anywhere, in any order, on any target, with the same result. The generator is Philox2x32
with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): counter (i mod
2**32, i div 2**32), key the seed; the first word is the element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtype import U32
from tilewright.graph.op import INJECTIVE, INTEGER, Attr, Call, Input, Op
from tilewright.graph.ops.rules import contents_or_sizes
from tilewright.graph.types import TensorType, Type

Array = np.ndarray[Any, Any]

MULTIPLIER = 0xD256D193
WEYL = 0x9E3779B9
ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(index: Array, seed: int) -> Array:
    """The random word at each index, as u32."""
    index = index.astype(np.uint64)
    low, high = index & _LOW, index >> _HALF
    for turn in range(ROUNDS):
        key = np.uint64((seed + turn * WEYL) & 0xFFFFFFFF)
        wide = low * np.uint64(MULTIPLIER)
        low, high = (wide >> _HALF) ^ key ^ high, wide & _LOW
    return low.astype(np.uint32)


def _bits_type(call: Call) -> tuple[Type, ...]:
    return (TensorType(U32, contents_or_sizes(call, 0, call.op)),)


def _bits(call: Call, shape: Array) -> Array:
    dims = tuple(int(dim) for dim in shape)
    count = int(np.prod(dims, dtype=np.int64))
    return philox(np.arange(count), call["seed"]).reshape(dims)


OPS = (
    Op(
        "random_bits",
        "32 random bits per element, by Philox2x32-10 on the element's index and the seed.",
        (Input("shape", INTEGER, folds=True),),
        _bits_type,
        _bits,
        INJECTIVE,
        (Attr("seed", int, required=True),),
        pure=False,
    ),
)
