"""pack_weights: keep quantized weights of f32 matmuls in few bits (weight-only quantization).

    matmul(%a, dequantize(%q, %scale, %zero))   ->   matmul_packed(%a, %packed, %scale)

Applies if weights have scales per group along k, or if there are so few rows that the matmul is
bound by reading weights. They are stored in 8 bits, or in 4 bits, two per byte, if all values are
within 16 of each other. Other weights are widened to f32 at compile time: with many rows, unpacking
them in every call would cost more than the memory saved.

With few rows, stored integers are multiplied and the sum of each group is scaled. With more rows, a
panel of weights at a time is scaled and then used for all rows. If the rows are quantized, too, the
products are integer dot products, where the target has them (`packed_integers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tilewright.base.dtype import F32, U8, from_numpy
from tilewright.base.machine import WIDENED_LANES
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.graph.ops.linalg import NIBBLE, unpacked
from tilewright.graph.packed_integers import digit_rows, integer_rows
from tilewright.graph.passes.fold_constants import WIDENING, computed, is_packed_weight
from tilewright.graph.rates import Rates, has_few_rows, rates_of
from tilewright.graph.types import TensorType
from tilewright.sym import Const

Array = np.ndarray[Any, Any]


def pack_weights(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%a, dequantize(%q, %scale)).   After: matmul_packed(%a, %packed, %scale)."""
    target = ctx.target if isinstance(ctx.target, Target) else None
    if target is not None and target.kind != CPU:
        return rewrite_matches(module, (_widened, _unpacked))
    rates = rates_of(target)
    module = rewrite_matches(module, (partial(_packed, rates=rates), _widened))
    rules = (integer_rows, digit_rows, _scaled_sums)
    return rewrite_matches(module, tuple(partial(rule, target=target) for rule in rules))


@dataclass(frozen=True)
class Weights:
    """An f32 matrix [k, n] as integers, with scales and zero points of groups along k."""

    codes: Array
    scale: Array  # [groups, n]
    zero: Array  # [groups, n], or a scalar


def _weight(node: Node, scope: Scope) -> tuple[Node, bool] | None:
    """The node that dequantizes a matmul's weights, and whether a transpose follows it."""
    if node.op != "matmul":
        return None
    moved = scope.producer(node.inputs[1], "transpose")
    made = scope.producer(node.inputs[1] if moved is None else moved.inputs[0], *WIDENING)
    if made is None or not is_packed_weight(made, scope.users):
        return None
    if any(v is not None and scope.constant(v) is None for v in made.inputs):
        return None
    if moved is not None and tuple(moved["perm"]) != (1, 0):
        return None
    return made, moved is not None


def _weights_of(made: Node, is_moved: bool, scope: Scope) -> Weights | None:
    """Quantized weights in groups along k; None if their scales have another layout."""
    codes, scale, zero = [
        None if value is None else scope.constant(value) for value in (*made.inputs, None, None)
    ][:3]
    if codes is None or codes.ndim != 2 or not codes.size:
        return None
    codes = codes.T if is_moved else codes
    k, n = codes.shape
    if scale is None:
        scale = np.ones((1, n), np.float32)
    zero = np.zeros((), np.float32) if zero is None else zero
    axis = made.get("axis", 1) % 2 ^ is_moved
    block = made.get("block_size", 0)
    if not block and axis == 0 and (scale.size > 1 or zero.size > 1):
        return None
    if block and (axis == 1 or k % block):
        return None

    def by_groups(array: Array) -> Array:
        if array.size == 1:
            return array.reshape(())
        if block:
            return array.T if is_moved else array
        return array.reshape(1, n)

    groups = k // block if block else 1
    scales = np.broadcast_to(by_groups(scale), (groups, n)).astype(np.float32)
    return Weights(codes, scales, by_groups(zero).astype(np.float32))


