"""Weights that were packed: what of their changes is noticed, and when."""

import numpy as np
import pytest
import torch

from tilewright.plugins.torch.weights import TURNS, Weights
from tilewright.runtime import _native


def noticed_after(weights, tensors):
    """The call that notices a change, counted from 0."""
    return next((call for call in range(2 * TURNS) if not weights.are_same(tensors)), None)


def test_weights_that_stay_are_the_same():
    tensors = [torch.randn(300, 77), torch.randn(5), torch.randn(3, 8, 5, 5)]
    weights = Weights((0, 1, 2), tensors)
    assert noticed_after(weights, tensors) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.data[17].add_(1.0),  # a row of 4 KiB
        lambda w: w.data.mul_(2.0),
        lambda w: np.add(w.numpy()[40:44], 1.0, out=w.numpy()[40:44]),
        lambda w: setattr(w, "data", w.data.clone()),
        lambda w: w.detach().add_(1.0),
    ],
    ids=["row", "scaled", "numpy", "replaced", "in place"],
)
def test_changes_of_a_page_and_more_are_noticed_by_the_next_call(change):
    tensors = [torch.randn(64, 1024), torch.randn(3)]
    for begin in range(3):
        weights = Weights((0, 1), tensors)
        for _ in range(begin):
            assert weights.are_same(tensors)
        change(tensors[0])
        assert noticed_after(weights, tensors) == 0


@pytest.mark.parametrize("shape", [(3,), (128,), (1000,), (64, 1024), (7, 1111)])
def test_any_element_that_changes_is_noticed_in_the_end(shape):
    tensors = [torch.randn(shape)]
    count = tensors[0].numel()
    for at in {0, count // 2, count - 1}:
        weights = Weights((0,), tensors)
        tensors[0].data.view(-1)[at] += 1.0
        found = noticed_after(weights, tensors)
        assert found is not None
        assert found < TURNS
        assert found == 0 or count * 4 > 512


def test_weights_with_strides_are_looked_at_whole():
    tensors = [torch.randn(16, 64, 3, 3).to(memory_format=torch.channels_last)]
    weights = Weights((0,), tensors)
    tensors[0].data[15, 63, 2, 2] += 1.0
    assert noticed_after(weights, tensors) is not None


def test_a_digest_reads_lines_in_turn():
    memory = np.zeros(1024, np.uint8)
    areas = np.array([(memory.ctypes.data, 1024, 256)], np.uint64).tobytes()
    before = [_native.digest(areas, turn) for turn in range(4)]
    memory[256 + 64] = 1  # in the second line of the second part
    after = [_native.digest(areas, turn) for turn in range(4)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True, True]


def test_a_digest_refuses_areas_that_are_none():
    with pytest.raises(ValueError, match="step"):
        _native.digest(np.array([(0, 0, 1)], np.uint64).tobytes(), 0)
    with pytest.raises(ValueError, match="step"):
        _native.digest(b"12345", 0)


def test_a_watch_sees_tensors_replaced_swapped_moved_and_changed() -> None:
    def swap(tensors: list[torch.Tensor]) -> None:
        torch.utils.swap_tensors(tensors[1], torch.nn.Parameter(tensors[1].detach().clone()))

    def swap_with_inference(tensors: list[torch.Tensor]) -> None:
        with torch.inference_mode():
            other = torch.randn(64, 64)
        torch.utils.swap_tensors(tensors[1], torch.nn.Parameter(other, requires_grad=False))

    changes = {
        "replaced": lambda tensors: tensors.__setitem__(1, tensors[1].detach().clone()),
        "moved": lambda tensors: setattr(tensors[1], "data", tensors[1].data.clone()),
        "changed": lambda tensors: tensors[1].detach().view(-1)[7:8].add_(1.0),
        "swapped": swap,
        "swapped with one that counts no versions": swap_with_inference,
    }
    for name, change in changes.items():
        tensors: list[torch.Tensor] = [torch.nn.Parameter(torch.randn(64, 64)) for _ in range(3)]
        weights = Weights((0, 1, 2), tensors)
        assert weights.watch is not None
        assert weights.watch.same(tuple(tensors))
        change(tensors)
        assert not weights.watch.same(tuple(tensors)), name
        assert not weights.are_same(tensors), name


def test_other_objects_on_the_same_memory_are_the_same_weights() -> None:
    tensors = [torch.randn(64, 64), torch.randn(8)]
    weights = Weights((0, 1), tensors)
    assert weights.are_same([each.detach() for each in tensors])
