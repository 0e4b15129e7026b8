"""Random numbers: Philox2x32-10 of the element's index and the seed."""

from __future__ import annotations

from tilewright import te
from tilewright.base.dtype import U32, U64
from tilewright.graph.ops.random import MULTIPLIER, ROUNDS, WEYL
from tilewright.lower.base import Lowering, Use, flat_index
from tilewright.sym import Expr
from tilewright.te import Tensor


def _random_bits(use: Use, shape: Tensor | None) -> Tensor:
    half, mask = te.const(32, U64), te.const(0xFFFFFFFF, U64)

    def element(*index: Expr) -> Expr:
        place = te.cast(flat_index(index, use.shape), U64)
        low, high = te.bitwise_and(place, mask), te.shift_right(place, half)
        for turn in range(ROUNDS):
            key = te.const((use["seed"] + turn * WEYL) & 0xFFFFFFFF, U64)
            product = low * te.const(MULTIPLIER, U64)
            mixed = te.bitwise_xor(te.shift_right(product, half), key)
            low, high = te.bitwise_xor(mixed, high), te.bitwise_and(product, mask)
        return te.cast(low, U32)

    return te.compute(use.shape, element, name=use.name)


LOWERINGS: dict[str, Lowering] = {"random_bits": _random_bits}
