"""Parameters of declared families: `rows` of the memory `amx.tile(rows=14)`.

A memory scope or an intrinsic of many sizes is declared once, with parameters. Its members are
named `NAME(key=number, ...)`, in the order of the declaration, without those at their default. So
every member has exactly one text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.errors import UserError
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.base.text import Tokens

Arguments = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """An integer that members of a family differ in; without a default it must be given."""

    name: str
    least: int = 1
    most: int | None = None
    default: int | None = None
    multiple: int = 1
    is_layout: bool = False  # of a memory: where buffers lie, which instructions do not see

    def __str__(self) -> str:
        text = f"{self.name}: {self.least}" + (
            " or more" if self.most is None else f"..{self.most}"
        )
        text += "" if self.multiple == 1 else f" in steps of {self.multiple}"
        return text + ("" if self.default is None else f" (default {self.default})")

    def allows(self, value: int) -> bool:
        """Whether there is a member with this number."""
        is_small = self.most is None or value <= self.most
        return value >= self.least and is_small and value % self.multiple == 0


def resolve(
    family: str,
    parameters: Sequence[Parameter],
    given: Iterable[tuple[str, int]],
    loc: Loc = UNKNOWN,
) -> dict[str, int]:
    """A number for every parameter, in the order of the declaration."""
    wanted = dict(given)
    known = {parameter.name: parameter for parameter in parameters}
    takes = "it takes " + ("; ".join(map(str, parameters)) or "no parameters")
    for name in wanted:
        if name not in known:
            raise UserError("TW2011", f"{family} has no parameter {name}", loc, help=takes)
    values: dict[str, int] = {}
    for name, parameter in known.items():
        value = wanted.get(name, parameter.default)
        if value is None:
            raise UserError("TW2011", f"{family} needs its parameter {name}", loc, help=takes)
        if not parameter.allows(value):
            raise UserError("TW2011", f"{family} has no member of {name}={value}", loc, help=takes)
        values[name] = int(value)
    return values


def canonical(parameters: Sequence[Parameter], values: Mapping[str, int]) -> Arguments:
    """The arguments that a reference shows: those which are not the default."""
    return tuple([(p.name, values[p.name]) for p in parameters if values[p.name] != p.default])


def reference(name: str, arguments: Iterable[tuple[str, int]]) -> str:
    """The text of a member: `amx.tile(rows=14)`."""
    shown = ", ".join(f"{key}={value}" for key, value in arguments)
    return f"{name}({shown})" if shown else name


def parse_arguments(tokens: Tokens) -> Arguments:
    """What follows a name in parentheses; nothing if there are none."""
    if not tokens.accept("("):
        return ()
    found: dict[str, int] = {}
    while not tokens.accept(")"):
        key = tokens.expect_kind("name", "a parameter")
        if key.text in found:
            tokens.fail(f"parameter {key.text} is given twice", key)
        tokens.expect("=")
        sign = -1 if tokens.accept("-") else 1
        found[key.text] = sign * int(tokens.expect_kind("int", "a number").text)
        if not tokens.at(")"):
            tokens.expect(",")
    return tuple(found.items())


def parse_reference(text: str) -> tuple[str, Arguments]:
    """Reads what `reference` wrote."""
    tokens = Tokens(text)
    name = tokens.expect_kind("name", "a name").text
    arguments = parse_arguments(tokens)
    tokens.expect_kind("end", "nothing more")
    return name, arguments
