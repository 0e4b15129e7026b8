"""Transcendental functions: error bounds in units in the last place, and special values.

The bounds are the ones `docs/internals/math.md` promises.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import special

from tilewright import sym, te
from tilewright.base.dtype import dtype
from tilewright.base.host import host_arch
from tilewright.base.processors import BASELINE
from tilewright.codegen.build import build
from tilewright.codegen.math import FORMULAS, expand_call, expand_math
from tilewright.codegen.math.by_exp2 import FLUSHED_POWER, POWER, RECIPROCAL, join_calls
from tilewright.codegen.math.value import Real
from tilewright.tensor import parse
from tilewright.tensor.interp import interpret
from tilewright.tensor.ir import Call
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.visit import exprs, rewrite

INF, NAN = np.inf, np.nan
OLDEST = f"cpu -mcpu={BASELINE[host_arch()]}"  # of x86: one without fused multiply-add

# name: (reference, range of arguments for f32 and for f64, bound in ulps for both)
UNARY: dict[str, tuple[Any, tuple[float, float], tuple[float, float], float]] = {
    "exp": (np.exp, (-104, 89), (-745, 710), 1.5),
    "exp_nonpositive": (lambda x: np.exp(np.minimum(x, 0)), (-87.33, 0), (-708.39, 0), 1.5),
    "exp2": (np.exp2, (-150, 129), (-1075, 1025), 1.5),
    "expm1": (np.expm1, (-20, 89), (-40, 710), 2.5),
    "sigmoid": (special.expit, (-104, 104), (-700, 700), 2.5),
    "log": (np.log, (0, 1e4), (0, 1e4), 1.0),
    "log2": (np.log2, (0, 1e4), (0, 1e4), 1.5),
    "log10": (np.log10, (0, 1e4), (0, 1e4), 1.5),
    "log1p": (np.log1p, (-1, 100), (-1, 100), 1.5),
    "tanh": (np.tanh, (-10, 10), (-20, 20), 2.0),
    "sinh": (np.sinh, (-90, 90), (-711, 711), 2.0),
    "cosh": (np.cosh, (-90, 90), (-711, 711), 2.0),
    "asinh": (np.arcsinh, (-1e3, 1e3), (-1e3, 1e3), 2.5),
    "acosh": (np.arccosh, (1, 1e3), (1, 1e3), 2.5),
    "atanh": (np.arctanh, (-1, 1), (-1, 1), 2.5),
    "sin": (np.sin, (-3e7, 3e7), (-1e6, 1e6), 2.5),
    "cos": (np.cos, (-3e7, 3e7), (-1e6, 1e6), 2.5),
    "tan": (np.tan, (-3e7, 3e7), (-1e6, 1e6), 4.0),
    "asin": (np.arcsin, (-1, 1), (-1, 1), 3.0),
    "acos": (np.arccos, (-1, 1), (-1, 1), 2.0),
    "atan": (np.arctan, (-50, 50), (-50, 50), 2.5),
    "erf": (special.erf, (-4.5, 4.5), (-6.5, 6.5), 2.0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (0, 1e4), (0, 1e4), 1.5),
}
BINARY: dict[str, tuple[Any, float]] = {"pow": (np.power, 2.5), "atan2": (np.arctan2, 3.0)}


def program(op: str, of: str, *, vector: bool = True) -> str:
    args = ("%x", "%y") if op in BINARY else ("%x",)
    index = "ramp(%i * 16, 1, 16)" if vector else "%i"
    params = ", ".join(f"{name}: {of}[n]" for name in args)
    values = ", ".join(f"{name}[{index}]" for name in args)
    return f"""
    func @f({params}, %z: {of}[n]) stage flat {{
      for %i in 0..{"n // 16" if vector else "n"} {{
        %z[{index}] = {op}({values})
      }}
    }}"""


def arguments(low: float, high: float, of: Any, n: int) -> Any:
    """Spread over the range, over all magnitudes inside it, and dense near 0 and 1."""
    rng = np.random.default_rng(7)
    sign = rng.choice([-1.0, 1.0], n)
    limit = max(abs(low), abs(high))
    parts = [
        rng.uniform(low, high, n),
        sign * np.exp(rng.uniform(-80, np.log(limit), n)),
        sign * rng.uniform(0, 2, n),
        1 + sign * np.exp(rng.uniform(-30, 0, n)),
    ]
    values = np.concatenate(parts).astype(of)
    values = values[(values >= low) & (values <= high)]
    return values[: len(values) // 16 * 16]


def ulps(got: Any, exact: Any) -> float:
    """The greatest error in units in the last place of the exact result."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        error = np.abs(got.astype(exact.dtype) - exact) / np.spacing(np.abs(rounded))
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        finite = np.isfinite(got) & np.isfinite(rounded)
    return float(np.max(np.where(finite, error, np.where(same, 0, INF)), initial=0))


