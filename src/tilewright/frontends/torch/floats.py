"""Float scalars computed from sizes, such as 1 / (height * width)."""

from __future__ import annotations

from functools import reduce
from typing import Any

import sympy

from tilewright.base.dtype import F64
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.sizes import Sizes
from tilewright.graph import Builder, Value
from tilewright.graph.types import items_of

_FOLDED = {"Add": "add", "Mul": "mul", "Max": "maximum", "Min": "minimum"}
_QUOTIENTS = ("IntTrueDiv", "FloatTrueDiv")
_UNARY = {
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_exp": "exp",
    "OpaqueUnaryFn_log": "log",
    "OpaqueUnaryFn_log2": "log2",
    "OpaqueUnaryFn_cos": "cos",
    "OpaqueUnaryFn_sin": "sin",
    "OpaqueUnaryFn_tanh": "tanh",
}


def float_of(expr: Any, sizes: Sizes, builder: Builder) -> Value:
    """A symbolic float as a scalar of f64, computed at run time."""

    def constant(number: float) -> Value:
        return builder.constant(F64.numpy.type(number))

    def built(each: Any) -> Value:
        if isinstance(each, (sympy.Number, sympy.NumberSymbol)):
            return constant(float(each))
        kind = type(each).__name__
        if kind in _QUOTIENTS:
            return builder.add("div", *(built(arg) for arg in each.args))
        if kind == "ToFloat":
            return built(each.args[0])
        if kind in _UNARY:
            return builder.add(_UNARY[kind], built(each.args[0]))
        if each.is_integer:
            (item,) = items_of([sizes.expr(each)])
            return builder.add("cast", builder.add("dims", values=item), to=F64)
        if kind in _FOLDED:
            parts = [built(arg) for arg in each.args]
            return reduce(lambda a, b: builder.add(_FOLDED[kind], a, b), parts)
        if kind in ("Pow", "FloatPow", "PowByNatural"):
            return builder.add("pow", *(built(arg) for arg in each.args))
        raise Skip(f"a number with {kind}, as in {each}")

    return built(expr)
