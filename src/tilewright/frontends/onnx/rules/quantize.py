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


RULES: dict[str, Rule] = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