def exact_of(op: str, *args: Any) -> Any:
    """The function in a wider type."""
    wide = [arg.astype(np.float64 if arg.dtype != np.float64 else np.longdouble) for arg in args]
    reference = UNARY[op][0] if op in UNARY else BINARY[op][0]
    with np.errstate(all="ignore"):
        if op == "sigmoid" and wide[0].dtype == np.longdouble:
            return 1 / (1 + np.exp(-wide[0]))
        return reference(*wide)


def by_powers(op: str) -> Any:
    """A program with a function as machines have it that raise two to a power by an instruction,
    whose place `exp2` takes."""
    fn = parse(program(op, "f32") if op in FORMULAS else program("erf", "f32"))
    if op not in FORMULAS:
        fn = parse(str(fn).replace("= erf(", "= broadcast(f32(1.0), 16) + erf("))
        fn = replace(fn, body=join_calls(fn.body))
    return _by_powers(fn)


def _by_powers(fn: Any) -> Any:
    def rule(expr: Any) -> Any:
        if isinstance(expr, Call) and expr.op in (POWER, FLUSHED_POWER):
            return Call("exp2", expr.args, expr.dtype)
        if isinstance(expr, Call) and expr.op == RECIPROCAL:
            return (1.0 / Real(expr.args[0])).expr
        return expr

    body = rewrite(fn.body, None, lambda e: sym.rewrite(expand_call(e, powers=True), rule))
    return replace(fn, body=body)


@pytest.mark.parametrize("op", ["exp", "exp_nonpositive", "sigmoid", "erf", "tanh"])
def test_f32_error_bound_by_powers_of_two(op: str) -> None:
    _, (low, high), _, bound = UNARY[op]
    x = arguments(low, high, np.float32, 20000)
    z = np.zeros_like(x)
    build(by_powers(op))(x, z)
    assert ulps(z, exact_of(op, x)) <= bound + 1.5  # of the power itself
    edges = np.array([INF, -INF, NAN, 0.0] * 4, np.float32)
    build(by_powers(op))(edges, out := np.zeros_like(edges))
    np.testing.assert_array_equal(out, exact_of(op, edges).astype(np.float32))


@pytest.mark.parametrize("op", ["sigmoid", "tanh", "exp_nonpositive"])
@pytest.mark.parametrize("of", ["f32", "f64"])
def test_exponentials_of_bounded_arguments_are_scaled_by_one_power(op: str, of: str) -> None:
    made = exprs(expand_math(parse(program(op, of))).body)
    assert [expr.op for expr in made if isinstance(expr, Call)].count("shift_left") == 1


def test_erf_beside_one_by_powers_of_two() -> None:
    x = arguments(-12, 12, np.float32, 20000)
    z = np.zeros_like(x)
    build(by_powers("one_plus_erf"))(x, z)
    exact = 1 + special.erf(x.astype(np.float64))
    assert np.abs(z - exact).max() <= 2**-22.5
    edges = np.array([INF, -INF, NAN, 0.0] * 4, np.float32)
    build(by_powers("one_plus_erf"))(edges, out := np.zeros_like(edges))
    np.testing.assert_array_equal(out[:4], np.array([2, 0, NAN, 1], np.float32))


def gelu_by_powers(result: str, of: Any, x: Any) -> tuple[Any, str]:
    """What a function of a GELU and its argument makes of x, and the code."""
    return function_by_powers(result, lambda x: of(te.gelu(x), x), x)


def function_by_powers(result: str, of: Any, x: Any) -> tuple[Any, str]:
    x_of = te.placeholder(x.shape, "f32", name="x")
    kept = te.compute(x.shape, lambda *at: te.cast(of(x_of[at]), result), name="y")
    fn = te.function([x_of, kept], name="f")
    joined = replace(fn, body=join_calls(fn.body))
    out = np.zeros_like(x, dtype=dtype(result).numpy)
    build(_by_powers(joined))(x, out)
    return out.astype(np.float64), str(joined)


# The error of a result: of itself, and of what is too small for it or for the polynomial.
GELU_BOUNDS = {"f32": (0.0, 2**-22), "f16": (2**-10, 2**-25), "bf16": (2**-7.7, 2**-35)}


