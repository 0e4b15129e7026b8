"""Odd functions that end at 1, by a polynomial for each of many short intervals.

    |x| = k step + t,  |t| <= step / 2;     f(|x|) = c0[k] + c1[k] t + c2[k] t**2 + ...

The coefficients are looked up lane by lane, which AVX-512 does in one instruction for tables of 16
or 32 numbers: fewer steps than a formula for the whole line, and none that waits for many others.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym
from tilewright.base.dtype import F32
from tilewright.codegen.math.exponential import limits
from tilewright.codegen.math.tables import ERF_TABLE, TANH_TABLE, Table
from tilewright.codegen.math.value import Real, Whole
from tilewright.tensor.ir import Call


def erf(x: Real) -> Real:
    return _by_table(x, ERF_TABLE, 33 / 128, 3.9921875)


def tanh(x: Real) -> Real:
    return _by_table(x, TANH_TABLE, 37 / 128, 9.09375)


def _by_table(x: Real, table: Table, step: float, last: float) -> Real:
    """k is rounded by adding a number whose unit in the last place is 1; k step is exact."""
    magic = limits(x).magic
    size = x.abs().at_most(last)
    shifted = size * (1.0 / step) + magic
    t = size - (shifted - magic) * step
    at = shifted.bits()
    result = lookup(at, table[-1], x)
    for row in reversed(table[1:-1]):
        result = result * t + lookup(at, row, x)
    # Around 0 the table is that of f(t) / t - 1.
    start = (size < step / 2).choose(t, lookup(at, table[0], x))
    return (result * t + start).with_sign_of(x)


def lookup(at: Whole, row: Sequence[float], like: Real) -> Real:
    """The number of a row that the low bits of an integer name; the row's length is 16 or 32."""
    numbers = tuple(sym.const(value, F32) for value in row)
    return Real(Call("lookup", (at.expr, *numbers), like.expr.dtype))
