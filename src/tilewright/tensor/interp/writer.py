"""Writing Python code for a program: lines, variables, constants, places.

The generated code names things so that nothing collides: `v_` for a variable of the program, and
for a buffer `b_A` its elements, `m_b_A` its Memory, `w_b_A` its flags, `s_b_A` its stamps and
`n0_b_A` its extents; `t` for values, `k` for constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.base.text import Names
from tilewright.sym import Expr, Var
from tilewright.tensor.interp.failures import Failures
from tilewright.tensor.ir import Alloc, Block, Buffer, For, Function, Stmt


class Scope:
    """A stretch of straight code: what is computed in it stays valid to its end.

    Where lanes are expanded, values computed outside have too few rows: the scope is `closed`.
    Invariant code of the scopes inside is put before `start`, the line where the next one begins;
    code of an `else` cannot be moved there: the scope is a `barrier`, as every closed one is.
    """

    __slots__ = ("barrier", "closed", "depth", "start", "texts", "values")

    def __init__(
        self, start: int = 0, depth: int = 1, *, closed: bool = False, barrier: bool = False
    ) -> None:
        self.values: dict[Expr, str] = {}
        self.texts: dict[str, str] = {}  # variables that hold the value of a text
        self.start = start
        self.depth = depth
        self.closed = closed
        self.barrier = barrier or closed


class Writer:
    """Collects the code of one function."""

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.failures = Failures(fn)
        self.lines: list[str] = []
        self.depth = 0
        self.names = Names()
        self.renamed: dict[Var, str] = {}
        self.globals: dict[str, Any] = {}
        self.constants: dict[object, str] = {}
        self.scopes = [Scope()]
        self.levels: dict[Var | Buffer, int] = {}  # in which of the scopes each is bound
        self.now: dict[Expr, str] = {}  # values that hold for the current statement only
        self.variables: list[Var] = []  # loops and lets around, shown when something fails
        self.mark: object = None  # what the printer knows the current statement by

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def indented(self, header: str) -> Iterator[None]:
        """A suite with a scope of its own."""
        start = len(self.lines)
        self.line(header)
        self.depth += 1
        with self.scope(start, barrier=header.startswith("else")) as opened:
            yield
        if len(self.lines) == opened.start + 1:
            self.line("pass")
        self.depth -= 1

    @contextmanager
    def scope(
        self, start: int | None = None, *, closed: bool = False, barrier: bool = False
    ) -> Iterator[Scope]:
        """What is computed meanwhile is not used afterwards."""
        now = self.now
        self.now = {} if closed else dict(now)
        start = len(self.lines) if start is None else start
        opened = Scope(start, self.depth, closed=closed, barrier=barrier)
        self.scopes.append(opened)
        yield opened
        self.scopes.pop()
        self.now = now

    @property
    def here(self) -> int:
        """The number of the innermost scope."""
        return len(self.scopes) - 1

    def level(self, things: Iterable[Var | Buffer]) -> int:
        """The outermost scope, at or inside the last barrier, in which all of these are bound."""
        here = level = self.here
        while level and not self.scopes[level].barrier:
            level -= 1
        for thing in things:
            level = max(level, self.levels.get(thing, here))
        return min(level, here)

    def invariant(self, text: str, level: int, hint: str = "t") -> str:
        """The text itself, or a variable of a scope further out that holds its value.

        It runs there even where the code inside does not: nothing may come of that but a value.
        """
        if level >= self.here or text.isidentifier() or text.isdigit():
            return text
        scope = self.scopes[level]
        found = scope.texts.get(text)
        if found is None:
            found = scope.texts[text] = self.fresh_name(hint)
            at = self.scopes[level + 1].start
            self.lines.insert(at, "    " * scope.depth + f"{found} = {text}")
            for inside in self.scopes[level + 1 :]:
                inside.start += 1
        return found

    def known(self, expr: Expr) -> str | None:
        """The variable that holds the value of `expr` already."""
        found = self.now.get(expr)
        if found is not None:
            return found
        for scope in reversed(self.scopes):
            if expr in scope.values:
                return scope.values[expr]
            if scope.closed:
                break
        return None

    def name(self, thing: Var | Buffer) -> str:
        """The Python variable of a variable or buffer."""
        if isinstance(thing, Var) and thing in self.renamed:
            return self.renamed[thing]
        found = self.names.get(thing)
        if found is None:
            hint = "".join(c if c.isascii() and c.isalnum() else "_" for c in thing.name)
            found = self.names(thing, f"{'b' if isinstance(thing, Buffer) else 'v'}_{hint}")
        return found

    def fresh_name(self, hint: str) -> str:
        return self.names(object(), hint)

    def fresh(self, text: str, hint: str = "t") -> str:
        """A new variable holding the value of `text`."""
        name = self.fresh_name(hint)
        self.line(f"{name} = {text}")
        return name

    def constant(self, value: Any, key: object = None) -> str:
        """A global holding an object the code refers to."""
        key = id(value) if key is None else key
        if key not in self.constants:
            name = self.constants[key] = self.fresh_name("k")
            self.globals[name] = value
        return self.constants[key]

    def where(self) -> str:
        """The arguments every failure takes: the place and the values of the variables around."""
        variables = tuple(self.variables)
        number = self.failures.site(self.mark, variables)
        return f"{number}, {tuple_text(self.name(var) for var in variables)}"


def tuple_text(texts: Iterable[str]) -> str:
    return "(" + "".join(f"{text}, " for text in texts) + ")"


def mark_of(stmt: Stmt) -> object:
    """What the printer remembers the place of a statement by."""
    if isinstance(stmt, For):
        return stmt.var
    if isinstance(stmt, Alloc):
        return stmt.buffer
    return stmt.name if isinstance(stmt, Block) else stmt
