"""What is known about variables: ranges, equalities, divisibility, inequalities.

    ctx = Context().bind(i, 0, n).assume(n % 8 == 0)     # spelt eq(n % 8, 0)

A context is immutable; extending one gives another that shares what it can. Equal extensions of
one context are one object while it is in use, so that memo tables (each context has its own) keep
serving the same program. `extend.py` installs `bind`, `bind_all` and `assume`.

Integer facts hold for the unbounded integers of type `index`. Where a divisor is zero an
expression has no value, and nothing is claimed about it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from tilewright.sym.expr import Expr, Var
from tilewright.sym.poly import Monomial, Poly


@dataclass(frozen=True, slots=True)
class Interval:
    """Inclusive bounds of an integer; `None` is no bound."""

    lower: int | None
    upper: int | None

    def __contains__(self, value: int) -> bool:
        return (self.lower is None or self.lower <= value) and (
            self.upper is None or value <= self.upper
        )

    def meet(self, other: Interval) -> Interval:
        """What lies in both."""
        lower = _tighter(max, self.lower, other.lower)
        upper = _tighter(min, self.upper, other.upper)
        return Interval(lower, upper)

    def join(self, other: Interval) -> Interval:
        """The least interval that holds both."""
        lower = None if self.lower is None or other.lower is None else min(self.lower, other.lower)
        upper = None if self.upper is None or other.upper is None else max(self.upper, other.upper)
        return Interval(lower, upper)

    @property
    def value(self) -> int | None:
        """The only integer inside, if there is just one."""
        return self.lower if self.lower == self.upper else None


def _tighter(pick: type[max] | type[min], a: int | None, b: int | None) -> int | None:  # type: ignore[valid-type]
    if a is None or b is None:
        return b if a is None else a
    chosen: int = pick(a, b)
    return chosen


ANY = Interval(None, None)
NATURAL = Interval(0, None)


class Context:
    """Ranges of variables and assumed facts. Build with `bind`, `bind_all` and `assume`."""

    __slots__ = (
        "__weakref__",
        "_bounded",
        "_children",
        "_indexed",
        "_normal",
        "_proved",
        "facts",
        "intervals",
        "ranges",
        "residues",
        "values",
    )

    def __init__(self) -> None:
        # start <= var < stop, both simplified
        self.ranges: Mapping[Var, tuple[Expr, Expr]] = {}
        # atom -> what it equals: variables with a known value, conditions known to hold or not
        self.values: Mapping[Expr, Expr] = {}
        # constant bounds of atoms that were assumed
        self.intervals: Mapping[Expr, Interval] = {}
        # atom -> (modulus, residue): atom % modulus == residue
        self.residues: Mapping[Expr, tuple[int, int]] = {}
        # polynomials known to be >= 0, besides the ranges
        self.facts: tuple[Poly, ...] = ()
        self._children: WeakValueDictionary[tuple[object, ...], Context] = WeakValueDictionary()
        self._normal: dict[Expr, Expr] = {}
        self._bounded: dict[Monomial, Interval] = {}
        self._proved: dict[tuple[object, ...], bool] = {}
        self._indexed: dict[Monomial, list[Poly]] | None = None

    def __repr__(self) -> str:
        parts = [f"{start} <= {v} < {stop}" for v, (start, stop) in self.ranges.items()]
        parts += [f"{a} == {b}" for a, b in self.values.items()]
        parts += [f"{a} % {m} == {r}" for a, (m, r) in self.residues.items()]
        parts += [f"0 <= {fact.expr()}" for fact in self.facts]
        return f"<Context {', '.join(parts)}>"

    def _extended(self) -> Context:
        """A context that knows the same, with memo tables of its own."""
        child = Context()
        child.ranges, child.values, child.intervals = self.ranges, self.values, self.intervals
        child.residues, child.facts = self.residues, self.facts
        return child

    if TYPE_CHECKING:  # installed by extend.py, which needs the simplifier

        def bind(self, var: Var, start: Expr | int, stop: Expr | int) -> Context:
            """Also start <= var < stop. The latest range of a variable counts."""

        def bind_all(self, ranges: Mapping[Var, tuple[Expr | int, Expr | int]]) -> Context:
            """Bind several variables, in order."""

        def assume(self, cond: Expr) -> Context:
            """Also the boolean `cond`; conjunctions are split into their facts."""


_recent: deque[Context] = deque(maxlen=256)


def keep_warm(ctx: Context) -> Context:
    """Keep the memo tables of the contexts used last alive."""
    _recent.append(ctx)
    return ctx


EMPTY = Context()
