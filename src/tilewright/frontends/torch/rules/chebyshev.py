"""Functions as Chebyshev series, whose coefficients are computed on first use.

A series of degree n through the values at n + 1 Chebyshev nodes is within a small factor of the
best polynomial of that degree. Values come from mpmath, a dependency of SymPy and so of PyTorch,
with 30 digits; series are evaluated in f64 by Clenshaw's recurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import mpmath

from tilewright.base.dtype import F64
from tilewright.frontends.torch.rules.base import Context
from tilewright.graph import Value

DIGITS = 30
Function = Callable[[mpmath.mpf], mpmath.mpf]


@cache
def coefficients(function: Function, low: float, high: float, degree: int) -> tuple[float, ...]:
    """The Chebyshev coefficients of a function on [low, high]."""
    count = degree + 1
    with mpmath.workdps(DIGITS):
        angles = [mpmath.pi * (2 * k + 1) / (2 * count) for k in range(count)]
        middle, half = (mpmath.mpf(high) + low) / 2, (mpmath.mpf(high) - low) / 2
        values = [function(middle + half * mpmath.cos(angle)) for angle in angles]
        found = []
        for j in range(count):
            total = sum(v * mpmath.cos(j * a) for v, a in zip(values, angles, strict=True))
            found.append(float(total * (1 if j == 0 else 2) / count))
    return tuple(found)


def fitted(
    node: Context, x: Value, function: Function, low: float, high: float, degree: int
) -> Value:
    """The series of a function at x, which is within [low, high] wherever the result is used."""
    series = coefficients(function, low, high, degree)
    scale = 2 / (high - low)
    t = node.emit("add", node.emit("mul", x, scale), -(high + low) / (high - low))
    t = node.emit("minimum", node.emit("maximum", t, -1.0), 1.0)
    twice = node.emit("mul", t, 2.0)
    last: Value = node.value(0.0, F64)
    before: Value = node.value(0.0, F64)
    for factor in reversed(series[1:]):
        step = node.emit("sub", node.emit("mul", twice, last), before)
        last, before = node.emit("add", step, factor), last
    step = node.emit("sub", node.emit("mul", t, last), before)
    return node.emit("add", step, series[0])
