"""Print and parse expressions. The tensor layer extends the two tables with its nodes.

    (%i * 8 + %ii) // n        index arithmetic; sizes are bare, other variables have a %
    select(%i < n, %x, 0.0)    min, max, select, and casts written f32(%i)

A literal takes its type from the other operand or from where it is stored; `f32(0.5)` states the
type explicitly. Bare integers are of type `index`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtype import BOOL, F32, INDEX, DType, dtype, is_dtype_name
from tilewright.base.text import Names, Token, Tokens
from tilewright.sym import expr as e
from tilewright.sym.expr import Const, Expr, Var, const

_PRECEDENCE: dict[type[Expr], int] = {
    e.Or: 1,
    e.And: 2,
    e.Eq: 4,
    e.Ne: 4,
    e.Lt: 4,
    e.Le: 4,
    e.Add: 5,
    e.Sub: 5,
    e.Mul: 6,
    e.Div: 6,
    e.FloorDiv: 6,
    e.FloorMod: 6,
}
_NOT, _ATOM = 3, 9


class ExprPrinter:
    """Prints expressions with the names of one program."""

    def __init__(self, names: Names | None = None) -> None:
        self.names = names

    def name(self, var: Var) -> str:
        name = self.names(var, var.name) if self.names is not None else var.name
        return name if isinstance(var, e.Size) else f"%{name}"

    def __call__(self, expr: Expr, *, typed: bool = False) -> str:
        """`typed`: the context implies the type, so a literal may be bare."""
        if isinstance(expr, Const):
            return literal(expr, bare=typed or expr.dtype in (INDEX, BOOL))
        return self._format(expr)[0]

    def _format(self, expr: Expr) -> tuple[str, int]:
        kind = type(expr)
        level = _PRECEDENCE.get(kind)
        if level is not None:
            assert isinstance(expr, e.Binary)
            a, b = expr.a, expr.b
            bare = not (isinstance(a, Const) and isinstance(b, Const))
            left = self._operand(a, level, bare)
            # Comparisons do not chain; the right operand of - / // % binds tighter.
            right = self._operand(b, level + 1, bare)
            if isinstance(expr, e.Compare):
                left = self._operand(a, level + 1, bare)
            return f"{left} {expr.symbol} {right}", level
        if isinstance(expr, Var):
            return self.name(expr), _ATOM
        if isinstance(expr, Const):
            return self(expr), _ATOM
        if isinstance(expr, (e.Min, e.Max)):
            bare = not (isinstance(expr.a, Const) and isinstance(expr.b, Const))
            return f"{expr.symbol}({self(expr.a, typed=bare)}, {self(expr.b, typed=bare)})", _ATOM
        if isinstance(expr, e.Not):
            return f"not {self._operand(expr.a, _NOT, False)}", _NOT
        if isinstance(expr, e.Select):
            bare = not (isinstance(expr.a, Const) and isinstance(expr.b, Const))
            arms = f"{self(expr.a, typed=bare)}, {self(expr.b, typed=bare)}"
            return f"select({self(expr.cond)}, {arms})", _ATOM
        if isinstance(expr, e.Cast):
            if isinstance(expr.value, Const):
                return f"cast({expr.dtype}, {self(expr.value)})", _ATOM
            return f"{expr.dtype}({self(expr.value)})", _ATOM
        return FORMATTERS[kind](expr, self), _ATOM

    def _operand(self, expr: Expr, level: int, bare: bool) -> str:
        if isinstance(expr, Const):
            text = self(expr, typed=bare)
            return f"({text})" if text.startswith("-") and level > 5 else text
        text, own = self._format(expr)
        return f"({text})" if own < level else text


FORMATTERS: dict[type[Expr], Callable[[Any, ExprPrinter], str]] = {}


def format_expr(expr: Expr) -> str:
    """Print an expression by itself, with variables' name hints."""
    return ExprPrinter()(expr, typed=True)


setattr(Expr, "__str__", format_expr)


def literal(value: Const, *, bare: bool) -> str:
    """Print a constant, `bare` if its type is implied."""
    text = _number(value)
    return text if bare else f"{value.dtype}({text})"


def _number(value: Const) -> str:
    number = value.value
    if value.dtype.is_bool:
        return "true" if number else "false"
    if not value.dtype.is_float:
        return str(number)
    if math.isnan(number) or math.isinf(number):
        return str(number)
    # The shortest decimal that rounds back to the same f32.
    return repr(float(str(np.float32(number)))) if value.dtype is F32 else repr(float(number))


@dataclass(frozen=True, slots=True)
class Literal:
    """A parsed number whose type is not known yet."""

    value: int | float
    token: Token


_BINARY: dict[str, tuple[int, type[e.Binary], bool]] = {
    # operator: (precedence, node, operands swapped)
    "or": (1, e.Or, False),
    "and": (2, e.And, False),
    "==": (4, e.Eq, False),
    "!=": (4, e.Ne, False),
    "<": (4, e.Lt, False),
    "<=": (4, e.Le, False),
    ">": (4, e.Lt, True),
    ">=": (4, e.Le, True),
    "+": (5, e.Add, False),
    "-": (5, e.Sub, False),
    "*": (6, e.Mul, False),
    "/": (6, e.Div, False),
    "//": (6, e.FloorDiv, False),
    "%": (6, e.FloorMod, False),
}


