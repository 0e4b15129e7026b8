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


def test_errors_of_nothing_and_of_all_digits_have_a_ratio(zoo):
    assert zoo.ratio({0: (0.0, 0.0)}) == 1.0
    assert zoo.ratio({0: (math.inf, math.inf)}) == 1.0
    assert zoo.ratio({0: (1e-6, 0.0)}) > 1e6
    assert zoo.where({0: (0.0, 0.0), 1: (2e-6, 1e-6)}).startswith(", result 1")


def test_of_several_inputs_the_greatest_errors_count(zoo):
    worst = {}
    zoo.join(worst, {0: (8e-5, 1e-5), 1: (1e-6, 1e-6)})
    assert zoo.ratio(worst) == pytest.approx(8.0)
    zoo.join(worst, {0: (1e-5, 4e-5), 1: (3e-6, 1e-6)})
    assert zoo.ratio(worst) == pytest.approx(3.0)


def test_the_mean_of_many_inputs_is_told_beside_the_ratio_that_counts(zoo):
    assert zoo.told(4.0, [4.0, 1.0]) == "4.00"
    assert zoo.told(4.0, [4.0, 1.0, 0.25]) == "4.00 (1.00 in the mean of 3)"
    assert zoo.told(math.inf, [1.0, 1.0, math.inf]) == "inf"


def test_the_result_that_is_off_most_is_told(zoo):
    worst = {0: (2e-4, 1e-4), 1: (4e-5, 1e-5)}
    assert zoo.where(worst) == ", result 1: 4.0e-05, eager's 1.0e-05"


def test_zeros_become_noise(zoo):
    model = torch.nn.Linear(4, 4)
    kept = model.weight.detach().clone()
    with torch.no_grad():
        model.bias.zero_()
        zoo.without_zeros(model)
    assert model.bias.all()
    assert torch.equal(model.weight, kept)


class Off:
    """As a model is, but for what is added to some of the calls."""

    def __init__(self, model, added):
        self.model, self.added, self.calls = model, added, 0

    def __call__(self, input):
        self.calls += 1
        return self.model(input) + self.added.get(self.calls, 0.0)


@pytest.mark.parametrize(
    ("added", "rounds", "status"),
    [
        ({}, 0, "right"),
        ({1: 1e-3}, 1, "wrong"),  # inputs that are right make up for none that are not
        ({2: 1e-3}, 1, "wrong"),
        ({1: 1e-3, 14: 1.0}, 1, "wrong"),
        ({1: math.inf}, 0, "wrong"),
    ],
    ids=str,
)
def test_what_looks_wrong_is_tried_on_all_further_inputs(zoo, added, rounds, status):
    compiled = Off(torch.nn.Linear(4, 4), added)
    with torch.no_grad():
        made = zoo._judged(compiled, compiled.model, lambda n: {"input": torch.randn(n, 4)}, 0.0)
    assert made.status == status
    assert compiled.calls == 2 * (1 + rounds * zoo.MORE)


def test_rounding_of_eager_that_a_further_input_shows_counts(zoo, monkeypatch):
    found = iter([(8e-5, 1e-5), (1e-5, 1e-5), (1e-5, 4e-5)])
    monkeypatch.setattr(zoo, "errors", lambda *_: {0: next(found, (1e-5, 1e-5))})
    compiled = Off(torch.nn.Linear(4, 4), {})
    with torch.no_grad():
        made = zoo._judged(compiled, compiled.model, lambda n: {"input": torch.randn(n, 4)}, 0.0)
    assert (made.status, made.ratio) == ("right", pytest.approx(2.0))
    assert compiled.calls == 2 * (1 + zoo.MORE)


class Grid(torch.nn.Module):
    """Samples at places that it makes itself, in f32."""

    def forward(self, image):
        places = torch.linspace(-1, 1, 3, dtype=torch.float32)
        rows, columns = torch.meshgrid(places, places + torch.arange(1).float() / 3, indexing="ij")
        grid = torch.stack((columns, rows), -1).expand(len(image), -1, -1, -1)
        return torch.nn.functional.grid_sample(image, grid, align_corners=True)


def test_f32_of_a_models_own_making_is_f64_in_what_it_is_held_against(zoo):
    image = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    eager = Grid()(image.float())
    exact = zoo._exact(Grid(), {"image": image}, eager)
    assert exact.dtype is torch.float64
    torch.testing.assert_close(exact.float(), eager)
    assert torch.get_default_dtype() is torch.float32


def test_many_parameters_are_f64_only_while_they_are_read(zoo, monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()
    x = torch.randn(3, 4, dtype=torch.float64)
    expected = zoo.widened(model)(x)
    monkeypatch.setattr(zoo, "MANY_BYTES", 0)
    wide = zoo.widened(model)
    assert torch.equal(wide(x), expected)
    kept = {each.data_ptr() for each in model.parameters()}
    assert {each.data_ptr() for each in wide.parameters()} == kept
    assert model[0].weight.dtype is model[1].running_mean.dtype is torch.float32
