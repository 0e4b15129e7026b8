"""Sketches compete with the plans of rules for every kernel of a model, in one space."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.target import Target
from tilewright.driver.kernel_code import compile_kernel
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import jobs_of
from tilewright.driver.optimize import load_graph, optimize
from tilewright.driver.options import Options
from tilewright.driver.tuning.check import Checker
from tilewright.driver.tuning.records import choices_of
from tilewright.driver.tuning.table import built
from tilewright.driver.tuning.tuning import spaces_of
from tilewright.tune.sketch import SKETCH

NET = """<ir_version: 8, opset_import: ["" : 18]>
net (float[6, 40, 24] x) => (float[6, 24] y) {
  axes = Constant <value_ints = [1]> ()
  y = ReduceProd <keepdims = 0> (x, axes)
}"""
SETTING = KernelSetting(Target.parse("cpu"), 2)


@pytest.fixture(scope="module")
def job(weighted):
    graph = optimize(load_graph(weighted(NET)), SETTING.target, Options(threads=2))
    return next(iter(jobs_of(graph, SETTING).values()))


@pytest.fixture(scope="module")
def space(job):
    return spaces_of(job)[0]


def sketches(space, count, seed):
    """Texts of some sketches."""
    points = space.parts[1].sample(count, np.random.default_rng(seed))
    return [space.choice(points, row) for row in range(len(points))]


def test_sketches_and_plans_of_rules_are_one_space(space):
    assert list(space.members) == ["", SKETCH]
    first = space.choice(space.default(), 0)
    assert not first.startswith(SKETCH)
    kinds = {text.split()[0] for text in [first, *sketches(space, 4, 0)]}
    assert kinds == {first.split()[0], SKETCH}


def test_candidates_of_sketches_are_built_and_checked_like_others(job, space):
    checker = Checker(job, built(job), {})
    for text in sketches(space, 5, 0):
        choices = choices_of({space.name: text})
        assert checker.fault(built(replace(job, choices=choices))) == ""


def test_a_kernel_says_which_sketch_made_it(job, space):
    text = sketches(space, 3, 1)[2]
    kernel = compile_kernel(replace(job, choices=choices_of({space.name: text})), use_cache=False)
    assert [decision.rule for decision in kernel.decisions] == [SKETCH]
    assert f"{SKETCH} {kernel.decisions[0].plan}" == text
    point = space.point(text)
    assert kernel.decisions[0].predicted_ns == pytest.approx(float(space.estimate(point)[0]))
    assert kernel.tuned


def test_a_recorded_sketch_that_is_none_any_more_is_left_out(job):
    stale = replace(job, choices=choices_of({"y": f"{SKETCH} y:tile@k y.i.inner=3"}), recorded=True)
    kernel = compile_kernel(stale, use_cache=False)
    assert not kernel.tuned
    assert kernel.refusals
