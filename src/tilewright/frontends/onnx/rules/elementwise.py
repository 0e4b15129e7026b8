"""Element-wise operators: arithmetic, comparisons, conversions."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.dtype import I8, DType
from tilewright.frontends.onnx.rules.base import Context, Rule, element_type
from tilewright.frontends.onnx.rules.tensors import dims, reshape
from tilewright.graph import Value

_SAME = {
    # ONNX operators and their equivalents with the same inputs and no attributes.
    **{name: name.lower() for name in ("Add", "Sub", "Mul", "Div", "Relu", "Neg", "Abs")},
    **{name: name.lower() for name in ("Exp", "Log", "Sqrt", "Sigmoid", "Erf", "Floor", "Ceil")},
    **{name: name.lower() for name in ("Round", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan")},
    **{name: name.lower() for name in ("Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh")},
    **{name: name.lower() for name in ("Sign", "Reciprocal", "Where", "Equal", "Less", "Greater")},
    "LessOrEqual": "less_equal",
    "GreaterOrEqual": "greater_equal",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "Not": "logical_not",
    "IsNaN": "isnan",
    "BitwiseAnd": "bit_and",
    "BitwiseOr": "bit_or",
    "BitwiseXor": "bit_xor",
    "BitwiseNot": "bit_not",
}


def _same(op: str) -> Rule:
    def rule(node: Context) -> Value:
        if node.opset < 7 and node.attr("broadcast", 0) and node.attr("axis") is not None:
            return node.emit(op, node[0], _aligned(node))
        return node.emit(op, *node.inputs)

    return rule


def _aligned(node: Context) -> Value:
    """Before opset 7: align the axes of the second operand to those of the first from `axis` on."""
    axis, have = node.attr("axis") % node.rank(), node.rank(1)
    return reshape(node, node[1], *dims(node, node[1]), *[1] * (node.rank() - axis - have))


def _fold_many(node: Context, op: str) -> Value:
    """Sum, Max, Min of any number of inputs."""
    result = node[0]
    for at in range(1, len(node.inputs)):
        result = node.emit(op, result, node[at])
    return result


def _mean(node: Context) -> Value:
    return node.emit("div", _fold_many(node, "add"), float(len(node.inputs)))


def _pow(node: Context) -> Value:
    """The result has the type of the base; the exponent's may differ."""
    base, exponent = node[0], node[1]
    of, by = base.tensor.dtype, exponent.tensor.dtype
    if of is by:
        return node.emit("pow", base, exponent)
    if of.is_float or by.is_int:
        return node.emit("pow", base, node.emit("cast", exponent, to=of))
    wide = node.emit("pow", node.emit("cast", base, to=by), exponent)
    return node.emit("cast", wide, to=of)


def _mod(node: Context) -> Value:
    return node.emit("fmod" if node.attr("fmod", 0) else "mod", node[0], node[1])


def _bit_shift(node: Context) -> Value:
    ours = {"LEFT": "shift_left", "RIGHT": "shift_right"}[node.attr("direction")]
    return node.emit(ours, node[0], node[1])


def _is_inf(node: Context) -> Value:
    x = node[0]
    above, below = node.attr("detect_positive", 1), node.attr("detect_negative", 1)
    if above and below:
        return node.emit("equal", node.emit("abs", x), math.inf)
    if not above and not below:  # neither is detected: false, since nothing equals NaN
        return node.emit("equal", x, math.nan)
    return node.emit("equal", x, math.inf if above else -math.inf)


def _clip(node: Context) -> Value:
    """Bounds are attributes before opset 11, inputs since."""
    if node.opset >= 11:
        return node.emit("clip", *node.inputs)
    low, high = node.attr("min"), node.attr("max")
    x = node[0]
    bounds = [None if bound is None else node.like(x, bound) for bound in (low, high)]
    return node.emit("clip", x, *bounds)


def _cast_to(node: Context, to: DType) -> Value:
    x = node[0]
    if to.is_str or x.tensor.dtype.is_str:
        return x if x.tensor.dtype is to else node.emit("cast_text", x, to=to)
    if to.is_int and to.bits < 8 and x.tensor.dtype.is_float:
        # Undefined in ONNX; its tests take the low bits.
        x = node.emit("cast", x, to=I8)
    attributes: dict[str, Any] = {}
    if not node.attr("saturate", 1):
        attributes["saturate"] = False
    if node.attr("round_mode", "up") != "up":
        attributes["round_mode"] = node.attr("round_mode")
    return x if x.tensor.dtype is to else node.emit("cast", x, to=to, **attributes)


RULES: dict[str, Rule] = {
    **{name: _same(op) for name, op in _SAME.items()},
    "Sum": lambda node: _fold_many(node, "add"),
    "Max": lambda node: _fold_many(node, "maximum"),
    "Min": lambda node: _fold_many(node, "minimum"),
    "Mean": _mean,
    "Pow": _pow,
    "Mod": _mod,
    "BitShift": _bit_shift,
    "IsInf": _is_inf,
    "Clip": _clip,
    "Cast": lambda node: _cast_to(node, element_type(node.attr("to"))),
    "CastLike": lambda node: _cast_to(node, node[1].tensor.dtype),
    "BitCast": lambda node: node.emit("bitcast", node[0], to=element_type(node.attr("to"))),
    "Identity": lambda node: node[0],
}