class ExprParser:
    """Parses expressions to exactly the nodes that were printed: nothing is folded."""

    def __init__(self, tokens: Tokens, sizes: dict[str, e.Size], scope: dict[str, Var]) -> None:
        self.tokens = tokens
        self.sizes = sizes
        self.scope = scope

    def expr(self, expected: DType = INDEX) -> Expr:
        """Parse an expression; a bare literal becomes a constant of type `expected`."""
        return self.typed(self._binary(0), expected)

    def typed(self, value: Expr | Literal, of: DType) -> Expr:
        if isinstance(value, Expr):
            return value
        if isinstance(value.value, float) and not of.is_float:
            self.tokens.fail(f"a float literal where {of} is expected", value.token)
        return const(value.value, of)

    def _pair(self, a: Expr | Literal, b: Expr | Literal) -> tuple[Expr, Expr]:
        if isinstance(a, Expr):
            return a, self.typed(b, a.dtype.scalar)
        if isinstance(b, Expr):
            return self.typed(a, b.dtype.scalar), b
        of = F32 if isinstance(a.value, float) or isinstance(b.value, float) else INDEX
        return self.typed(a, of), self.typed(b, of)

    def _binary(self, level: int) -> Expr | Literal:
        left = self._unary()
        while True:
            token = self.tokens.current
            entry = _BINARY.get(token.text) if token.kind in ("punct", "name") else None
            if entry is None or entry[0] < level:
                return left
            self.tokens.next()
            precedence, node, swapped = entry
            right = self._binary(precedence + 1)
            a, b = self._pair(left, right)
            if a.dtype is not b.dtype:
                self.tokens.fail(f"operands have types {a.dtype} and {b.dtype}", token)
            left = node(b, a) if swapped else node(a, b)

    def _unary(self) -> Expr | Literal:
        token = self.tokens.current
        if self.tokens.accept("not"):
            return e.Not(self.typed(self._binary(_NOT), BOOL))
        if self.tokens.accept("-"):
            operand = self._unary()
            if isinstance(operand, Literal):
                return Literal(-operand.value, token)
            return e.Mul(operand, const(-1, operand.dtype))
        return self.primary()

    def primary(self) -> Expr | Literal:
        token = self.tokens.next()
        if token.kind == "int":
            return Literal(int(token.text), token)
        if token.kind == "float":
            return Literal(float(token.text), token)
        if token.text == "(" and token.kind == "punct":
            inner = self._binary(0)
            self.tokens.expect(")")
            return inner
        if token.kind == "local":
            return self.local(token)
        if token.kind == "name":
            return self._named(token)
        self.tokens.fail(f"expected an expression, found {token.text or 'end of text'!r}", token)

    def local(self, token: Token) -> Expr:
        """Parse a `%name`; the tensor parser also resolves buffers here."""
        found = self.scope.get(token.text[1:])
        if found is None:
            self.tokens.fail(f"{token.text} is not defined", token)
        return found

    def _named(self, token: Token) -> Expr | Literal:
        word = token.text
        if word in ("true", "false"):
            return const(word == "true", BOOL)
        if word in ("inf", "nan"):
            return Literal(float(word), token)
        if self.tokens.at(":") and self.tokens.peek(2).text == "(":  # a call with an explicit type
            self.tokens.next()
            of = self.dtype()
            self.tokens.expect("(")
            return self.call(token, of)
        if not self.tokens.at("("):
            if word in self.sizes:
                return self.sizes[word]
            self.tokens.fail(f"size {word} is not a dimension of any parameter", token)
        self.tokens.expect("(")
        if word in ("min", "max"):
            a, b = self._pair(*self._two())
            return (e.Min if word == "min" else e.Max)(a, b)
        if word == "select":
            cond = self.expr(BOOL)
            self.tokens.expect(",")
            a, b = self._pair(*self._two())
            return e.Select(cond, a, b)
        if word == "cast":
            to = self.dtype()
            self.tokens.expect(",")
            value = self.expr()
            self.tokens.expect(")")
            return e.Cast(value, to)
        if is_dtype_name(word):
            inner = self._binary(0)
            self.tokens.expect(")")
            if isinstance(inner, Literal):
                return self.typed(inner, dtype(word))
            return e.Cast(inner, dtype(word))
        return self.call(token, None)

    def _two(self) -> tuple[Expr | Literal, Expr | Literal]:
        a = self._binary(0)
        self.tokens.expect(",")
        b = self._binary(0)
        self.tokens.expect(")")
        return a, b

    def call(self, token: Token, of: DType | None) -> Expr:
        """Parse a function call after its opening parenthesis; overridden by the tensor parser."""
        self.tokens.fail(f"unknown function {token.text}", token)

    def dtype(self) -> DType:
        token = self.tokens.expect_kind("name", "a data type")
        if not is_dtype_name(token.text):
            self.tokens.fail(f"unknown data type {token.text}", token)
        return dtype(token.text)
