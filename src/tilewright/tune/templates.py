"""Templates: hand-written schedules with tunable decisions.

    @template
    def matmul(cfg, sch):
        i, j, k = sch.get_loops(sch.get_block("C"))
        cfg.define_split("tile_i", i, num_outputs=2)
        cfg.define_split("tile_j", j, num_outputs=2, policy="power2", max_factor=64)
        io, ii = cfg["tile_i"].apply(sch, i)
        jo, ji = cfg["tile_j"].apply(sch, j)
        cfg.define_reorder("order", [k, ii], policy="all")
        sch.reorder(io, jo, *cfg["order"].apply([k, ii]), ji)
        cfg.define_knob("unroll", [False, True])
        if cfg["unroll"].val:
            sch.unroll(ii)
        sch.vectorize(ji)

    space = matmul.space(fn, "cpu", threads=2)
    space.schedule(space.choice(space.default(), 0))

Names and arguments follow AutoTVM. The function is run once to collect its decisions, each at its
first candidate, and once more for every point that is built. It must define the same decisions
each time. A template is a space like any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.base.extents import ASSUMED
from tilewright.base.target import Target
from tilewright.sym import Const
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule import LoopRef, Schedule
from tilewright.tensor.schedule.analysis.refusal import path_to_loop
from tilewright.tensor.schedule.sample import divisors
from tilewright.tune.features import log2
from tilewright.tune.grids import Grid, GridSpace, Value
from tilewright.tune.space import Column, Columns, Points

FACTORS, POWER2, VERBOSE, CANDIDATE = "factors", "power2", "verbose", "candidate"
IDENTITY, ALL, INTERVAL_ALL = "identity", "all", "interval_all"
MAX_CANDIDATES = 100_000  # per decision
MAX_LOOPS = 6  # loops whose orders are enumerated
REST = -1  # a split's inferred factor


# --------------------------------------------------------------------------- decisions


@dataclass(frozen=True)
class Split:
    """The sizes of the loops that one becomes, outermost first; -1 is whatever is left."""

    size: tuple[int, ...]

    def apply(self, sch: Schedule, loop: LoopRef) -> list[LoopRef]:
        """Cut the loop."""
        if len(self.size) == 1:
            return [loop]
        return sch.split(loop, [None if size == REST else size for size in self.size])

    @property
    def text(self) -> str:
        return "x".join("?" if size == REST else str(size) for size in self.size)

    @property
    def numbers(self) -> tuple[float, ...]:
        return tuple(float(log2(max(1, size))) for size in self.size)


@dataclass(frozen=True)
class Reorder:
    """An order of loops, by their positions among those that were given."""

    perm: tuple[int, ...]

    def apply(self, loops: Sequence[LoopRef]) -> list[LoopRef]:
        """The loops in this order, for `Schedule.reorder`."""
        return [loops[at] for at in self.perm]

    @property
    def text(self) -> str:
        return ".".join(map(str, self.perm))

    @property
    def numbers(self) -> tuple[float, ...]:
        return tuple(float(self.perm.index(at)) for at in range(len(self.perm)))


@dataclass(frozen=True)
class Knob:
    """Any one of several values."""

    val: Any
    at: int
    many: int

    @property
    def text(self) -> str:
        return "".join(str(self.val).split()) or "empty"

    @property
    def numbers(self) -> tuple[float, ...]:
        if isinstance(self.val, (int, float)):
            return (float(log2(abs(self.val) + 1)),)
        return tuple(float(self.at == each) for each in range(self.many))


Decided = Split | Reorder | Knob


# --------------------------------------------------------------------------- definitions


@dataclass
class Config:
    """What a template asks and is told: definitions, then values by name."""

    schedule: Schedule
    target: Target
    threads: int
    template: str
    decisions: dict[str, tuple[Decided, ...]] = field(default_factory=dict)
    chosen: Mapping[str, int] | None = None  # None while decisions are being learned
    asked: list[str] = field(default_factory=list)

    def define_split(
        self,
        name: str,
        axis: LoopRef | int,
        num_outputs: int = 2,
        *,
        policy: str = FACTORS,
        max_factor: int | None = None,
        filter: Callable[[Split], bool] | None = None,
        candidate: Iterable[Sequence[int]] | None = None,
    ) -> None:
        """How a loop is cut into `num_outputs`.

        `factors`: exact ones. `power2`: powers of two inside, as many as are left outside, tails
        and all. `verbose`: both. `candidate`: those that are listed, -1 for what is left.
        """
        extent = axis if isinstance(axis, int) else self._extent(axis)
        if candidate is not None:
            policy = CANDIDATE
        if num_outputs < 1:
            raise self._bad(f"split {name!r} into {num_outputs} loops")
        made: list[Split] = []
        if policy in (FACTORS, VERBOSE):
            made += factorings(extent, num_outputs)
        if policy in (POWER2, VERBOSE):
            made += _powers(extent, num_outputs)
        if policy == CANDIDATE:
            made = [Split(tuple(int(size) for size in each)) for each in candidate or ()]
            if any(len(each.size) != num_outputs for each in made):
                raise self._bad(f"a candidate of split {name!r} has not {num_outputs} sizes")
        elif policy not in (FACTORS, POWER2, VERBOSE):
            raise self._bad(f"split {name!r} has no policy {policy!r}")
        limit = extent if max_factor is None else max_factor
        made = [each for each in made if all(size <= limit for size in each.size[1:])]
        if filter is not None:
            made = [each for each in made if filter(each)]
        self._define(name, made)

    def define_knob(self, name: str, candidate: Sequence[Any]) -> None:
        """One of some values: numbers, words, truth values."""
        values = list(candidate)
        self._define(name, [Knob(value, at, len(values)) for at, value in enumerate(values)])

    def define_reorder(
        self,
        name: str,
        axes: Sequence[LoopRef],
        policy: str = ALL,
        *,
        candidate: Iterable[Sequence[int]] | None = None,
    ) -> None:
        """The order of loops: `all`, `identity`, `interval_all` (one run of them reversed), or the
        orders that `candidate` lists by positions."""
        count = len(axes)
        orders: list[tuple[int, ...]]
        if candidate is not None:
            orders = [tuple(each) for each in candidate]
            if any(sorted(each) != list(range(count)) for each in orders):
                raise self._bad(f"a candidate of reorder {name!r} is no order of {count} loops")
        elif policy == ALL:
            if count > MAX_LOOPS:
                raise self._bad(f"reorder {name!r} of {count} loops has too many orders")
            orders = list(itertools.permutations(range(count)))
        elif policy == IDENTITY:
            orders = [tuple(range(count))]
        elif policy == INTERVAL_ALL:
            orders = list(dict.fromkeys(_reversed_runs(count)))
        else:
            raise self._bad(f"reorder {name!r} has no policy {policy!r}")
        self._define(name, [Reorder(order) for order in orders])

    def __getitem__(self, name: str) -> Any:
        """What was decided: `Split`, `Reorder` or `Knob`."""
        if name not in self.decisions:
            raise UserError(
                "TW5104",
                f"template {self.template} uses the decision {name!r}, which it has not defined",
                help="defined: " + (", ".join(self.decisions) or "none"),
            )
        return self.decisions[name][0 if self.chosen is None else self.chosen[name]]

    # ------------------------------------------------------------------ machinery

    def _define(self, name: str, made: Sequence[Decided]) -> None:
        if self.chosen is not None:
            self._again(name, made)
            return
        if name in self.decisions:
            raise self._bad(f"decision {name!r} is defined twice")
        if not name or any(letter in name for letter in " =\n\t"):
            raise self._bad(f"{name!r} is no name of a decision")
        if not made:
            raise UserError(
                "TW5101",
                f"template {self.template}: decision {name!r} has no candidates",
                help="give it at least one, or look at its filter and max_factor",
            )
        if len(made) > MAX_CANDIDATES:
            raise self._bad(f"decision {name!r} has {len(made)} candidates")
        kept = {each.text: each for each in made}
        self.decisions[name] = tuple(kept.values())

    def _again(self, name: str, made: Sequence[Decided]) -> None:
        """A point is being built: what is defined must be what was learned."""
        known = self.decisions.get(name)
        kept = tuple({each.text: each for each in made}.values())
        if known is None or [each.text for each in known] != [each.text for each in kept]:
            raise UserError(
                "TW5104",
                f"template {self.template} defines {name!r} for some values of other decisions "
                "only",
                help="define the same decisions in every run, and ignore what is not needed",
            )

    def _bad(self, what: str) -> UserError:
        return UserError("TW5104", f"template {self.template}: {what}")

    def _extent(self, loop: LoopRef) -> int:
        _, found = path_to_loop(self.schedule.function, loop.var, "split")
        extent = found.extent
        return int(extent.value) if isinstance(extent, Const) else ASSUMED.template_iterations


def factorings(extent: int, count: int) -> list[Split]:
    """All exact factors, the largest outermost first."""
    if count == 1:
        return [Split((extent,))]
    found: list[tuple[int, ...]] = [()]
    for _ in range(count - 1):
        found = [
            (factor, *inner)
            for inner in found
            for factor in divisors(extent)
            if extent % (factor * prod(inner)) == 0
        ]
    return [Split((extent // prod(inner), *inner)) for inner in found]


def _powers(extent: int, count: int) -> list[Split]:
    """Powers of two for inner loops, whatever is left outside."""
    if count == 1:
        return [Split((extent,))]
    powers = [1 << at for at in range(max(1, extent).bit_length())]
    return [
        Split((REST, *inner))
        for inner in itertools.product(powers, repeat=count - 1)
        if prod(inner) < 2 * extent
    ]


def _reversed_runs(count: int) -> Iterable[tuple[int, ...]]:
    yield tuple(range(count))
    for first in range(count):
        for last in range(first + 2, count + 1):
            run = tuple(reversed(range(first, last)))
            yield (*range(first), *run, *range(last, count))


# --------------------------------------------------------------------------- templates


Body = Callable[[Config, Schedule], object]


@dataclass(frozen=True)
class Template:
    """A function that schedules with open decisions."""

    name: str
    body: Body

    def space(
        self, fn: Function, target: str | Target = "cpu", *, threads: int = 1
    ) -> TemplateSpace:
        """All points of the template on a function."""
        return TemplateSpace(self, fn, Target.parse(target), threads)

    def run(
        self,
        fn: Function,
        target: Target,
        threads: int,
        decisions: dict[str, tuple[Decided, ...]],
        chosen: Mapping[str, int] | None,
    ) -> tuple[Schedule, dict[str, tuple[Decided, ...]]]:
        sch = Schedule(fn)
        config = Config(sch, target, threads, self.name, decisions, chosen)
        self.body(config, sch)
        return sch, config.decisions

    def __call__(self, cfg: Config, sch: Schedule) -> object:
        """The function itself: templates can use one another."""
        return self.body(cfg, sch)


def template(given: Body | str) -> Any:
    """Make a template of a function of a configuration and a schedule; `@template("name")` too.

    Examples:
        >>> from tilewright import te
        >>> from tilewright.tune import template
        >>> @template
        ... def rows(cfg, sch):
        ...     (i,) = sch.get_loops(sch.get_block("y"))
        ...     cfg.define_split("tile", i, num_outputs=2)
        ...     outer, inner = cfg["tile"].apply(sch, i)
        >>> x = te.placeholder((6,), name="x")
        >>> y = te.compute((6,), lambda i: x[i] * 2.0, name="y")
        >>> rows.space(te.function([x, y], name="f")).size
        4
    """
    if isinstance(given, str):
        return lambda body: Template(given, body)
    return Template(getattr(given, "__name__", "template"), given)


class DecidedSpace(GridSpace):
    """Named decisions, one value of each, as a space to tune: nothing is known of a point but what
    is measured."""

    def __init__(
        self, name: str, grid: str, fn: Function, decisions: Mapping[str, tuple[Decided, ...]]
    ) -> None:
        """`grid` is what texts of points begin with."""
        self.function, self.decisions = fn, decisions
        fields: dict[str, tuple[Value, ...]] = {
            name: tuple(each.text for each in values) for name, values in decisions.items()
        }
        super().__init__(name, (Grid(grid, fields),))
        self._tables = {
            name: np.array([each.numbers for each in values], np.float32)
            for name, values in decisions.items()
        }
        self._places = {
            name: {each.text: at for at, each in enumerate(values)}
            for name, values in decisions.items()
        }

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (
            "log_ns",
            *(
                f"{self.grids[0].name}.{name}[{at}]"
                for name, table in self._tables.items()
                for at in range(table.shape[1])
            ),
        )

    def features(self, points: Points) -> Column:
        made = [table[points[:, 1 + at]] for at, table in enumerate(self._tables.values())]
        nothing = np.zeros((len(points), 1), np.float32)
        return np.concatenate([nothing, *made], axis=1)

    def estimate(self, points: Points) -> Column:
        return np.zeros(len(points))

    def describe(self, at: int, columns: Columns) -> tuple[Column, Column]:
        rows = np.array(
            [
                [0, *(self._places[name][text] for name, text in zip(columns, row, strict=True))]
                for row in zip(*columns.values(), strict=True)
            ],
            np.int32,
        )
        return np.zeros(len(rows)), self.features(rows)[:, 1:]

    def chosen(self, choice: str) -> dict[str, int]:
        """Which value of each decision the text of a point stands for."""
        row = self.point(choice)
        if row is None:
            raise UserError(
                "TW5103",
                f"{choice!r} is no point of {self.grids[0].name}",
                help="decisions: " + ", ".join(self.decisions),
            )
        return dict(zip(self.decisions, row[0, 1:].tolist(), strict=True))


class TemplateSpace(DecidedSpace):
    """A template on a function, as a space to tune."""

    def __init__(self, made: Template, fn: Function, target: Target, threads: int) -> None:
        self.template, self.target, self.threads = made, target, threads
        _, decisions = made.run(fn, target, threads, {}, None)
        if not decisions:
            raise UserError("TW5102", f"template {made.name} decides nothing")
        super().__init__(fn.name, "".join(made.name.split()), fn, decisions)

    def schedule(self, choice: str) -> Schedule:
        """The schedule that the text of a point stands for."""
        made, _ = self.template.run(
            self.function, self.target, self.threads, dict(self.decisions), self.chosen(choice)
        )
        return made
