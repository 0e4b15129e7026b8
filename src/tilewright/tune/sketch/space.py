"""Sketches of a function as a search space: all its structures, with all their decisions.

    space = SketchSpace(fn, "cpu", threads=2)
    space.size                                points, of all structures together
    point = space.sample(1, random)
    schedule = space.schedule(space.choice(point, 0))
    run = tw.build(schedule.function)

The first structure is `rules`, without decisions: the schedule rules' result. So the default is
always a candidate, and tuning cannot lose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.base.errors import UserError
from tilewright.base.target import CPU, Target
from tilewright.rules import schedule as schedule_by_rules
from tilewright.rules.context import RuleContext
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule import Schedule
from tilewright.tune.grids import Grid, GridSpace
from tilewright.tune.sketch.apply import apply_structure
from tilewright.tune.sketch.features import FEATURE_NAMES
from tilewright.tune.sketch.generate import Program, find_structure, programs_of, structures
from tilewright.tune.sketch.model import StructureModel
from tilewright.tune.sketch.structure import Structure
from tilewright.tune.space import Column, Columns

RULES = "rules"
SKETCH = "sketch"  # the name of the space, among those of a kernel


class SketchSpace(GridSpace):
    """All sketches of a function for a target.

    Examples:
        >>> from tilewright import te
        >>> from tilewright.tune import SketchSpace
        >>> x = te.placeholder((64, 48), name="x")
        >>> y = te.compute((48, 64), lambda i, j: x[j, i] * 2.0, name="y")
        >>> space = SketchSpace(te.function([x, y], name="f"))
        >>> space.choice(space.default(), 0)
        'rules'
    """

    def __init__(
        self,
        fn: Function,
        target: str | Target = "cpu",
        *,
        threads: int = 1,
        constants: Iterable[str] = (),
        with_rules: bool = True,
    ) -> None:
        """`with_rules=False` leaves out what rules make, where they are a space of their own."""
        self.function = fn
        self.context = RuleContext(Target.parse(target), threads, frozenset(constants))
        if self.context.target.kind != CPU:
            raise UserError(
                "TW5013",
                f"there are no sketches for {self.context.target}: they are schedules of CPUs",
                help="tune a model for it with tw.compile(tune=...), or write a template",
            )
        self._made: dict[str, tuple[Program, Structure]] = {}
        grids = [Grid(RULES, {})] if with_rules else []
        for program in programs_of(fn, self.context):
            for structure in structures(program):
                if structure.name in self._made:
                    continue
                self._made[structure.name] = (program, structure)
                grids.append(program.grid(structure))
        super().__init__(SKETCH, grids)
        self._models: dict[str, StructureModel] = {}

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """What transfers between structures and shapes, then the decisions themselves: what they
        do beyond the model's formulas is learned of one function. Those of a name are one column,
        whatever the structure."""
        own = (self._field_names(at) for at in range(len(self.grids)))
        return ("log_ns", *FEATURE_NAMES, *dict.fromkeys(name for names in own for name in names))

    def _field_names(self, at: int) -> list[str]:
        """The names of a grid's decisions, without the grid's own."""
        return [name.removeprefix(f"{self.grids[at].name}.") for name in super().own_names(at)]

    @cached_property
    def _field_places(self) -> list[list[int]]:
        """Where the decisions of each grid stand among all features."""
        places = {name: at for at, name in enumerate(self.feature_names)}
        return [[places[name] for name in self._field_names(at)] for at in range(len(self.grids))]

    @property
    def structures(self) -> tuple[Structure, ...]:
        return tuple(structure for _, structure in self._made.values())

    def model(self, name: str) -> StructureModel:
        """The cost model of a structure, made when it is first asked for."""
        found = self._models.get(name)
        if found is None:
            found = StructureModel(self._made[name][1], self.context)
            self._models[name] = found
        return found

    def predict(self, at: int, columns: Columns) -> Column:
        return self._described(at, columns)[0]

    def describe(self, at: int, columns: Columns) -> tuple[Column, Column]:
        ns, known = self._described(at, columns)
        made = np.zeros((len(known), len(self.feature_names) - 1), np.float32)
        made[:, : len(FEATURE_NAMES)] = known
        made[:, np.array(self._field_places[at], int) - 1] = self.field_features(at, columns)
        return ns, made

    def _described(self, at: int, columns: Columns) -> tuple[Column, Column]:
        """What the model says of points of a structure."""
        name = self.grids[at].name
        if name == RULES:
            rows = 1
            return np.full(rows, self._rules_ns), np.zeros((rows, len(FEATURE_NAMES)), np.float32)
        return self.model(name).describe(columns)

    @cached_property
    def _rules_ns(self) -> float:
        context = self.context
        made = schedule_by_rules(
            self.function, context.target, threads=context.threads, constants=context.constants
        )
        return float(sum(decision.predicted_ns for decision in made.decisions))

    def schedule(self, choice: str) -> Schedule:
        """The schedule that the text of a point stands for."""
        row = self.point(choice)
        if row is None:
            raise UserError(
                "TW5103",
                f"{choice!r} is no sketch of @{self.function.name}",
                help="structures: " + ", ".join(grid.name for grid in self.grids[:8]),
            )
        grid, values = self.values(row, 0)
        if grid.name == RULES:
            context = self.context
            made = schedule_by_rules(
                self.function, context.target, threads=context.threads, constants=context.constants
            )
            return made.schedule
        program, structure = self._made[grid.name]
        sch = program.schedule.copy()
        apply_structure(sch, structure, values, self.context)
        return sch


@dataclass(frozen=True)
class Sketched:
    """A function as a sketch schedules it."""

    schedule: Schedule
    estimate_ns: float


def sketched(
    fn: Function,
    choice: str,
    target: str | Target = "cpu",
    *,
    threads: int = 1,
    constants: Iterable[str] = (),
) -> Sketched:
    """What the text of a point stands for; only the structure that it names is made."""
    context = RuleContext(Target.parse(target), threads, frozenset(constants))
    name, *words = choice.split() or [""]
    found = find_structure(programs_of(fn, context), name)
    grid = None if found is None else found[0].grid(found[1])
    indices = None if grid is None else grid.indices(words)
    row = np.array([indices or []], np.int32)
    if found is None or grid is None or indices is None or not grid.is_legal(row)[0]:
        raise UserError(
            "TW5103",
            f"{choice!r} is no sketch of @{fn.name}",
            help="`tilewright inspect --schedules` shows the sketches of kernels that have one",
        )
    program, structure = found
    columns = grid.columns(row)
    sch = program.schedule.copy()
    values = {
        key: values[at] for (key, values), at in zip(grid.fields.items(), indices, strict=True)
    }
    apply_structure(sch, structure, values, context)
    ns, _ = StructureModel(structure, context).describe(columns)
    return Sketched(sch, float(ns[0]))
