"""tf32: the operand format of tensor cores for f32, with ten bits of mantissa, rounded half to
even."""

from __future__ import annotations

from typing import Any

import numpy as np

LOST_BITS = 13


def round_tf32(x: Any) -> Any:
    """Round f32 values to tf32.

    Examples:
        >>> import numpy as np
        >>> float(round_tf32(np.float32(1 + 2**-11))), float(round_tf32(np.float32(1 + 3 * 2**-11)))
        (1.0, 1.001953125)
    """
    wide = np.ascontiguousarray(x, np.float32)
    bits = wide.view(np.uint32)
    half = np.uint32((1 << LOST_BITS - 1) - 1)
    rounded = (bits + half + (bits >> LOST_BITS & 1)) >> LOST_BITS << LOST_BITS
    found = np.where(np.isnan(wide), wide, rounded.astype(np.uint32).view(np.float32))
    return found.reshape(np.shape(x))
