"""Quantized models: operators of PT2E and torchao, and GEMMs with weights of few bits.

They become quantize and dequantize operators, so that passes can use integer contractions where
that is no less accurate. Weights of eight or four bits are dequantized integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tilewright import sym
from tilewright.base.dtype import F32, F64, I32, I64, DType
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.shape import transpose
from tilewright.frontends.torch.tensors import dtype_of
from tilewright.graph import Value
from tilewright.sym import ONE, Const, Expr

Array = np.ndarray[Any, Any]

LIBRARY = "quantized_decomposed"


TENSOR, CHANNEL, GROUP = "tensor", "channel", "group"  # what has its own scale


def _granularity(node: Context, kind: str) -> dict[str, int]:
    """The axis of scales, and the number of elements that share one."""
    if kind == CHANNEL:
        return {"axis": node.dim("axis", "input")}
    return {"axis": 1, "block_size": int(node.args["group_size"])} if kind == GROUP else {}


def _given(node: Context, kind: str) -> tuple[Any, Any]:
    """Scales and zero points."""
    plural = "" if kind == TENSOR else "s"
    return node.args[f"scale{plural}"], node.args.get(f"zero_point{plural}")


def _parameter(node: Context, given: Any, to: DType, kind: str) -> Value | None:
    """Scales or zero points as operands; None for a zero point of 0."""
    if given is None or (isinstance(given, int) and given == 0):
        return None
    if not isinstance(given, Value):
        return node.constant(np.asarray(given).astype(to.numpy))
    made = node.cast(given, to)
    if kind == GROUP:
        return made
    return node.reshape(made, () if kind == TENSOR else (node.shape(made)[-1],))


def _bound(node: Context, name: str) -> int:
    found = node.args[name]
    if not isinstance(found, int):
        raise Skip(f"{node.op_type} with bounds that are tensors")
    return found


def _quantize(kind: str) -> Rule:
    def rule(node: Context) -> Value:
        x, to = node.cast(node["input"], F32), dtype_of(node.args["dtype"])
        scale, zero = _given(node, kind)
        made = node.emit(
            "quantize",
            x,
            _parameter(node, scale, F32, kind),
            _parameter(node, zero, to, kind),
            to=to,
            reciprocal=True,
            **_granularity(node, kind),
        )
        low, high = _bound(node, "quant_min"), _bound(node, "quant_max")
        least, most = _range(to)
        if low <= least and high >= most:
            return made
        return node.emit("clip", made, node.like(made, low), node.like(made, high))

    return rule


def _range(of: DType) -> tuple[int, int]:
    """The range of an element type; fp8 is not clamped like integers."""
    if not of.is_int:
        return 0, 0
    limits = np.iinfo(of.numpy)
    return int(limits.min), int(limits.max)


def _dequantize(kind: str) -> Rule:
    def rule(node: Context) -> Value:
        x = node["input"]
        scale, zero = _given(node, kind)
        made = node.emit(
            "dequantize",
            x,
            _parameter(node, scale, F32, kind),
            _parameter(node, zero, x.tensor.dtype, kind),
            to=F32,
            **_granularity(node, kind),
        )
        return node.cast(made, node.to)

    return rule


def _dequantize_affine(node: Context) -> Value:
    """torchao's: a scale and a zero point per block of any extents."""
    x, blocks = node["input"], node.args["block_size"]
    shape = node.shape(x)
    counts = [sym.simplify(sym.floordiv(d, b)) for d, b in zip(shape, blocks, strict=True)]
    given = [node.cast(node["scale"], F32)]
    if node.get("zero_point") is not None:
        given.append(node.cast(node["zero_point"], x.tensor.dtype))
    cut = [axis for axis, count in enumerate(counts) if count is not ONE]
    long = [axis for axis, block in enumerate(blocks) if block != 1 and axis in cut]
    if len(cut) > 1 and not long:  # one per row, which is a block
        long = [axis for axis, block in enumerate(blocks) if block != 1]
    if len(cut) <= 1 and not long:  # one, or one per position along an axis
        axis = cut[0] if cut else 0
        flat = [node.reshape(each, [shape[axis]] if cut else []) for each in given]
        made = node.emit("dequantize", x, *flat, to=F32, axis=axis)
    elif len(long) == 1 and all(block == 1 for at, block in enumerate(blocks) if at != long[0]):
        flat = [node.reshape(each, counts) for each in given]
        how = {"axis": long[0], "block_size": int(blocks[long[0]])}
        made = node.emit("dequantize", x, *flat, to=F32, **how)
    else:
        apart = [each for pair in zip(counts, blocks, strict=True) for each in pair]
        spread = [each for count in counts for each in (count, ONE)]
        scale, *zero = [node.reshape(each, spread) for each in given]
        parts = [node.cast(node.reshape(x, apart), F32), *(node.cast(z, F32) for z in zero)]
        less = node.emit("sub", *parts) if zero else parts[0]
        made = node.reshape(node.emit("mul", less, scale), shape)
    return node.cast(made, node.to)


def _choose(node: Context) -> tuple[Value, Value]:
    """Scale and zero point for the actual range of a tensor, extended to include zero."""
    low, high = _extremes(node)
    steps = float(_bound(node, "quant_max") - _bound(node, "quant_min"))
    scale = node.emit("div", node.emit("sub", high, low), steps)
    scale = node.emit("maximum", scale, float(node.args["eps"]))
    start = node.cast(node.emit("round", node.emit("div", low, scale)), I32)
    zero = node.emit("sub", node.like(start, _bound(node, "quant_min")), start)
    bounds = (node.like(zero, _bound(node, name)) for name in ("quant_min", "quant_max"))
    zero = node.emit("clip", zero, *bounds)
    return _one(node, scale, F64), _one(node, zero, I64)


