r"""Translate RE2 regular expressions, which ONNX uses, to Python's `re`.

Differences: classes such as `\w` are ASCII only, `[[:alpha:]]` is a class, and `$` is the end of
the text, not before its last newline. The longest of several matches at a position is used, as in
ONNX Runtime's tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ASCII = {"w": "0-9A-Za-z_", "d": "0-9", "s": r"\t\n\f\r\x20"}
_OTHERS = {  # the complements of these
    "W": r"\x00-/:-@\[-\^`{-\U0010ffff",
    "D": r"\x00-/:-\U0010ffff",
    "S": r"\x00-\x08\x0b\x0e-\x1f!-\U0010ffff",
}
_IN_CLASS = _ASCII | _OTHERS
_ALONE = {name: f"[{chars}]" for name, chars in _IN_CLASS.items()}
_ALONE |= {"b": r"(?a:\b)", "B": r"(?a:\B)", "z": r"\Z"}
_NAMED = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t\x20",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": r"\x20-~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t-\r\x20",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_NAME = re.compile(r"\[:(\^?\w*):\]")
_FLAGS = re.compile(r"(?:\(\?[a-z]+\))?")  # of the whole pattern
_LINES = re.compile(r"\(\?[a-z]*m")  # `$` also matches at line ends
_CHOICES = re.compile(r"\\.|\||(?<!\()\?")


@dataclass(frozen=True)
class Pattern:
    """A pattern, and a variant with one more character after it, if the first match may not be the
    longest."""

    alone: re.Pattern[str]
    followed: re.Pattern[str] | None

    def is_whole(self, text: str) -> bool:
        """Whether it matches the whole text."""
        return self.alone.fullmatch(text) is not None

    def search(self, text: str, start: int) -> tuple[int, int] | None:
        """Start and end of the first match from a position on, the longest at its start."""
        match = self.alone.search(text, start)
        if match is None:
            return None
        begin, end = match.span()
        if self.followed is None or end == len(text):
            return begin, end
        if self.alone.fullmatch(text, begin):
            return begin, len(text)
        # With the next character visible, which may not be a word boundary.
        ends = range(len(text) - 1, end, -1)
        return begin, next((e for e in ends if self.followed.fullmatch(text, begin, e + 1)), end)

    def matches(self, text: str) -> Iterator[str]:
        """All consecutive matches in a text."""
        start = 0
        while start <= len(text) and (found := self.search(text, start)):
            begin, end = found
            yield text[begin:end]
            start = max(end, begin + 1)


def compiled(pattern: str) -> Pattern:
    r"""Compile an RE2 pattern; `re.error` if it is invalid.

    Examples:
        >>> list(compiled(r"[[:alpha:]]+\d|\d+").matches("ab12 é3 c"))
        ['ab1', '2', '3']
    """
    flags = _FLAGS.match(pattern)
    assert flags is not None
    rest = _translated(pattern[flags.end() :], bool(_LINES.search(pattern)))
    has_choices = {"|", "?"} & set(_CHOICES.findall(pattern))
    followed = re.compile(f"{flags.group()}(?:{rest})(?s:.)") if has_choices else None
    return Pattern(re.compile(flags.group() + rest), followed)


def _translated(pattern: str, has_lines: bool) -> str:
    """The pattern in Python's syntax."""
    made, at, opened = [], 0, -1  # start of the enclosing class
    while at < len(pattern):
        text, is_inside = pattern[at], opened >= 0
        if text == "\\":
            text = pattern[at : at + 2]
            made.append((_IN_CLASS if is_inside else _ALONE).get(text[1:], text))
        elif is_inside and (name := _NAME.match(pattern, at)):
            text = name.group()
            if name.group(1) not in _NAMED:
                raise re.error(f"there is no class {text}", pattern, at)
            made.append(_NAMED[name.group(1)])
        elif is_inside:
            is_first = pattern[opened:at] in ("[", "[^")
            opened = -1 if text == "]" and not is_first else opened
            made.append(r"\[" if text == "[" else text)
        else:
            opened = at if text == "[" else opened
            made.append(r"\Z" if text == "$" and not has_lines else text)
        at += len(text)
    return "".join(made)
