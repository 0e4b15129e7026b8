"""Which models a seed draws."""

import importlib
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def drawing(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    made = importlib.import_module("torch_draw")
    names = {source: lambda s=source: [f"{s}{n}" for n in range(9)] for source in "ab"}
    monkeypatch.setattr(made, "NAMES", names)
    return made


def test_a_seed_draws_the_same_models_of_every_source_in_turn(drawing):
    first, again, other = (list(drawing.draw(seed, 6, lambda _: True)) for seed in (1, 1, 2))
    assert first == again != other
    assert [name.partition("/")[0] for name in first] == ["a", "b"] * 3
    assert len(set(first)) == 6


def test_what_is_not_taken_is_drawn_again(drawing):
    whole = list(drawing.draw(1, 6, lambda _: True))
    left = list(drawing.draw(1, 6, lambda name: name != whole[0]))
    assert whole[0] not in left
    assert len(left) == 6
    assert left[1::2] == whole[1::2]  # the other source gives what it did


def test_results_are_apart_by_a_part_of_the_greatest(drawing):
    want = [torch.tensor([1.0, -200.0]), torch.tensor([])]
    assert drawing.distance([torch.tensor([3.0, -200.0]), torch.tensor([])], want) == 0.01
    assert drawing.distance([torch.tensor([math.nan, 1.0]), torch.tensor([])], want) == math.inf
    assert drawing.distance([torch.tensor([1.0]), torch.tensor([])], want) == math.inf
