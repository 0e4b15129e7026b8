"""Channels of zeros beside those of an image of bytes."""

import numpy as np
import pytest

from tilewright.base.dtype import U8
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.graph.build import Builder
from tilewright.graph.interp import interpret
from tilewright.graph.passes.pad_channels import pad_channels
from tilewright.graph.types import TensorType
from tilewright.sym import const


def model(channels, filters, size=5):
    b = Builder()
    x = b.param("x", TensorType(U8, tuple(map(const, (1, size, size, channels)))))
    random = np.random.default_rng(0)
    w = b.constant(random.integers(-9, 9, (filters, channels, 3, 3)).astype(np.int8))
    window = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
    return b.module(b.add("conv_integer", x, w, groups=1, layout="channels_last", **window))


def padded(module, processor):
    target = Target.parse(f"x86_64-linux-gnu -mcpu={processor}")
    return run_passes(module, (pad_channels,), PassContext(target=target))


@pytest.mark.parametrize(
    ("channels", "filters", "processor", "whole"),
    [
        (3, 16, "cascadelake", 4),
        (3, 8, "cascadelake", 4),
        (4, 16, "cascadelake", 4),
        (2, 16, "cascadelake", 2),  # twice the sums are too many
        (3, 128, "sapphirerapids", 3),  # tiles take rows of whole windows
        (3, 16, "sapphirerapids", 4),  # which take longer than so few dot products
        (3, 8, "sapphirerapids", 4),  # so few filters leave tiles half empty
    ],
)
def test_channels_become_whole_groups_of_a_dot_product(channels, filters, processor, whole):
    before = model(channels, filters)
    after = padded(before, processor)
    (node,) = (node for node in after.main.nodes if node.op == "conv_integer")
    assert node.inputs[1].tensor.static_shape == (filters, whole, 3, 3)
    x = np.random.default_rng(1).integers(0, 255, (1, 5, 5, channels)).astype(np.uint8)
    assert (interpret(before, x)[0] == interpret(after, x)[0]).all()


@pytest.mark.parametrize(
    ("channels", "filters", "whole"),
    [
        (48, 32, 64),
        (96, 24, 128),  # whatever number of filters
        (64, 32, 64),
        (3, 128, 3),  # little but zeros would be multiplied
    ],
)
def test_channels_become_whole_tiles_where_that_takes_less_than_unfolding(channels, filters, whole):
    before = model(channels, filters, 8)
    after = padded(before, "sapphirerapids")
    (node,) = (node for node in after.main.nodes if node.op == "conv_integer")
    assert node.inputs[1].tensor.static_shape == (filters, whole, 3, 3)
    x = np.random.default_rng(1).integers(0, 255, (1, 8, 8, channels)).astype(np.uint8)
    assert (interpret(before, x)[0] == interpret(after, x)[0]).all()


def test_images_too_small_for_tiles_keep_their_channels():
    after = padded(model(48, 32, 7), "sapphirerapids")
    (node,) = (node for node in after.main.nodes if node.op == "conv_integer")
    assert node.inputs[1].tensor.static_shape == (32, 48, 3, 3)