def _choose_symmetric(node: Context) -> tuple[Value, Value]:
    """The same with a symmetric range."""
    low, high = _extremes(node)
    steps = float(_bound(node, "quant_max") - _bound(node, "quant_min")) / 2
    most = node.emit("maximum", node.emit("neg", low), high)
    scale = node.emit("maximum", node.emit("div", most, steps), float(node.args["eps"]))
    middle = 128 if node.args["dtype"] is torch.uint8 else 0
    return _one(node, scale, F64), node.constant(np.array([middle], np.int64))


def _extremes(node: Context) -> tuple[Value, Value]:
    x = node.cast(node["input"], F32)
    low = node.emit("minimum", node.emit("reduce_min", x, keepdims=False), 0.0)
    high = node.emit("maximum", node.emit("reduce_max", x, keepdims=False), 0.0)
    return low, high


def _one(node: Context, x: Value, to: DType) -> Value:
    return node.reshape(node.cast(x, to), (1,))


# ------------------------------------------------------------------------------------ weights


def _int8_product(node: Context) -> Value:
    """x times the transpose of int8 weights with a scale per row."""
    weight = node.emit("dequantize", node["mat2"], node.cast(node["scales"], F32), to=F32, axis=0)
    made = node.emit("matmul", node.cast(node["self"], F32), transpose(node, weight, (1, 0)))
    return node.cast(made, node.to)


def _int4_product(node: Context) -> Value:
    """x times the transpose of int4 weights: (w - 8) * scale + zero, by groups along k."""
    group, scales = int(node.args["qGroupSize"]), node.cast(node["qScaleAndZeros"], F32)
    groups, rows, _ = node.shape(scales)
    codes = _unpacked(node, node["mat2"], rows, sym.simplify(sym.mul(groups, group)))
    halves = codes.T.reshape(-1, 2, group // 2, codes.shape[0])
    scale, zero = (
        node.reshape(
            node.emit("slice", scales, starts=(at,), ends=(at + 1,), axes=(2,), steps=(1,)),
            (groups, rows),
        )
        for at in range(2)
    )
    packed = node.constant(halves[:, 0] | halves[:, 1] << 4)
    x = node.cast(node["self"], F32)
    made = node.emit("matmul_packed", x, packed, scale, zero, per_byte=2, zero=8)
    return node.cast(made, node.to)


def _unpacked(node: Context, packed: Value, rows: Expr, columns: Expr) -> Array:
    """Int4 weights as numbers from 0 to 15.

    Their order in memory depends on PyTorch's kernels for this machine. So PyTorch packs the digits
    of the positions themselves, which shows where each was moved.
    """
    name = node.builder.stored.get(packed)
    if name is None or not isinstance(rows, Const) or not isinstance(columns, Const):
        raise Skip(f"{node.op_type} with weights that are not known")
    n, k = int(rows.value), int(columns.value)
    places = np.zeros(n * k, np.int64)
    for shift in range(0, max(1, (n * k - 1).bit_length()), 4):
        digits = torch.arange(n * k, dtype=torch.int32).reshape(n, k) >> shift & 15
        moved = torch.ops.aten._convert_weight_to_int4pack_for_cpu(digits, 1)
        places |= _nibbles(moved.numpy()).astype(np.int64) << shift
    codes = np.empty(n * k, np.uint8)
    codes[places] = _nibbles(node.builder.constants[name])
    return codes.reshape(n, k)


def _nibbles(packed: Array) -> Array:
    """Both halves of each byte."""
    flat = packed.reshape(-1).view(np.uint8)
    return np.stack([flat & 15, flat >> 4], axis=1).reshape(-1)


def _scaled_product(node: Context) -> Value:
    """fp8 GEMM with scalar scales, or scales per row and column."""
    x, y = node["self"], node["mat2"]
    if x.tensor.dtype is not y.tensor.dtype:
        x, y = node.cast(x, F32), node.cast(y, F32)
    made = node.emit("matmul", x, y, to=F32)
    for name in ("scale_a", "scale_b"):
        made = node.emit("mul", made, _spread(node, node.cast(node[name], F32)))
    bias, last = node.get("bias"), node.get("scale_result")
    if bias is not None:
        made = node.emit("add", made, node.cast(bias, F32))
    if last is not None and not node.to.is_int and node.to.bits == 8:
        made = node.emit("mul", made, _spread(node, node.cast(last, F32)))
    return node.cast(made, node.to)


def _spread(node: Context, scale: Value) -> Value:
    """A scale that broadcasts to a matrix."""
    return scale if len(node.shape(scale)) == 2 else node.reshape(scale, (1, 1))


_FORMS = {
    "per_tensor": TENSOR,
    "per_tensor.tensor": TENSOR,
    "per_tensor.tensor2": TENSOR,
    "per_channel": CHANNEL,
    "per_channel_group": GROUP,
}
RULES: dict[str, Rule] = {
    **{f"{LIBRARY}.quantize_{form}": _quantize(kind) for form, kind in _FORMS.items()},
    **{f"{LIBRARY}.dequantize_{form}": _dequantize(kind) for form, kind in _FORMS.items()},
    "torchao.dequantize_affine": _dequantize_affine,
    f"{LIBRARY}.choose_qparams.tensor": _choose,
    f"{LIBRARY}.choose_qparams_symmetric.tensor": _choose_symmetric,
    "aten._weight_int8pack_mm": _int8_product,
    "aten._weight_int4pack_mm_for_cpu": _int4_product,
    "aten._scaled_mm": _scaled_product,
}