@pytest.mark.parametrize("result", GELU_BOUNDS)
def test_gelu_by_powers_of_two(result: str) -> None:
    """As exact as its result: a number of 16 bits takes a shorter polynomial."""
    x = np.linspace(-14, 12, 20480, dtype=np.float32)
    x[:3] = INF, NAN, 0.0
    out, text = gelu_by_powers(result, lambda y, x: y, x)
    assert ("normal_cdf_rounded" in text) == (result != "f32")
    assert "erf" not in text
    np.testing.assert_array_equal(out[:3], [INF, NAN, 0])
    wide = x[3:].astype(np.float64)
    exact = wide * special.ndtr(wide)
    relative, absolute = GELU_BOUNDS[result]
    of = np.maximum(np.abs(wide), 1) if result == "f32" else 1
    assert (np.abs(out[3:] - exact) <= relative * np.abs(exact) + absolute * of).all()


@pytest.mark.parametrize("result", GELU_BOUNDS)
def test_silu_by_powers_of_two(result: str) -> None:
    x = np.linspace(-95, 90, 20480, dtype=np.float32)
    x[:3] = INF, NAN, 0.0
    out, text = function_by_powers(result, lambda x: x * te.sigmoid(x), x)
    assert ("sigmoid_rounded" in text) == (result != "f32")
    np.testing.assert_array_equal(out[:3], [INF, NAN, 0])
    wide = x[3:].astype(np.float64)
    exact = wide / (1 + np.exp(-wide))
    relative, absolute = {**GELU_BOUNDS, "f32": (2**-21, 2**-126)}[result]
    assert (np.abs(out[3:] - exact) <= relative * np.abs(exact) + absolute).all()


def test_gelu_by_tanh_takes_one_power() -> None:
    x = np.linspace(-14, 12, 20480, dtype=np.float32)
    x[:3] = INF, NAN, 0.0
    out, text = function_by_powers("f32", lambda x: te.gelu(x, tanh=True), x)
    assert "one_plus_tanh" in text
    np.testing.assert_array_equal(out[:3], [INF, NAN, 0])
    wide = x[3:].astype(np.float64)
    exact = wide / 2 * (1 + np.tanh((wide + 0.044715 * wide**3) * np.sqrt(2 / np.pi)))
    assert (np.abs(out[3:] - exact) <= 2**-22 * np.maximum(np.abs(wide), 1)).all()


# Functions of a GELU and its argument, how much they scale its error, and whether that may be the
# short polynomial's: a sum cancels, and two GELUs have the error of two.
BEHIND_GELU: dict[str, tuple[Any, float, bool]] = {
    "product": (lambda y, x: 0.25 * y * x, 3.0, True),
    "product with a sum": (lambda y, x: y * (y + 1.0), 13.0, True),
    "difference": (lambda y, x: y - 0.5 * x, 1.0, False),
    "product of a sum": (lambda y, x: (y + 0.17) * 64.0, 64.0, False),
    "square": (lambda y, x: y * y, 24.0, False),
}


@pytest.mark.parametrize("name", BEHIND_GELU)
def test_gelu_is_short_in_products_alone(name: str) -> None:
    of, scale, is_short = BEHIND_GELU[name]
    x = np.linspace(-12, 12, 20480, dtype=np.float32)
    out, text = gelu_by_powers("f16", of, x)
    assert ("normal_cdf_rounded" in text) == is_short
    wide = x.astype(np.float64)
    exact = of(wide * special.ndtr(wide), wide)
    relative = 2**-10.3 if is_short else 2**-10.9
    bound = relative * np.abs(exact) + 2**-25 + 2**-22 * scale * np.abs(wide)
    assert (np.abs(out - exact) <= bound).all()


def joined_calls(of: Any) -> set[str]:
    """What a number of 16 bits, made of x, calls when its calls are joined."""
    x = te.placeholder((4,), "f32", name="x")
    fn = te.function([x, te.compute((4,), lambda i: te.cast(of(x[i]), "f16"), name="y")], name="f")
    return {e.op for e in exprs(join_calls(fn.body)) if isinstance(e, Call)}


@pytest.mark.parametrize("addend", [None, 1.0])
def test_joining_calls_takes_a_shared_term_once(addend: float | None) -> None:
    def of(x: Any) -> Any:  # of 2**40 factors
        value = te.gelu(x)
        for _ in range(40):
            value = value * value if addend is None else value * value + addend
        return value

    assert joined_calls(of) == {"normal_cdf"}


def test_joining_calls_follows_a_long_chain() -> None:
    def of(x: Any) -> Any:
        value = x
        for _ in range(2000):
            value = value * x
        return value * te.gelu(x)

    assert joined_calls(of) == {"normal_cdf_rounded"}


