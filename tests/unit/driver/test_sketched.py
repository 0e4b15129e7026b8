"""Kernels of a model that only general rules take are tuned by sketches too."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.target import Target
from tilewright.driver.compile import Options, load_graph, optimize
from tilewright.driver.kernel_code import compile_kernel
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import jobs_of
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


def test_a_kernel_of_general_rules_has_sketches(job):
    names = [space.name for space in spaces_of(job)]
    assert names[-1] == SKETCH


def test_candidates_of_sketches_are_built_and_checked_like_others(job):
    space = next(space for space in spaces_of(job) if space.name == SKETCH)
    points = space.sample(5, np.random.default_rng(0))
    checker = Checker(job, built(job), {})
    for row in range(len(points)):
        choices = choices_of({SKETCH: space.choice(points, row)})
        assert checker.fault(built(replace(job, choices=choices))) == ""


def test_a_kernel_says_which_sketch_made_it(job):
    space = next(space for space in spaces_of(job) if space.name == SKETCH)
    text = space.choice(space.sample(3, np.random.default_rng(1)), 2)
    kernel = compile_kernel(replace(job, choices=choices_of({SKETCH: text})), use_cache=False)
    assert [decision.rule for decision in kernel.decisions] == [SKETCH]
    assert kernel.decisions[0].plan == text
    assert kernel.tuned


def test_a_recorded_sketch_that_is_none_any_more_is_left_out(job):
    stale = replace(job, choices=choices_of({SKETCH: "y:tile@k y.i.inner=3"}), recorded=True)
    kernel = compile_kernel(stale, use_cache=False)
    assert not kernel.tuned
    assert kernel.refusals