def _packed(node: Node, scope: Scope, *, rates: Rates) -> Replacement:
    found = _weight(node, scope)
    weights = None if found is None else _weights_of(*found, scope)
    a = None if found is None else node.inputs[0]
    if weights is None or a is None or node.get("tf32"):
        return None
    if len(weights.scale) == 1 and not has_few_rows(a, rates, U8.size_bytes):
        return None
    codes, low = weights.codes, 0
    k, n = codes.shape
    length, per_byte = k // len(weights.scale), 1
    if codes.dtype.kind in "iu" or from_numpy(codes.dtype).is_int:
        wide = codes.astype(np.int16)
        least = int(wide.min())
        if int(wide.max()) - least < NIBBLE and length % 2 == 0:
            per_byte, low = 2, least
            halves = (wide - low).astype(np.uint8).reshape(len(weights.scale), 2, -1, n)
            codes = halves[:, 0] | halves[:, 1] << (NIBBLE.bit_length() - 1)
    codes = np.ascontiguousarray(codes).reshape(len(weights.scale), -1, n)
    zero = weights.zero - np.float32(low)
    steps = Steps(node, scope)
    inputs = [
        steps.constant(codes, TensorType(from_numpy(codes.dtype), ()), "packed"),
        steps.constant(weights.scale, TensorType(F32, ()), "scale"),
    ]
    point = float(zero.flat[0])
    is_same = point.is_integer() and bool((zero == point).all())
    if not is_same:
        offset = -zero * weights.scale
        inputs.append(steps.constant(offset, TensorType(F32, ()), "offset"))
    zero_point = int(point) if is_same else 0
    steps.add("matmul_packed", a, *inputs, per_byte=per_byte, zero=zero_point)
    return steps.done()


def _widened(node: Node, scope: Scope) -> Replacement:
    """Widen weights that are not packed to f32."""
    found = _weight(node, scope)
    if found is None:
        return None
    made, is_moved = found
    known = {value: scope.constant(value) for value in made.inputs if value is not None}
    arrays = computed(made, {value: array for value, array in known.items() if array is not None})
    if arrays is None:
        return None
    steps = Steps(node, scope)
    weights = np.ascontiguousarray(arrays[0].T if is_moved else arrays[0])
    steps.add(
        "matmul",
        node.inputs[0],
        steps.constant(weights, TensorType(F32, ()), "weights"),
        **dict(node.attributes),
    )
    return steps.done()


def _unpacked(node: Node, scope: Scope) -> Replacement:
    """Unpack weights that the model has packed, if no kernel reads them that way."""
    if node.op != "matmul_packed":
        return None
    arrays = [scope.constant(value) for value in node.inputs[1:] if value is not None]
    if any(array is None for array in arrays):
        return None
    packed, scale, *offset = [array for array in arrays if array is not None]
    weights = unpacked(
        packed, scale, *offset, per_byte=node.get("per_byte", 1), zero=node.get("zero", 0)
    )
    steps = Steps(node, scope)
    steps.add("matmul", node.inputs[0], steps.constant(weights, TensorType(F32, ()), "weights"))
    return steps.done()


def _scaled_sums(node: Node, scope: Scope, *, target: Target | None) -> Replacement:
    """Few rows, whose group sums fit in registers, as a matrix."""
    a, b = node.inputs[:2] if node.op == "matmul_packed" else (None, None)
    if a is None or b is None or a.tensor.dtype is not F32 or node.get("scale_sums"):
        return None
    if target is None:
        return None
    shape, of = shape_of(a), shape_of(b)
    columns = None if of is None else of[-1]
    if shape is None or not isinstance(columns, Const) or int(columns.value) % WIDENED_LANES:
        return None
    if not all(isinstance(dim, Const) for dim in shape):
        return None
    *rows, k = (int(dim.value) for dim in shape if isinstance(dim, Const))
    vectors = -(-WIDENED_LANES // target.lanes(F32.bits))
    if prod(rows) * vectors > target.vector_registers // 2:
        return None
    steps = Steps(node, scope)
    flat = a if len(rows) == 1 else steps.add("reshape", a, shape=(prod(rows), k))
    attributes = {**dict(node.attributes), "scale_sums": True}
    made = steps.add("matmul_packed", flat, *node.inputs[1:], **attributes)
    if len(rows) != 1:
        steps.add("reshape", made, shape=(*rows, int(columns.value)))
    return steps.done()
