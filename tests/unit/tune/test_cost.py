"""Cost models correct the estimate: nothing before the first trial, the truth after some."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.errors import UserError
from tilewright.tune.cost import trees
from tilewright.tune.cost.choose import MODELS, Layered, choose, transferred, with_transfer
from tilewright.tune.record import Line, TaskKey, Trial, Winner

INSTALLED = [name for name in MODELS if name not in ("trees", "rank") or trees.is_installed()]
LEARNING = [name for name in INSTALLED if name != "estimate"]


def problem(count, seed=0):
    """Features whose first is the log estimate, and a correction that depends on two others."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, 8)).astype(np.float32)
    return features, 0.8 * np.tanh(features[:, 1]) + 0.4 * features[:, 2]


def rank_correlation(a, b):
    return np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1]


@pytest.mark.parametrize("name", INSTALLED)
def test_before_any_trial_the_order_is_the_estimates(name):
    features, _ = problem(20)
    guess = choose(name).predict(features)
    assert (guess.mean == 0).all()
    empty = choose(name)
    empty.fit(features[:0], np.zeros(0))
    assert (empty.predict(features).mean == 0).all()


@pytest.mark.parametrize("name", LEARNING)
def test_trials_teach_the_order_of_points_not_seen(name):
    model = choose(name)
    model.fit(*problem(150))
    features, correction = problem(400, seed=1)
    guess = model.predict(features)
    truth = features[:, 0] + correction
    assert rank_correlation(features[:, 0] + guess.mean, truth) > 0.9
    assert rank_correlation(features[:, 0], truth) < 0.85


@pytest.mark.parametrize("name", LEARNING)
def test_doubt_is_a_number_for_every_point(name):
    model = choose(name)
    model.fit(*problem(40))
    guess = model.predict(problem(100, seed=2)[0])
    assert guess.deviation.shape == (100,)
    assert (guess.deviation >= 0).all()
    assert guess.deviation.max() > 0


def test_a_gaussian_process_doubts_what_is_far_from_trials():
    model = choose("gaussian")
    features, correction = problem(50)
    model.fit(features, correction)
    near, far = model.predict(features), model.predict(features + 20.0)
    assert near.deviation.mean() < 0.5 * far.deviation.mean()


def test_one_trial_is_enough_to_go_on():
    for name in LEARNING:
        model = choose(name)
        model.fit(*problem(1))
        assert np.isfinite(model.predict(problem(5)[0]).mean).all()


def test_a_missing_extra_is_named_and_not_needed(monkeypatch):
    monkeypatch.setattr(trees.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"tilewright\[tune\]|xgboost") as caught:
        choose("trees")
    assert caught.value.code == "TW5006"
    assert choose().name == "gaussian process"


def test_an_unknown_model_is_named():
    with pytest.raises(UserError) as caught:
        choose("oracle")
    assert caught.value.code == "TW5007"


def lines(names, count=30, key=None):
    features, correction = problem(count)
    key = key or TaskKey("other", "cpu", 2)
    return [
        Line(key, Trial("y", f"p{at}", float(np.exp(c)), 1.0, 1.0, "", tuple(row.tolist()), names))
        for at, (row, c) in enumerate(zip(features, correction, strict=True))
    ]


NAMES = ("log_ns", *(f"gemm.f{at}" for at in range(7)))


def test_other_tasks_teach_before_the_first_trial():
    model = with_transfer("gaussian", NAMES, lines(NAMES))
    assert isinstance(model, Layered)
    assert "transfer" in model.name
    features, correction = problem(200, seed=3)
    assert rank_correlation(model.predict(features).mean, correction) > 0.7
    model.fit(features[:50], correction[:50] + 3.0)
    assert rank_correlation(model.predict(features).mean, correction) > 0.8


def test_columns_are_found_by_name_and_strangers_are_left_out():
    rows, ratios = transferred(("log_ns", "gemm.f1", "conv.x"), lines(NAMES))
    assert rows.shape == (30, 3)
    assert (rows[:, 2] == 0).all()
    assert np.median(ratios) == pytest.approx(0.0, abs=1e-6)
    rows, _ = transferred(("log_ns", "conv.x"), lines(NAMES))
    assert len(rows) == 0


def test_failures_and_winners_teach_nothing():
    key = TaskKey("other", "cpu", 2)
    others = [Line(key, Trial("y", "p", error="crashed")), Line(key, Winner({}, 1.0))]
    assert len(transferred(NAMES, others)[0]) == 0
