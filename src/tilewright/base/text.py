"""Lexer with positions and indenting printer, shared by both IRs.

Tokens: names (`parallel`), local names (`%i`), global names (`@matmul`), numbers, strings and
punctuation. A comment is `//` at the start of a line; elsewhere `//` is floor division. `%` glued
to a letter starts a local name; set apart it is the remainder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from tilewright.base.errors import Excerpt, ParseError
from tilewright.base.loc import File

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<float>(\d+\.(?!\.)\d*([eE][+-]?\d+)?|\d+[eE][+-]?\d+))
  | (?P<int>\d+)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<local>%[A-Za-z_]\w*(\.\w+)*)
  | (?P<global>@[A-Za-z_]\w*(\.\w+)*)
  | (?P<name>[A-Za-z_]\w*(\.\w+)*)
  | (?P<punct>\.\.|->|\+:|//|==|!=|<=|>=|[-+*/%<>=(){}\[\],:;.@!&|^?])
    """,
    re.VERBOSE,
)
_COMMENT = re.compile(r"(?m)^[ \t]*//[^\n]*")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # name, local, global, int, float, string, punct, end
    text: str
    offset: int


class Tokens:
    """A cursor over the tokens of a text, raising errors with positions."""

    def __init__(self, text: str, path: str = "<text>") -> None:
        self.text = text
        self.path = path
        self._tokens = list(self._lex(text))
        self._at = 0

    def _lex(self, text: str) -> Iterator[Token]:
        comments = {match.start(): match.end() for match in _COMMENT.finditer(text)}
        offset = 0
        while offset < len(text):
            if offset in comments:
                offset = comments[offset]
                continue
            match = _TOKEN.match(text, offset)
            if match is None:
                self._fail_at(offset, 1, f"unexpected character {text[offset]!r}")
            kind = match.lastgroup
            assert kind is not None
            if kind == "space":
                # A comment starts a line: stop the run of white space right after a newline.
                stop = match.end()
                line_starts = [s for s in comments if offset < s < stop or s == stop]
                offset = min(line_starts) if line_starts else stop
                continue
            yield Token(kind, match.group(), offset)
            offset = match.end()
        yield Token("end", "", len(text))

    @property
    def current(self) -> Token:
        return self._tokens[self._at]

    def peek(self, ahead: int = 1) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def next(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def at(self, text: str) -> bool:
        """Whether the current token is this word or punctuation."""
        token = self._tokens[self._at]
        return token.text == text and token.kind in ("punct", "name")

    def accept(self, text: str) -> bool:
        """Consume the token if it is there."""
        if self.at(text):
            self._at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.at(text):
            self.fail(f"expected {text!r}, found {self.current.text or 'end of text'!r}")
        return self.next()

    def expect_kind(self, kind: str, what: str) -> Token:
        if self.current.kind != kind:
            self.fail(f"expected {what}, found {self.current.text or 'end of text'!r}")
        return self.next()

    def location(self, token: Token | None = None) -> File:
        line, column = self._line_column((token or self.current).offset)
        return File(self.path, line, column + 1)

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        token = token or self.current
        self._fail_at(token.offset, max(1, len(token.text)), message)

    def _line_column(self, offset: int) -> tuple[int, int]:
        line = self.text.count("\n", 0, offset) + 1
        return line, offset - (self.text.rfind("\n", 0, offset) + 1)

    def _fail_at(self, offset: int, width: int, message: str) -> NoReturn:
        line, column = self._line_column(offset)
        raise ParseError(
            "TW0201",
            message,
            File(self.path, line, column + 1),
            excerpt=Excerpt(tuple(self.text.split("\n")), line, column, width, around=1),
        )


class Writer:
    """Collects indented lines and records the positions of marked objects."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.spans: dict[object, tuple[int, int, int]] = {}  # key -> line, column, width
        self._depth = 0

    def line(self, text: str, mark: object = None, at: int = 0, width: int = 0) -> None:
        """Write one line; `mark` is recorded to span `width` characters from column `at`."""
        pad = "  " * self._depth
        self.lines.append(pad + text)
        if mark is not None:
            self.spans[mark] = (len(self.lines), len(pad) + at, width or len(text) - at)

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class Names:
    """Assign unique names to objects, as close to their hints as possible."""

    def __init__(self) -> None:
        self._of: dict[object, str] = {}
        self._taken: dict[str, int] = {}

    def __call__(self, key: object, hint: str) -> str:
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = self._fresh(hint or "v")
        return found

    def get(self, key: object) -> str | None:
        return self._of.get(key)

    def _fresh(self, hint: str) -> str:
        name, count = hint, self._taken.get(hint, 0)
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._taken[hint] = count
        self._taken.setdefault(name, 0)
        return name
