"""Facts about variables: ranges, equalities, divisibility, inequalities.

    ctx = Context().bind(i, 0, n).assume(n % 8 == 0)     # spelt eq(n % 8, 0)

A context is immutable; extending one gives another that shares data with it. Equal extensions of
one context are the same object while it is alive, so that memo tables (each context has its own)
are reused within a program. `extend.py` installs `bind`, `bind_all` and `assume`.

Integer facts hold for the unbounded integers of type `index`. An expression with a zero divisor has
no value, and nothing is claimed about it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
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
        """The intersection."""
        lowers = [end for end in (self.lower, other.lower) if end is not None]
        uppers = [end for end in (self.upper, other.upper) if end is not None]
        return Interval(max(lowers, default=None), min(uppers, default=None))

    def join(self, other: Interval) -> Interval:
        """The convex hull of the union."""
        lower = None if self.lower is None or other.lower is None else min(self.lower, other.lower)
        upper = None if self.upper is None or other.upper is None else max(self.upper, other.upper)
        return Interval(lower, upper)

    @property
    def value(self) -> int | None:
        """The only member, if there is just one."""
        return self.lower if self.lower == self.upper else None


ANY = Interval(None, None)
NATURAL = Interval(0, None)


class FactTable(NamedTuple):
    """Facts indexed by the terms that occur in them, and the atoms whose axioms are included."""

    by_term: Mapping[Monomial, list[Poly]]
    opened: set[Expr]


class Context:
    """Ranges of variables and assumed facts; built with `bind`, `bind_all` and `assume`."""

    __slots__ = (
        "__weakref__",
        "_axioms",
        "_bounded",
        "_children",
        "_indexed",
        "_normal",
        "_parent",
        "_proved",
        "facts",
        "intervals",
        "ranges",
        "residues",
        "values",
    )
    _parent: Context | None
    _children: WeakValueDictionary[tuple[object, ...], Context] | None
    _normal: dict[Expr, Expr]
    _bounded: dict[Monomial, Interval]
    _axioms: dict[Expr, list[Poly]]
    _proved: dict[tuple[object, ...], bool]
    _indexed: FactTable | None

    # start <= var < stop, both simplified
    ranges: dict[Var, tuple[Expr, Expr]]
    # atom -> its value: variables with a known value, conditions known to be true or false
    values: Mapping[Expr, Expr]
    # assumed constant bounds of atoms
    intervals: Mapping[Expr, Interval]
    # atom -> (modulus, residue): atom % modulus == residue
    residues: Mapping[Expr, tuple[int, int]]
    # polynomials known to be >= 0, in addition to the ranges
    facts: tuple[Poly, ...]

    def __new__(cls) -> Context:
        """The empty context; always the same object, so that its memo tables are shared."""
        return EMPTY

    @classmethod
    def _fresh(cls) -> Context:
        ctx = object.__new__(cls)
        ctx.ranges, ctx.values, ctx.intervals, ctx.residues, ctx.facts = {}, {}, {}, {}, ()
        ctx._parent = None
        ctx._children = None
        ctx._normal, ctx._bounded, ctx._axioms, ctx._proved = {}, {}, {}, {}
        ctx._indexed = None
        return ctx

    def _extended(self) -> Context:
        """A copy with the same facts and its own memo tables."""
        child = Context._fresh()
        child._parent = self  # kept alive, so that its cache of children is found again
        child.ranges, child.values, child.intervals = self.ranges, self.values, self.intervals
        child.residues, child.facts = self.residues, self.facts
        return child

    def _child(self, key: tuple[object, ...]) -> Context | None:
        """The existing extension of this context by the same facts."""
        return None if self._children is None else self._children.get(key)

    def _adopt(self, key: tuple[object, ...], child: Context) -> Context:
        if self._children is None:
            self._children = WeakValueDictionary()
        self._children[key] = child
        _recent.append(child)  # keeps the tables of recently used contexts alive
        return child

    def __repr__(self) -> str:
        parts = [f"{start} <= {v} < {stop}" for v, (start, stop) in self.ranges.items()]
        parts += [f"{a} == {b}" for a, b in self.values.items()]
        parts += [f"{a} % {m} == {r}" for a, (m, r) in self.residues.items()]
        parts += [f"0 <= {fact.expr()}" for fact in self.facts]
        return f"<Context {', '.join(parts)}>"

    if TYPE_CHECKING:  # installed by extend.py, which depends on the simplifier

        def bind(self, var: Var, start: Expr | int, stop: Expr | int) -> Context:
            """Add start <= var < stop, replacing an earlier range of the variable."""

        def bind_all(self, ranges: Mapping[Var, tuple[Expr | int, Expr | int]]) -> Context:
            """Bind several variables, in order."""

        def assume(self, cond: Expr) -> Context:
            """Assume the boolean `cond`; conjunctions are split."""


_recent: deque[Context] = deque(maxlen=256)

EMPTY = Context._fresh()
