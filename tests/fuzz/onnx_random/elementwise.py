"""Operators on each element by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnx_random.pick import broadcast, partner, pick
from onnx_random.values import (
    DTYPES,
    INF,
    INTEGERS,
    NUMBERS,
    SIGNED,
    UNSIGNED,
    Scope,
    Val,
    code_of,
)

COMMON = ("float32", "float64", "float16")

# Functions of a number: from which opset on, how large its argument may be and the result is.
UNARY: dict[str, tuple[int, float, float]] = {
    "Sigmoid": (13, INF, 1),
    "Tanh": (13, INF, 1),
    "Exp": (13, 16, 1e7),
    "Log": (13, INF, INF),
    "Sqrt": (13, INF, INF),
    "Erf": (13, INF, 1),
    "Reciprocal": (13, INF, INF),
    "Softplus": (13, INF, INF),
    "Softsign": (13, INF, 1),
    "Elu": (13, INF, INF),
    "Selu": (13, INF, INF),
    "HardSigmoid": (13, INF, 1),
    "HardSwish": (14, INF, INF),
    "Celu": (13, INF, INF),
    "Gelu": (20, INF, INF),
    "Mish": (18, INF, INF),
    "Sin": (13, 1e3, 1),
    "Cos": (13, 1e3, 1),
    "Tan": (13, 1, 2),
    "Asin": (13, INF, 2),
    "Acos": (13, INF, 4),
    "Atan": (13, INF, 2),
    "Sinh": (13, 16, 1e7),
    "Cosh": (13, 16, 1e7),
    "Asinh": (13, INF, INF),
    "Acosh": (13, INF, INF),
    "Atanh": (13, INF, INF),
}
# Functions of a number that lose nothing.
EXACT = ("Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Relu", "LeakyRelu", "ThresholdedRelu")


def unary(scope: Scope) -> None:
    ops = [op for op, (since, _, _) in UNARY.items() if scope.opset >= since]
    op = scope.rng.choice(ops)
    _, most, bound = UNARY[op]
    x = pick(scope, COMMON if op != "Celu" else COMMON[:1], bound=most)
    attributes = {}
    if op in ("Elu", "Celu") and scope.rng.random() < 0.5:
        attributes["alpha"] = 0.75
    if op == "Gelu" and scope.rng.random() < 0.5:
        attributes["approximate"] = "tanh"
    if op in ("Softplus", "Elu", "Selu", "HardSwish", "Celu", "Gelu", "Mish"):
        bound = 4 * x.bound + 4
    scope.add(op, [x], [scope.like(x, exact=False, bound=bound)], **attributes)


def exact_unary(scope: Scope) -> None:
    op = scope.rng.choice(EXACT)
    among = COMMON + (SIGNED if op in ("Abs", "Neg", "Sign") else ())
    among += UNSIGNED if op in ("Abs", "Sign") else ()
    jumps = op in ("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu")
    x = pick(scope, among, exact=jumps)
    attributes = {"alpha": 0.25} if op == "LeakyRelu" else {}
    attributes |= {"alpha": 0.5} if op == "ThresholdedRelu" else {}
    scope.add(op, [x], [scope.like(x, bound=x.bound + 1)], **attributes)


def is_special(scope: Scope) -> None:
    op = scope.rng.choice(["IsNaN", "IsInf"])
    x = pick(scope, ("float32", "float64"), exact=True)
    scope.add(op, [x], [scope.like(x, dtype="bool", bound=1)])


def nonzero_partner(scope: Scope, x: Val) -> Val:
    """An integer divisor that is never zero nor turns the least number round."""
    shape = tuple(dim[0] if len(set(dim)) == 1 else 1 for dim in x.shape[-1:])
    low = np.random.default_rng(scope.rng.randrange(1 << 30)).integers(2, 7, shape)
    sign = scope.rng.choice([1, -1]) if x.dtype in SIGNED else 1
    return scope.constant(low * sign, x.dtype)


def arithmetic(scope: Scope) -> None:
    op = scope.rng.choice(["Add", "Sub", "Mul", "Div", "Add", "Mul"])
    among = NUMBERS if scope.opset >= 14 else (*COMMON, "int32", "int64")
    x = pick(scope, among if scope.rng.random() < 0.5 else COMMON)
    whole = not x.is_float
    y = nonzero_partner(scope, x) if whole and op == "Div" else partner(scope, x)
    shape = broadcast([x.shape, y.shape])
    if shape is None:
        return
    bound = {"Add": x.bound + y.bound, "Sub": x.bound + y.bound, "Div": INF}.get(
        op, x.bound * y.bound if min(x.bound, y.bound) else 0
    )
    terms = max(x.terms, y.terms)
    swap = scope.rng.random() < 0.3 and not (whole and op == "Div")
    made = scope.like(x, shape=shape, exact=whole, bound=bound, terms=terms)
    scope.add(op, [y, x] if swap else [x, y], [made])


def power(scope: Scope) -> None:
    x = pick(scope, ("float32", "float64"), bound=64)
    exponent = scope.rng.choice([0.5, 1.0, 2.0, 3.0, -1.0, 0.0])
    y = scope.constant(np.float64(exponent), x.dtype)
    scope.add("Pow", [x, y], [scope.like(x, exact=False, bound=INF)])


def modulo(scope: Scope) -> None:
    x = pick(scope, INTEGERS)
    y = nonzero_partner(scope, x)
    shape = broadcast([x.shape, y.shape])
    if shape is not None:
        fmod = int(scope.rng.random() < 0.3)
        scope.add("Mod", [x, y], [scope.like(x, shape=shape, bound=8)], fmod=fmod)


def float_modulo(scope: Scope) -> None:
    x = pick(scope, ("float32", "float64"), exact=True, bound=1e4)
    y = scope.constant(np.float64(scope.rng.choice([1.0, 2.5, -3.0])), x.dtype)
    scope.add("Mod", [x, y], [scope.like(x, bound=8)], fmod=1)


def comparison(scope: Scope) -> None:
    op = scope.rng.choice(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
    x = pick(scope, ("float32", "float64", "int32", "int64"), exact=True)
    y = partner(scope, x, exact=True)
    shape = broadcast([x.shape, y.shape])
    if shape is not None:
        scope.add(op, [x, y], [scope.like(x, dtype="bool", shape=shape, bound=1)])


def logic(scope: Scope) -> None:
    x = pick(scope, ("bool",))
    op = scope.rng.choice(["And", "Or", "Xor", "Not"])
    if op == "Not":
        scope.add(op, [x], [scope.like(x)])
        return
    y = partner(scope, x)
    shape = broadcast([x.shape, y.shape])
    if shape is not None:
        scope.add(op, [x, y], [scope.like(x, shape=shape)])


def bits(scope: Scope) -> None:
    op = scope.rng.choice(["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"])
    if op == "BitShift":
        x = pick(scope, UNSIGNED)
        y = scope.constant(np.array(scope.rng.randint(0, 5)), x.dtype)
        way = scope.rng.choice(["LEFT", "RIGHT"])
        scope.add(op, [x, y], [scope.like(x, bound=INF)], direction=way)
        return
    if scope.opset < 18:
        return
    x = pick(scope, INTEGERS)
    if op == "BitwiseNot":
        scope.add(op, [x], [scope.like(x, bound=INF)])
        return
    y = partner(scope, x)
    shape = broadcast([x.shape, y.shape])
    if shape is not None:
        scope.add(op, [x, y], [scope.like(x, shape=shape, bound=INF)])


def several(scope: Scope) -> None:
    op = scope.rng.choice(["Sum", "Mean", "Max", "Min", "Max", "Min"])
    among = COMMON[:2] + (("int32", "int64", "uint8") if op in ("Max", "Min") else ())
    parts = [pick(scope, among)]
    for _ in range(scope.rng.randint(0, 2)):
        parts.append(partner(scope, parts[0]))
    shape = broadcast([part.shape for part in parts])
    if shape is None:
        return
    exact = op in ("Max", "Min") and all(part.exact for part in parts)
    bound = sum(part.bound for part in parts)
    terms = max(part.terms for part in parts)
    made = scope.like(parts[0], shape=shape, exact=exact, bound=bound, terms=terms)
    scope.add(op, parts, [made])


def where(scope: Scope) -> None:
    x = pick(scope, ("float32", "float64", "int32", "int64", "uint8", "bool"))
    y = partner(scope, x)
    shape = broadcast([x.shape, y.shape])
    if shape is None:
        return
    c = partner(scope, scope.like(x, dtype="bool"))
    shape = broadcast([shape, c.shape])
    if shape is not None:
        both = max(x.bound, y.bound)
        made = scope.like(x, shape=shape, exact=x.exact and y.exact, bound=both)
        scope.add("Where", [c, x, y], [made])


def clip(scope: Scope) -> None:
    x = pick(scope, ("float32", "float64", "int32", "int64", "int8", "uint8"))
    low, high = (1, 3) if x.dtype in UNSIGNED else (-1.5 if x.is_float else -2, 2)
    bounds = [scope.constant(np.array(low), x.dtype), scope.constant(np.array(high), x.dtype)]
    which = scope.rng.choice(["both", "low", "high"])
    names = {"both": bounds, "low": bounds[:1], "high": ["", bounds[1]]}[which]
    bound = 3.0 if which == "both" else INF
    scope.add("Clip", [x, *names], [scope.like(x, bound=min(bound, x.bound + 3))])


def prelu(scope: Scope) -> None:
    x = pick(scope, ("float32", "float64", "int32"))
    slope = partner(scope, x, bound=64)
    if broadcast([x.shape, slope.shape]) == x.shape:
        bound = x.bound * max(slope.bound, 1)
        scope.add("PRelu", [x, slope], [scope.like(x, exact=not x.is_float, bound=bound)])


CAST_TO = (*DTYPES, "float8_e4m3fn", "float8_e5m2")


def cast(scope: Scope) -> None:
    """To any type the numbers fit: what happens to others is nobody's to say."""
    x = pick(scope, DTYPES, exact=True, bound=100)
    to = scope.rng.choice(CAST_TO)
    exact = True
    if to in UNSIGNED and x.dtype not in UNSIGNED and x.dtype != "bool":
        if x.is_float:
            x = scope.add("Abs", [x], [scope.like(x)])
        elif scope.rng.random() < 0.5:
            return
    if to.startswith("float8"):
        if scope.opset < 19 or x.dtype != "float32":
            return
        small = scope.add("Cast", [x], [scope.like(x, dtype=to)], to=code_of(to))
        scope.values.remove(small)
        scope.add("Cast", [small], [scope.like(x)], to=code_of("float32"))
        return
    bound = max(1.0, x.bound) if to != "bool" else 1.0
    if x.dtype in SIGNED and to in UNSIGNED:
        bound = INF
    if to in ("bfloat16", "float16") and x.dtype not in ("bool", "int8", "uint8"):
        exact = x.dtype in ("float16", "bfloat16", "float32") and x.bound <= 8 and x.exact
    scope.add("Cast", [x], [scope.like(x, dtype=to, exact=exact, bound=bound)], to=code_of(to))


GENERATORS: tuple[tuple[Callable[[Scope], None], float], ...] = (
    (unary, 6),
    (exact_unary, 4),
    (is_special, 0.5),
    (arithmetic, 8),
    (power, 1),
    (modulo, 0.7),
    (float_modulo, 0.3),
    (comparison, 2),
    (logic, 1),
    (bits, 1),
    (several, 2),
    (where, 2),
    (clip, 1.5),
    (prelu, 0.7),
    (cast, 3),
)
