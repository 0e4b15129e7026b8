"""Maps from one index to another, as data: `(n, c) -> (n, c // 16, c % 16)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import sym
from tilewright.base.errors import ParseError, UserError, UserTypeError
from tilewright.base.text import Tokens
from tilewright.sym import Expr, Size
from tilewright.sym.text import ExprParser


@dataclass(frozen=True, slots=True)
class IndexMap:
    """`outputs` as expressions over `inputs`, which are never negative. `str(map)` parses back."""

    inputs: tuple[Size, ...]
    outputs: tuple[Expr, ...]

    def __call__(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where an index goes."""
        mapping: dict[sym.Var, Expr] = dict(zip(self.inputs, index, strict=True))
        return tuple([sym.substitute(output, mapping) for output in self.outputs])

    def __str__(self) -> str:
        left = ", ".join(v.name for v in self.inputs)
        right = ", ".join(str(x) for x in self.outputs)
        return f"({left}) -> ({right})"

    @staticmethod
    def parse(text: str) -> IndexMap:
        """Reads what `str` writes."""
        tokens = Tokens(text, "<index map>")
        sizes: dict[str, Size] = {}
        try:
            tokens.expect("(")
            while not tokens.at(")"):
                name = tokens.expect_kind("name", "an index").text
                if name in sizes:
                    tokens.fail(f"index {name} is named twice")
                sizes[name] = sym.size(name)
                if not tokens.accept(","):
                    break
            tokens.expect(")")
            tokens.expect("->")
            _check_names(tokens, sizes)
            parser = ExprParser(tokens, sizes, {})
            outputs: list[Expr] = []
            tokens.expect("(")
            while not tokens.at(")"):
                outputs.append(sym.rewrite(parser.expr(), sym.rebuild))
                if not tokens.accept(","):
                    break
            tokens.expect(")")
            if tokens.current.kind != "end":
                tokens.fail("expected the end of the map")
        except ParseError as error:
            raise UserError(
                "TW2171",
                f"cannot read the index map {text!r}: {error.message}",
                help='write it like "(n, c) -> (n, c // 16, c % 16)"',
            ) from error
        return _checked(IndexMap(tuple(sizes.values()), tuple(outputs)))

    @staticmethod
    def of(function: Callable[..., Any], rank: int) -> IndexMap:
        """What a Python function does to `rank` indices."""
        kinds = [p.kind for p in inspect.signature(function).parameters.values()]
        names = list(inspect.signature(function).parameters)
        if inspect.Parameter.VAR_POSITIONAL in kinds or len(names) != rank:
            names = [f"i{at}" for at in range(rank)]
        inputs = tuple([sym.size(name) for name in names])
        try:
            found = function(*inputs)
        except TypeError as error:
            raise UserTypeError(
                "TW2171", f"the index map does not take {rank} indices: {error}"
            ) from error
        items = found if isinstance(found, (tuple, list)) else (found,)
        return _checked(IndexMap(inputs, tuple([sym.as_expr(item) for item in items])))


def _check_names(tokens: Tokens, sizes: dict[str, Size]) -> None:
    """What follows uses only known indices, and the functions that expressions know."""
    ahead = 0
    while tokens.peek(ahead).kind != "end":
        token = tokens.peek(ahead)
        ahead += 1
        if token.kind == "name" and token.text not in sizes and tokens.peek(ahead).text != "(":
            tokens.fail(f"{token.text} is not one of its indices", token)


def _checked(made: IndexMap) -> IndexMap:
    if not made.outputs:
        raise UserError("TW2171", f"the index map {made} gives no index")
    for output in made.outputs:
        stray = [v for v in sym.free_vars(output) if v not in made.inputs]
        if stray or output.dtype is not sym.ZERO.dtype:
            what = stray[0].name if stray else str(output)
            raise UserError(
                "TW2171", f"the index map {made} may use only its own indices, not {what}"
            )
    return made
