"""Errors: a typed message with a code, a location, a source excerpt and a suggestion.

    error[TW2104]: cannot split loop %j: factor 48 does not divide extent 100
      --> net.py:41
      in @matmul, after schedule step 3: reorder(%k, %j)
     5 |   for %j in 0..100 {
       |       ^^
    help: pass a divisor: 4, 5, 10, 20, 25, 50

Codes are `TW` + layer digit + number: 0 base and text, 1 graph and frontends, 2 te, tensor and
schedule, 3 code generation, 4 runtime, 5 tuning, 6 driver and command line, 7 accelerators. Each
has a page in `docs/errors/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.base.loc import UNKNOWN, Loc


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of the current program with a span to point at."""

    lines: tuple[str, ...]
    line: int  # 1-based
    column: int  # 0-based
    width: int = 1
    around: int = 2

    def __str__(self) -> str:
        first = max(1, self.line - self.around)
        last = min(len(self.lines), self.line + self.around)
        gutter = len(str(last)) + 1
        out = []
        for number in range(first, last + 1):
            out.append(f"{number:>{gutter}} | {self.lines[number - 1]}")
            if number == self.line:
                out.append(" " * gutter + " | " + " " * self.column + "^" * max(1, self.width))
        return "\n".join(out)


class TilewrightError(Exception):
    """The base class of all errors that Tilewright raises deliberately.

    Examples:
        >>> import tilewright as tw
        >>> try:
        ...     tw.Target.parse("gpu")
        ... except tw.TilewrightError as error:
        ...     print(error.code)
        ...
        TW0301
    """

    def __init__(
        self,
        code: str,
        message: str,
        loc: Loc = UNKNOWN,
        *,
        context: str = "",
        excerpt: Excerpt | Callable[[], Excerpt | None] | None = None,
        help: str = "",
    ) -> None:
        """`excerpt` may be a function, called only when the excerpt is needed."""
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.loc = loc
        self.context = context
        self._excerpt = excerpt
        self.help = help

    @property
    def excerpt(self) -> Excerpt | None:
        if callable(self._excerpt):
            self._excerpt = self._excerpt()
        return self._excerpt

    def __str__(self) -> str:
        parts = [f"error[{self.code}]: {self.message}"]
        if self.loc is not UNKNOWN:
            parts.append(f"  --> {self.loc}")
        if self.context:
            parts.append(f"  in {self.context}")
        if self.excerpt is not None:
            parts.append(str(self.excerpt))
        if self.help:
            parts.append(f"help: {self.help}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        _ = self.excerpt  # made now: a pickle cannot contain the function
        return (_rebuild, (type(self), self.__dict__))


def summary_of(error: BaseException) -> str:
    """An exception in one line, also where it has no message."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _rebuild(cls: type[TilewrightError], fields: dict[str, object]) -> TilewrightError:
    error = cls.__new__(cls)
    error.__dict__.update(fields)
    error.args = (fields["code"], fields["message"])
    return error


class UserError(TilewrightError, ValueError):
    """The request is invalid: a bad value.

    Examples:
        >>> import tilewright as tw
        >>> try:
        ...     tw.Target.parse("gpu")
        ... except ValueError as error:  # as callers expect of a wrong value
        ...     print(type(error).__mro__[1].__name__)
        ...
        TilewrightError
    """


class UserTypeError(TilewrightError, TypeError):
    """The request is invalid: a wrong kind of object or data type."""


class ScheduleError(UserError):
    """A schedule primitive is not applicable: it could change the result or is not defined here."""


class ParseError(UserError):
    """A program text does not follow the grammar."""


class ExecutionError(UserError):
    """The interpreter detected an operation that is undefined in native code."""


class Unsupported(TilewrightError, NotImplementedError):
    """A feature that is not supported, named so that the user can avoid it.

    Examples:
        >>> from tilewright import graph
        >>> from tilewright.base.errors import Unsupported
        >>> try:
        ...     graph.parse("graph @main(%x: f32[2]) { %y = frobnicate(%x) return %y }")
        ... except Unsupported as error:
        ...     print(error.code)
        ...
        TW1005
    """


class CompilerBug(TilewrightError, AssertionError):
    """An internal invariant is violated: never the user's fault.

    Examples:
        >>> from tilewright.base.errors import CompilerBug
        >>> from tilewright.base.passes import run_passes
        >>> def broken(program, ctx):
        ...     return program // 0
        ...
        >>> try:
        ...     _ = run_passes(1, (broken,))
        ... except CompilerBug as error:
        ...     print(error.code)
        ...
        TW0503
    """
