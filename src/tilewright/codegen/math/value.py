"""Expressions of one float type and number of lanes, written as formulas.

    x = Real.of(expr)
    y = x * x + 1.0            numbers become constants in every lane
    x.bits() >> 23             the bits as an integer of the same width

The nodes built are those of the tensor IR; nothing here knows about LLVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import sym
from tilewright.base.dtype import F32, F64, I32, I64, DType
from tilewright.sym import Expr, const
from tilewright.tensor.ir import Broadcast, Call


def _fill(value: float | int, of: DType) -> Expr:
    """A constant in every lane."""
    one = const(value, of.scalar)
    return one if of.lanes == 1 else Broadcast(one, of.lanes)


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition per lane."""

    expr: Expr

    def __and__(self, other: Truth) -> Truth:
        return Truth(sym.And(self.expr, other.expr))

    def __or__(self, other: Truth) -> Truth:
        return Truth(sym.Or(self.expr, other.expr))

    def __invert__(self) -> Truth:
        return Truth(sym.Not(self.expr))

    def choose(self, a: Real | float, b: Real | float) -> Real:
        """`a` where it holds, `b` elsewhere."""
        like = a if isinstance(a, Real) else b
        assert isinstance(like, Real)
        return Real(sym.Select(self.expr, like.same(a), like.same(b)))

    def choose_int(self, a: Whole | int, b: Whole | int) -> Whole:
        like = a if isinstance(a, Whole) else b
        assert isinstance(like, Whole)
        return Whole(sym.Select(self.expr, like.same(a), like.same(b)))


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer of the width of a float."""

    expr: Expr

    def same(self, value: Whole | int) -> Expr:
        return value.expr if isinstance(value, Whole) else _fill(value, self.expr.dtype)

    def number(self, value: int) -> Whole:
        return Whole(_fill(value, self.expr.dtype))

    def __add__(self, other: Whole | int) -> Whole:
        return Whole(sym.Add(self.expr, self.same(other)))

    def __sub__(self, other: Whole | int) -> Whole:
        return Whole(sym.Sub(self.expr, self.same(other)))

    def __and__(self, other: Whole | int) -> Whole:
        return self._call("bit_and", other)

    def __or__(self, other: Whole | int) -> Whole:
        return self._call("bit_or", other)

    def __xor__(self, other: Whole | int) -> Whole:
        return self._call("bit_xor", other)

    def __lshift__(self, count: int) -> Whole:
        return self._call("shift_left", count)

    def __rshift__(self, count: int) -> Whole:
        """The sign is copied down."""
        return self._call("shift_right", count)

    def __lt__(self, other: Whole | int) -> Truth:
        return Truth(sym.Lt(self.expr, self.same(other)))

    def equals(self, other: Whole | int) -> Truth:
        return Truth(sym.Eq(self.expr, self.same(other)))

    def differs(self, other: Whole | int) -> Truth:
        return Truth(sym.Ne(self.expr, self.same(other)))

    def _call(self, op: str, other: Whole | int) -> Whole:
        return Whole(Call(op, (self.expr, self.same(other)), self.expr.dtype))

    def real(self) -> Real:
        """The float with these bits."""
        of = (F32 if self.expr.dtype.bits == 32 else F64).with_lanes(self.expr.dtype.lanes)
        return Real(Call("from_bits", (self.expr,), of))

    def to_i32(self) -> Whole:
        """The low 32 bits."""
        return Whole(sym.Cast(self.expr, I32.with_lanes(self.expr.dtype.lanes)))

    def to_real(self) -> Real:
        """The float of this value."""
        of = (F32 if self.expr.dtype.bits == 32 else F64).with_lanes(self.expr.dtype.lanes)
        return Real(sym.Cast(self.expr, of))


@dataclass(frozen=True, slots=True)
class Real:
    """A float per lane, f32 or f64."""

    expr: Expr

    @property
    def is_f32(self) -> bool:
        return self.expr.dtype.scalar is F32

    def same(self, value: Real | float) -> Expr:
        return value.expr if isinstance(value, Real) else _fill(value, self.expr.dtype)

    def number(self, value: float) -> Real:
        return Real(_fill(value, self.expr.dtype))

    def __add__(self, other: Real | float) -> Real:
        return Real(sym.Add(self.expr, self.same(other)))

    def __radd__(self, other: float) -> Real:
        return Real(sym.Add(self.same(other), self.expr))

    def __sub__(self, other: Real | float) -> Real:
        return Real(sym.Sub(self.expr, self.same(other)))

    def __rsub__(self, other: float) -> Real:
        return Real(sym.Sub(self.same(other), self.expr))

    def __mul__(self, other: Real | float) -> Real:
        return Real(sym.Mul(self.expr, self.same(other)))

    def __rmul__(self, other: float) -> Real:
        return Real(sym.Mul(self.same(other), self.expr))

    def __truediv__(self, other: Real | float) -> Real:
        return Real(sym.Div(self.expr, self.same(other)))

    def __rtruediv__(self, other: float) -> Real:
        return Real(sym.Div(self.same(other), self.expr))

    def __neg__(self) -> Real:
        return Real(sym.Mul(self.expr, self.same(-1.0)))

    def __lt__(self, other: Real | float) -> Truth:
        return Truth(sym.Lt(self.expr, self.same(other)))

    def __le__(self, other: Real | float) -> Truth:
        return Truth(sym.Le(self.expr, self.same(other)))

    def __gt__(self, other: Real | float) -> Truth:
        return Truth(sym.Lt(self.same(other), self.expr))

    def __ge__(self, other: Real | float) -> Truth:
        return Truth(sym.Le(self.same(other), self.expr))

    def equals(self, other: Real | float) -> Truth:
        return Truth(sym.Eq(self.expr, self.same(other)))

    def is_nan(self) -> Truth:
        return Truth(sym.Ne(self.expr, self.expr))

    def abs(self) -> Real:
        return self._call("abs")

    def sqrt(self) -> Real:
        return self._call("sqrt")

    def round(self) -> Real:
        return self._call("round")

    def trunc(self) -> Real:
        return self._call("trunc")

    def with_sign_of(self, other: Real) -> Real:
        return self._call("copysign", other)

    def fma(self, b: Real | float, c: Real | float) -> Real:
        """self * b + c in one rounding, everywhere; slow where the machine has no such thing."""
        return self._call("fma", b, c)

    def at_most(self, limit: float) -> Real:
        """The lesser of the two; NaN stays. One instruction on x86."""
        return (self.number(limit) < self).choose(limit, self)

    def at_least(self, limit: float) -> Real:
        return (self < limit).choose(self.number(limit), self)

    def bits(self) -> Whole:
        of = (I32 if self.is_f32 else I64).with_lanes(self.expr.dtype.lanes)
        return Whole(Call("bits_of", (self.expr,), of))

    def to_f64(self) -> Real:
        return self._cast(F64)

    def to_f32(self) -> Real:
        return self._cast(F32)

    def to_f32_int(self) -> Whole:
        """The value of an f64 as a 32-bit integer."""
        return Whole(sym.Cast(self.expr, I32.with_lanes(self.expr.dtype.lanes)))

    def _cast(self, to: DType) -> Real:
        of = to.with_lanes(self.expr.dtype.lanes)
        return self if self.expr.dtype is of else Real(sym.Cast(self.expr, of))

    def _call(self, op: str, *others: Real | float) -> Real:
        args = (self.expr, *(self.same(other) for other in others))
        return Real(Call(op, args, self.expr.dtype))


def polynomial(x: Real, coefficients: Sequence[float]) -> Real:
    """c0 + c1 x + c2 x**2 + ..., by Horner's rule."""
    result = x.number(coefficients[-1])
    for value in reversed(coefficients[:-1]):
        result = result * x + value
    return result
