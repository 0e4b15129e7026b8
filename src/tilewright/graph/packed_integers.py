"""Compute GEMMs with sub-byte weights in integers, where the target has byte dot products.

    matmul_packed(dequantize(%q, %s), %b, %scale)  ->  matmul_packed(%q, %b', %scale, a_scale = %s)

The scales of quantized rows are per group of weights, or per row with an optional zero point: (q -
z) * w = q * w - z * w, where z is multiplied by the column sums of the weights. Bytes of weights
get the signedness that the target multiplies with i8.

    matmul_packed(%a, %b, %scale)  ->  sum over d of matmul_packed(%digit[d], %b', %scale, 256**d s)

A row of f32 becomes four rows of bytes: base-256 digits of its values in units of s, a power of two
such that 2**29 s is at most the largest magnitude in a group. Relative to that magnitude times the
weights, the error is below the rounding of f32 sums, and the representation is exact except for
values smaller by 2**6. Rows with an infinity give NaN. Four byte dot products take fewer
instructions than converting a weight to float and multiplying.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dots import Dot, code_dots_of
from tilewright.base.dtype import F32, I8, I32, U8, DType, from_numpy
from tilewright.base.machine import WIDEN_OPERATIONS
from tilewright.base.target import Target
from tilewright.graph.ir import Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, shape_of
from tilewright.graph.ops.linalg import HALF, NIBBLE, packed_codes, unpacked
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, Const, Expr

Array = np.ndarray[Any, Any]

SIGN = 1 << (I8.bits - 1)  # difference between i8 and u8 values of the same bits, if any
DIGITS = I32.size_bytes  # bytes per value
EXPONENT = int(np.float32(np.inf).view(np.int32))  # exponent bits of an f32
UNITS = 2.0 ** (I32.bits - 3)  # units per power of two of a group's maximum, with a sign bit
LEAST_UNIT = float(np.finfo(np.float32).smallest_normal)  # its reciprocal is finite
WHOLE_TERMS = (1 << I32.bits - 1) // (2 * SIGN**2)  # products of bytes whose sum fits in i32
EXACT_TERMS = (1 << F32.significand_bits) // SIGN**2  # products of bytes whose sum is exact in f32


def integer_rows(node: Node, scope: Scope, *, target: Target | None) -> Replacement:
    """Before: matmul_packed(dequantize(%q, %s), %b, %t).   After: matmul_packed(%q, %b, ...)."""
    if node.op != "matmul_packed" or target is None:
        return None
    made = scope.producer(node.inputs[0], "dequantize")
    q = None if made is None else made.inputs[0]
    shape = None if q is None else shape_of(q)
    if made is None or q is None or shape is None or q.tensor.dtype is not I8:
        return None
    weights = _weights_of(node, scope, target)
    weights = None if weights is None else weights.in_groups_of(WHOLE_TERMS)
    steps = Steps(node, scope)
    scales = None if weights is None else _row_scales(steps, made, weights)
    point = made.inputs[2] if len(made.inputs) > 2 else None
    points = [] if point is None else [_by_row(steps, made, at) for at in (2, 1)]
    if weights is None or scales is None or None in points:
        return None
    rows, n = shape[:-1], weights.packed.shape[-1]
    if len(rows) != 1:
        q = steps.add("reshape", q, shape=(_product(rows), shape[-1]))
        scales = steps.add("reshape", scales, shape=(_product(rows), weights.groups))
    total = _multiplied(steps, q, scales, weights)
    if len(rows) != 1:
        total = steps.add("reshape", total, shape=(*rows, n))
    if point is not None:
        columns = weights.columns()
        sums = steps.constant(columns, TensorType(F32, ()), "sums")
        moved = steps.add("mul", steps.add("cast", points[0], to=F32), points[1])
        steps.add("sub", total, steps.add("mul", moved, sums))
    return steps.done()


def digit_rows(node: Node, scope: Scope, *, target: Target | None) -> Replacement:
    """Before: matmul_packed(%a, %b, %s).   After: reduce_sum(matmul_packed(%digits, %b, ...))."""
    a = node.inputs[0] if node.op == "matmul_packed" else None
    shape = None if a is None else shape_of(a)
    if a is None or shape is None or target is None or a.tensor.dtype is not F32:
        return None
    if not _has_few_rows(shape[:-1]):
        return None
    weights = _weights_of(node, scope, target)
    weights = None if weights is None else weights.in_groups_of(EXACT_TERMS)
    if weights is None:
        return None
    steps = Steps(node, scope)
    rows, n, groups = _product(shape[:-1]), weights.packed.shape[-1], weights.groups
    x = steps.add("reshape", a, shape=(rows, groups, weights.size))
    most = steps.add("reduce_max", steps.add("abs", x), axes=(2,), keepdims=True)
    bits = steps.add("bitcast", most, to=I32)
    power = steps.add("bit_and", bits, steps.constant(EXPONENT, bits.tensor))
    unit = steps.add("bitcast", power, to=F32)
    unit = steps.add("mul", unit, steps.constant(1 / UNITS, unit.tensor))
    unit = steps.add("maximum", unit, steps.constant(LEAST_UNIT, unit.tensor))
    units = steps.add("round", steps.add("mul", x, steps.add("reciprocal", unit)))
    digits, scales = _digits(steps, steps.add("cast", units, to=I32), unit)
    digits = steps.add("reshape", digits, shape=(sym.mul(rows, DIGITS), shape[-1]))
    scales = steps.add("reshape", scales, shape=(sym.mul(rows, DIGITS), groups))
    total = _multiplied(steps, digits, scales, weights)
    total = steps.add("reshape", total, shape=(DIGITS, rows, n))
    total = steps.add("reduce_sum", total, axes=(0,), keepdims=False)
    if len(shape) != 2:
        steps.add("reshape", total, shape=(*shape[:-1], n))
    return steps.done()


def _has_few_rows(rows: tuple[Expr, ...]) -> bool:
    """Whether there are, or may be, so few rows that multiplying each costs less than converting
    the weights to float once."""
    flat = _product(rows)
    return not isinstance(flat, Const) or flat.value <= WIDEN_OPERATIONS


def _digits(steps: Steps, units: Value, unit: Value) -> tuple[Value, Value]:
    """The base-256 digits of integers, the lowest first, and their scales. Adding half the base to
    all digits except the highest makes the bytes signed."""
    of, halves = units.tensor, sum(SIGN << 8 * at for at in range(DIGITS - 1))
    middle = steps.constant(halves, of)
    bits = steps.add("bit_xor", steps.add("add", units, middle), middle)
    digits, scales = [], []
    for at in range(DIGITS):
        moved = steps.add("shift_right", bits, steps.constant(8 * at, of)) if at else bits
        digits.append(steps.add("cast", moved, to=I8))
        scales.append(steps.add("mul", unit, steps.constant(256.0**at, unit.tensor)))
    return steps.add("concat", *digits, axis=0), steps.add("concat", *scales, axis=0)


@dataclass(frozen=True)
class Weights:
    """Constant sub-byte weights in an instruction's format."""

    packed: Array
    scale: Array
    offset: Array | None
    per_byte: int
    zero: int
    dot: Dot

    @property
    def groups(self) -> int:
        return int(self.packed.shape[0])

    @property
    def size(self) -> int:
        """Steps of k in a group."""
        return int(self.packed.shape[1]) * self.per_byte

    def columns(self) -> Array:
        """The column sums."""
        numbers = unpacked(
            self.packed, self.scale, self.offset, per_byte=self.per_byte, zero=self.zero
        )
        return np.asarray(numbers.sum(axis=0, dtype=np.float64))

    def in_groups_of(self, most: int) -> Weights | None:
        """The same with groups split to at most this length; None if not divisible."""
        parts = next((n for n in range(1, self.size + 1) if self._has_parts(n, most)), None)
        if parts is None or parts == 1:
            return None if parts is None else self
        _, length, n = self.packed.shape
        apart = self.packed.reshape(-1, 1, length, n)
        if self.per_byte > 1:  # the low and high halves of a group become those of its parts
            codes = packed_codes(self.packed, self.per_byte)
            codes = codes.reshape(self.groups * parts, self.per_byte, -1, n).astype(np.uint8)
            is_signed = self.packed.dtype == np.int8
            low = codes[:, 0] >> HALF if is_signed else codes[:, 0]
            high = codes[:, 1] if is_signed else codes[:, 1] << HALF
            apart = (low | high).view(self.packed.dtype)
        return replace(
            self,
            packed=apart.reshape(self.groups * parts, -1, n),
            scale=np.repeat(self.scale, parts, axis=0),
            offset=None if self.offset is None else np.repeat(self.offset, parts, axis=0),
        )

    def _has_parts(self, parts: int, most: int) -> bool:
        return (
            self.size <= most * parts and self.size % (parts * self.dot.group * self.per_byte) == 0
        )


