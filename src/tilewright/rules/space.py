"""Plans as data: the candidates of each field, which combinations are legal, what they cost.

    space = Space(GemmPlan, {"mr": (6, 4), "nr": (2, 3)}, legal=lambda c: c["mr"] * c["nr"] <= 12)
    columns = space.columns()          {"mr": [6, 4, 4], "nr": [2, 2, 3]}: one row per legal plan
    found = space.cheapest(cost)       the plan of the row of least cost, and its cost terms

A plan is a frozen dataclass of numbers, strings and flags, so it prints, parses, compares and
hashes. Legality and cost are functions over NumPy columns: thousands of plans at a time, without
building any program. The combination of all first candidates is always legal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from tilewright.base.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = int | str  # of a field; flags are numbers
Column = np.ndarray[Any, np.dtype[Any]]
Columns = Mapping[str, Column]
P = TypeVar("P", bound="DataclassInstance")

WEIGHED_ROWS = 1 << 13  # plans priced at a time; a larger space is searched in stages
SAMPLE_DRAWS = 64  # batches of that many rows, until enough legal plans are found
BEAM_CHOICES = 6  # beam width between stages: a stage's best may not lead to the best of all


def doublings(most: int, least: int = 1) -> tuple[int, ...]:
    """1, 2, 4, 8 ... up to a number: candidates for unroll factors, splits and chunks."""
    found = [max(1, least)]
    while 2 * found[-1] <= most:
        found.append(2 * found[-1])
    return tuple(found)


def tile_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12 ... up to a number: candidates for vectors of a register tile."""
    between = (size + size // 2 for size in doublings(most) if size > 1)
    return tuple(sorted({*doublings(most), *(size for size in between if size <= most)}))


def preferring(first: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Candidates with the one in front that wins ties."""
    return (first, *(size for size in sizes if size != first))


def unit(name: str, meaning: str = "") -> Any:
    """A field of a plan, with its unit and meaning."""
    return field(metadata={"unit": name, "meaning": meaning})


@dataclass(frozen=True)
class Cost:
    """Costs of many plans, in cycles of the thread that finishes last, broken down by cause."""

    terms: Mapping[str, Column]

    @property
    def cycles(self) -> Column:
        total: Column = np.sum(list(self.terms.values()), axis=0)
        return total

    @staticmethod
    def of(**terms: Column | float) -> Cost:
        """Terms of equal length, in cycles."""
        arrays = np.broadcast_arrays(*[np.asarray(term, np.float64) for term in terms.values()])
        return Cost(dict(zip(terms, arrays, strict=True)))


@dataclass(frozen=True)
class Priced(Generic[P]):
    """A plan and its predicted cost."""

    plan: P
    cycles: float
    terms: Mapping[str, float]


@dataclass(frozen=True)
class Space(Generic[P]):
    """All plans of a problem. Candidates are listed in order of preference between ties.

    A space too large to enumerate is searched in `stages`, groups of fields that are chosen
    together; fields of later stages stay at their first candidates meanwhile. The first stage is
    searched once for every candidate of `from_each`, a field of the second stage that its best
    choice depends on.
    """

    plan: type[P]
    candidates: Mapping[str, Sequence[Value]]
    legal: Callable[[Columns], Column] | None = None
    stages: Sequence[Sequence[str]] = ()
    from_each: str = ""

    def __post_init__(self) -> None:
        names = [each.name for each in fields(self.plan)]
        assert list(self.candidates) == names, f"{names} against {list(self.candidates)}"
        assert all(len(values) for values in self.candidates.values())

    @property
    def size(self) -> int:
        """The number of combinations, legal or not."""
        return math.prod(len(values) for values in self.candidates.values())

    def columns(self, fixed: Mapping[str, Value] | None = None) -> Columns:
        """The legal combinations, one row each; some fields may be fixed."""
        given = fixed or {}
        values = {
            name: [given[name]] if name in given else each for name, each in self.candidates.items()
        }
        return self._legal(self._combined(values))

    def _combined(self, values: Mapping[str, Sequence[Value]]) -> Columns:
        """The Cartesian product of some fields' values, one row per combination."""
        arrays = [np.array(list(each)) for each in values.values()]
        grid = np.meshgrid(*[np.arange(len(each)) for each in arrays], indexing="ij", copy=False)
        return {
            name: each[index.ravel()]
            for name, each, index in zip(values, arrays, grid, strict=True)
        }

    def sample(
        self, count: int, random: np.random.Generator, *, draws: int = SAMPLE_DRAWS
    ) -> Columns:
        """Distinct legal combinations drawn at random.

        A large space is drawn from at most `draws` times, thousands of plans at a time, so
        fewer than `count` are returned where hardly any is legal.
        """
        if self.size <= WEIGHED_ROWS:
            whole = self.columns()
            total = len(next(iter(whole.values())))
            chosen = random.choice(total, size=min(count, total), replace=False)
            return {name: column[chosen] for name, column in whole.items()}
        rows: dict[tuple[Value, ...], None] = {}  # distinct, in the order drawn
        for _ in range(draws):
            drawn = {
                name: np.array(values)[random.integers(0, len(values), WEIGHED_ROWS)]
                for name, values in self.candidates.items()
            }
            found = self._legal(drawn)
            rows.update(
                dict.fromkeys(zip(*(each.tolist() for each in found.values()), strict=True))
            )
            if len(rows) >= count:
                break
        kept = list(rows)[:count]
        return {
            name: np.array([row[at] for row in kept]) for at, name in enumerate(self.candidates)
        }

    def _legal(self, columns: Columns) -> Columns:
        if self.legal is None:
            return columns
        kept = self._legal_rows(columns)
        return {name: column[kept] for name, column in columns.items()}

    def _legal_rows(self, columns: Columns) -> Column:
        if self.legal is None:
            return np.arange(len(next(iter(columns.values()))))
        return np.flatnonzero(self.legal(columns))

    def is_legal(self, plan: P) -> bool:
        """Whether a plan belongs to this space."""
        row = {name: np.array([value]) for name, value in plan_values(plan).items()}
        inside = all(row[name][0] in list(values) for name, values in self.candidates.items())
        return inside and (self.legal is None or bool(self.legal(row)[0]))

    def plan_at(self, columns: Columns, row: int) -> P:
        """The plan of a row."""
        values = {name: column[row].item() for name, column in columns.items()}
        return plan_of(self.plan, values)

    def cheapest(
        self, cost: Callable[[Columns], Cost], *, beam_width: int = BEAM_CHOICES, rounds: int = 2
    ) -> Priced[P] | None:
        """The legal plan of least cost; None where none is legal.

        A space too large to enumerate is searched stage by stage with a beam of the cheapest
        choices; a second round starts from the result of the first.
        """
        whole = self.size <= WEIGHED_ROWS or not self.stages
        stages = [list(self.candidates)] if whole else self.stages
        first = {name: values[0] for name, values in self.candidates.items()}
        best: tuple[float, dict[str, Value]] | None = None
        starts, varied = [first], self.from_each
        if varied and not whole:
            starts = [{**first, varied: value} for value in self.candidates[varied]]
        for _ in range(1 if whole else rounds):
            beam = starts if best is None else [best[1]]
            for at, stage in enumerate(stages):
                later = {name: first[name] for each in stages[at + 2 :] for name in each}
                begun = [{**s, **later} for s in beam]
                if best is not None:  # what pays with first candidates may not pay with these
                    begun += beam
                found: dict[tuple[Value, ...], tuple[float, dict[str, Value]]] = {}
                for cycles, plan in self._best_rows(begun, stage, cost):
                    found.setdefault(tuple(plan.values()), (cycles, plan))
                if not found:
                    return None
                ranked = sorted(found.values(), key=lambda each: each[0])[:beam_width]
                beam = [plan for _, plan in ranked]
            if best is None or ranked[0][0] < best[0]:
                best = ranked[0]
        assert best is not None
        return self.price(plan_of(self.plan, best[1]), cost)

    def _best_rows(
        self,
        starts: Sequence[Mapping[str, Value]],
        stage: Sequence[str],
        cost: Callable[[Columns], Cost],
    ) -> list[tuple[float, dict[str, Value]]]:
        """The cheapest choices of a stage for each start, all other fields as in the start."""
        choices = self._combined({k: v for k, v in self.candidates.items() if k in stage})
        count = len(next(iter(choices.values())))
        columns = {
            name: np.tile(choices[name], len(starts))
            if name in choices
            else np.repeat(np.array([start[name] for start in starts]), count)
            for name in self.candidates
        }
        legal = self._legal_rows(columns)
        if not len(legal):
            return []
        columns = {name: column[legal] for name, column in columns.items()}
        cycles = cost(columns).cycles
        start_of = legal // count
        order = np.lexsort((cycles, start_of))  # stable: ties keep the order of preference
        ends = np.flatnonzero(np.diff(start_of[order], prepend=-1))
        best = [row for some in np.split(order, ends[1:]) for row in some[:BEAM_CHOICES]]
        return [
            (float(cycles[row]), {name: column[row].item() for name, column in columns.items()})
            for row in best
        ]

    def price(self, plan: P, cost: Callable[[Columns], Cost]) -> Priced[P]:
        """The cost of one plan."""
        found = cost({name: np.array([value]) for name, value in plan_values(plan).items()})
        terms = {name: float(term[0]) for name, term in found.terms.items()}
        return Priced(plan, float(found.cycles[0]), terms)


# --------------------------------------------------------------------------- text


def plan_values(plan: DataclassInstance) -> dict[str, Value]:
    return {each.name: getattr(plan, each.name) for each in fields(plan)}


def plan_of(kind: type[P], values: Mapping[str, Any]) -> P:
    """A plan with values of its fields' types."""
    typed = {
        each.name: bool(values[each.name]) if each.type in ("bool", bool) else values[each.name]
        for each in fields(kind)
    }
    return kind(**typed)


def plan_text(plan: DataclassInstance) -> str:
    """`mr=6 nr=3 pack_b=panel`; flags are 0 and 1."""
    values = plan_values(plan).items()
    return " ".join(f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in values)


def parse_plan(kind: type[P], text: str) -> P:
    """The plan that `plan_text` printed."""
    pairs = [word.partition("=") for word in text.split()]
    given = {name: value for name, _, value in pairs}
    known = {each.name: each.type for each in fields(kind)}
    if list(given) != list(known) or len(pairs) != len(known):
        raise UserError(
            "TW2701",
            f"{text!r} is no plan of {kind.__name__}",
            help="fields, in this order: " + ", ".join(known),
        )
    try:
        values = {
            name: given[name] if of in ("str", str) else int(given[name])
            for name, of in known.items()
        }
    except ValueError as error:
        raise UserError(
            "TW2701", f"{text!r} is no plan of {kind.__name__}: {error}", help="fields are numbers"
        ) from error
    return plan_of(kind, values)
