"""Quantization and dequantization."""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import F32, F64, I8, I32, I64
from tilewright.lower.base import Lowering, Refusal, Use, broadcast_index, front_axis, static
from tilewright.sym import ZERO, Expr
from tilewright.te import Tensor


def _spread(use: Use, tensor: Tensor, x: Tensor, index: tuple[Expr, ...]) -> Expr:
    """The scale or zero point of an element of x: per tensor, per position, or per block."""
    if all(static(dim) == 1 for dim in tensor.shape):
        return tensor[(ZERO,) * tensor.ndim]
    axis, block = front_axis(use["axis"], x.ndim), use["block_size"]
    if not block:
        return tensor[index[axis]]
    at = sym.minimum(sym.floordiv(index[axis], block), sym.sub(tensor.shape[axis], 1))
    return tensor[(*index[:axis], at, *index[axis + 1 :])]


def _quantize(
    use: Use, x: Tensor, scale: Tensor | None = None, zero: Tensor | None = None
) -> Tensor:
    """The division is computed and rounded in the requested precision."""
    precision = use["precision"] or (x if scale is None else scale).dtype
    of = precision if precision.bits >= 16 else F32
    through = F64 if of is F64 else F32
    to = use.dtype
    is_one = scale is not None and all(static(dim) == 1 for dim in scale.shape)

    def divided(value: Expr, by: Expr) -> Expr:
        if use["reciprocal"]:
            return value * (te.const(1, through) / by)
        if to.is_int and to.bits == I8.bits and of is F32 and is_one:  # saturates to a byte
            return (te.ranged_div if use["ranged"] else te.saturating_div)(value, by)
        return value / by

    def element(*index: Expr) -> Expr:
        value = te.cast(te.cast(x[index], of), through)
        if scale is not None:
            bottom = te.cast(te.cast(_spread(use, scale, x, index), of), through)
            value = te.cast(te.cast(divided(value, bottom), of), through)
        value = te.round(value) if to.is_int else value
        if zero is not None:
            value = value + te.cast(_spread(use, zero, x, index), through)
        if to.is_float and use["saturate"]:
            most = float(te.max_value(to).value)  # type: ignore[attr-defined]  # a constant
            value = te.min(value, te.const(most, through))
            value = te.max(value, te.const(-most, through))
        return te.cast(value, to)

    return te.compute(use.shape, element, name=use.name)


def _dequantize(use: Use, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    of = F64 if use.dtype is F64 else F32
    through = I32 if x.dtype.is_int and x.dtype.bits > 16 else of  # differences are exact

    def element(*index: Expr) -> Expr:
        value = te.cast(x[index], through)
        if zero is not None:
            value = value - te.cast(_spread(use, zero, x, index), through)
        factor = te.cast(_spread(use, scale, x, index), of)
        return te.cast(te.cast(value, of) * factor, use.dtype)

    return te.compute(use.shape, element, name=use.name)


def _lookup(use: Use, x: Tensor, table: Tensor) -> Tensor:
    def element(*index: Expr) -> Expr:
        return table[te.cast(x[index], I64)]

    return te.compute(use.shape, element, name=use.name)


def requantized(
    src: Expr, bias: Expr, multiplier: Expr, shift: Expr, limits: tuple[int, int, int]
) -> Expr:
    """Requantize one sum with a zero point, minimum and maximum; the only definition."""
    zero, low, high = limits
    total = te.cast(src + bias, I64) * te.cast(multiplier, I64)
    by = te.cast(te.bitwise_and(shift, 63), I64)
    one = te.const(1, I64)
    half = te.if_then_else(by > 0, te.shift_left(one, te.max(by - 1, 0)), te.const(0, I64))
    rounded = te.shift_right(total + half, by) + te.const(zero, I64)
    clamped = te.min(te.max(rounded, te.const(low, I64)), te.const(high, I64))
    return te.cast(clamped, I8)


def _requantize(use: Use, *given: Tensor) -> Tensor:
    limits = use["zero"], use["low"], use["high"]

    def element(*index: Expr) -> Expr:
        x, bias, multiplier, shift = (
            one[broadcast_index(one.shape, use.shape, index)] for one in given
        )
        return requantized(x, bias, multiplier, shift, limits)

    return te.compute(use.shape, element, name=use.name)


def _refuses_quantize(use: Use) -> str:
    to = use.dtype
    fits = to.is_int or (to.bits <= 8 and to.scalar_name != "f8e8m0")
    return "" if fits else f"to {to}"


LOWERINGS: dict[str, Lowering] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "lookup_bytes": _lookup,
    "requantize": _requantize,
}
REFUSALS: dict[str, Refusal] = {"quantize": _refuses_quantize}
