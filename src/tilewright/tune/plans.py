"""The plans of all rules that could schedule a block, as one space.

    space = RuleSpace(offers)
    space.choice(space.default(), 0)       "gemm mr=6 nr=3 ..."

Each rule is a grid: the fields of its plan, and its legality filter. The estimate is the rule's
cost, whose terms are features along with the fields.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.rules.rule import Choice, Offer
from tilewright.rules.space import Cost, plan_text
from tilewright.tune.grids import Grid, GridSpace
from tilewright.tune.space import Column, Columns, Points


class RuleSpace(GridSpace):
    """The rules that could schedule a block; the one that does without tuning comes first."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        assert offers
        self.offers = tuple(offers)
        super().__init__(self.offers[0].block, [_grid(each) for each in self.offers])

    def predict(self, at: int, columns: Columns) -> Column:
        return self._ns(at, self.offers[at].cost(columns))

    def describe(self, at: int, columns: Columns) -> tuple[Column, Column]:
        cost = self.offers[at].cost(columns)
        terms = [np.log1p(np.maximum(term, 0.0)) for term in cost.terms.values()]
        own = np.concatenate([self.field_features(at, columns), np.stack(terms, axis=1)], axis=1)
        return self._ns(at, cost), self.placed(at, own)

    def _ns(self, at: int, cost: Cost) -> Column:
        ns: Column = cost.cycles * self.offers[at].context.target.machine.cycle_ns
        return ns

    def own_names(self, at: int) -> tuple[str, ...]:
        first = np.zeros((1, len(self.grids[at].shape)), np.int32)
        terms = self.offers[at].cost(self.grids[at].columns(first)).terms
        return (
            *super().own_names(at),
            *(f"{self.grids[at].name}/{term}" for term in terms),
        )

    def default(self) -> Points:
        offer = self.offers[0]
        plan = offer.chosen
        if not plan:
            priced = offer.rule.default(offer.problem, offer.context)
            assert priced is not None
            plan = plan_text(priced.plan)
        found = self.point(choice_text(Choice(offer.rule.name, plan)))
        assert found is not None
        return found


def _grid(offer: Offer) -> Grid:
    space = offer.space
    fields = {name: tuple(values) for name, values in space.candidates.items()}
    return Grid(offer.rule.name, fields, space.legal)


def choice_text(choice: Choice) -> str:
    """`gemm mr=6 nr=3`"""
    return f"{choice.rule} {choice.plan}".strip()


def parse_choice(text: str) -> Choice:
    rule, _, plan = text.partition(" ")
    return Choice(rule, plan)
