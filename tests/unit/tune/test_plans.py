"""Spaces of rules' plans: legal points, neighbours, texts, estimates over whole arrays."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tilewright.graph.parser import parse
from tilewright.lower.graph import lower_graph
from tilewright.rules import alternatives, schedule
from tilewright.tune.plans import RuleSpace, parse_choice
from tilewright.tune.space import unique_rows

X86 = "x86_64-linux-gnu -mcpu=cascadelake"
GEMM = """graph @main(%x: f32[96, 64], %w: f32[64, 48]) -> (f32[96, 48]) {
  %y = matmul(%x, %w)
  %z = relu(%y)
  return %z
}"""
GEMV = """graph @main(%x: f32[1, 512], %y: f32[512, 256]) -> (f32[1, 256]) {
  %z = matmul(%x, %y)
  return %z
}"""
SOFTMAX = (
    "graph @main(%x: f32[64, 100]) -> (f32[64, 100]) { %y = softmax(%x) {axes = (1,)} return %y }"
)


@cache
def space_of(text: str) -> RuleSpace:
    fn = lower_graph(parse(text).main, "kernel")
    return RuleSpace(alternatives(fn, X86, threads=2, constants=("w",))[0])


@cache
def whole_of(text: str) -> np.ndarray:
    """All points of a space: of a GEMM those are many."""
    whole = space_of(text).enumerate(2_000_000)
    assert whole is not None
    return whole


@pytest.fixture(params=[GEMM, SOFTMAX], ids=["gemm", "softmax"])
def text(request):
    return request.param


@pytest.fixture
def space(text):
    return space_of(text)


def is_legal(space, points):
    return all(space.point(space.choice(points, row)) is not None for row in range(len(points)))


def test_all_rules_that_could_take_a_block_are_one_space():
    rules = [offer.rule.name for offer in space_of(GEMV).offers]
    assert rules[:2] == ["gemv", "gemm"]


def test_samples_are_legal_and_each_once(space):
    points = space.sample(40, np.random.default_rng(1))
    assert len(unique_rows(points)) == len(points) > 20
    assert is_legal(space, points)


def test_small_spaces_are_enumerated_and_large_ones_are_not(space, text):
    whole = whole_of(text)
    assert len(unique_rows(whole)) == len(whole) <= space.size
    assert space.enumerate(min(len(whole) - 1, 1000)) is None
    sampled = {tuple(row) for row in space.sample(50, np.random.default_rng(2))}
    assert sampled <= {tuple(row) for row in whole}


def test_texts_are_points_again(space):
    points = space.sample(20, np.random.default_rng(3))
    for row in range(len(points)):
        found = space.point(space.choice(points, row))
        assert found is not None
        assert (found[0] == points[row]).all()
    assert space.point("no_such_rule mr=1") is None


def test_the_default_is_what_rules_choose():
    space = space_of(GEMM)
    fn = lower_graph(parse(GEMM).main, "kernel")
    (decision,) = schedule(fn, X86, threads=2, constants=("w",)).decisions
    assert parse_choice(space.choice(space.default(), 0)) == decision.choice
    assert space.estimate(space.default())[0] == pytest.approx(decision.predicted_ns)
    priced = space.estimate(whole_of(GEMM))
    assert priced[priced > 0].min() <= decision.predicted_ns


def test_neighbours_and_mixtures_are_legal(space):
    random = np.random.default_rng(4)
    points = space.sample(60, random)
    near, mixed = space.mutate(points, random), space.crossover(points, points[::-1], random)
    assert is_legal(space, near)
    assert is_legal(space, mixed)
    assert (near != points).any(axis=1).mean() > 0.3
    assert ((near != points).sum(axis=1) <= 1).all()


def test_features_have_names_and_begin_with_the_estimate(space):
    points = space.sample(30, np.random.default_rng(5))
    features = space.features(points)
    assert features.shape == (len(points), len(space.feature_names))
    assert np.isfinite(features).all()
    known = space.estimate(points) > 0
    np.testing.assert_allclose(features[known, 0], np.log(space.estimate(points)[known]), rtol=1e-5)
    assert len(set(space.feature_names)) == len(space.feature_names)


def test_points_are_weighed_by_the_hundred_thousand():
    space = space_of(GEMM)
    points = space.sample(2000, np.random.default_rng(6))
    many = np.repeat(points, 100, axis=0)
    assert space.estimate(many).shape == (len(many),)
    np.testing.assert_array_equal(space.features(many)[::100], space.features(points))


def test_nothing_is_a_legal_number_of_points(space):
    random, none = np.random.default_rng(7), space.sample(5, np.random.default_rng(7))[:0]
    assert len(space.mutate(none, random)) == len(space.crossover(none, none, random)) == 0
    assert len(space.estimate(none)) == len(space.features(none)) == 0
    other = space.default().copy()
    other[:, 0] = len(space.offers) - 1  # of another rule: nothing to mix with
    assert (space.crossover(space.default(), other, random) == space.default()).all()
