"""When a model counts as right."""

import importlib
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

BENCH = Path(__file__).parents[3] / "bench"
NAN = math.nan


@pytest.fixture
def zoo(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("torch_zoo")


@pytest.mark.parametrize(
    ("made", "ratio"),
    [
        ([1.0, 2.0, NAN], 0.0),
        ([1.0, 2.0 + 8e-6, NAN], 4.0),  # the error of eager is below a millionth of the greatest
        ([1.0, NAN, NAN], math.inf),
        ([1.0, 2.0, 3.0], math.inf),
        ([1.0, math.inf, NAN], math.inf),
    ],
)
def test_an_error_counts_by_that_of_eager(zoo, made, ratio):
    eager = torch.tensor([1.0, 2.0, NAN])
    exact = torch.tensor([1.0, 2.0, NAN], dtype=torch.float64)
    assert zoo.ratio(zoo.errors(torch.tensor(made), eager, exact)) == pytest.approx(ratio, rel=0.05)


def test_other_shapes_and_types_are_wrong(zoo):
    exact = torch.zeros(2, dtype=torch.float64)
    for made in (torch.zeros(3), torch.zeros(2).half()):
        assert zoo.ratio(zoo.errors(made, torch.zeros(2), exact)) == math.inf


def test_of_several_inputs_the_greatest_errors_count(zoo):
    worst = {}
    zoo.join(worst, {0: (8e-5, 1e-5), 1: (1e-6, 1e-6)})
    assert zoo.ratio(worst) == pytest.approx(8.0)
    zoo.join(worst, {0: (1e-5, 4e-5), 1: (3e-6, 1e-6)})
    assert zoo.ratio(worst) == pytest.approx(3.0)


def test_zeros_become_noise(zoo):
    model = torch.nn.Linear(4, 4)
    kept = model.weight.detach().clone()
    with torch.no_grad():
        model.bias.zero_()
        zoo.without_zeros(model)
    assert model.bias.all()
    assert torch.equal(model.weight, kept)
