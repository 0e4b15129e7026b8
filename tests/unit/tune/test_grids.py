"""Grids of named fields, as one space."""

import numpy as np
import pytest

from tilewright.base.errors import UserError
from tilewright.tune.grids import Grid, GridSpace


def space() -> GridSpace:
    tile = Grid("tile", {"i": (1, 2, 4, 8), "j": (4, 8, 16)}, lambda c: c["i"] * c["j"] <= 32)
    other = Grid("other", {"way": ("rows", "columns")})
    return GridSpace("C", (tile, other))


def test_a_point_and_its_text_are_one():
    points = space().enumerate(1000)
    assert len(points) == 9 + 2
    assert space().size == 12 + 2  # combinations, legal or not
    for row in range(len(points)):
        text = space().choice(points, row)
        assert np.array_equal(space().point(text), points[row : row + 1])
    assert space().choice(space().default(), 0) == "tile i=1 j=4"


@pytest.mark.parametrize(
    "text", ["tile i=8 j=8", "tile i=3 j=4", "tile j=4 i=1", "tile i=1", "nothing i=1 j=4", "other"]
)
def test_what_is_no_point_has_none(text):
    assert space().point(text) is None


def test_samples_are_legal_and_differ():
    random = np.random.default_rng(0)
    points = space().sample(8, random)
    assert len(np.unique(points, axis=0)) == len(points) == 8
    assert all(space().point(space().choice(points, row)) is not None for row in range(8))
    assert len(space().sample(100, random)) == 11  # all there are


def test_neighbours_and_mixtures_are_legal():
    random = np.random.default_rng(1)
    points = space().sample(11, random)
    for made in (
        space().mutate(points, random),
        space().crossover(points, points[::-1], random),
    ):
        assert np.array_equal(made[:, 0], points[:, 0])  # of the same structure
        for row in range(len(made)):
            assert space().point(space().choice(made, row)) is not None


def test_a_space_too_large_to_list_is_sampled():
    fields = {name: tuple(range(1, 33)) for name in "abcdef"}
    large = GridSpace(
        "large", (Grid("g", fields, lambda c: c["a"] * c["b"] <= 8, groups=(("a", "b"),)),)
    )
    assert large.size == 32**6
    assert large.enumerate(10**6) is None
    points = large.sample(1000, np.random.default_rng(0))
    columns = large.columns(points, 0)
    assert len(points) == 1000
    assert (columns["a"] * columns["b"] <= 8).all()


def test_features_name_their_fields():
    points = space().enumerate(100)
    features = space().features(points)
    assert features.shape == (len(points), len(space().feature_names))
    assert features.dtype == np.float32
    assert "other.way=rows" in space().feature_names


def test_a_decision_without_candidates_is_refused():
    with pytest.raises(UserError, match="decision 'tile' has no candidates"):
        Grid("gemm", {"tile": ()})


def test_a_space_without_a_legal_point_is_refused():
    nothing = GridSpace("none", (Grid("g", {"a": (1, 2)}, lambda c: c["a"] > 5),))
    assert not len(nothing.sample(4, np.random.default_rng(0)))
    with pytest.raises(UserError, match="is legal"):
        nothing.default()
