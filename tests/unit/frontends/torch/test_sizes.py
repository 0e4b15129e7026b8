"""Sizes that PyTorch computes in floats are the same integers."""

import math

import pytest
import sympy
from torch.utils._sympy import functions as of

from tilewright import sym
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.sizes import Sizes

S, T = (sympy.Symbol(name, integer=True, positive=True) for name in "st")
ROUNDED = (
    (of.TruncToInt(sympy.Float(1.5) * of.ToFloat(S)), lambda s, t: int(1.5 * s)),
    (of.TruncToInt(sympy.Float(-0.75) * of.ToFloat(S) + sympy.Float(2.5)),
     lambda s, t: int(-0.75 * s + 2.5)),
    (of.CeilToInt(sympy.Float(0.25) * of.ToFloat(S)), lambda s, t: math.ceil(0.25 * s)),
    (of.RoundToInt(sympy.Float(2.5) * of.ToFloat(S)), lambda s, t: round(2.5 * s)),
    (of.FloorToInt(of.IntTrueDiv(S, T)), lambda s, t: math.floor(s / t)),
    (of.CeilToInt(of.IntTrueDiv(S, T)), lambda s, t: math.ceil(s / t)),
    (of.RoundToInt(of.IntTrueDiv(S, T)), lambda s, t: round(s / t)),
)  # fmt: skip


def _sizes():
    known = Sizes()
    known.symbols = {S: sym.size("s"), T: sym.size("t")}
    return known


@pytest.mark.parametrize(("expr", "want"), ROUNDED, ids=[str(expr) for expr, _ in ROUNDED])
def test_a_rounded_size_is_what_python_makes(expr, want):
    known = _sizes()
    made = known.expr(expr)
    for s in range(1, 25):
        for t in range(1, 9):
            env = {known.symbols[S]: s, known.symbols[T]: t}
            assert sym.evaluate(made, env) == want(s, t)


def test_a_factor_that_products_round_is_refused():
    with pytest.raises(Skip, match=r"0\.7"):
        _sizes().expr(of.TruncToInt(sympy.Float(0.7) * of.ToFloat(S)))
