"""A model tuned on other machines: what travels, and that the answers are those of a lab here."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import jobs_of
from tilewright.driver.optimize import load_graph, optimize
from tilewright.driver.options import Options
from tilewright.driver.tuning.fleet_lab import SMALL_BYTES, FleetLab, model_message
from tilewright.driver.tuning.model_worker import ModelWorker, _array
from tilewright.driver.tuning.running import WHOLE
from tilewright.driver.tuning.server import MAX_BUILDS
from tilewright.driver.tuning.tuning import Settings, spaces_of, tune_model
from tilewright.graph.parser import parse
from tilewright.tune import Budget, Fleet
from tilewright.tune.database import Records
from tilewright.tune.fleet.pool import Result
from tilewright.tune.lab import Candidate

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[32, 200] x) => (float[32, 96] y) {
  h = MatMul (x, w)
  r = Relu (h)
  y = Softmax <axis = 1> (r)
}"""
SETTING = KernelSetting(Target.parse("cpu"), 2)
WORKER = [sys.executable, "-m", "tilewright", "worker"]


@pytest.fixture(scope="module")
def graph(weighted):
    return optimize(load_graph(weighted(NET, 200, 96)), SETTING.target, Options(threads=2))


@pytest.fixture(scope="module")
def said(graph):
    return json.loads(json.dumps(model_message(graph, SETTING, {})))


def test_a_model_travels_as_text_without_its_large_weights(graph, said):
    assert max(len(str(each)) for each in said["constants"].values()) < 2 * SMALL_BYTES
    assert any("data" not in each for each in said["constants"].values())
    constants = {name: _array(told) for name, told in said["constants"].items()}
    again = parse(said["graph"], constants)
    assert list(jobs_of(again, SETTING)) == list(jobs_of(graph, SETTING))


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_small_constants_and_whole_numbers_travel_exactly(dtype):
    from tilewright.driver.tuning.fleet_lab import _array_message

    array = np.arange(60).reshape(3, 20).astype(dtype)
    np.testing.assert_array_equal(_array(json.loads(json.dumps(_array_message(array)))), array)


class Near:
    """A fleet of one worker, in this process."""

    def __init__(self):
        self.worker = ModelWorker()
        self.workers = [SimpleNamespace(is_alive=True)]
        self._results = []

    def submit(self, messages):
        told = [self.worker(json.loads(json.dumps(each))) for each in messages]
        self._results = [
            Result(at, error=each["error"]) if "error" in each else Result(at, each)
            for at, each in enumerate(told)
        ]
        return self

    def results(self):
        return self._results


def test_a_far_lab_checks_races_and_compares(graph, said):
    fleet, jobs = Near(), jobs_of(graph, SETTING)
    lab = FleetLab(fleet, said, jobs)
    try:
        (measured,) = lab.open(SETTING.target)
        assert set(measured) == {WHOLE, *jobs}
        name = next(name for name, job in jobs.items() if "matmul" in job.label)
        space = spaces_of(jobs[name])[0]
        points = space.sample(8, np.random.default_rng(0))
        default = space.choice(space.default(), 0)
        texts = dict.fromkeys(space.choice(points, row) for row in range(len(points)))
        some = [Candidate.of(name, {space.name: text}) for text in texts if text != default][:2]
        wrong = Candidate.of(name, {space.name: "gemm mr=1"})
        found = dict(lab.check([*some, wrong], 60.0))
        assert [found[each] for each in some] == ["", ""]
        assert "TW2701" in found[wrong]
        assert len(lab.race({name: some[0]}, 5)[name].first) == 5
        lab.adopt(some[0])
        wholes, by_task = lab.compare(5)
        assert len(wholes) == 1
        assert name in by_task
        assert 1 < len(lab.whole({name: some[0]}, 5, 60.0)) <= MAX_BUILDS
        lab.adopt(Candidate(name, ()))
        assert lab.race({name: wrong}, 5) == {}
    finally:
        fleet.worker.close()


def test_a_worker_that_is_asked_nonsense_says_so(said):
    fleet = Near()
    try:
        (told,) = fleet.submit([{"model": said, "ask": "sing"}]).results()
    finally:
        fleet.worker.close()
    assert "sing" in told.error


def answers(value=None, error=""):
    result = Result(0, value or {}, error)
    return SimpleNamespace(submit=lambda messages: SimpleNamespace(results=lambda: [result]))


@pytest.mark.parametrize(
    ("fleet", "code"),
    [
        (answers({"target": "riscv64", "kernels": [], "measured": []}), "TW6045"),
        (answers({"target": SETTING.target.key, "kernels": ["x"], "measured": []}), "TW6046"),
        (answers(error="ran out of memory"), "TW6047"),
    ],
)
def test_machines_that_cannot_measure_for_a_model_are_named(fleet, code):
    with pytest.raises(UserError) as caught:
        FleetLab(fleet, {}, {}).open(SETTING.target)
    assert caught.value.code == code


@pytest.mark.slow
@pytest.mark.usefixtures("small_rounds")
def test_a_model_is_tuned_by_two_workers(graph):
    def interrupt(snapshot):
        if snapshot.stage == "learning" and any(each.trials for each in snapshot.tasks):
            raise KeyboardInterrupt

    with Fleet.from_commands([WORKER, WORKER]) as fleet:
        settings = Settings(fleet=fleet, report=interrupt)
        outcome = tune_model(graph, SETTING, Budget(minutes=10), Records.open(None), settings)
        assert sum(worker.done for worker in fleet.workers) > 1
    assert outcome.trials > 0
    assert outcome.gain >= 1.0