def _weights_of(node: Node, scope: Scope, target: Target) -> Weights | None:
    """The weights of a GEMM, if constant and multiplied with rows of i8 by the target."""
    arrays = [None if value is None else scope.constant(value) for value in node.inputs[1:]]
    if len(arrays) < 2 or arrays[0] is None or arrays[1] is None:
        return None
    packed, scale, offset = [*arrays, None][:3]
    assert packed is not None
    assert scale is not None
    found = next((of for of in (I8, U8) if code_dots_of(target, of.name)), None)
    if found is None or packed.dtype not in (np.int8, np.uint8):
        return None
    dot, per_byte = code_dots_of(target, found.name)[-1], node.get("per_byte", 1)
    if packed.shape[1] % dot.group:
        return None
    return _with_sign(Weights(packed, scale, offset, per_byte, node.get("zero", 0), dot), found)


def _multiplied(steps: Steps, a: Value, a_scale: Value, weights: Weights) -> Value:
    """The GEMM with rows of i8, with columns padded to whole vectors."""
    n, lanes = weights.packed.shape[-1], weights.dot.lanes
    arrays = {"packed": weights.packed, "scale": weights.scale, "offset": weights.offset}
    inputs = [
        None if array is None else steps.constant(*_filled(array, lanes), name)
        for name, array in arrays.items()
    ]
    attributes = {"per_byte": weights.per_byte, "zero": weights.zero}
    total = steps.add("matmul_packed", a, *inputs, a_scale, **attributes)
    if n % lanes:
        total = steps.add("slice", total, starts=(0,), ends=(n,), axes=(1,), steps=(1,))
    return total


