"""Symbolic sizes: from SymPy, as PyTorch writes them, to expressions of the graph IR.

A symbol stands for a size of an input, or for a data-dependent one (`u0`): the former are known
from the start, the latter once the node that defines them is translated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy
import torch

from tilewright import sym
from tilewright.frontends.common.report import Skip
from tilewright.sym import Expr

_FOLDED: dict[str, Callable[[Any, Any], Expr]] = {
    "Add": sym.add,
    "Mul": sym.mul,
    "Max": sym.maximum,
    "Min": sym.minimum,
}
_PAIRS: dict[str, Callable[[Any, Any], Expr]] = {
    "FloorDiv": sym.floordiv,
    "CleanDiv": sym.floordiv,
    "CeilDiv": sym.ceildiv,
    "Mod": sym.floormod,
    "PythonMod": sym.floormod,
    "Equality": sym.eq,
    "Unequality": sym.ne,
    "LessThan": sym.le,
    "StrictLessThan": sym.lt,
    "GreaterThan": lambda a, b: sym.le(b, a),
    "StrictGreaterThan": lambda a, b: sym.lt(b, a),
}


def _toward_zero(above: Expr, below: Expr) -> Expr:
    less = sym.sub(0, sym.floordiv(sym.sub(0, above), below))
    return sym.select(sym.lt(above, 0), less, sym.floordiv(above, below))


def _to_even(above: Expr, below: Expr) -> Expr:
    """Round to the nearest integer, ties to even."""
    double = sym.mul(above, 2)
    up = sym.floordiv(sym.add(double, below), sym.mul(below, 2))
    is_tie = sym.eq(sym.sub(sym.mul(up, sym.mul(below, 2)), below), double)
    return sym.sub(up, sym.select(is_tie, sym.floormod(up, 2), sym.as_expr(0)))


_ROUNDED: dict[str, Callable[[Expr, Expr], Expr]] = {
    "FloorToInt": sym.floordiv,
    "CeilToInt": lambda a, b: sym.sub(0, sym.floordiv(sym.sub(0, a), b)),
    "TruncToInt": _toward_zero,
    "RoundToInt": _to_even,
}
_EXACT_BITS = 20  # of a factor, so that its product with a size is exact in f64


def symbols_of(value: int | torch.SymInt | torch.SymFloat | torch.SymBool) -> list[sympy.Symbol]:
    """The symbols of a size, by name."""
    if isinstance(value, (bool, int, float)):
        return []
    return sorted(value.node.expr.free_symbols, key=str)


class Sizes:
    """The definitions of the symbols of an exported program."""

    def __init__(self) -> None:
        self.symbols: dict[sympy.Symbol, Expr] = {}

    def expr(self, value: int | torch.SymInt | torch.SymBool | sympy.Basic) -> Expr:
        """A size as an expression."""
        if isinstance(value, int):
            return sym.as_expr(value)
        if isinstance(value, (torch.SymInt, torch.SymBool)):
            value = value.node.expr
        return sym.simplify(self._built(value))

    def knows(self, value: int | torch.SymInt | torch.SymFloat | torch.SymBool) -> bool:
        """Whether every symbol of a size has been defined."""
        return not self.unknown(value)

    def unknown(
        self, value: int | torch.SymInt | torch.SymFloat | torch.SymBool
    ) -> list[sympy.Symbol]:
        """The symbols of a size that have not been defined."""
        return [symbol for symbol in symbols_of(value) if symbol not in self.symbols]

    def _built(self, expr: Any) -> Expr:
        """Expressions of sizes are small and flat: recursion is safe."""
        if isinstance(expr, sympy.Symbol):
            if expr not in self.symbols:
                raise Skip(f"the size {expr}, which nothing defines")
            return self.symbols[expr]
        if isinstance(expr, sympy.Integer):
            return sym.as_expr(int(expr))
        if expr is sympy.true or expr is sympy.false:
            return sym.as_expr(int(bool(expr)))
        kind = type(expr).__name__
        if kind == "Mul":
            return self._product(expr)
        if kind in ("And", "Or"):
            parts = [self._built(each) for each in expr.args]
            return sym.all_of(*parts) if kind == "And" else sym.any_of(*parts)
        if kind == "Not":
            return sym.logical_not(self._built(expr.args[0]))
        if kind in _FOLDED:
            return reduce(_FOLDED[kind], (self._built(each) for each in expr.args))
        if kind in _PAIRS:
            a, b = expr.args
            return _PAIRS[kind](self._built(a), self._built(b))
        if kind in ("Pow", "PowByNatural") and isinstance(expr.args[1], sympy.Integer):
            base, power = expr.args
            if int(power) >= 1:
                return reduce(sym.mul, [self._built(base)] * int(power))
        if kind == "Piecewise":
            *cases, (last, _) = expr.args
            made = self._built(last)
            for value, cond in reversed(cases):
                made = sym.select(self._built(cond), self._built(value), made)
            return made
        if kind == "Where":
            return sym.select(*(self._built(each) for each in expr.args))
        if kind in ("Identity", "ToFloat"):
            return self._built(expr.args[0])
        if kind in _ROUNDED:
            return _ROUNDED[kind](*self._ratio(expr.args[0]))
        if kind == "ModularIndexing":
            base, by, modulus = (self._built(each) for each in expr.args)
            return sym.floormod(sym.floordiv(base, by), modulus)
        raise Skip(f"sizes with {kind}, as in {expr}")

    def _ratio(self, expr: Any) -> tuple[Expr, Expr]:
        """A number to be rounded, as numerator and denominator.

        Restricted to where rounding PyTorch's f64 result gives the same integer: products of sizes
        and factors of few bits are exact, and a quotient of integers never rounds to an integer
        that it is not.
        """
        if type(expr).__name__ == "IntTrueDiv":
            above, below = expr.args
            return self._built(above), self._built(below)
        above, below = self._exact(expr)
        return above, sym.as_expr(below)

    def _exact(self, expr: Any) -> tuple[Expr, int]:
        kind = type(expr).__name__
        if isinstance(expr, (sympy.Float, sympy.Rational)):
            above, below = float(expr).as_integer_ratio()
            if max(abs(above), below).bit_length() > _EXACT_BITS:
                raise Skip(f"sizes times {expr}, which is rounded")
            return sym.as_expr(above), below
        if expr.is_integer or kind == "ToFloat":
            return self._built(expr), 1
        if kind not in ("Mul", "Add") or len(expr.args) != 2:
            raise Skip(f"sizes with {kind}, as in {expr}")
        (a, under_a), (b, under_b) = (self._exact(each) for each in expr.args)
        if kind == "Mul":
            return sym.mul(a, b), under_a * under_b
        return sym.add(sym.mul(a, under_b), sym.mul(b, under_a)), under_a * under_b

    def _product(self, expr: Any) -> Expr:
        """SymPy writes exact quotients as products with a fraction."""
        above, below = sympy.fraction(expr)
        if below == 1:
            return reduce(sym.mul, (self._built(each) for each in expr.args))
        return sym.floordiv(self._built(above), self._built(below))
