"""The errors a running program can cause, each showing the statement at fault.

The program that runs is generated code; it holds a number for every place that can fail, and
hands that number here together with the values of the loops around.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from tilewright.base.errors import Excerpt, ExecutionError
from tilewright.sym import Size, Var
from tilewright.tensor.ir import Buffer, Function
from tilewright.tensor.printer import format_with_spans


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the program: what the printer marks there, and the variables in scope."""

    mark: object
    variables: tuple[Var, ...]


class Failures:
    """Raises errors about one function."""

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.sites: list[Site] = []
        self._numbers: dict[Site, int] = {}

    def site(self, mark: object, variables: tuple[Var, ...]) -> int:
        """The number of a place."""
        site = Site(mark, variables)
        if site not in self._numbers:
            self._numbers[site] = len(self.sites)
            self.sites.append(site)
        return self._numbers[site]

    def fail(
        self, code: str, message: str, at: int, values: tuple[Any, ...], help: str
    ) -> NoReturn:
        site = self.sites[at]
        text, spans = format_with_spans(self.fn)
        excerpt = None
        if site.mark in spans:
            line, column, width = spans[site.mark]
            excerpt = Excerpt(tuple(text.split("\n")), line, column, width)
        shown = ", ".join(
            f"{_name(v)} = {int(x)}" for v, x in zip(site.variables, values, strict=True)
        )
        context = f"@{self.fn.name}" + (f", where {shown}" if shown else "")
        loc = getattr(site.mark, "loc", self.fn.loc)
        raise ExecutionError(code, message, loc, context=context, excerpt=excerpt, help=help)

    # ------------------------------------------------------------------ what can go wrong

    def bounds(
        self,
        at: int,
        values: tuple[Any, ...],
        what: str,
        buffer: Buffer,
        index: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> NoReturn:
        axis = next(d for d, (i, n) in enumerate(zip(index, shape, strict=True)) if not 0 <= i < n)
        self.fail(
            "TW2301",
            f"{what} %{buffer.name}{list(map(int, index))} is out of bounds: "
            f"dimension {axis} has {shape[axis]} elements",
            at,
            values,
            "guard the access with select, if or a block predicate, or enlarge the buffer",
        )

    def uninitialised(
        self, at: int, values: tuple[Any, ...], buffer: Buffer, index: tuple[int, ...]
    ) -> NoReturn:
        self.fail(
            "TW2302",
            f"%{buffer.name}{list(map(int, index))} is read before anything is stored there",
            at,
            values,
            "store to it first; a reduction needs an init, or a block of its own that clears it",
        )

    def race(
        self,
        at: int,
        values: tuple[Any, ...],
        kind: str,
        loop: Var,
        buffer: Buffer,
        index: tuple[int, ...],
        mine: tuple[str, int],
        other: tuple[str, int],
    ) -> NoReturn:
        self.fail(
            "TW2303",
            f"race in {kind} loop %{loop.name}: %{buffer.name}{list(map(int, index))} is "
            f"{other[0]} by iteration {other[1]} and {mine[0]} by iteration {mine[1]}",
            at,
            values,
            "iterations of such a loop must not depend on one another: make it serial, or give "
            "each iteration elements of its own",
        )

    def region(
        self,
        at: int,
        values: tuple[Any, ...],
        what: str,
        buffer: Buffer,
        index: tuple[int, ...],
        block: str,
    ) -> NoReturn:
        word = "reads" if what == "load of" else "writes"
        self.fail(
            "TW2307",
            f"{what} %{buffer.name}{list(map(int, index))} lies outside what block @{block} "
            f"declares under `{word}`",
            at,
            values,
            "schedules rely on the declared regions: widen them to cover every access",
        )

    def domain(
        self, at: int, values: tuple[Any, ...], var: Var, value: int, extent: int, block: str
    ) -> NoReturn:
        self.fail(
            "TW2308",
            f"iterator %{var.name} of block @{block} is {int(value)}, outside 0..{int(extent)}",
            at,
            values,
            "bind it within its extent, or exclude the instance by a predicate (`where`)",
        )

    def repeated(
        self,
        at: int,
        values: tuple[Any, ...],
        buffer: Buffer,
        index: tuple[int, ...],
        block: str,
        point: tuple[int, ...],
    ) -> NoReturn:
        self.fail(
            "TW2309",
            f"block @{block} adds to %{buffer.name}{list(map(int, index))} twice with iterators "
            f"{list(map(int, point))}",
            at,
            values,
            "an instance of a reduction may run again only after its result was initialised again",
        )

    def division(self, at: int, values: tuple[Any, ...]) -> NoReturn:
        self.fail("TW2310", "integer division by zero", at, values, "guard the divisor with select")


def _name(var: Var) -> str:
    return var.name if isinstance(var, Size) else f"%{var.name}"
