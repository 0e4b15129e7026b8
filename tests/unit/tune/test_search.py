"""What is proposed: never twice, the best first, and not only the best."""

from __future__ import annotations

import numpy as np
import pytest
from tune_fakes import GridSpace, rows

from tilewright.base.errors import UserError
from tilewright.tune.cost.choose import choose
from tilewright.tune.cost.model import EstimateAlone
from tilewright.tune.search import STRATEGIES, Evolution, View, strategy


def view(model=None, seed=0):
    return View(GridSpace(), model or EstimateAlone(), np.random.default_rng(seed))


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_is_proposed_twice(name):
    seen, search, of = set(), strategy(name), view()
    for _ in range(6):
        points = search.propose(of, 10)
        assert 0 < len(points) <= 10
        assert not rows(points) & seen
        seen |= rows(points)
        of.mark(points)


@pytest.mark.parametrize("name", ["ranked", "random", "grid"])
def test_a_space_comes_to_an_end(name):
    search, of = strategy(name), view()
    for _ in range(20):
        points = search.propose(of, 50)
        of.mark(points)
    assert of.tried == of.space.size
    assert len(search.propose(of, 5)) == 0


def test_without_trials_the_estimate_decides():
    points = strategy("ranked").propose(view(), 10)
    estimate = GridSpace().estimate(points)
    assert (estimate[:6] == 900.0).all()


@pytest.mark.parametrize("name", ["ranked", "evolution", "annealing"])
def test_with_trials_the_model_finds_what_the_estimate_does_not_know(name):
    of, search = view(choose("gaussian")), strategy(name)
    known: list[np.ndarray] = []
    for _ in range(6):
        points = search.propose(of, 8)
        of.mark(points)
        known.append(points)
        every = np.concatenate(known)
        of.fit(every, np.log(of.space.true_ns(every)))
    assert of.space.true_ns(np.concatenate(known)).min() <= 1000.0 * np.exp(0.12)


def test_batches_hold_more_than_the_best():
    points = strategy("ranked").propose(view(choose("gaussian")), 20)
    assert len({int(each) for each in points[:, 1]}) > 2


def test_evolution_improves_on_what_it_drew():
    of = view()
    found = Evolution(64, 8).propose(of, 5)
    assert of.space.estimate(found).max() == 900.0


def test_an_unknown_search_is_named():
    with pytest.raises(UserError) as caught:
        strategy("divination")
    assert caught.value.code == "TW5008"


def test_what_nothing_is_known_of_is_tried_late():
    space = GridSpace()
    estimate = space.estimate
    space.estimate = lambda points: np.where(points[:, 2] == 5, 0.0, estimate(points))
    of = View(space, EstimateAlone(), np.random.default_rng(0))
    points = strategy("ranked").propose(of, 8)
    assert (points[:4, 2] != 5).all()


def test_every_kind_is_tried_once_however_dear_it_seems():
    space = GridSpace()
    estimate = space.estimate
    space.kinds = lambda points: np.asarray(points)[:, 2]
    space.estimate = lambda points: estimate(points) * np.where(points[:, 2] == 0, 1.0, 3.0)
    of, search = View(space, EstimateAlone(), np.random.default_rng(0)), strategy("ranked")
    of.mark(space.default())
    tried = set()
    for _ in range(5):
        points = search.propose(of, 8)
        assert (points[:5, 2] == 0).all()  # most of a batch is what seems best
        of.mark(points)
        tried.update(points[:, 2].tolist())
    assert tried == set(range(6))
