"""Schedules written by hand, with decisions left open."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import sketch_programs as programs

from tilewright.base.errors import UserError
from tilewright.tune.templates import Split, template


@template
def product(cfg, sch):
    block = sch.get_block("c")
    i, j, k = sch.get_loops(block)
    cfg.define_split("tile_i", i, num_outputs=3)
    cfg.define_split("tile_j", j, num_outputs=2, policy="power2", max_factor=8)
    io, im, ii = cfg["tile_i"].apply(sch, i)
    jo, ji = cfg["tile_j"].apply(sch, j)
    cfg.define_reorder("order", [k, im, ii], policy="all")
    sch.reorder(io, jo, *cfg["order"].apply([k, im, ii]), ji)
    cfg.define_knob("unroll", [0, 1])
    if cfg["unroll"].val:
        sch.unroll(ii)
    sch.vectorize(ji)


def test_a_template_is_a_space_of_its_decisions():
    space = product.space(programs.gemm(12, 10, 9))
    assert list(space.decisions) == ["tile_i", "tile_j", "order", "unroll"]
    sizes = [len(values) for values in space.decisions.values()]
    assert sizes == [18, 4, 6, 2]  # ordered factors of 12; 1, 2, 4, 8; 3!; 2
    assert space.size == 18 * 4 * 6 * 2
    assert len(space.enumerate(1000)) == space.size
    text = space.choice(space.default(), 0)
    assert text == "product tile_i=12x1x1 tile_j=?x1 order=0.1.2 unroll=0"


def test_any_point_of_a_template_keeps_the_answer():
    fn = programs.gemm(12, 10, 9)
    space = product.space(fn, threads=2)
    args = programs.arguments(fn)
    want = programs.answers(fn, args)[0]
    points = space.sample(12, np.random.default_rng(0))
    for row in range(len(points)):
        text = space.choice(points, row)
        assert np.array_equal(space.point(text), points[row : row + 1])
        got = programs.answers(space.schedule(text).function, args)[0]
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_features_are_the_numbers_that_are_decided():
    space = product.space(programs.gemm(12, 10, 9))
    row = space.point("product tile_i=3x2x2 tile_j=?x4 order=2.0.1 unroll=1")
    features = dict(zip(space.feature_names, space.features(row)[0].tolist(), strict=True))
    assert features["product.tile_i[1]"] == 1.0
    assert features["product.tile_j[1]"] == 2.0
    assert [features[f"product.order[{at}]"] for at in range(3)] == [1.0, 2.0, 0.0]
    assert features["product.unroll[0]"] == 1.0
    assert (space.estimate(row) == 0).all()


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda cfg, i: cfg.define_knob("k", []), "decision 'k' has no candidates"),
        (
            lambda cfg, i: cfg.define_split("t", i, filter=lambda split: False),
            "decision 't' has no candidates",
        ),
        (lambda cfg, i: cfg.define_split("t", i, 0), "into 0 loops"),
        (lambda cfg, i: cfg.define_split("t", i, policy="best"), "no policy 'best'"),
        (lambda cfg, i: cfg.define_split("t", i, candidate=[(1, 2, 3)]), "has not 2 sizes"),
        (lambda cfg, i: cfg.define_reorder("o", [i], "upwards"), "no policy 'upwards'"),
        (lambda cfg, i: cfg.define_reorder("o", [i], candidate=[(0, 1)]), "no order of 1 loops"),
        (lambda cfg, i: cfg.define_knob("a b", [1]), "no name of a decision"),
        (lambda cfg, i: cfg["other"], "'other', which it has not defined"),
        (lambda cfg, i: None, "decides nothing"),
    ],
)
def test_bad_templates_are_refused(define, message):
    @template("bad")
    def bad(cfg, sch):
        define(cfg, sch.get_loops(sch.get_block("c"))[0])

    with pytest.raises(UserError, match=message):
        bad.space(programs.gemm())


def test_a_decision_that_comes_and_goes_is_refused():
    @template
    def fickle(cfg, sch):
        cfg.define_knob("first", [0, 1])
        if cfg["first"].val:
            cfg.define_knob("second", [0, 1])

    space = fickle.space(programs.gemm())
    with pytest.raises(UserError, match="for some values of other decisions only"):
        space.schedule("fickle first=1")


def test_splits_need_not_divide():
    @template
    def cut(cfg, sch):
        i = sch.get_loops(sch.get_block("c"))[0]
        cfg.define_split("i", i, candidate=[(-1, 5), (-1, 6)])
        cfg["i"].apply(sch, i)

    fn = programs.gemm(13, 11, 9)
    space = cut.space(fn)
    assert space.decisions["i"] == (Split((-1, 5)), Split((-1, 6)))
    args = programs.arguments(fn)
    got = programs.answers(space.schedule("cut i=?x5").function, args)[0]
    np.testing.assert_allclose(got, programs.answers(fn, args)[0], rtol=1e-5)
