"""bf16x6: f32 operands split into three bf16 terms, and products as six bf16 products.

    x = x0 + x1 + x2        each term is the remainder of the ones before, rounded to bf16
    x * y = x0 y0 + x0 y1 + x0 y2 + x1 y0 + x1 y1 + x2 y0

Three times eight bits of significand are the 24 of f32: the split is exact except for bf16
subnormals, which tensor cores flush to zero. The omitted products are below 2**-26 of the result.
An infinity, and any value that rounds to one in bf16, leaves NaN in the following terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtype import BF16

PIECES = 3  # bf16 terms of an f32 value
PRODUCTS = 6  # bf16 products per f32 product


def left_piece(product: Any) -> Any:
    """The index of the left operand's piece in product number `product`, in integer arithmetic.

    Examples:
        >>> [(left_piece(at), right_piece(at)) for at in range(PRODUCTS)]
        [(0, 0), (0, 2), (0, 1), (1, 1), (1, 0), (2, 0)]
    """
    return product * 2 // 5


def right_piece(product: Any) -> Any:
    """The index of the right operand's piece in product number `product`."""
    return product * -3 // 5 % PIECES


def pieces_of(x: Any, axis: int) -> Any:
    """Split f32 values into pieces, along a new axis.

    Examples:
        >>> import numpy as np
        >>> x = np.float32([[1 / 3, -1e30]])
        >>> made = pieces_of(x, 0)
        >>> made.shape, bool((made.astype(np.float32).sum(axis=0) == x).all())
        ((3, 1, 2), True)
    """
    rest, made = np.asarray(x, np.float32), []
    with np.errstate(invalid="ignore", over="ignore"):
        for _ in range(PIECES):
            made.append(rest.astype(BF16.numpy))
            rest = rest - made[-1].astype(np.float32)
    return np.stack(made, axis)