def test_tf32_is_rounded_half_to_even() -> None:
    fn = parse(program("round_tf32", "f32"))
    x = arguments(-1e38, 1e38, np.float32, 4000)
    x[:6] = (1 + 2**-11, 1 + 3 * 2**-11, INF, -INF, NAN, 1e-40)
    got, want = np.zeros_like(x), np.zeros_like(x)
    build(fn)(x, got)
    interpret(fn, x, want)
    np.testing.assert_array_equal(got, want)
    assert got[:2].tolist() == [1, 1 + 2**-9]
    plain = np.isfinite(x) & (np.abs(x) > 1e-30)
    assert (np.abs(got[plain] - x[plain]) <= 2**-11 * np.abs(x[plain])).all()


needs_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant <= 52, reason="no type wider than f64 to compare with"
)


@pytest.mark.parametrize("op", UNARY)
def test_f32_error_bound(op: str) -> None:
    _, (low, high), _, bound = UNARY[op]
    x = arguments(low, high, np.float32, 20000)
    z = np.zeros_like(x)
    build(parse(program(op, "f32")))(x, z)
    assert ulps(z, exact_of(op, x)) <= bound


@needs_long_double
@pytest.mark.parametrize("op", [op for op in UNARY if op != "erf"])
def test_f64_error_bound(op: str) -> None:
    _, _, (low, high), bound = UNARY[op]
    x = arguments(low, high, np.float64, 5000)
    z = np.zeros_like(x)
    build(parse(program(op, "f64")))(x, z)
    assert ulps(z, exact_of(op, x)) <= bound


def test_f64_erf_is_as_good_as_scipys() -> None:
    x = arguments(-6.5, 6.5, np.float64, 5000)
    z = np.zeros_like(x)
    build(parse(program("erf", "f64")))(x, z)
    assert ulps(z, special.erf(x)) <= 4  # either may be off by a unit or two


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("of", ["f32", "f64"])
def test_gelu_is_good_to_units_of_its_argument(of: str, tanh: bool) -> None:
    x = arguments(-40, 40, dtype(of).numpy, 20000)
    A = te.placeholder(x.shape, of, name="A")
    B = te.compute(x.shape, lambda i: te.gelu(A[i], tanh=tanh), name="B")
    z = np.zeros_like(x)
    build(te.function([A, B], name="gelu"))(x, z)
    wide = x.astype(np.float64)
    if tanh:
        inner = np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
    else:
        inner = special.erf(wide * np.sqrt(0.5))
    exact = wide * 0.5 * (1 + inner)
    bound = 2.0 if of == "f32" else 3.0  # the reference itself is an f64
    assert np.max(np.abs(z - exact) / np.spacing(np.abs(x))) <= bound
    assert (z[x < -10] == 0).all()


@pytest.mark.parametrize("of", ["f32", "f64"])
@pytest.mark.parametrize("op", BINARY)
def test_binary_error_bound(op: str, of: str) -> None:
    kind = dtype(of).numpy
    if of == "f64" and np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("no type wider than f64 to compare with")
    rng = np.random.default_rng(3)
    n = 16000
    x = np.concatenate([np.exp(rng.uniform(-9, 9, n)), rng.uniform(0.9, 1.1, n)]).astype(kind)
    y = np.concatenate([rng.uniform(-9, 9, n), rng.uniform(-800, 800, n)]).astype(kind)
    z = np.zeros_like(x)
    build(parse(program(op, of)))(x, y, z)
    assert ulps(z, exact_of(op, x, y)) <= BINARY[op][1]


@pytest.mark.parametrize("of", ["f16", "bf16"])
@pytest.mark.parametrize("op", UNARY)
def test_narrow_floats_round_once_from_f32(op: str, of: str) -> None:
    kind = dtype(of).numpy
    low, high = UNARY[op][1]
    with np.errstate(all="ignore"):
        bits = np.arange(1 << 16, dtype=np.uint16).view(kind)
        bits = bits[(bits >= low) & (bits <= high)]
    x = bits[: len(bits) // 16 * 16]
    z = np.zeros_like(x)
    build(parse(program(op, of)))(x, z)
    with np.errstate(all="ignore"):
        exact = exact_of(op, x.astype(np.float32))
        want = exact.astype(np.float32).astype(kind).astype(np.float64)
        # Adjacent values where f32's own error crosses a rounding boundary; subnormal bf16 flush.
        step = np.maximum(np.abs(want) * 2.0 ** (-9 if of == "f16" else -6), 1.2e-38)
        close = np.abs(z.astype(np.float64) - want) <= step
        same = (z.astype(np.float64) == want) | (np.isnan(z.astype(np.float64)) & np.isnan(want))
    assert (close | same).all()


SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, 2.0, 1e-40, -1e-40, 88.0, -200.0, 3e38, -3e38]


