"""Transcendental functions as arithmetic: they vectorize wherever arithmetic does.

`expand_math` replaces calls such as `exp(x)` by range reduction and a polynomial, in the type of x
for f32 and f64 and in f32 for narrower floats. `docs/internals/math.md` lists the error bounds,
`tests/diff/test_math.py` holds them, `tools/minimax.py` finds the coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright import sym
from tilewright.base.dtype import F32
from tilewright.codegen.math import by_exp2, intervals
from tilewright.codegen.math.error_function import erf
from tilewright.codegen.math.exponential import exp, exp2, exp_nonpositive, expm1, sigmoid
from tilewright.codegen.math.hyperbolic import acosh, asinh, atanh, cosh, sinh, tanh
from tilewright.codegen.math.logarithm import log, log1p, log2, log10
from tilewright.codegen.math.power import pow_
from tilewright.codegen.math.tf32 import round_tf32
from tilewright.codegen.math.trigonometric import acos, asin, atan, atan2, cos, sin, tan
from tilewright.codegen.math.value import Real
from tilewright.sym import Expr
from tilewright.tensor.ir import Call, Function
from tilewright.tensor.visit import rewrite

FORMULAS: dict[str, Callable[..., Real]] = {
    "exp": exp,
    "exp_nonpositive": exp_nonpositive,
    "exp2": exp2,
    "expm1": expm1,
    "sigmoid": sigmoid,
    "log": log,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
    "tanh": tanh,
    "sinh": sinh,
    "cosh": cosh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "atan2": atan2,
    "erf": erf,
    "pow": pow_,
    "round_tf32": round_tf32,
}
# f32 functions for machines with table permutes.
BY_TABLE: dict[str, Callable[..., Real]] = {"erf": intervals.erf, "tanh": intervals.tanh}

# f32 functions for machines with an approximate exp2 instruction.
BY_EXP2: dict[str, Callable[..., Real]] = {
    "exp": by_exp2.exp,
    "exp_nonpositive": by_exp2.exp_nonpositive,
    "sigmoid": by_exp2.sigmoid,
    "tanh": by_exp2.tanh,
    "erf": by_exp2.erf,
    by_exp2.TANH_BESIDE_ONE: by_exp2.one_plus_tanh,
    by_exp2.ROUNDED_SIGMOID: by_exp2.rounded_sigmoid,
    by_exp2.ERF_BESIDE_ONE: by_exp2.one_plus_erf,
    by_exp2.NORMAL_CDF: by_exp2.normal_cdf,
    by_exp2.ROUNDED_NORMAL_CDF: by_exp2.rounded_normal_cdf,
}


def expand_math(fn: Function) -> Function:
    """The function with transcendental calls replaced by arithmetic."""
    body = rewrite(fn.body, None, lambda expr: sym.rewrite(expand_call(expr), _by_steps))
    return fn if body is fn.body else replace(fn, body=body)


def _by_steps(expr: Expr) -> Expr:
    """What an instruction of some machines does, as arithmetic."""
    return expr.args[2] if isinstance(expr, Call) and expr.op == "scale_power" else expr


def expand_call(expr: Expr, *, tables: bool = False, powers: bool = False) -> Expr:
    """One call expanded, or the expression itself. `tables` says that table lookups are fast,
    `powers` that exp2 is."""
    if not isinstance(expr, Call):
        return expr
    formula = FORMULAS.get(expr.op)
    if expr.dtype.bits <= 32:
        quick = {**(BY_TABLE if tables else {}), **(BY_EXP2 if powers else {})}
        formula = quick.get(expr.op, formula)
    if formula is None:
        return expr
    if expr.dtype.bits >= 32:
        return formula(*(Real(arg) for arg in expr.args)).expr
    wide = F32.with_lanes(expr.dtype.lanes)
    return sym.Cast(formula(*(Real(sym.Cast(arg, wide)) for arg in expr.args)).expr, expr.dtype)
