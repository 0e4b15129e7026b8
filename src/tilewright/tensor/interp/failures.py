"""Run-time errors of programs, each showing the statement at fault.

The generated code has a number for every place that can fail, and reports it with the values of the
enclosing loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from tilewright.base.errors import Excerpt, ExecutionError
from tilewright.sym import Size, Var
from tilewright.tensor.interp.memory import Memory
from tilewright.tensor.ir import Buffer, Function
from tilewright.tensor.printer import Printer
from tilewright.tensor.proxies import FENCE

Values = tuple[Any, ...]
CHECKS = (  # the methods of Failures that generated code calls
    "bounds",
    "uninitialised",
    "race",
    "stray_barrier",
    "extents",
    "region",
    "domain",
    "repeated",
    "division",
)


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

    @cached_property
    def printer(self) -> Printer:
        """The program as the error shows it, with the names it has there."""
        printer = Printer()
        printer.function(self.fn)
        return printer

    def name(self, thing: Var | Buffer) -> str:
        name = self.printer.names.get(thing) or thing.name
        return name if isinstance(thing, Size) else f"%{name}"

    def element(self, memory: Memory, at: int | tuple[int, ...]) -> str:
        index = at if isinstance(at, tuple) else memory.index(at)
        return f"{self.name(memory.buffer)}[{', '.join(str(int(i)) for i in index)}]"

    def fail(self, code: str, message: str, at: int, values: Values, help: str) -> NoReturn:
        site = self.sites[at]
        written = self.printer.out
        excerpt = None
        if site.mark in written.spans:
            excerpt = Excerpt(tuple(written.lines), *written.spans[site.mark])
        shown = ", ".join(
            f"{self.name(v)} = {int(x)}" for v, x in zip(site.variables, values, strict=True)
        )
        context = f"@{self.fn.name}" + (f", where {shown}" if shown else "")
        loc = getattr(site.mark, "loc", self.fn.loc)
        raise ExecutionError(code, message, loc, context=context, excerpt=excerpt, help=help)

    # ------------------------------------------------------------------ memory

    def bounds(
        self, at: int, values: Values, what: str, memory: Memory, index: tuple[int, ...]
    ) -> NoReturn:
        shape = memory.shape if len(memory.shape) == len(index) else (memory.size,)
        axis = next(d for d, (i, n) in enumerate(zip(index, shape, strict=True)) if not 0 <= i < n)
        has = (
            f"dimension {axis} has {shape[axis]}" if shape is memory.shape else f"it has {shape[0]}"
        )
        self.fail(
            "TW2301",
            f"{what} {self.element(memory, index)} is out of bounds: {has} elements",
            at,
            values,
            "guard the access with select, if or a block predicate, or enlarge the buffer",
        )

    def uninitialised(self, at: int, values: Values, memory: Memory, element: int) -> NoReturn:
        self.fail(
            "TW2302",
            f"{self.element(memory, element)} is read before anything is stored there",
            at,
            values,
            "store to it first; a reduction needs an init, or a block of its own that clears it",
        )

    # ------------------------------------------------------------------ concurrency

    def race(
        self,
        at: int,
        values: Values,
        kind: str,
        loop: Var,
        memory: Memory,
        element: int,
        mine: tuple[str, int],
        other: tuple[str, int],
    ) -> NoReturn:
        self.fail(
            "TW2303",
            f"race in {kind} loop {self.name(loop)}: {self.element(memory, element)} is "
            f"{other[0]} by iteration {other[1]} and {mine[0]} by iteration {mine[1]}",
            at,
            values,
            "iterations of such a loop must not depend on one another: make it serial, or give "
            "each iteration elements of its own",
        )

    def thread_race(
        self,
        at: int,
        values: Values,
        memory: Memory,
        element: int,
        kind: str,
        mine: tuple[str, str],
        other: tuple[str, str],
    ) -> NoReturn:
        is_block = kind == "block"
        self.fail(
            "TW2305" if is_block else "TW2304",
            f"race between {kind}s: {self.element(memory, element)} is {other[0]} by {other[1]} "
            f"and {mine[0]} by {mine[1]}" + ("" if is_block else " with no barrier between"),
            at,
            values,
            "blocks run in any order: let each write elements of its own, or use two kernels"
            if is_block
            else "let all threads of the block meet in between: eval barrier.shared()",
        )

    def unfenced(self, at: int, values: Values, memory: Memory, element: int) -> NoReturn:
        self.fail(
            "TW2431",
            f"{self.element(memory, element)}, which a thread stored without a fence behind it, is "
            "read asynchronously",
            at,
            values,
            f"let all threads execute a fence before they meet: eval {FENCE.op}()",
        )

    def divergence(self, at: int, values: Values, what: str, present: str, absent: str) -> NoReturn:
        self.fail(
            "TW2306",
            f"divergent {what}: {present} waits here, {absent} of the same block does not come",
            at,
            values,
            f"put the {what} where every thread of the block passes: outside conditions and loops "
            "that depend on the thread",
        )

    def stray_barrier(self, at: int, values: Values, place: str) -> NoReturn:
        self.fail(
            "TW2311",
            f"a barrier {place} has no threads to wait for",
            at,
            values,
            "barriers belong inside the thread loops of a kernel",
        )

    def extents(self, at: int, values: Values, axis: str, extent: int, other: int) -> NoReturn:
        self.fail(
            "TW2314",
            f"thread axis {axis} has extent {int(extent)} here and {int(other)} elsewhere in the "
            "same kernel",
            at,
            values,
            "give all loops of one axis the same extent, and guard what fewer threads should do",
        )

    # ------------------------------------------------------------------ blocks

    def region(
        self,
        at: int,
        values: Values,
        what: str,
        memory: Memory,
        index: tuple[int, ...],
        block: str,
    ) -> NoReturn:
        word = "reads" if what == "load of" else "writes"
        self.fail(
            "TW2307",
            f"{what} {self.element(memory, index)} lies outside what block @{block} "
            f"declares under `{word}`",
            at,
            values,
            "schedules rely on the declared regions: widen them to cover every access",
        )

    def domain(
        self, at: int, values: Values, var: Var, value: int, extent: int, block: str
    ) -> NoReturn:
        self.fail(
            "TW2308",
            f"iterator {self.name(var)} of block @{block} is {int(value)}, "
            f"outside 0..{int(extent)}",
            at,
            values,
            "bind it within its extent, or exclude the instance by a predicate (`where`)",
        )

    def repeated(
        self,
        at: int,
        values: Values,
        memory: Memory,
        element: int,
        block: str,
        point: tuple[int, ...],
    ) -> NoReturn:
        self.fail(
            "TW2309",
            f"block @{block} adds to {self.element(memory, element)} twice with iterators "
            f"{list(map(int, point))}",
            at,
            values,
            "an instance of a reduction may run again only after its result was initialised again",
        )

    # ------------------------------------------------------------------ other

    def unknown(self, at: int, values: Values, symbol: str) -> NoReturn:
        self.fail(
            "TW2312",
            f"the interpreter has no definition of {symbol}",
            at,
            values,
            f"tensor.externs.register({symbol!r}, function) tells the interpreter",
        )

    def division(self, at: int, values: Values) -> NoReturn:
        self.fail("TW2310", "integer division by zero", at, values, "guard the divisor with select")
