"""Which convolutions are computed by Winograd's method, and that the answer stays the same."""

import numpy as np
import pytest

from tilewright.base.dtype import F32, I8, U8
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.passes.choose_winograd import choose_winograd
from tilewright.sym import const, size

SERVER = Target.parse("x86_64-linux-gnu -mcpu=sapphirerapids")


def model(
    size,
    channels,
    out,
    kernel=3,
    stride=1,
    layout="channels_last",
    others=0,
    fixed=True,
    groups=1,
):
    """A convolution, in a model with so many bytes of other weights; its own may be an input."""
    b = Builder()
    if others:
        b.constant(np.ones(others // 4, np.float32))
    shape = (1, size, size, channels) if layout == "channels_last" else (1, channels, size, size)
    x = b.param("x", TensorType(F32, tuple(map(const, shape))))
    filters = (out, channels // groups, kernel, kernel)
    if fixed:
        w = b.constant(np.ones(filters, np.float32))
    else:
        w = b.param("w", TensorType(F32, tuple(map(const, filters))))
    pad = kernel // 2
    window = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1)}
    return b.module(b.add("conv", x, w, layout=layout, groups=groups, **window))


def model_of_bytes(channels=64, out=64, kind=I8, **inputs):
    """A convolution of bytes, with more inputs by name: zero points."""
    b = Builder()
    x = b.param("x", TensorType(U8, tuple(map(const, (1, 28, 28, channels)))))
    w = b.constant(np.ones((out, channels, 3, 3), kind.numpy))
    zeros = [b.constant(np.array(1, np.uint8))] if inputs.get("zero") else []
    window = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
    return b.module(b.add("conv_integer", x, w, *zeros, layout="channels_last", **window))


def dynamic_model(channels, out):
    """A convolution of an image of any height and width."""
    b = Builder()
    dims = (const(1), size("h"), size("v"), const(channels))
    x = b.param("x", TensorType(F32, dims))
    w = b.constant(np.ones((out, channels, 3, 3), np.float32))
    window = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
    return b.module(b.add("conv", x, w, layout="channels_last", **window))


def chosen(module, target=SERVER):
    costs = target and KernelCosts(KernelSetting(target, 1), use_cache=False)
    made = run_passes(module, (choose_winograd,), PassContext(target=target, costs=costs))
    convolutions = ("conv", "conv_integer")
    return next(node.get("winograd", 0) for node in made.main.nodes if node.op in convolutions)


@pytest.mark.parametrize(
    ("size", "channels", "out", "tile"),
    [
        (56, 64, 64, 4),  # many tiles: the largest
        (56, 16, 64, 2),  # short sums: the more accurate one
        (7, 512, 512, 2),  # few tiles: weights would take longer than products
        (56, 64, 72, 0),  # vectors that are not full
        (224, 3, 64, 0),  # hardly anything to multiply
    ],
)
def test_the_tile_follows_from_the_sizes(size, channels, out, tile):
    assert chosen(model(size, channels, out)) == tile


def test_windows_of_two_have_tiles_of_their_own():
    """As transposed convolutions of 4 x 4 windows with steps of 2 are computed."""
    assert chosen(model(16, 128, 64, kernel=2)) == 2
    assert chosen(model(4, 512, 256, kernel=2, others=8 << 20)) == 0  # weights outweigh products
    assert chosen(model(16, 128, 64, kernel=5)) == 0  # no tile is as exact as the sum
    gpu = Target.parse("cuda -arch=sm_90a")
    assert chosen(model(16, 128, 64, kernel=2, layout="channels_first"), gpu) == 0


def test_images_of_any_size_are_priced_as_known_ones_are():
    assert chosen(dynamic_model(128, 128)) == 4
    assert chosen(dynamic_model(3, 64)) == 0


def test_weights_that_do_not_wait_in_the_cache_take_time():
    assert chosen(model(7, 64, 64)) == 4
    assert chosen(model(7, 64, 64, others=8 << 20)) == 2  # whose weights are fewer
    assert chosen(model(56, 64, 64, others=8 << 20)) == 4


def test_weights_that_a_call_is_given_are_transformed_in_it():
    """Where there are so few tiles that this takes longer than it saves, they stay."""
    assert chosen(model(56, 64, 64, fixed=False)) == 4
    assert chosen(model(14, 64, 64)) == 4
    assert chosen(model(4, 64, 64, fixed=False)) == 0
    gpu = Target.parse("cuda -arch=sm_90a")
    assert chosen(model(56, 64, 64, layout="channels_first", fixed=False), gpu) == 0


def test_groups_of_many_channels_are_convolutions_of_their_own():
    assert chosen(model(56, 128, 256, groups=2)) == 4
    assert chosen(model(56, 128, 96, groups=2)) == 4
    assert chosen(model(56, 128, 72, groups=2)) == 0  # 36 channels are no whole vectors
    assert chosen(model(56, 64, 64, groups=64)) == 0
    gpu = Target.parse("cuda -arch=sm_90a")
    assert chosen(model(56, 128, 256, groups=2, layout="channels_first"), gpu) == 0


@pytest.mark.parametrize("name", ["haswell", "skylake-avx512"])
def test_bytes_are_transformed_where_pairs_of_i16_are_multiplied(name):
    target = Target.parse(f"x86_64-linux-gnu -mcpu={name}")
    assert chosen(model_of_bytes(), target) == 2
    assert chosen(model_of_bytes(kind=U8), target) == 2
    assert chosen(model_of_bytes(channels=63), target) == 0  # no whole pairs
    assert chosen(model_of_bytes(out=60), target) == 0
    assert chosen(model_of_bytes(channels=2048), target) == 0  # sums may leave i32
    assert chosen(model_of_bytes(zero=True), target) == 0


@pytest.mark.parametrize("name", ["cascadelake", "sapphirerapids"])
def test_bytes_that_are_multiplied_as_such_are_not_transformed(name):
    assert chosen(model_of_bytes(), Target.parse(f"x86_64-linux-gnu -mcpu={name}")) == 0


def test_gpus_have_a_schedule_for_channels_first():
    gpu = Target.parse("cuda -arch=sm_90a")
    assert chosen(model(56, 64, 64, layout="channels_first"), gpu) == 4
    assert chosen(model(7, 512, 512, layout="channels_first"), gpu) == 0  # weights, few tiles
    assert chosen(model(56, 64, 64), gpu) == 0
    assert chosen(model(5, 256, 20, layout="channels_first"), gpu) == 0  # tiles that leave a rest


def test_other_convolutions_stay_as_they_are():
    assert chosen(model(56, 64, 64, kernel=1)) == 0
    assert chosen(model(56, 64, 64, stride=2)) == 0
    assert chosen(model(56, 64, 64, layout="channels_first")) == 0
    assert chosen(model(56, 64, 64), None) == 0


def test_the_method_is_not_part_of_the_meaning():
    module = model(8, 64, 64)
    made = run_passes(module, (choose_winograd,), PassContext(target=SERVER))
    x = np.random.default_rng(0).random((1, 8, 8, 64)).astype(np.float32)
    np.testing.assert_array_equal(interpret(made, x)[0], interpret(module, x)[0])
