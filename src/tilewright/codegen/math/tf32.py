"""round_tf32: f32 with ten bits of mantissa, half to even."""

from __future__ import annotations

from tilewright.base.tf32 import LOST_BITS
from tilewright.codegen.math.value import Real


def round_tf32(x: Real) -> Real:
    """Half of what is lost is added, less one where the last bit that stays is even."""
    bits = x.bits()
    half = (1 << LOST_BITS - 1) - 1
    rounded = (bits + half + ((bits >> LOST_BITS) & 1)) & -(1 << LOST_BITS)
    return x.is_nan().choose(x, rounded.real())
