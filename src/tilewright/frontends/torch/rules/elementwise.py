"""Element-wise arithmetic, comparisons and conversions, with PyTorch's type promotion."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.dtype import BOOL, I64, U8, DType
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule, Scalar
from tilewright.graph import Value
from tilewright.graph.types import items_of

# ------------------------------------------------------------------------------------ one operand

_FLOAT = (  # graph operators of the same name on floats; integers are converted first
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1"),
    *("log", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan"),
    *("tanh", "exp2"),
)
_ROUNDING = ("ceil", "floor", "round", "trunc")  # the identity on integers
_NUMBER = ("abs", "neg", "sign", "relu")


def _float(op: str) -> Rule:
    return lambda node: node.emit(op, node.cast(node["self"], node.to))


def _rounding(op: str) -> Rule:
    def rule(node: Context) -> Value:
        x = node["self"]
        return node.emit(op, x) if x.tensor.dtype.is_float else x

    return rule


def _number(op: str) -> Rule:
    def rule(node: Context) -> Value:
        x = node["self"]
        unsigned = x.tensor.dtype.is_bool or x.tensor.dtype.kind == "uint"
        if unsigned and op in ("abs", "relu"):
            return x
        if x.tensor.dtype.is_bool:
            return x if op == "sign" else node.emit("logical_not", x)
        return node.emit(op, x) if op != "sign" or not node.to.is_float else _sign(node, x)

    return rule


def _sign(node: Context, x: Value) -> Value:
    """(x > 0) - (x < 0), which is 0 for NaN."""
    above, below = (node.cast(node.emit(op, x, 0.0), node.to) for op in ("greater", "less"))
    return node.emit("sub", above, below)


def _log10(node: Context) -> Value:
    return node.emit("mul", node.emit("log", node.cast(node["self"], node.to)), 1 / math.log(10))


def _round_decimals(node: Context) -> Value:
    """round(x * 10**d) / 10**d."""
    x, digits = node["self"], node.args["decimals"]
    if not x.tensor.dtype.is_float:
        return x
    if digits >= 0:
        scale = float(10**digits)
        return node.emit("div", node.emit("round", node.emit("mul", x, scale)), scale)
    scale = float(10**-digits)
    return node.emit("mul", node.emit("round", node.emit("div", x, scale)), scale)


def _is_inf(node: Context) -> Value:
    x = node["self"]
    if not x.tensor.dtype.is_float:
        return node.full(False, BOOL, node.out)
    return node.emit("equal", node.emit("abs", x), math.inf)


def _is_nan(node: Context) -> Value:
    x = node["self"]
    return node.emit("isnan", x) if x.tensor.dtype.is_float else node.full(False, BOOL, node.out)


def _bitwise_not(node: Context) -> Value:
    x = node["self"]
    return node.emit("logical_not" if x.tensor.dtype.is_bool else "bit_not", x)


def _angle(node: Context) -> Value:
    """0, or pi for negative numbers; NaN stays NaN."""
    x = node.cast(node["self"], node.to)
    turned = node.emit("where", node.emit("less", x, 0.0), node.like(x, math.pi), node.like(x, 0))
    return node.emit("where", node.emit("isnan", x), x, turned)


def _erfc(node: Context) -> Value:
    return node.emit("neg", node.emit("sub", node.emit("erf", node.cast(node["self"], node.to)), 1))


# ------------------------------------------------------------------------------------ two operands


def operands(node: Context, to: DType) -> tuple[Value, Value]:
    """`self` and `other`, tensors or numbers, converted to one element type."""
    return node.value(node.get("self"), to), node.value(node.get("other"), to)


def _binary(op: str, of_bool: str = "") -> Rule:
    """A graph operator; for booleans, if there is one, a logical one."""

    def rule(node: Context) -> Value:
        a, b = operands(node, node.to)
        return node.emit(of_bool if of_bool and node.to.is_bool else op, a, b)

    return rule


def _scaled(op: str, of_bool: str = "") -> Rule:
    """a + alpha * b, or a - alpha * b."""

    def rule(node: Context) -> Value:
        a, b = operands(node, node.to)
        alpha = node.get("alpha", 1)
        if node.to.is_bool:
            return node.emit(of_bool, a, b) if alpha else a
        if not isinstance(alpha, (int, float)) or alpha != 1:
            b = node.emit("mul", b, node.value(alpha, node.to))
        return node.emit(op, a, b)

    return rule


def _rsub(node: Context) -> Value:
    a, b = operands(node, node.to)
    alpha = node.get("alpha", 1)
    if alpha != 1:
        a = node.emit("mul", a, node.value(alpha, node.to))
    return node.emit("sub", b, a)


def _div(node: Context) -> Value:
    """True division, or with the quotient rounded down or towards zero."""
    mode = node.get("rounding_mode")
    a, b = operands(node, node.to)
    if mode == "floor":
        return _floor_div(node, a, b)
    quotient = node.emit("div", a, b)  # truncates for integers
    return node.emit("trunc", quotient) if mode == "trunc" and node.to.is_float else quotient


def _floor_div(node: Context, a: Value, b: Value) -> Value:
    """Python's floor division; a float divided by zero gives infinity or NaN."""
    if not node.to.is_float:
        return node.emit("floordiv", a, b)
    exact = node.emit("div", a, b)
    rest = node.emit("mod", a, b)
    whole = node.emit("round", node.emit("div", node.emit("sub", a, rest), b))
    return node.emit("where", node.emit("equal", b, 0.0), exact, whole)


