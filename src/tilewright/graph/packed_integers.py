"""Products of quantized rows by weights of few bits: sums over groups are those of integers.

    matmul_packed(dequantize(%q, %s), %b, %scale)  ->  matmul_packed(%q, %b', %scale, a_scale = %s)

where the target adds products of bytes. The scales of rows are those of the weights' groups, or one
for each row, which may have a zero point too: (q - z) * w = q * w - z * w, and what z meets is the
sum of a column of weights. Bytes of weights get the sign that the target multiplies i8 by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dots import code_dots_of
from tilewright.base.dtype import F32, I8, U8, DType
from tilewright.base.target import Target
from tilewright.graph.ir import Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, shape_of
from tilewright.graph.ops.linalg import NIBBLE, unpacked
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, Const, Expr

Array = np.ndarray[Any, Any]

SIGN = 128  # by which i8 and u8 of the same bits differ, or not at all


def integer_rows(node: Node, scope: Scope, *, target: Target | None) -> Replacement:
    """Before: matmul_packed(dequantize(%q, %s), %b, %t).   After: matmul_packed(%q, %b, ...)."""
    if node.op != "matmul_packed" or target is None:
        return None
    made = scope.producer(node.inputs[0], "dequantize")
    q, shape = (None, None) if made is None else (made.inputs[0], shape_of(made.inputs[0]))
    if made is None or q is None or shape is None or q.tensor.dtype is not I8:
        return None
    arrays = [None if value is None else scope.constant(value) for value in node.inputs[1:]]
    if len(arrays) < 2 or arrays[0] is None or arrays[1] is None:
        return None
    packed, scale, offset = [*arrays, None][:3]
    assert packed is not None
    assert scale is not None
    groups, length, _ = packed.shape
    found = next((of for of in (I8, U8) if code_dots_of(target, of.name)), None)
    if found is None or packed.dtype not in (np.int8, np.uint8):
        return None
    dot = code_dots_of(target, found.name)[-1]
    if length % dot.group:
        return None
    per_byte, zero = node.get("per_byte", 1), node.get("zero", 0)
    steps = Steps(node, scope)
    scales = _row_scales(steps, made, groups, length * per_byte)
    point = made.inputs[2] if len(made.inputs) > 2 else None
    points = [] if point is None else [_by_row(steps, made, x) for x in (point, made.inputs[1])]
    if scales is None or None in points:
        return None
    made_of = _with_sign(packed, scale, zero, offset, per_byte, found)
    inputs = [
        None
        if array is None
        else steps.constant(_filled(array, dot.lanes), TensorType(of, ()), name)
        for name, of, array in zip(
            ("packed", "scale", "offset"), (found, F32, F32), made_of[:3], strict=True
        )
    ]
    rows, n, given = shape[:-1], packed.shape[-1], [q, scales]
    if len(rows) != 1:
        flat = _product(rows)
        given = [
            steps.add("reshape", value, shape=(flat, last))
            for value, last in zip(given, (shape[-1], groups), strict=True)
        ]
    a, a_scale = given
    attributes = {"per_byte": per_byte, "zero": made_of[3]}
    total = steps.add("matmul_packed", a, *inputs, a_scale, **attributes)
    if n % dot.lanes:
        total = steps.add("slice", total, starts=(0,), ends=(n,), axes=(1,), steps=(1,))
    if len(rows) != 1:
        total = steps.add("reshape", total, shape=(*rows, n))
    if point is not None:
        weights = unpacked(packed, scale, offset, per_byte=per_byte, zero=zero)
        sums = steps.constant(weights.sum(axis=0, dtype=np.float64), TensorType(F32, ()), "sums")
        moved = steps.add("mul", steps.add("cast", points[0], to=F32), points[1])
        steps.add("sub", total, steps.add("mul", moved, sums))
    return steps.done()


def _product(dims: tuple[Expr, ...]) -> Expr:
    total: Expr = ONE
    for dim in dims:
        total = sym.simplify(sym.mul(total, dim))
    return total


def _filled(array: Array, lanes: int) -> Array:
    """Columns filled up to whole vectors."""
    return np.pad(array, [*[(0, 0)] * (array.ndim - 1), (0, -array.shape[-1] % lanes)])


def _row_scales(steps: Steps, made: Node, groups: int, size: int) -> Value | None:
    """A scale for every group of a row; None where scales are others'."""
    q, scale = made.inputs[:2]
    shape = shape_of(q)
    assert scale is not None
    assert shape is not None
    is_last = made.get("axis", 1) % len(shape) == len(shape) - 1
    if made.get("block_size", 0) == size and is_last:
        return scale if len(made.inputs) < 3 or made.inputs[2] is None else None
    each = _by_row(steps, made, scale)
    return None if each is None else steps.add("expand", each, shape=(*shape[:-1], groups))


def _by_row(steps: Steps, made: Node, value: Value) -> Value | None:
    """A scale or zero point of each row, [..., 1]; None where a row has several."""
    shape, of = shape_of(made.inputs[0]), shape_of(value)
    assert shape is not None
    assert of is not None
    *rows, k = shape
    axis, block = made.get("axis", 1) % len(shape), made.get("block_size", 0)
    if all(dim is ONE for dim in of):
        return steps.add("reshape", value, shape=(ONE,) * len(shape))
    if block:
        is_whole = axis == len(rows) and of[-1] is ONE and isinstance(k, Const) and k.value <= block
        return value if is_whole else None
    if axis == len(rows) or any(dim is not ONE for at, dim in enumerate(rows) if at != axis):
        return None
    return steps.add("reshape", value, shape=(*rows, ONE))


def _with_sign(
    packed: Array, scale: Array, zero: int, offset: Array | None, per_byte: int, of: DType
) -> tuple[Array, Array, Array | None, int]:
    """Bytes of weights as another type, their scales, offsets and zero point. Four bits with a sign
    count sixteen times; of an offset and a zero point, one is left."""
    if packed.dtype != of.numpy:
        half = SIGN if per_byte == 1 else NIBBLE // 2
        bits = SIGN if per_byte == 1 else half * NIBBLE + half
        packed = (packed.view(np.uint8) ^ np.uint8(bits)).view(of.numpy)
        times = 1 if per_byte == 1 else NIBBLE
        if of is U8:
            scale, zero = scale * np.float32(times), zero // times + half
        else:
            scale, zero = scale / np.float32(times), (zero - half) * times
    if offset is None:
        return packed, scale, None, zero
    return packed, scale, offset - np.float32(zero) * scale, 0
