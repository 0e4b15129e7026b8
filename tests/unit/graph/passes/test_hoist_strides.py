"""Strides of 1x1 convolutions, taken before them."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph import interpret
from tilewright.graph.parser import parse
from tilewright.graph.passes.hoist_strides import hoist_strides

TEXT = """graph @main(%x: f32[2, 6, h, w], %v: f32[8, 3, 1, 1], %b: f32[8]) {
  %y = conv(%x, %v, %b) {strides = (3, 2), pads = (0, 0, 0, 0), dilations = (2, 1), groups = 2}
  return %y
}"""


@pytest.mark.parametrize("sizes", ["9, 8", "1, 7", "h, w", "h, 5"])
def test_the_answer_stays(sizes):
    module = parse(TEXT.replace("h, w", sizes))
    made = hoist_strides(module, PassContext(target=Target.parse("cpu")))
    assert [node.op for node in made.main.nodes] == ["slice", "conv"]
    rng = np.random.default_rng(0)
    shape = tuple(int(size) if size.isdigit() else 4 for size in sizes.split(", "))
    given = [(2, 6, *shape), (8, 3, 1, 1), (8,)]
    arrays = [rng.standard_normal(each).astype(np.float32) for each in given]
    (wanted,) = interpret(module, *arrays)
    np.testing.assert_array_equal(interpret(made, *arrays)[0], wanted)
    np.testing.assert_allclose(np.asarray(tw.compile(module)(*arrays)[0]), wanted, 1e-5, 1e-5)


def test_gpus_read_strided_images_in_place():
    module = parse(TEXT)
    ctx = PassContext(target=Target.parse("cuda -arch=sm_90a"))
    assert hoist_strides(module, ctx) is module
