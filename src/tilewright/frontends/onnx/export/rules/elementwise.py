"""Arithmetic, comparisons, conversions. Small integers are computed in 32 bits."""

from __future__ import annotations

import math

from tilewright.base.dtype import BOOL, I32, I64, DType, dtype
from tilewright.frontends.onnx.export.emitter import Emitter, Rule, Unwritable, code_of
from tilewright.graph.ir import Node

SMALL = frozenset(dtype(name) for name in ("i8", "u8", "i16", "u16", "i4", "u4"))


def of_input(node: Node, at: int = 0) -> DType:
    value = node.inputs[at]
    assert value is not None
    return value.tensor.dtype


def wide_type(of: DType) -> DType:
    """The type in which ONNX Runtime supports an operator on small integers."""
    if of in SMALL:
        return I32
    return I64 if of is dtype("u32") else of


def widened(e: Emitter, node: Node) -> tuple[list[str], DType]:
    """A node's inputs, converted if of a small type."""
    names, of = e.inputs(node), of_input(node)
    wide = wide_type(of)
    return [e.cast(name, wide) if name and wide is not of else name for name in names], wide


def narrowed(e: Emitter, made: str, node: Node) -> str:
    to = node.outputs[0].tensor.dtype
    return e.cast(made, to) if wide_type(to) is not to else made