def _product(dims: tuple[Expr, ...]) -> Expr:
    total: Expr = ONE
    for dim in dims:
        total = sym.simplify(sym.mul(total, dim))
    return total


def _filled(array: Array, lanes: int) -> tuple[Array, TensorType]:
    missing = [*[(0, 0)] * (array.ndim - 1), (0, -array.shape[-1] % lanes)]
    return np.pad(array, missing), TensorType(from_numpy(array.dtype), ())


def _row_scales(steps: Steps, made: Node, weights: Weights) -> Value | None:
    """A scale for every group of a row; None for other scales."""
    shape = made.output.tensor.shape
    assert shape is not None
    is_last = made.get("axis", 1) % len(shape) == len(shape) - 1
    if made.get("block_size", 0) == weights.size and is_last:
        return made.inputs[1] if len(made.inputs) < 3 or made.inputs[2] is None else None
    each = _by_row(steps, made, 1)
    return None if each is None else steps.add("expand", each, shape=(*shape[:-1], weights.groups))


def _by_row(steps: Steps, made: Node, at: int) -> Value | None:
    """The scale or zero point of each row, [..., 1]; None if a row has several."""
    value, shape = made.inputs[at], made.output.tensor.shape
    of = None if value is None else shape_of(value)
    if shape is None or of is None:
        return None
    *rows, k = shape
    axis, block = made.get("axis", 1) % len(shape), made.get("block_size", 0)
    if all(dim is ONE for dim in of):
        return steps.add("reshape", value, shape=(ONE,) * len(shape))
    if block:
        is_whole = axis == len(rows) and of[-1] is ONE and isinstance(k, Const) and k.value <= block
        return value if is_whole else None
    if axis == len(rows) or any(dim is not ONE for other, dim in enumerate(rows) if other != axis):
        return None
    return steps.add("reshape", value, shape=(*rows, ONE))


def _with_sign(weights: Weights, of: DType) -> Weights:
    """Weights as bytes of another signedness. Signed 4-bit values are scaled by sixteen; an offset
    and a zero point are combined."""
    packed, scale, zero = weights.packed, weights.scale, weights.zero
    if packed.dtype != of.numpy:
        is_byte = weights.per_byte == 1
        half, times = (SIGN, 1) if is_byte else (NIBBLE // 2, NIBBLE)
        bits = SIGN if is_byte else half * NIBBLE + half
        packed = (packed.view(np.uint8) ^ np.uint8(bits)).view(of.numpy)
        if of is U8:
            scale, zero = scale * np.float32(times), zero // times + half
        else:
            scale, zero = scale / np.float32(times), (zero - half) * times
    made = replace(weights, packed=packed, scale=scale, zero=zero)
    if weights.offset is None:
        return made
    return replace(made, offset=weights.offset - np.float32(zero) * scale, zero=0)
