"""Candidates in the place of a GPU's kernels, on machines without one: launches interpreted."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.dtype import dtype
from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import jobs_of
from tilewright.driver.optimize import optimize
from tilewright.driver.options import Options
from tilewright.driver.tuning.check import Checker
from tilewright.driver.tuning.device import DeviceBench, DeviceRunning
from tilewright.driver.tuning.records import choices_of
from tilewright.driver.tuning.roofline import floor_ns
from tilewright.driver.tuning.running import ALL, WHOLE
from tilewright.driver.tuning.sized_kernels import Kernels
from tilewright.driver.tuning.table import built
from tilewright.driver.tuning.tuning import spaces_of
from tilewright.runtime import cuda

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import Graph, HostGpu
from test_cuda_models import CONTROL


class OnceGraph(Graph):
    """Launches that are interpreted once: they leave the same behind every time."""

    is_done = False

    def launch(self, stream):
        if not self.is_done:
            super().launch(stream)
        self.is_done = True


class Timeline:
    def __init__(self, launches):
        self.launches = launches

    def run(self):
        return [0.001 * launch.grid[0] for launch in self.launches]  # as if blocks took turns


class TunedGpu(HostGpu):
    """A GPU in host memory with a clock of its own."""

    def __init__(self):
        super().__init__("cuda -arch=sm_80")

    def graph(self, launches, waits):
        return OnceGraph(launches, waits)

    def timeline(self, launches):
        return Timeline(launches)


NET = """graph @main(%x: f32[n, 16], %b: f32[16, 8]) -> (f32[n, 8], f32[n]) {
  %y = matmul(%x, %b)
  %z = tanh(%y)
  %s = reduce_sum(%z) {axes = (1,), keepdims = false}
  return %z, %s
}"""
TARGET = Target.parse("cuda -arch=sm_80")
SETTING = KernelSetting(TARGET, 1)


@pytest.fixture(scope="module")
def model():
    return optimize(graph.parse(NET), TARGET, Options())


@pytest.fixture(scope="module")
def jobs(model):
    return jobs_of(model, SETTING)


@pytest.fixture(scope="module")
def candidates(jobs):
    """For every kernel that there is something to decide about: its job with another plan."""
    found = {}
    for name, job in jobs.items():
        for space in spaces_of(job):
            points = space.sample(1, np.random.default_rng(3))
            choices = choices_of({space.name: space.choice(points, 0)})
            found[name] = replace(job, choices=choices)
    return found


@pytest.fixture(scope="module")
def running(model, jobs):
    defaults = {name: built(job) for name, job in jobs.items()}
    return DeviceRunning(model, SETTING, defaults, {"n": [3, 17]}, gpu=TunedGpu())


def test_kernels_of_a_gpu_have_spaces(jobs, candidates):
    assert candidates
    assert all(job.choices for job in candidates.values())


def test_candidates_are_compared_with_plain_loops_of_the_host(candidates):
    candidate = next(iter(candidates.values()))
    job = replace(candidate, choices={})
    checker = Checker(job, built(job), {"n": 9}, DeviceBench(job, TunedGpu()))
    assert checker.fault(built(candidate)) == ""
    nodes = tuple(
        replace(node, op="neg") if node.op == "tanh" else node for node in job.source.nodes
    )
    liar = built(replace(job, source=replace(job.source, nodes=nodes)))
    assert "another answer" in checker.fault(liar)


def test_a_wave_is_timed_in_the_place_of_the_incumbents(running, candidates):
    wave = {(name, ALL): built(job) for name, job in candidates.items()}
    times = running.race(wave, 6)
    assert {sized: len(first) for sized, (first, _) in times.items()} == dict.fromkeys(wave, 12)
    for sized, kernel in wave.items():
        running.adopt(sized, kernel)
    compared = running.compare(5)
    assert {at for name, at in compared if name == WHOLE} == {0, 1}
    for name, at in wave:
        assert set(compared[name, 0][1]) == set(
            times[name, at][1][:6]
        )  # the adopted kernel, at the same size
        running.adopt((name, at), None)
    assert all(first == second for first, second in running.compare(5).values())


def test_a_candidate_that_changes_the_answer_is_not_timed(running, jobs):
    name, job = next((n, j) for n, j in jobs.items() if "tanh" in j.label)
    nodes = tuple(replace(n, op="neg") if n.op == "tanh" else n for n in job.source.nodes)
    liar = built(replace(job, source=replace(job.source, nodes=nodes)))
    assert running.race({(name, ALL): liar}, 5) == {}


def test_the_baseline_tells_time_and_work_of_each_kernel(running, jobs):
    small, large = running.baseline(2)
    assert set(small) == {WHOLE, *jobs}
    matmul = next(name for name in jobs if name.startswith("matmul"))
    assert large[matmul].flops >= 2 * 17 * 16 * 8
    assert small[matmul].size_bytes < large[matmul].size_bytes


def test_modules_as_they_are_compiled_take_turns(running):
    first, second = (running.module(running._defaults) for _ in range(2))
    times = running.built(first, second, 5)
    assert {at: len(sides[0]) for (_, at), sides in times.items()} == {0: 5, 1: 5}


def test_kernels_are_tuned_at_all_sizes_at_once(model):
    kernels = Kernels(model, SETTING, {"n": [3, 17]})
    assert all(kernels.sized_kernels(name) == [(name, ALL)] for name in kernels.jobs)


def test_the_roofline_of_a_gpu_is_its_tensor_cores_or_its_memory():
    hopper = Target.parse("cuda -arch=sm_90a")
    half, single = dtype("f16"), dtype("f32")
    flops = 2 * 4096**3
    assert floor_ns(flops, 1, half, hopper, 0) * 10 < floor_ns(flops, 1, single, hopper, 0)
    assert floor_ns(1, 1 << 20, half, hopper, 0) < floor_ns(1, 1 << 28, half, hopper, 0) / 200


def test_a_model_for_a_gpu_is_tuned_where_there_is_one(monkeypatch):
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    with pytest.raises(UserError) as caught:
        tw.compile(graph.parse(NET), "cuda", tune=tw.tune.Budget(minutes=0.01), database="")
    assert caught.value.code == "TW5010"


NONZERO = """graph @main(%x: f32[n, 4]) {
  %i = nonzero(%x)
  return %i
}"""


@pytest.mark.parametrize("text", [NONZERO, CONTROL["if"]], ids=["sizes", "branch"])
def test_launches_that_depend_on_values_are_not_tuned(text):
    model = optimize(graph.parse(text), TARGET, Options())
    defaults = {name: built(job) for name, job in jobs_of(model, SETTING).items()}
    with pytest.raises(UserError) as caught:
        DeviceRunning(model, SETTING, defaults, {"n": 3}, gpu=TunedGpu())
    assert caught.value.code == "TW5011"
