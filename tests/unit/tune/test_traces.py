"""Traces with samples as spaces."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.errors import UserError
from tilewright.tune import TraceSpace
from tilewright.tune.functions import tune_function


def function(rows=24, columns=32):
    x = te.placeholder((rows, columns), name="x")
    y = te.compute((rows, columns), lambda i, j: x[i, j] * 2.0 + 1.0, name="y")
    return te.function([x, y], name="f")


def sampled(fn):
    sch = tw.Schedule(fn)
    i, j = sch.get_loops(sch.get_block("y"))
    io, ii = sch.split(i, sch.sample_tile(i, n=2, max_innermost=8, decision=[6, 4]))
    jo, ji = sch.split(j, [None, sch.sample_choice([4, 8, 16], decision=[1])])
    sch.reorder(io, jo, ii, ji)
    sch.vectorize(ji)
    return sch


@pytest.fixture
def space():
    fn = function()
    return TraceSpace(fn, sampled(fn).trace)


def test_the_default_is_what_the_trace_decided(space):
    text = space.choice(space.default(), 0)
    assert text == "trace d0=6x4 d2=8"
    assert space.schedule(text).function == sampled(function()).function


def test_every_sample_is_a_decision_and_every_point_a_schedule(space):
    tiles = [(24 // inner, inner) for inner in (1, 2, 3, 4, 6, 8)]
    assert space.size == 3 * len(tiles)
    points = space.enumerate(1000)
    texts = {space.choice(points, row) for row in range(len(points))}
    assert texts == {f"trace d0={a}x{b} d2={c}" for a, b in tiles for c in (4, 8, 16)}
    data = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32)
    for text in sorted(texts)[::5]:
        sch, out = space.schedule(text), np.zeros_like(data)
        tw.interpret(sch.function, data, out)
        np.testing.assert_allclose(out, data * 2.0 + 1.0, rtol=1e-6)
        assert (
            TraceSpace(function(), sch.trace).choice(TraceSpace(function(), sch.trace).default(), 0)
            == text
        )


def test_a_large_space_says_its_size_and_lists_nothing():
    fn = function(1 << 14, 1 << 14)
    sch = tw.Schedule(fn)
    for loop in sch.get_loops(sch.get_block("y")):
        sch.split(loop, sch.sample_tile(loop, n=4, max_innermost=64))
    space = TraceSpace(fn, sch.trace)
    assert space.size > 100_000
    assert space.enumerate(1000) is None
    assert len(space.sample(50, np.random.default_rng(0))) == 50


def test_points_have_features_by_name(space):
    points = space.sample(5, np.random.default_rng(0))
    assert space.features(points).shape == (5, len(space.feature_names))
    assert space.feature_names == ("log_ns", "trace.d0[0]", "trace.d0[1]", "trace.d2[0]")


def test_a_trace_without_samples_is_no_space():
    fn = function()
    sch = tw.Schedule(fn)
    sch.parallel(sch.get_loops(sch.get_block("y"))[0])
    with pytest.raises(UserError) as caught:
        TraceSpace(fn, sch.trace)
    assert caught.value.code == "TW5102"


def test_a_text_of_another_space_is_no_point(space):
    with pytest.raises(UserError) as caught:
        space.schedule("trace d0=5x5 d2=8")
    assert caught.value.code == "TW5103"


@pytest.mark.slow
def test_a_trace_is_tuned_like_any_space(space):
    found = tune_function(space, threads=1, trials=3)
    assert len(found.trials) == 3
    assert not [each.error for each in found.trials if each.error]
    assert found.trials[0].choice == "trace d0=6x4 d2=8"
