"""Programs of the bench in which PyTorch's semantics show, those that compile in a moment."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from tilewright.plugins.torch import tilewright

BENCH = Path(__file__).parents[3] / "bench"
NAMES = (
    *("input_changed_in_place", "no_outputs", "slice_of_input_changed", "view_of_a_result"),
    *("same_result_twice", "clone_of_a_result", "expanded_result", "result_split"),
    *("output_views_and_results", "same_tensor_given_twice", "empty_input", "tied_weights"),
    *("weight_changed_through_data", "transposed_result", "input_with_steps"),
)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    torch._dynamo.reset()
    yield importlib.import_module
    for name in ("torch_programs", "torch_semantics", "report"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_does_as_eager_does(bench, name):
    programs, semantics = bench("torch_programs"), bench("torch_semantics")
    program = getattr(programs, name)
    want = program(lambda fn: fn)
    made = program(lambda fn: torch.compile(fn, backend=tilewright, options={"threads": 1}))
    assert semantics.difference(want, made) == semantics.SAME


def test_there_are_sixty_programs_each_once(bench):
    programs = bench("torch_programs").PROGRAMS
    assert len(programs) >= 60
    assert len({each.__name__ for each in programs}) == len(programs)


def test_what_differs_is_told(bench):
    semantics = bench("torch_semantics")
    x, y = torch.zeros(2, 3), torch.zeros(3, 2)
    assert "strides" in semantics.difference(x, y.t())
    assert "shared" in semantics.difference((x, x), (x, x.clone()))
    assert "dtype" in semantics.difference(x, x.double())
    assert semantics.difference((x, x[0]), (y.view(2, 3), y.view(2, 3)[0])) == semantics.SAME