def _floor_divide(node: Context) -> Value:
    return _floor_div(node, *operands(node, node.to))


def _power(node: Context) -> Value:
    exponent = node.get("exponent")
    base = node.value(node.get("self"), node.to)
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
        if exponent == 1:
            return base
        if exponent == 2:
            return node.emit("mul", base, base)
        if exponent == 0.5 and node.to.is_float:
            return node.emit("sqrt", base)
        if exponent == -1 and node.to.is_float:
            return node.emit("reciprocal", base)
        if exponent == 3:
            return node.emit("mul", node.emit("mul", base, base), base)
    if node.to.is_bool:  # a ** b is false only if a is false and b is true
        return node.emit("logical_or", base, node.emit("logical_not", node.value(exponent, BOOL)))
    return node.emit("pow", base, node.value(exponent, node.to))


def _compare(op: str) -> Rule:
    def rule(node: Context) -> Value:
        to = node.promoted("self", "other")
        if to.is_bool and op not in ("equal", "not_equal"):
            to = U8
        return node.emit(op, *operands(node, to))

    return rule


def _logical(op: str) -> Rule:
    return lambda node: node.emit(op, *operands(node, BOOL))


def _shift(op: str) -> Rule:
    """Shifts by at least the type's width give 0, or the sign."""

    def rule(node: Context) -> Value:
        a, b = operands(node, node.to)
        bits = node.to.bits
        outside = node.emit(
            "logical_or", node.emit("less", b, 0), node.emit("greater_equal", b, bits)
        )
        inside = node.emit(op, a, node.emit("where", outside, node.value(0, node.to), b))
        if op == "shift_left" or node.to.kind == "uint":
            lost = node.value(0, node.to)
        else:
            lost = node.emit(op, a, node.value(bits - 1, node.to))
        return node.emit("where", outside, lost, inside)

    return rule


def _atan2(node: Context) -> Value:
    return node.emit("atan2", *operands(node, node.to))


# ------------------------------------------------------------------------------------ several


def _where(node: Context) -> Value:
    a, b = operands(node, node.to)
    return node.emit("where", node.cast(node["condition"], BOOL), a, b)


def _clamp(node: Context) -> Value:
    """Booleans and unsigned numbers are clamped in the wider type of the bounds."""
    x = node.cast(node["self"], node.to)
    low, high = node.get("min"), node.get("max")
    ops = ("logical_or", "logical_and") if node.to.is_bool else ("maximum", "minimum")
    for op, bound in zip(ops, (low, high), strict=True):
        if bound is not None:
            x = node.emit(op, x, node.value(_within(bound, node.to), node.to))
    return x


def _within(bound: Scalar, of: DType) -> Scalar:
    """The nearest number that a type can hold to a bound outside of it."""
    if of.is_int and isinstance(bound, (int, float)):
        return int(min(max(bound, of.min), of.max))
    return bound


def _to_copy(node: Context) -> Value:
    x = node.get("self")  # a number, if the operator was traced on one
    return convert(node, x, node.to) if isinstance(x, Value) else node.value(x, node.to)


def convert(node: Context, x: Value, to: DType) -> Value:
    """x in another element type. Floats wrap when converted to small integers, as in C."""
    have = x.tensor.dtype
    if have.is_float and to.is_int and to.bits < 64:
        x = node.cast(x, I64)
    return node.cast(x, to)


def _copy(node: Context) -> Value:
    made = convert(node, node["src"], node.to)
    return node.emit("expand", made, shape=items_of(node.out))


def _lerp(node: Context) -> Value:
    a, b = node["self"], node.value(node.get("end"), node.to)
    given = node.get("weight")
    weight, apart = node.value(given, node.to), node.emit("sub", b, a)
    # From the nearer end, as in PyTorch: exact at both.
    from_a = node.emit("add", a, node.emit("mul", weight, apart))
    rest = node.emit("sub", node.value(1.0, node.to), weight)
    from_b = node.emit("sub", b, node.emit("mul", apart, rest))
    if isinstance(given, (int, float)):
        return from_a if abs(given) < 0.5 else from_b
    is_near = node.emit("less", node.emit("abs", weight), node.value(0.5, node.to))
    return node.emit("where", is_near, from_a, from_b)