def _unary(op: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        (x,), _ = widened(e, node)
        return narrowed(e, e.emit(op, x), node)

    return rule


def _binary(op: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        (a, b), _ = widened(e, node)
        return narrowed(e, e.emit(op, a, b), node)

    return rule


def _compare(op: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        (a, b), of = widened(e, node)
        if of is BOOL and op != "Equal":
            a, b = e.cast(a, I32), e.cast(b, I32)
        return str(e.emit(op, a, b))

    return rule


def _not_equal(e: Emitter, node: Node) -> str:
    (a, b), _ = widened(e, node)
    return str(e.emit("Not", e.emit("Equal", a, b)))


def _extreme(op: str, of_truth: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        (a, b), of = widened(e, node)
        return narrowed(e, e.emit(of_truth if of is BOOL else op, a, b), node)

    return rule


def _rsqrt(e: Emitter, node: Node) -> str:
    return str(e.emit("Reciprocal", e.emit("Sqrt", *e.inputs(node))))


def _trunc(e: Emitter, node: Node) -> str:
    (x,) = e.inputs(node)
    return str(e.emit("Mul", e.emit("Sign", x), e.emit("Floor", e.emit("Abs", x))))


def _log1p(e: Emitter, node: Node) -> str:
    """2 atanh(x / (x + 2))."""
    (x,), of = e.inputs(node), of_input(node)
    two = e.scalar(2, of)
    return str(e.emit("Mul", two, e.emit("Atanh", e.emit("Div", x, e.emit("Add", x, two)))))


def _expm1(e: Emitter, node: Node) -> str:
    """2 sinh(x / 2) exp(x / 2)."""
    (x,), of = e.inputs(node), of_input(node)
    half = e.emit("Mul", x, e.scalar(0.5, of))
    both = e.emit("Mul", e.emit("Sinh", half), e.emit("Exp", half))
    return str(e.emit("Mul", both, e.scalar(2, of)))


def _exp2(e: Emitter, node: Node) -> str:
    return str(e.emit("Exp", e.emit("Mul", *e.inputs(node), e.scalar(math.log(2), of_input(node)))))


def _log2(e: Emitter, node: Node) -> str:
    log = e.emit("Log", *e.inputs(node))
    return str(e.emit("Div", log, e.scalar(math.log(2), of_input(node))))


def _neg(e: Emitter, node: Node) -> str:
    (x,), of = widened(e, node)
    if of.is_int:
        return narrowed(e, e.emit("Sub", e.scalar(0, of), x), node)
    return str(e.emit("Neg", x))


def _relu(e: Emitter, node: Node) -> str:
    (x,), of = widened(e, node)
    if of.is_int:
        return narrowed(e, e.emit("Max", x, e.scalar(0, of)), node)
    return str(e.emit("Relu", x))


def _mod(e: Emitter, node: Node) -> str:
    (a, b), of = widened(e, node)
    if of.is_int:
        return narrowed(e, e.emit("Mod", a, b), node)
    return str(e.emit("Sub", a, e.emit("Mul", b, e.emit("Floor", e.emit("Div", a, b)))))


def _fmod(e: Emitter, node: Node) -> str:
    (a, b), _ = widened(e, node)
    return narrowed(e, e.emit("Mod", a, b, fmod=1), node)


def _floordiv(e: Emitter, node: Node) -> str:
    (a, b), of = widened(e, node)
    if of.is_float:
        return str(e.emit("Floor", e.emit("Div", a, b)))
    return narrowed(e, e.emit("Div", e.emit("Sub", a, e.emit("Mod", a, b)), b), node)


def _shift(direction: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        (a, b), of = e.inputs(node), of_input(node)
        if of.is_int and not of.is_signed:
            if of in (dtype("u16"),):
                wide = dtype("u32")
                shifted = e.emit("BitShift", e.cast(a, wide), e.cast(b, wide), direction=direction)
                return e.cast(shifted, of)
            return str(e.emit("BitShift", a, b, direction=direction))
        power = e.cast(
            e.emit(
                "BitShift", e.scalar(1, dtype("u64")), e.cast(b, dtype("u64")), direction="LEFT"
            ),
            I64,
        )
        wide_a = e.cast(a, I64)
        if direction == "LEFT":
            return e.cast(e.emit("Mul", wide_a, power), of)
        low = e.emit("Sub", wide_a, e.emit("Mod", wide_a, power))
        return e.cast(e.emit("Div", low, power), of)

    return rule


def _atan2(e: Emitter, node: Node) -> str:
    """atan(y / x), plus or minus pi where x is negative."""
    (y, x), of = e.inputs(node), of_input(node)
    zero, turn = e.scalar(0, of), e.scalar(math.pi, of)
    plain = e.emit("Atan", e.emit("Div", y, x))
    signed = e.emit("Where", e.emit("Less", y, zero), e.emit("Neg", turn), turn)
    moved = e.emit("Where", e.emit("Less", x, zero), e.emit("Add", plain, signed), plain)
    nothing = e.emit("And", e.emit("Equal", x, zero), e.emit("Equal", y, zero))
    return str(e.emit("Where", nothing, zero, moved))


def _where(e: Emitter, node: Node) -> str:
    cond, a, b = e.inputs(node)
    of = node.outputs[0].tensor.dtype
    if of in SMALL and of is not dtype("u8"):
        return e.cast(e.emit("Where", cond, e.cast(a, I32), e.cast(b, I32)), of)
    return str(e.emit("Where", cond, a, b))


def _clip(e: Emitter, node: Node) -> str:
    names, _ = widened(e, node)
    x, low, high = [*names, "", ""][:3]
    made = x
    if low:
        made = e.emit("Max", made, low)
    if high:
        made = e.emit("Min", made, high)
    return narrowed(e, made if made != x else e.emit("Identity", x), node)


def _cast(e: Emitter, node: Node) -> str:
    to = node["to"]
    more = {}
    if str(to).startswith("f8") and not node.get("saturate", True):
        more["saturate"] = 0
    if str(to) == "f8e8m0":
        raise Unwritable("a cast to powers of two rounds in ways that ONNX has since opset 24")
    return e.cast(e.inputs(node)[0], to, **more)


def _bitcast(e: Emitter, node: Node) -> str:
    if e.shared.opset < 26:
        raise Unwritable("ONNX has BitCast since opset 26")
    return str(e.emit("BitCast", *e.inputs(node), to=code_of(node["to"])))


_SAME = {
    "abs": "Abs",
    "sign": "Sign",
    "reciprocal": "Reciprocal",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sigmoid": "Sigmoid",
    "erf": "Erf",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "tanh": "Tanh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
}
_PAIRS = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}
_PLAIN = {
    "pow": "Pow",
    "bit_and": "BitwiseAnd",
    "bit_or": "BitwiseOr",
    "bit_xor": "BitwiseXor",
    "bit_not": "BitwiseNot",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "logical_not": "Not",
    "isnan": "IsNaN",
}
_COMPARISONS = {
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}


def _plain(op: str) -> Rule:
    return lambda e, node: str(e.emit(op, *e.inputs(node)))


RULES: dict[str, Rule] = {
    **{ours: _unary(op) for ours, op in _SAME.items()},
    **{ours: _binary(op) for ours, op in _PAIRS.items()},
    **{ours: _plain(op) for ours, op in _PLAIN.items()},
    **{ours: _compare(op) for ours, op in _COMPARISONS.items()},
    "not_equal": _not_equal,
    "minimum": _extreme("Min", "And"),
    "maximum": _extreme("Max", "Or"),
    "rsqrt": _rsqrt,
    "trunc": _trunc,
    "log1p": _log1p,
    "expm1": _expm1,
    "exp2": _exp2,
    "log2": _log2,
    "neg": _neg,
    "relu": _relu,
    "mod": _mod,
    "fmod": _fmod,
    "floordiv": _floordiv,
    "shift_left": _shift("LEFT"),
    "shift_right": _shift("RIGHT"),
    "atan2": _atan2,
    "where": _where,
    "clip": _clip,
    "cast": _cast,
    "cast_text": _cast,
    "bitcast": _bitcast,
}
COMPOSITES = ("rsqrt", "trunc", "log1p", "expm1", "exp2", "log2", "floordiv", "atan2")
