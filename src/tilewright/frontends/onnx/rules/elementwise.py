"""Element by element: arithmetic, comparisons, activations."""

from __future__ import annotations

from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.graph import Value

_SAME = {
    # ONNX operator: ours, with the same inputs and no attributes
    **{name: name.lower() for name in ("Add", "Sub", "Mul", "Div", "Pow", "Relu", "Neg", "Abs")},
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
    return lambda node: node.emit(op, *node.inputs)


def _fold_many(op: str) -> Rule:
    """Sum, Max, Min over any number of inputs."""

    def rule(node: Context) -> Value:
        result = node[0]
        for at in range(1, len(node.inputs)):
            result = node.emit(op, result, node[at])
        return result

    return rule


def _leaky_relu(node: Context) -> Value:
    x = node[0]
    scaled = node.emit("mul", x, node.like(x, node.attr("alpha", 0.01)))
    negative = node.emit("less", x, node.like(x, 0.0))
    return node.emit("where", negative, scaled, x)


RULES: dict[str, Rule] = {
    **{name: _same(op) for name, op in _SAME.items()},
    "Sum": _fold_many("add"),
    "Max": _fold_many("maximum"),
    "Min": _fold_many("minimum"),
    "LeakyRelu": _leaky_relu,
    "Identity": lambda node: node[0],
}
