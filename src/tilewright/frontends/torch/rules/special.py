"""Special functions, by formulas in f64.

Arguments of the gamma function and its derivatives are raised above 8 by recurrence, where
asymptotic series have errors below 1e-14; the left half plane is reflected to the right one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.dtype import F64, I32, I64, DType
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.elementwise import operands
from tilewright.graph import Value

SHIFT = 8  # steps of the recurrence
# Coefficients of 1/y, 1/y**3, ... of log(gamma(y)), and of 1/y**2, 1/y**4, ... of digamma(y):
# B(2k) / (2k (2k - 1)) and -B(2k) / 2k, of Bernoulli's numbers.
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def in_f64(formula: Callable[[Context, Value], Value]) -> Rule:
    def rule(node: Context) -> Value:
        name = "self" if "self" in node.args else "x"
        return node.cast(formula(node, node.cast(node[name], F64)), node.to)

    return rule


def _one_minus(node: Context, x: Value) -> Value:
    return node.emit("sub", node.value(1.0, F64), x)


def _right(node: Context, x: Value) -> tuple[Value, Value]:
    """Whether x is below 1/2, and x or its reflection."""
    left = node.emit("less", x, 0.5)
    return left, node.emit("where", left, _one_minus(node, x), x)


def _turn(node: Context, x: Value) -> Value:
    """pi times the distance of x to the nearest integer: exactly zero at poles."""
    return node.emit("mul", node.emit("sub", x, node.emit("round", x)), math.pi)


def log_gamma(node: Context, x: Value) -> Value:
    left, z = _right(node, x)
    product = z
    for step in range(1, SHIFT):
        product = node.emit("mul", product, node.emit("add", z, float(step)))
    y = node.emit("add", z, float(SHIFT))
    inverse = node.emit("reciprocal", y)
    square = node.emit("mul", inverse, inverse)
    series = node.value(0.0, F64)
    for k in range(len(BERNOULLI), 0, -1):
        number = BERNOULLI[k - 1] / (2 * k * (2 * k - 1))
        series = node.emit("add", node.emit("mul", series, square), number)
    series = node.emit("mul", series, inverse)
    main = node.emit("mul", node.emit("sub", y, 0.5), node.emit("log", y))
    main = node.emit("add", node.emit("sub", main, y), 0.5 * math.log(2 * math.pi))
    made = node.emit("sub", node.emit("add", main, series), node.emit("log", product))
    made = node.emit("where", node.emit("equal", z, math.inf), node.value(math.inf, F64), made)
    sine = node.emit("abs", node.emit("sin", _turn(node, x)))
    reflected = node.emit("sub", node.value(math.log(math.pi), F64), node.emit("log", sine))
    reflected = node.emit("sub", reflected, made)
    ends = node.emit("equal", x, -math.inf)
    reflected = node.emit("where", ends, node.value(math.inf, F64), reflected)
    return node.emit("where", left, reflected, made)


def _digamma(node: Context, x: Value) -> Value:
    """Infinite at zero, with the opposite sign of the zero; NaN at poles."""
    left, z = _right(node, x)
    passed = node.emit("reciprocal", z)
    for step in range(1, SHIFT):
        passed = node.emit("add", passed, node.emit("reciprocal", node.emit("add", z, float(step))))
    y = node.emit("add", z, float(SHIFT))
    inverse = node.emit("reciprocal", y)
    square = node.emit("mul", inverse, inverse)
    series = node.value(0.0, F64)
    for k in range(len(BERNOULLI), 0, -1):
        series = node.emit("mul", node.emit("add", series, BERNOULLI[k - 1] / (2 * k)), square)
    made = node.emit("sub", node.emit("log", y), node.emit("mul", inverse, 0.5))
    made = node.emit("sub", node.emit("sub", made, series), passed)
    cotangent = node.emit("div", node.value(math.pi, F64), node.emit("tan", _turn(node, x)))
    reflected = node.emit("sub", made, cotangent)
    pole = node.emit("equal", node.emit("round", x), x)
    reflected = node.emit("where", pole, node.value(math.nan, F64), reflected)
    zero = node.emit("neg", node.emit("div", node.value(1.0, F64), x))
    reflected = node.emit("where", node.emit("equal", x, 0.0), zero, reflected)
    return node.emit("where", left, reflected, made)


def inverse_error(node: Context, x: Value) -> Value:
    """An initial guess by Winitzki's formula, then Newton's steps on erf."""
    a = 0.147
    log = node.emit("log", _one_minus(node, node.emit("mul", x, x)))
    first = node.emit("add", node.emit("mul", log, 0.5), 2 / (math.pi * a))
    inner = node.emit("sub", node.emit("mul", first, first), node.emit("div", log, a))
    size = node.emit("sqrt", node.emit("sub", node.emit("sqrt", inner), first))
    y = node.emit("where", node.emit("less", x, 0.0), node.emit("neg", size), size)
    for _ in range(3):
        off = node.emit("sub", node.emit("erf", y), x)
        slope = node.emit("exp", node.emit("neg", node.emit("mul", y, y)))
        slope = node.emit("mul", slope, 2 / math.sqrt(math.pi))
        y = node.emit("sub", y, node.emit("div", off, slope))
    end = node.emit("equal", node.emit("abs", x), 1.0)
    return node.emit("where", end, node.emit("mul", x, math.inf), y)


# ------------------------------------------------------------------------------------ signs


def sign_bit(node: Context, x: Value) -> Value:
    """Whether a number is negative, -0.0 included."""
    of = x.tensor.dtype
    if of.is_float:
        bits: dict[int, DType] = {32: I32, 64: I64}
        wide = x if of.bits in bits else node.cast(x, F64)
        whole = node.emit("bitcast", wide, to=bits[wide.tensor.dtype.bits])
        return node.emit("less", whole, 0)
    if of.kind == "int":
        return node.emit("less", x, 0)
    return node.full(False, node.emit("equal", x, x).tensor.dtype, node.shape(x))


def _copysign(node: Context) -> Value:
    a, b = operands(node, node.to)
    size = node.emit("abs", a)
    return node.emit("where", sign_bit(node, b), node.emit("neg", size), size)


def _ignoring_nan(op: str) -> Rule:
    """The maximum or minimum; NaN only if both operands are."""

    def rule(node: Context) -> Value:
        a, b = operands(node, node.to)
        if node.to.is_bool:
            return node.emit("logical_or" if op == "maximum" else "logical_and", a, b)
        if not node.to.is_float:
            return node.emit(op, a, b)
        best = node.emit("where", node.emit("isnan", b), a, node.emit(op, a, b))
        return node.emit("where", node.emit("isnan", a), b, best)

    return rule


def _hypot(node: Context) -> Value:
    a, b = operands(node, F64)
    total = node.emit("add", node.emit("mul", a, a), node.emit("mul", b, b))
    return node.cast(node.emit("sqrt", total), node.to)


def _ldexp(node: Context) -> Value:
    a, b = operands(node, F64)
    return node.cast(node.emit("mul", a, node.emit("exp2", b)), node.to)


def _fraction_and_exponent(node: Context) -> tuple[Value, Value]:
    """A mantissa in [1/2, 1), and the exponent of two."""
    x = node.cast(node["self"], F64)  # subnormal f32 numbers are normal in f64
    bits = node.emit("bitcast", x, to=I64)
    field = node.emit("bit_and", node.emit("shift_right", bits, 52), 0x7FF)
    exponent = node.emit("sub", field, 1022)
    rest = node.emit("bit_or", node.emit("bit_and", bits, ~(0x7FF << 52)), 1022 << 52)
    mantissa = node.emit("bitcast", rest, to=F64)
    plain = node.emit(
        "logical_and", node.emit("greater", field, 0), node.emit("less", field, 0x7FF)
    )
    mantissa = node.emit("where", plain, mantissa, x)
    exponent = node.emit("where", plain, exponent, node.like(exponent, 0))
    return node.cast(mantissa, node.to), node.cast(exponent, I32)


def _next_after(node: Context) -> Value:
    """The neighbour of a number towards another: its bits, incremented or decremented."""
    a, b = operands(node, node.to)
    whole: DType = {32: I32, 64: I64}[node.to.bits]
    bits = node.emit("bitcast", a, to=whole)
    zero = node.emit("equal", a, 0.0)
    up = node.emit("less", a, b)
    away = node.emit("logical_xor", up, node.emit("less", a, 0.0))
    step = node.emit("where", away, node.value(1, whole), node.value(-1, whole))
    moved = node.emit("bitcast", node.emit("add", bits, step), to=node.to)
    least = node.emit("bitcast", node.value(1, whole), to=node.to)
    least = node.emit("where", up, least, node.emit("neg", least))
    moved = node.emit("where", zero, least, moved)
    moved = node.emit("where", node.emit("equal", a, b), b, moved)
    lost = node.emit("logical_or", node.emit("isnan", a), node.emit("isnan", b))
    return node.emit("where", lost, node.value(math.nan, node.to), moved)


def _polygamma(node: Context) -> Value:
    """(-1)**(n + 1) n! sum of (x + k)**-(n + 1), with the tail by the Euler-Maclaurin formula."""
    n = int(node.args["n"])
    x = node.cast(node["self"], F64)
    if n == 0:
        return node.cast(_digamma(node, x), node.to)
    if n > 6:
        raise Skip(f"polygamma of order {n}")
    power, far = n + 1, 20
    total: Value = node.value(0.0, F64)
    for step in range(far):
        total = node.emit(
            "add", total, _inverse_power(node, node.emit("add", x, float(step)), power)
        )
    y = node.emit("add", x, float(far))
    total = node.emit("add", total, node.emit("div", _inverse_power(node, y, n), float(n)))
    total = node.emit("add", total, node.emit("mul", _inverse_power(node, y, power), 0.5))
    rising = float(power)
    for k in range(1, 5):
        factor = BERNOULLI[k - 1] * rising / math.factorial(2 * k)
        term = _inverse_power(node, y, power + 2 * k - 1)
        total = node.emit("add", total, node.emit("mul", term, factor))
        rising *= (power + 2 * k - 1) * (power + 2 * k)
    sign = 1.0 if n % 2 else -1.0
    return node.cast(node.emit("mul", total, sign * math.factorial(n)), node.to)


def _inverse_power(node: Context, x: Value, power: int) -> Value:
    inverse = node.emit("reciprocal", x)
    made = inverse
    for _ in range(power - 1):
        made = node.emit("mul", made, inverse)
    return made


RULES: dict[str, Rule] = {
    "aten.lgamma": in_f64(log_gamma),
    "aten.digamma": in_f64(_digamma),
    "aten.polygamma": _polygamma,
    "aten.frexp.Tensor": _fraction_and_exponent,
    "aten.nextafter": _next_after,
    "aten.erfinv": in_f64(inverse_error),
    "aten.signbit": lambda node: sign_bit(node, node["self"]),
    "aten.copysign.Tensor": _copysign,
    "aten.copysign.Scalar": _copysign,
    "aten.fmax": _ignoring_nan("maximum"),
    "aten.fmin": _ignoring_nan("minimum"),
    "aten.hypot": _hypot,
    "aten.ldexp.Tensor": _ldexp,
}
