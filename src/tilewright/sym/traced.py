"""Integers that remember how they were computed, to be computed again for other arguments.

    tape = Tape()
    n = tape.argument(20)
    tiles = (n + 15) // 16          2, and how it follows from n
    if n <= 64: ...                 true, and from now on a condition of the tape
    run = tape.compiled([(tiles, n * 4)])
    run(40)                         [(3, 160)]
    run(80)                         None: a condition does not hold

`int(n)` reads the value without a condition; where only the number itself will do, as in
`range(n)`, that it is this number is one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "min": min,
    "max": max,
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
Run = Callable[..., list[tuple[int, ...]] | None]


class Tape:
    """Operations and conditions in the order in which they came."""

    def __init__(self) -> None:
        self.arguments: list[Traced] = []
        self.steps: list[tuple[str, Any, Any, Any]] = []  # operation or comparison, operands, what
        self._known: dict[tuple[str, Any, Any], Traced] = {}
        self._decided: set[tuple[str, Any, Any]] = set()
        self._count = 0

    def argument(self, value: int) -> Traced:
        made = self._new(value)
        self.arguments.append(made)
        return made

    def _new(self, value: int) -> Traced:
        self._count += 1
        return Traced(self, self._count - 1, value)

    def apply(self, name: str, a: Traced | int, b: Traced | int) -> Traced:
        key = (name, _key(a), _key(b))
        found = self._known.get(key)
        if found is None:
            found = self._new(_OPERATIONS[name](int(a), int(b)))
            self._known[key] = found
            self.steps.append((name, a, b, found))
        return found

    def decide(self, name: str, a: Traced | int, b: Traced | int) -> bool:
        """Compare, and make the result a condition."""
        holds = _COMPARISONS[name](int(a), int(b))
        key = (name, _key(a), _key(b))
        if key not in self._decided:
            self._decided.add(key)
            self.steps.append((name, a, b, holds))
        return holds

    def values(self, arguments: Sequence[int]) -> list[int]:
        """All traced numbers for some arguments, whether conditions hold or not."""
        found = [0] * self._count
        for traced, value in zip(self.arguments, arguments, strict=True):
            found[traced.at] = value
        for name, a, b, made in self.steps:
            if isinstance(made, Traced):
                left, right = (found[x.at] if isinstance(x, Traced) else x for x in (a, b))
                found[made.at] = _OPERATIONS[name](left, right)
        return found

    def compiled(self, results: Sequence[Sequence[Traced | int]]) -> Run:
        """A function of the arguments: rows of numbers, None where a condition does not hold."""
        lines = [f"def run({', '.join(map(_text, self.arguments))}):"]
        for name, a, b, made in self.steps:
            left, right = _text(a), _text(b)
            if not isinstance(made, Traced):
                negated = "not " if made else ""
                lines.append(f" if {negated}({left} {name} {right}): return None")
            elif name.isalpha():
                lines.append(f" {_text(made)} = {name}({left}, {right})")
            else:
                lines.append(f" {_text(made)} = {left} {name} {right}")
        rows = ", ".join(f"({''.join(f'{_text(each)}, ' for each in row)})" for row in results)
        lines.append(f" return [{rows}]")
        space: dict[str, Any] = {}
        exec("\n".join(lines), space)  # of integers and operators alone
        run: Run = space["run"]
        return run


def _key(operand: Traced | int) -> tuple[bool, int]:
    return (True, operand.at) if isinstance(operand, Traced) else (False, int(operand))


def _text(operand: Traced | int) -> str:
    return f"t{operand.at}" if isinstance(operand, Traced) else str(int(operand))


def _operation(name: str) -> tuple[Any, Any]:
    """The operator, and the one of an integer on the left."""

    def forward(self: Traced, other: Any) -> Any:
        return self.tape.apply(name, self, other) if _is_number(other) else NotImplemented

    def backward(self: Traced, other: Any) -> Any:
        return self.tape.apply(name, other, self) if _is_number(other) else NotImplemented

    return forward, backward


def _comparison(name: str, *, turned: bool = False, negated: bool = False) -> Any:
    def compare(self: Traced, other: Any) -> Any:
        if not _is_number(other):
            return NotImplemented
        pair = (other, self) if turned else (self, other)
        return self.tape.decide(name, *pair) != negated

    return compare


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, Traced))


class Traced:
    """A number of a tape."""

    __slots__ = ("at", "tape", "value")

    def __init__(self, tape: Tape, at: int, value: int) -> None:
        self.tape, self.at, self.value = tape, at, value

    __add__, __radd__ = _operation("+")
    __sub__, __rsub__ = _operation("-")
    __mul__, __rmul__ = _operation("*")
    __floordiv__, __rfloordiv__ = _operation("//")
    __mod__, __rmod__ = _operation("%")
    __and__, __rand__ = _operation("&")
    __or__, __ror__ = _operation("|")
    __xor__, __rxor__ = _operation("^")
    __lt__, __le__ = _comparison("<"), _comparison("<=")
    __gt__, __ge__ = _comparison("<", turned=True), _comparison("<=", turned=True)
    __eq__, __ne__ = _comparison("=="), _comparison("==", negated=True)

    def __hash__(self) -> int:
        return self.at

    def __neg__(self) -> Any:
        return 0 - self

    def __bool__(self) -> bool:
        return not self.tape.decide("==", self, 0)

    def __int__(self) -> int:
        return self.value

    def __index__(self) -> int:
        self.tape.decide("==", self, self.value)
        return self.value

    def __repr__(self) -> str:
        return f"{self.value} (traced)"


def least(a: Any, b: Any) -> Any:
    """The smaller of two numbers, traced or not."""
    tape = _tape_of(a, b)
    return min(a, b) if tape is None else tape.apply("min", a, b)


def most(a: Any, b: Any) -> Any:
    """The larger of two numbers, traced or not."""
    tape = _tape_of(a, b)
    return max(a, b) if tape is None else tape.apply("max", a, b)


def _tape_of(*numbers: Any) -> Tape | None:
    return next((each.tape for each in numbers if isinstance(each, Traced)), None)
