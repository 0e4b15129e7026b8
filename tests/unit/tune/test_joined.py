"""Spaces that are alternatives to each other as one."""

import numpy as np
import pytest

from tilewright.tune.cost.choose import choose
from tilewright.tune.grids import Grid, GridSpace
from tilewright.tune.joined import JoinedSpace
from tilewright.tune.search import View, strategy
from tilewright.tune.space import unique_rows


class Priced(GridSpace):
    """A grid whose points cost what their numbers add up to, times something."""

    def __init__(self, name, grid, times):
        super().__init__(name, (grid,))
        self.times = times

    def describe(self, at, columns):
        _, made = super().describe(at, columns)
        return self.times * sum(column.astype(float) for column in columns.values()), made


SMALL = {"i": (1, 2, 4), "j": (8, 16)}
LARGE = {f"f{at}": tuple(range(1, 9)) for at in range(8)}  # more than are ranked whole


@pytest.fixture
def space():
    plans = Priced("plans", Grid("gemm", SMALL, lambda c: c["i"] * c["j"] <= 32), 10.0)
    return JoinedSpace("y", {"": plans, "sketch": Priced("sketches", Grid("tile", LARGE), 1.0)})


def test_texts_of_members_are_told_apart_and_read_back(space):
    points = space.sample(20, np.random.default_rng(0))
    texts = [space.choice(points, row) for row in range(len(points))]
    assert {text.split()[0] for text in texts} == {"gemm", "sketch"}
    for row, text in enumerate(texts):
        np.testing.assert_array_equal(space.point(text), points[row : row + 1])
    assert space.point("sketch gemm i=1 j=8") is None
    assert space.point("gemm i=4 j=16") is None  # not legal
    assert space.choice(space.default(), 0) == "gemm i=1 j=8"


def test_every_member_prices_and_describes_its_own_points(space):
    points = np.concatenate([space.point("gemm i=2 j=8"), space.parts[1].default()])
    np.testing.assert_allclose(space.estimate(points), [100.0, 8.0])
    features = space.features(points)
    assert features.shape == (2, len(space.feature_names)) == (2, 1 + 2 + 8)
    np.testing.assert_allclose(features[:, 0], np.log([100.0, 8.0]), rtol=1e-6)
    assert not features[0, 3:].any()
    assert not features[1, 1:3].any()


def test_neighbours_and_mixtures_stay_in_their_member(space):
    random = np.random.default_rng(1)
    points = space.sample(40, random)
    for made in (space.mutate(points, random), space.crossover(points, points[::-1], random)):
        np.testing.assert_array_equal(made[:, 0], points[:, 0])
        assert all(space.point(space.choice(made, row)) is not None for row in range(len(made)))


def test_only_spaces_that_are_small_enough_together_are_listed(space):
    assert space.enumerate(1000) is None
    first = space.parts[0].enumerate(1000)
    assert first is not None
    assert len(unique_rows(first)) == 5
    assert space.size == 6 + 8**8


def test_search_ranks_what_was_drafted_of_all_members_together(space):
    view = View(space, choose("estimate"), np.random.default_rng(2))
    found = strategy("ranked").propose(view, 10)
    assert (space.estimate(found) < 80.0).mean() > 0.5  # sketches are cheaper by far
    dear = JoinedSpace("y", {"": space.members["sketch"], "sketch": space.members[""]})
    view = View(dear, choose("estimate"), np.random.default_rng(2))
    best = strategy("ranked").propose(view, 10)
    assert space.estimate(found).min() == pytest.approx(dear.estimate(best).min(), rel=0.5)


def test_kinds_of_members_are_apart(space):
    points = space.sample(40, np.random.default_rng(0))
    kinds = space.kinds(points)
    for at in range(len(space.members)):
        assert not set(kinds[points[:, 0] == at]) & set(kinds[points[:, 0] != at])
