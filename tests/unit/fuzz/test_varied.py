"""Blocks of real models are valid, agree with ONNX Runtime, and change in many ways."""

import random
import sys
from pathlib import Path

import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))

from onnx_random import varied_case, vary
from onnx_random.blocks import BLOCKS, extents, text_of
from onnx_random.build import Case

DIMS = {"N": (2, 1, 3), "T": (3, 5, 4)}


def whole(name):
    """A block as it is written, with named dimensions."""
    import numpy as np

    rng, numbers = random.Random(5), np.random.default_rng(5)
    model = vary.parsed(text_of(name, extents(rng), {}))
    vary.keep_weights(model, random.Random(0), numbers)
    feeds = [
        {info.name: vary.drawn(info, choice, DIMS, numbers) for info in model.graph.input}
        for choice in range(3)
    ]
    return Case(0, model, feeds, terms=512)


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_blocks_agree_with_onnx_runtime(name):
    pytest.importorskip("onnxruntime")
    from onnx_check import AGREED, EXPLAINED, INTERPRETED, check_case

    outcome = check_case(whole(name), INTERPRETED)
    assert outcome.status in (AGREED, EXPLAINED), outcome.why


@pytest.mark.parametrize("change", vary.CHANGES)
def test_each_change_makes_another_valid_model(change):
    model = vary.parsed(text_of("attention", extents(random.Random(1)), {"N": 2, "T": 4}))
    made = []
    for seed in range(60):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        try:
            if change(copy, random.Random(seed)):
                made.append(vary.with_results(copy, [info.name for info in copy.graph.output]))
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, KeyError):
            continue
    assert any(each.graph != model.graph for each in made)


def test_a_seed_makes_the_same_model_again():
    first, again = varied_case(11), varied_case(11)
    assert first.model == again.model
    assert any(varied_case(seed).model != first.model for seed in range(12, 16))
