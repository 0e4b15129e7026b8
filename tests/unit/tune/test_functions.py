"""One function tuned, from proposing to confirming, on workers of this machine."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import sketch_programs as programs

import tilewright as tw
from tilewright.base.errors import UserError
from tilewright.tune.database import Database, Records
from tilewright.tune.functions import local_fleet, tune_function
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.templates import template


@pytest.fixture(scope="module")
def fleet():
    with local_fleet() as made:
        yield made


def test_a_function_is_tuned_within_its_trials(fleet):
    fn = programs.noisy_or(8, 12, 12, 16)
    seen = []
    found = tune_function(fn, threads=1, trials=8, fleet=fleet, report=seen.append)
    assert len(found.trials) == len(seen) >= 8
    assert found.trials[0].choice == "rules"  # the default comes first
    assert found.gain >= 1.0
    args = programs.arguments(fn)
    want = programs.answers(fn, args)[0]
    tw.build(found.schedule.function)(*args, threads=1)
    np.testing.assert_allclose(args[-1], want, rtol=1e-4)
    counts = [count for count, _ in found.curve]
    assert counts == sorted(counts)


def test_what_is_learned_is_recorded_and_transfers(fleet):
    records = Records(Database())
    first, second = programs.gemm(24, 32, 40), programs.gemm(40, 24, 32)
    tune_function(first, threads=1, trials=20, fleet=fleet, records=records, seed=1)
    lines = records.query(tw.Target.parse("cpu").key)
    assert len(lines) >= 20
    assert all(line.record.features for line in lines if not line.record.error)
    found = tune_function(second, threads=1, trials=4, fleet=fleet, records=records)
    assert found.model.endswith("with transfer")


def test_a_template_is_tuned_by_the_same_search(fleet):
    @template
    def rows(cfg, sch):
        i = sch.get_loops(sch.get_block("c"))[0]
        cfg.define_split("i", i, candidate=[(-1, 2), (-1, 4)])
        _, inner = cfg["i"].apply(sch, i)
        cfg.define_knob("unroll", [0, 1])
        if cfg["unroll"].val:
            sch.unroll(inner)

    space = rows.space(programs.gemm(24, 32, 40))
    found = tune_function(space, threads=1, trials=10, fleet=fleet, model="gaussian")
    assert len(found.trials) == 4  # all there are
    assert found.choice.startswith("rows i=")


def test_points_that_cannot_be_measured_cost_a_trial_each(fleet):
    class Broken(SketchSpace):
        """Every structure but the default is refused."""

        def schedule(self, choice):
            if choice != "rules":
                raise ValueError("cannot be made")
            return super().schedule(choice)

    space = Broken(programs.squares(), threads=1)
    found = tune_function(space, threads=1, trials=5, fleet=fleet, model="gaussian")
    assert found.choice == "rules"
    assert found.gain == 1.0
    assert [trial.error for trial in found.trials] == ["", *["cannot be made"] * 4]


@pytest.mark.parametrize("target", ["cuda -arch=sm_90a", "riscv64-linux-gnu", "wasm32"])
def test_a_target_that_cannot_be_timed_here_is_refused(target):
    with pytest.raises(UserError) as caught:
        tune_function(programs.noisy_or(16, 24, 24, 32), target, trials=1)
    assert caught.value.code == "TW5010"


def test_a_fleet_times_functions_for_other_processors_but_not_for_gpus(fleet):
    with pytest.raises(UserError) as caught:
        tune_function(programs.noisy_or(16, 24, 24, 32), "cuda", trials=1, fleet=fleet)
    assert caught.value.code == "TW5010"


def test_there_are_no_sketches_for_gpus():
    with pytest.raises(UserError) as caught:
        SketchSpace(programs.noisy_or(16, 24, 24, 32), "cuda -arch=sm_90a")
    assert caught.value.code == "TW5013"
