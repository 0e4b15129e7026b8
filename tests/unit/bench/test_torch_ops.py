"""What the benchmark of PyTorch's operators holds its time against."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("expecttest")

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def operators(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("torch_ops")


@pytest.mark.parametrize(("minutes", "ok"), [(170.0, True), (190.0, False)])
def test_the_time_of_the_whole_table_has_a_goal(operators, minutes, ok):
    options = SimpleNamespace(jobs=2, limit=0)
    core, side_by_side = operators._times(minutes, options, is_whole=True)
    assert core.value == minutes
    assert (side_by_side.value, side_by_side.want, side_by_side.ok) == (minutes / 2, "<= 90", ok)


def test_the_time_of_a_part_has_none(operators):
    for limit, is_whole in ((0, False), (1, True)):
        options = SimpleNamespace(jobs=2, limit=limit)
        assert not any(each.want for each in operators._times(9.0, options, is_whole=is_whole))
