"""What bench/tune.py tunes, plants and perturbs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

import tune
from tune_faulty_server import KINDS, planted
from tune_kernels import KERNELS

from tilewright.base.target import Target
from tilewright.graph.verify import verify


def test_there_are_thirty_kernels_and_each_is_a_model():
    assert len({each.name for each in KERNELS}) == len(KERNELS) == 30
    for kernel in KERNELS:
        module = kernel.module()
        verify(module)
        assert len(module.main.params) == (2 if "two inputs" in kernel.name else 1)
        assert set(module.constants) <= {"w"}
    assert set(tune.STRANGERS) <= {each.name for each in KERNELS}


def test_faults_are_planted_in_half_of_all_kernels():
    kinds = [planted(f"matmul_{number:012x}") for number in range(800)]
    assert {kind: kinds.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, 100)
    assert kinds.count("") == 400


@pytest.mark.parametrize("seed", range(3))
def test_rates_of_a_stranger_are_off_by_two_at_most(seed):
    numbers = Target.parse("cpu").machine.numbers()
    off = tune.wrong_rates(numbers, seed)
    assert all(0.5 <= value / numbers[name] <= 2.0 for name, value in off.items())
    assert "l2-bytes-per-cycle" in off
    assert "l2" not in off
    machine = Target.parse(tune.with_rates("cpu", off)).machine
    assert machine.thread_wake_ns == pytest.approx(off["thread-wake-ns"], rel=1e-3)


def test_how_much_of_a_gain_was_there_early():
    def built():
        return None, None

    made = tune.Tuned("m", None, None, [], built, [(10.0, 1.0), (50.0, 1.1), (200.0, 1.2)])
    assert made.early(60.0) == pytest.approx(0.5)
    assert tune.Tuned("m", None, None, [], built).early(60.0) == 1.0
