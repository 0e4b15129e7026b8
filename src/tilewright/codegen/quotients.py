"""Division of many numbers by one: by its reciprocal, with a correction that makes it exact.

    near = x * (1 / by);  left = x - near * by;  x / by = near + left * (1 / by)

The last sum is the correctly rounded quotient (Markstein), unless a remainder or a reciprocal is
subnormal or a product overflows.
"""

from __future__ import annotations

import math

from tilewright.base.dtype import F32
from tilewright.codegen.builder import FunctionText, Value, splat
from tilewright.codegen.types import float_literal

BEYOND = 512.0  # more than any byte plus its zero point
TINY, LARGE = 2.0**-64, 2.0**64  # where remainders or reciprocals may be subnormal


def _number(like: Value, value: float) -> Value:
    return splat(like.type, float_literal(value, F32))


def is_usual(b: FunctionText, by: Value) -> Value:
    """Whether nothing is subnormal or overflows on the way to a quotient in the range of a byte;
    false for NaN."""
    above, below = (
        b.compare("fcmp oge", by, _number(by, TINY)),
        b.compare("fcmp ole", by, _number(by, LARGE)),
    )
    return b.op("and", above, below)


def quotient(b: FunctionText, x: Value, by: Value) -> Value:
    """By a divisor that `is_usual`, for quotients about the range of a byte."""
    reciprocal = b.op("fdiv", _number(by, 1.0), by)
    return _corrected(b, x, by, b.op("fmul", x, reciprocal), reciprocal)


def saturating_quotient(b: FunctionText, x: Value, by: Value) -> Value:
    """For any operands; a quotient beyond a byte's range becomes any number of that sign beyond
    it."""

    def bounded(compare: str, value: Value, bound: Value) -> Value:
        return b.select(b.compare(compare, value, bound), value, bound)

    size = b.intrinsic("fabs", by.type, by)
    factor = b.select(
        b.compare("fcmp ogt", size, _number(by, LARGE)), _number(by, TINY), _number(by, 1.0)
    )
    factor = b.select(b.compare("fcmp olt", size, _number(by, TINY)), _number(by, LARGE), factor)
    x, by = b.op("fmul", x, factor), b.op("fmul", by, factor)
    reciprocal = b.op("fdiv", _number(by, 1.0), by)
    is_infinite = b.compare("fcmp oeq", size, _number(by, math.inf))
    by = b.select(is_infinite, _number(by, 0.0), by)  # all is left of what is divided
    near = bounded("fcmp olt", b.op("fmul", x, reciprocal), _number(x, BEYOND))
    near = bounded("fcmp ogt", near, _number(x, -BEYOND))
    return _corrected(b, x, by, near, reciprocal)


def _corrected(b: FunctionText, x: Value, by: Value, near: Value, reciprocal: Value) -> Value:
    left = b.intrinsic("fma", x.type, b.op("fsub", _number(x, -0.0), near), by, x)
    return b.intrinsic("fma", x.type, left, reciprocal, near)
