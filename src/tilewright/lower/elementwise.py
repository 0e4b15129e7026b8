"""Element-wise operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import te
from tilewright.base.dtype import F64, I32, I64, STR
from tilewright.lower.base import Lowering, Refusal, Use, elementwise
from tilewright.sym import Expr
from tilewright.te import Tensor


def _of(fn: Callable[..., Any]) -> Lowering:
    """A lowering that applies `fn` to elements; low-precision floats compute in f32 and round
    once."""

    def rule(use: Use, *operands: Tensor | None) -> Tensor:
        def wide(*values: Expr | None) -> Any:
            return fn(*[value if value is None else _widened(value) for value in values])

        return elementwise(use, wide, *operands)

    return rule


def _widened(value: Expr) -> Expr:
    small = value.dtype.is_float and value.dtype.bits < 32
    return te.cast(value, "f32") if small else value


def _zero(x: Expr) -> Expr:
    return te.const(0, x.dtype)


def _sign(x: Expr) -> Expr:
    below = te.select(x < _zero(x), te.const(-1, x.dtype), x) if x.dtype.is_signed else x
    return te.select(x > _zero(x), te.const(1, x.dtype), below)


def _divide(a: Expr, b: Expr) -> Expr:
    return a / b if a.dtype.is_float else te.truncdiv(a, b)


def _mod(a: Expr, b: Expr) -> Expr:
    if not a.dtype.is_float:
        return te.floormod(a, b)
    rest = te.fmod(a, b)  # exact, with the sign of a
    other = te.ne(rest < _zero(a), b < _zero(a))
    return te.select(
        te.eq(rest, _zero(a)),
        te.copysign(_zero(a), b),
        te.select(other, rest + b, rest),
    )


def _floordiv(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_float:
        return te.floor(a / b)
    return te.floordiv(a, b)


def _fmod(a: Expr, b: Expr) -> Expr:
    return te.fmod(a, b) if a.dtype.is_float else te.truncmod(a, b)


def _pow(a: Expr, b: Expr) -> Expr:
    """Integer powers by repeated squaring over the lowest six bits of the exponent.

    Larger exponents overflow for all bases except 0, 1 and -1, for which the lowest bit suffices.
    """
    if a.dtype.is_float:
        return te.pow(a, b)
    one, square, out = te.const(1, a.dtype), a, te.const(1, a.dtype)
    for bit in range(min(6, b.dtype.bits - b.dtype.is_signed)):
        is_set = te.ne(te.bitwise_and(b, te.const(1 << bit, b.dtype)), _zero(b))
        out = out * te.select(is_set, square, one)
        square = square * square
    if b.dtype.kind == "uint":
        return out
    odd = te.ne(te.bitwise_and(b, te.const(1, b.dtype)), _zero(b))
    minus = _zero(a)
    if a.dtype.is_signed:
        minus = te.select(te.eq(a, te.const(-1, a.dtype)), te.select(odd, a, one), minus)
    return te.select(b < _zero(b), te.select(te.eq(a, one), one, minus), out)


def _cast(use: Use, x: Tensor) -> Tensor:
    """The 8-bit floats saturate if requested; other types convert as `Cast` does."""
    to = use.dtype

    def element(value: Expr) -> Expr:
        if to.scalar_name == "f8e8m0" and x.dtype is not to:
            return _power_of_two(value, saturate=use["saturate"], mode=use["round_mode"])
        if not (to.is_float and to.bits == 8 and use["saturate"]) or x.dtype is to:
            return value
        value = te.cast(value, "f64" if value.dtype.scalar_name == "f64" else "f32")
        most = float(te.max_value(to).value)  # type: ignore[attr-defined]  # it is a constant
        return te.max(te.min(value, te.const(most, value.dtype)), te.const(-most, value.dtype))

    return elementwise(use, element, x)


def _power_of_two(x: Expr, *, saturate: bool, mode: str) -> Expr:
    """Convert to a power of two of f8e8m0, or NaN: the exponent is rounded up, down or to
    nearest."""

    def number(n: int) -> Expr:
        return te.const(n, I64)

    x = te.cast(x, F64)
    bits = te.bits_of(x)
    rest = te.bitwise_and(bits, number((1 << 52) - 1))
    power = te.bitwise_and(te.shift_right(bits, number(52)), number(0x7FF)) - number(1023)
    least = {"up": 1, "nearest": 1 << 51, "down": 1 << 52}[mode]
    power = power + te.cast(rest >= number(least), I64)
    power = te.select(x > te.const(0, F64), power, number(-128))
    inside = te.max(te.min(power, number(127)), number(-127))
    made = te.shift_left(inside + number(127), number(23))
    made = te.select(te.eq(inside, number(-127)), number(1 << 22), made)  # 2**-127 in f32
    lost = te.isnan(x) if saturate else te.any(te.isnan(x), te.ne(power, inside))
    return te.from_bits(te.cast(te.select(lost, number(0x7FC00000), made), I32))


def _shift(left: bool) -> Callable[[Expr, Expr], Expr]:
    """A negative count, or one beyond the width, shifts out all bits."""

    def rule(a: Expr, b: Expr) -> Expr:
        bits = a.dtype.bits
        inside = b < te.const(bits, b.dtype)
        if b.dtype.kind == "int":
            inside = te.all(inside, b >= _zero(b))
        if left:
            return te.select(inside, te.shift_left(a, b), _zero(a))
        gone = te.shift_right(a, te.const(bits - 1, b.dtype)) if a.dtype.kind == "int" else _zero(a)
        return te.select(inside, te.shift_right(a, b), gone)

    return rule


def _clip(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    out = x if low is None else te.max(x, low)
    return out if high is None else te.min(out, high)


def _bitcast(use: Use, x: Tensor) -> Tensor:
    """Through the signed integer of the same width."""
    have, to = x.dtype, use.dtype

    def element(value: Expr) -> Expr:
        if have is to:
            return value
        bits = te.bits_of(value) if have.is_float else value
        if to.is_float:
            return te.from_bits(te.cast(bits, f"i{to.bits}"))
        return te.cast(bits, to)

    return elementwise(use, element, x)


def _not_equal(a: Expr, b: Expr) -> Expr:
    return te.ne(a, b)


def _refuses_cast(use: Use) -> str:
    have, to = use.call.tensor(0).dtype, use.dtype
    return f"from {have} to {to}" if STR in (have, to) else ""


def _refuses_bitcast(use: Use) -> str:
    have, to = use.call.tensor(0).dtype, use.dtype
    floats = [of for of in (have, to) if of.is_float and have is not to]
    fits = all(of.scalar_name in ("f64", "f32", "f16") for of in floats)
    return "" if fits else f"from {have} to {to}"


REFUSALS: dict[str, Refusal] = {"cast": _refuses_cast, "bitcast": _refuses_bitcast}
LOWERINGS: dict[str, Lowering] = {
    "relu": _of(lambda x: te.max(x, _zero(x))),
    "neg": _of(lambda x: -x),
    "abs": _of(te.abs),
    "sign": _of(_sign),
    "reciprocal": _of(lambda x: te.const(1, x.dtype) / x),
    "add": _of(lambda a, b: a + b),
    "sub": _of(lambda a, b: a - b),
    "mul": _of(lambda a, b: a * b),
    "div": _of(_divide),
    "floordiv": _of(_floordiv),
    "mod": _of(_mod),
    "fmod": _of(_fmod),
    "pow": _of(_pow),
    "minimum": _of(te.min),
    "maximum": _of(te.max),
    "equal": _of(te.eq),
    "not_equal": _of(_not_equal),
    "less": _of(lambda a, b: a < b),
    "less_equal": _of(lambda a, b: a <= b),
    "greater": _of(lambda a, b: a > b),
    "greater_equal": _of(lambda a, b: a >= b),
    "logical_and": _of(te.all),
    "logical_or": _of(te.any),
    "logical_xor": _of(_not_equal),
    "logical_not": _of(te.logical_not),
    "where": _of(te.select),
    "clip": _of(_clip),
    "cast": _cast,
    "bit_and": _of(te.bitwise_and),
    "bit_or": _of(te.bitwise_or),
    "bit_xor": _of(te.bitwise_xor),
    "bit_not": _of(te.bitwise_not),
    "shift_left": _of(_shift(left=True)),
    "shift_right": _of(_shift(left=False)),
    "bitcast": _bitcast,
    **{
        name: _of(getattr(te, name))
        for name in (
            *("exp", "log", "sqrt", "rsqrt", "sigmoid", "erf", "floor", "ceil", "round", "trunc"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh"),
            *("acosh", "atanh", "log1p", "expm1", "exp2", "log2", "isnan", "atan2"),
        )
    },
}
