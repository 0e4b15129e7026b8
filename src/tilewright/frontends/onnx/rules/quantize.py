"""Quantization and dequantization."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtype import U8
from tilewright.frontends.onnx.rules.base import Context, Rule, element_type
from tilewright.graph import Value


def _granularity(node: Context) -> dict[str, Any]:
    return {"axis": node.attr("axis", 1), "block_size": node.attr("block_size", 0)}


def _quantize(node: Context) -> Value:
    zero, code = node.get(2), node.attr("output_dtype", 0)
    to = U8 if zero is None else zero.tensor.dtype
    if code:
        to = element_type(code)
    precision = node.attr("precision", 0)
    return node.emit(
        "quantize",
        node[0],
        node[1],
        zero,
        to=to,
        saturate=bool(node.attr("saturate", 1)),
        precision=element_type(precision) if precision else None,
        **_granularity(node),
    )


def _dequantize(node: Context) -> Value:
    code = node.attr("output_dtype", 0)
    to = element_type(code) if code else node[1].tensor.dtype
    return node.emit("dequantize", node[0], node[1], node.get(2), to=to, **_granularity(node))


def dynamic_quantize(node: Context, x: Value) -> tuple[Value, Value, Value]:
    """Dynamic quantization of x to u8 over its range, including zero; with scale and zero point."""
    low = node.emit("minimum", node.emit("reduce_min", x, keepdims=False), 0.0)
    high = node.emit("maximum", node.emit("reduce_max", x, keepdims=False), 0.0)
    scale = node.emit("div", node.emit("sub", high, low), 255.0)
    # The scale is zero only for all zeros; then the zero point 0 / 0 is taken as 0.
    start = node.emit("neg", node.emit("div", low, scale))
    inside = node.emit("clip", start, node.like(x, 0.0), node.like(x, 255.0))
    zero = node.emit("cast", node.emit("round", inside), to=U8)
    return node.emit("quantize", x, scale, zero, to=U8, ranged=True), scale, zero


RULES: dict[str, Rule] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": lambda node: dynamic_quantize(node, node[0]),
}
