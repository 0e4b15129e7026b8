"""A network over levels of a nest learns what trees learn."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import sketch_programs as programs

from tilewright.tune import treegru
from tilewright.tune.cost.choose import choose
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.treegru import TreeGRU


def learned(features: np.ndarray) -> np.ndarray:
    """What an estimate might not know: a function of levels and of the whole."""
    return np.tanh(features[:, 12] / 4) + 0.3 * (features[:, 25] - features[:, 22]) / 4


def ranks(a: np.ndarray, b: np.ndarray) -> float:
    order = [np.argsort(np.argsort(each)) for each in (a, b)]
    return float(np.corrcoef(*order)[0, 1])


def test_it_learns_an_order_it_has_not_seen():
    space = SketchSpace(programs.gemm(64, 96, 80), threads=1)
    points = space.sample(400, np.random.default_rng(0))
    features = space.features(points)
    wanted = learned(features)
    model = TreeGRU(space.feature_names)
    model.fit(features[:200], wanted[:200])
    guess = model.predict(features[200:])
    assert ranks(guess.mean, wanted[200:]) > 0.8
    assert (guess.deviation >= 0).all()


def test_without_trials_there_is_no_correction():
    model = TreeGRU()
    model.fit(np.zeros((0, 5), np.float32), np.zeros(0))
    assert not model.predict(np.ones((3, 5), np.float32)).mean.any()


def test_features_without_levels_are_one_node():
    random = np.random.default_rng(1)
    features = random.random((120, 6)).astype(np.float32)
    model = TreeGRU()
    model.fit(features[:80], features[:80, 2] * 2)
    assert ranks(model.predict(features[80:]).mean, features[80:, 2]) > 0.8


def test_it_is_the_same_twice_and_known_by_name(monkeypatch):
    monkeypatch.setattr(treegru, "EPOCHS", 10)
    random = np.random.default_rng(2)
    features = random.random((40, 6)).astype(np.float32)
    told = []
    for _ in range(2):
        model = choose("treegru")
        model.fit(features, features[:, 0])
        told.append(model.predict(features).mean)
    assert np.array_equal(*told)