def _same(name: str = "self") -> Rule:
    return lambda node: node[name]


def _gradient(formula: Callable[[Context, Value, Value], Value]) -> Rule:
    """grad_output times the derivative, computed from the result or the input."""

    def rule(node: Context) -> Value:
        names = [name for name in node.args if name != "grad_output"]
        gradient, x = node["grad_output"], node[names[0]]
        return node.emit("mul", gradient, formula(node, x, gradient))

    return rule


def _tanh_slope(node: Context, y: Value, gradient: Value) -> Value:
    return node.emit("sub", node.value(1.0, node.to), node.emit("mul", y, y))


def _sigmoid_slope(node: Context, y: Value, gradient: Value) -> Value:
    return node.emit("mul", y, node.emit("sub", node.value(1.0, node.to), y))


def _remainder(op: str) -> Rule:
    """PyTorch raises for integers modulo zero; this is not checked here."""

    def rule(node: Context) -> Value:
        if node.to.is_bool:
            raise Skip(f"{node.op_type} of booleans")
        return node.emit(op, *operands(node, node.to))

    return rule


def _multiply_add(node: Context) -> Value:
    """a * b + c, from PyTorch's decomposition of addcmul."""
    a, b, c = (node.value(node.args[name], node.to) for name in "abc")
    return node.emit("add", node.emit("mul", a, b), c)


_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_TENSORS = ("Tensor", "Scalar")

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _float(name) for name in _FLOAT},
    **{f"aten.{name}": _rounding(name) for name in _ROUNDING},
    **{f"aten.{name}": _number(name) for name in _NUMBER},
    "aten.log10": _log10,
    "aten.erfc": _erfc,
    "aten.angle": _angle,
    "aten.round.decimals": _round_decimals,
    "aten.isinf": _is_inf,
    "aten.isnan": _is_nan,
    "aten.bitwise_not": _bitwise_not,
    "aten.logical_not": lambda node: node.emit("logical_not", node.cast(node["self"], BOOL)),
    **{f"aten.add.{kind}": _scaled("add", "logical_or") for kind in _TENSORS},
    **{f"aten.sub.{kind}": _scaled("sub", "logical_xor") for kind in _TENSORS},
    **{f"aten.rsub.{kind}": _rsub for kind in _TENSORS},
    **{f"aten.mul.{kind}": _binary("mul", "logical_and") for kind in _TENSORS},
    **{f"aten.div.{kind}": _div for kind in (*_TENSORS, "Tensor_mode", "Scalar_mode")},
    **{f"aten.floor_divide{kind}": _floor_divide for kind in ("", ".Scalar")},
    **{f"aten.fmod.{kind}": _remainder("fmod") for kind in _TENSORS},
    **{f"aten.remainder.{kind}": _remainder("mod") for kind in (*_TENSORS, "Scalar_Tensor")},
    **{f"aten.pow.{kind}": _power for kind in ("Scalar", "Tensor_Scalar", "Tensor_Tensor")},
    **{
        f"aten.{name}.{kind}": _compare(op)
        for name, op in _COMPARISONS.items()
        for kind in _TENSORS
    },
    **{
        f"aten.bitwise_{name}.{kind}": _binary(f"bit_{name}", f"logical_{name}")
        for name in ("and", "or", "xor")
        for kind in (*_TENSORS, "Scalar_Tensor")
    },
    **{
        f"aten.bitwise_{side}_shift.{kind}": _shift(f"shift_{side}")
        for side in ("left", "right")
        for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
    **{
        f"aten.__{side}shift__.{kind}": _shift(f"shift_{ours}")
        for side, ours in (("l", "left"), ("r", "right"))
        for kind in _TENSORS
    },
    **{f"aten.logical_{name}": _logical(f"logical_{name}") for name in ("and", "or", "xor")},
    "aten.maximum": _binary("maximum", "logical_or"),
    "aten.minimum": _binary("minimum", "logical_and"),
    "aten.atan2": _atan2,
    "aten.atan2.out": _atan2,
    "aten.where.self": _where,
    "aten.clamp": _clamp,
    "aten.clamp.Tensor": _clamp,
    "aten.clamp_min": _clamp,
    "aten.clamp_max": _clamp,
    "aten.lerp.Scalar": _lerp,
    "aten.lerp.Tensor": _lerp,
    "aten._to_copy": _to_copy,
    "prims.fma": _multiply_add,
    "prims.convert_element_type": lambda node: convert(node, node["a"], node.to),
    "aten.copy": _copy,
    "aten.tanh_backward": _gradient(_tanh_slope),
    "aten.sigmoid_backward": _gradient(_sigmoid_slope),
}
