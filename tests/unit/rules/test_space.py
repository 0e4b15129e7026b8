"""Spaces of plans: what is drawn from them."""

from dataclasses import dataclass

import numpy as np
import pytest

from tilewright.rules.space import (
    WEIGHED_ROWS,
    Cost,
    Space,
    doublings,
    preferring,
    tile_sizes,
    unit,
)


@dataclass(frozen=True)
class Plan:
    a: int = unit("rows")
    b: int = unit("vectors")
    c: int = unit("steps")


@pytest.mark.parametrize("size", [8, 64])
def test_samples_are_legal_and_each_drawn_once(size):
    values = tuple(range(size))
    space = Space(
        Plan,
        {"a": values, "b": values, "c": values},
        legal=lambda c: (c["a"] + c["b"] * 3 + c["c"] * 7) % 31 == 0,  # few
    )
    assert (space.size > WEIGHED_ROWS) == (size == 64)
    drawn = space.sample(5, np.random.default_rng(0))
    plans = [space.plan_at(drawn, row) for row in range(len(drawn["a"]))]
    assert len(plans) == len(set(plans)) == 5
    assert all(space.is_legal(plan) for plan in plans)


def test_a_space_with_few_legal_plans_gives_all_it_finds():
    values = tuple(range(32))
    space = Space(
        Plan,
        {"a": values, "b": values, "c": values},
        legal=lambda c: (c["a"] == 3) & (c["b"] == 4) & (c["c"] < 2),
    )
    drawn = space.sample(64, np.random.default_rng(0))
    assert sorted(drawn["c"]) == [0, 1]
    none = Space(Plan, space.candidates, legal=lambda c: c["a"] > 99)
    assert len(none.sample(4, np.random.default_rng(0), draws=2)["a"]) == 0


@pytest.mark.parametrize(("from_each", "expected"), [("", (7, 0)), ("b", (40, 30))])
def test_a_search_in_stages_begins_from_each_value_of_a_field(from_each, expected):
    values = tuple(range(64))
    space = Space(
        Plan,
        {"a": values, "b": (0, *range(20, 40)), "c": values},
        stages=(("a",), ("b",), ("c",)),
        from_each=from_each,
    )

    def cost(c):  # without b, values of a near 7 are best; with b = 30, 40 is, and better
        near, far = 100 + abs(c["a"] - 7), 50 + 100 * (c["a"] != 40) + abs(c["b"] - 30)
        return Cost.of(all=np.where(c["b"] == 0, near, far) + c["c"])

    found = space.cheapest(cost)
    assert (found.plan.a, found.plan.b) == expected


def test_a_second_round_searches_beside_later_fields_as_the_first_left_them():
    values = tuple(range(64))
    space = Space(
        Plan,
        {"a": values, "b": values, "c": values},
        stages=(("a",), ("b",), ("c",)),
    )

    def cost(c):  # a = 40 pays with c = 9 alone, which the first round finds beside a = 7
        near = 100 + abs(c["a"] - 7) + abs(c["c"] - 9)
        return Cost.of(all=np.where((c["a"] == 40) & (c["c"] == 9), 50, near) + c["b"])

    found = space.cheapest(cost, beam_width=1)
    assert (found.plan.a, found.plan.b, found.plan.c) == (40, 0, 9)


def test_candidates_double_or_lie_halfway_between():
    assert doublings(8) == (1, 2, 4, 8)
    assert doublings(9, 4) == (4, 8)
    assert doublings(0) == (1,)
    assert tile_sizes(15) == (1, 2, 3, 4, 6, 8, 12)
    assert tile_sizes(1) == (1,)
    assert preferring(4, doublings(8)) == (4, 1, 2, 8)