@pytest.mark.parametrize("of", ["f32", "f64"])
@pytest.mark.parametrize("op", UNARY)
def test_special_values(op: str, of: str) -> None:
    kind = dtype(of).numpy
    values = [v for v in SPECIAL if not (op in ("sin", "cos", "tan") and 1e8 < abs(v) < INF)]
    x = np.array((values * 16)[:16], kind)
    z = np.zeros_like(x)
    build(parse(program(op, of)))(x, z)
    with np.errstate(all="ignore"):
        want = UNARY[op][0](x)
    np.testing.assert_allclose(z, want, rtol=1e-6)
    zeros = (want == 0) & ~np.isnan(z)
    np.testing.assert_array_equal(np.signbit(z[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize("of", ["f32", "f64"])
@pytest.mark.parametrize("op", BINARY)
def test_special_pairs(op: str, of: str) -> None:
    kind = dtype(of).numpy
    some = np.array(
        [0.0, -0.0, INF, -INF, NAN, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e-40, -1e-40, 1e30, 2.5, 1e5],
        kind,
    )
    x, y = (a.ravel() for a in np.meshgrid(some, some))
    pad = -len(x) % 16
    x, y = np.append(x, x[:pad]), np.append(y, y[:pad])
    z = np.zeros_like(x)
    build(parse(program(op, of)))(x, y, z)
    with np.errstate(all="ignore"):
        want = BINARY[op][0](x, y)
    np.testing.assert_allclose(z, want, rtol=1e-6, atol=1e-44 if of == "f32" else 0)
    zeros = (want == 0) & (z == 0)
    np.testing.assert_array_equal(np.signbit(z[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize("op", FORMULAS)
def test_scalars_give_the_same_bits_as_vectors(op: str) -> None:
    rng = np.random.default_rng(0)
    args = [rng.uniform(1.0, 3.0, 64).astype(np.float32) for _ in range(2 if op in BINARY else 1)]
    one, many = np.zeros(64, np.float32), np.zeros(64, np.float32)
    build(parse(program(op, "f32", vector=False)))(*args, one)
    build(parse(program(op, "f32", vector=True)))(*args, many)
    np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("op", ["exp", "log", "tanh", "erf", "sin", "pow"])
def test_expanded_functions_mean_the_same_to_the_interpreter(op: str) -> None:
    rng = np.random.default_rng(0)
    args = [rng.uniform(0.1, 3.0, 16).astype(np.float32) for _ in range(2 if op in BINARY else 1)]
    plain, expanded = np.zeros(16, np.float32), np.zeros(16, np.float32)
    fn = parse(program(op, "f32", vector=False))
    interpret(fn, *args, plain)
    interpret(expand_math(fn), *args, expanded)
    np.testing.assert_allclose(expanded, plain, rtol=1e-6)


@pytest.mark.parametrize("op", ["exp", "log", "tanh", "erf"])
def test_the_bound_holds_without_fused_multiply_add(op: str) -> None:
    _, (low, high), _, bound = UNARY[op]
    x = arguments(low, high, np.float32, 20000)
    z = np.zeros_like(x)
    build(parse(program(op, "f32")), OLDEST)(x, z)
    assert ulps(z, exact_of(op, x)) <= max(2.0, bound)


@pytest.mark.parametrize("op", ["tanh", "erf"])
@pytest.mark.parametrize("lanes", [1, 8, 16, 48, 64])
def test_tables_serve_any_number_of_lanes(op: str, lanes: int) -> None:
    x = np.random.default_rng(0).uniform(-10.0, 10.0, 192).astype(np.float32)
    x[:6] = np.inf, -np.inf, np.nan, -0.0, 1e-40, 3e38
    A = te.placeholder(x.shape, name="A")
    B = te.compute(x.shape, lambda i: getattr(te, op)(A[i]), name="B")
    sch = Schedule(te.function([A, B], name="f"))
    if lanes > 1:
        _, lane = sch.split(sch.get_loops(sch.get_block("B"))[0], [None, lanes])
        sch.vectorize(lane)
    z = np.zeros_like(x)
    build(sch.function)(x, z)
    exact = (special.erf if op == "erf" else np.tanh)(x.astype(np.float64))
    np.testing.assert_allclose(z, exact.astype(np.float32), rtol=2.4e-7)
    assert z[:2].tolist() == [1.0, -1.0]
    assert np.isnan(z[2])
    assert np.signbit(z[3])
