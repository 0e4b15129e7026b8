"""Which convolutions in groups become whole ones, and that the answer stays the same."""

import numpy as np
import pytest

from tilewright.base.dtype import U8
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.passes.assign_layout import assign_layout
from tilewright.graph.passes.densify_groups import densify_groups
from tilewright.sym import const

SERVER = "x86_64-linux-gnu -mcpu=sapphirerapids"


def model(groups, inner=4, out=2, layout="channels_last", constant=True, size=5):
    b, channels = Builder(), groups * inner
    image = (size, size)
    shape = (1, *image, channels) if layout == "channels_last" else (1, channels, *image)
    x = b.param("x", TensorType(U8, tuple(map(const, shape))))
    values = np.random.default_rng(0).integers(-9, 9, (groups * out, inner, 3, 3)).astype(np.int8)
    w = b.constant(values)
    w = w if constant else b.add("neg", w)
    window = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
    return b.module(b.add("conv_integer", x, w, groups=groups, layout=layout, **window))


def context(target):
    target = Target.parse(target)
    return PassContext(target=target, costs=KernelCosts(KernelSetting(target, 2)))


def widened(module, target=SERVER):
    return run_passes(module, (densify_groups,), context(target))


@pytest.mark.parametrize("groups", [2, 3, 16])
def test_zeros_take_the_place_of_other_groups(groups):
    before = model(groups, size=28)
    after = widened(before)
    (node,) = (node for node in after.main.nodes if node.op == "conv_integer")
    assert node["groups"] == 1
    x = np.random.default_rng(1).integers(0, 255, (1, 28, 28, 4 * groups)).astype(np.uint8)
    assert (interpret(before, x)[0] == interpret(after, x)[0]).all()


def test_channels_go_last_for_what_groups_are_going_to_be():
    """Groups of four channels as they are would be faster channels first."""
    before = model(32, inner=4, out=4, layout="channels_first", size=56)
    target = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
    costs = KernelCosts(KernelSetting(target, 2), use_cache=False)
    after = run_passes(before, (assign_layout,), PassContext(target=target, costs=costs))
    (node,) = (node for node in after.main.nodes if node.op == "conv_integer")
    assert node["layout"] == "channels_last"


@pytest.mark.parametrize(
    ("processor", "groups"), [("cascadelake", 2), ("haswell", 4), ("skylake-avx512", 2)]
)
def test_groups_fill_the_lanes_of_dot_products(processor, groups):
    before = model(8, inner=4, out=4)
    after = widened(before, f"x86_64-linux-gnu -mcpu={processor}")
    (node,) = (node for node in after.main.nodes if node.op == "conv_integer")
    assert node["groups"] == groups
    x = np.random.default_rng(1).integers(0, 255, (1, 5, 5, 32)).astype(np.uint8)
    assert (interpret(before, x)[0] == interpret(after, x)[0]).all()


@pytest.mark.parametrize(
    ("out", "groups", "left"),
    [
        (16, 2, 2),  # where zeros gain too little
        (16, 8, 8),
        (4, 64, 16),
        (24, 32, 16),  # two groups are three vectors
    ],
)
def test_the_cheapest_number_of_groups_is_taken(out, groups, left):
    before = model(groups, inner=4, out=out)
    after = widened(before)
    (node,) = (node for node in after.main.nodes if node.op == "conv_integer")
    assert node["groups"] == left
    x = np.random.default_rng(1).integers(0, 255, (1, 5, 5, 4 * groups)).astype(np.uint8)
    assert (interpret(before, x)[0] == interpret(after, x)[0]).all()


@pytest.mark.parametrize(
    ("made", "target"),
    [
        (model(1), SERVER),
        (model(8, inner=1, out=1), SERVER),  # depthwise: lanes are channels
        (model(4, layout="channels_first"), SERVER),
        (model(4, constant=False), SERVER),
        (model(4), "aarch64-linux-gnu -mcpu=cortex-a53"),  # no dot products
    ],
)
def test_others_stay(made, target):
    assert widened(made, target) is made


@pytest.mark.parametrize(
    ("target", "groups", "size", "left"),
    [
        ("cuda -arch=sm_90a", 16, 256, 1),
        ("cuda -arch=sm_90a", 32, 256, 1),  # products outside of them load both operands each
        ("cuda -arch=sm_90a", 32, 28, 32),  # which few multiprocessors would multiply
        ("cuda -arch=sm_90a", 1024, 256, 1024),  # zeros would take longer than that
        ("cuda -arch=sm_80", 4, 256, 4),
    ],
)
def test_tensor_cores_multiply_zeros_as_long_as_that_is_faster(target, groups, size, left):
    made = widened(model(groups, size=size), target)
    (node,) = (n for n in made.main.nodes if n.op == "conv_integer")
    assert node["groups"] == left


def test_prices_are_noted_and_without_them_groups_stay():
    ctx = context("x86_64-linux-gnu -mcpu=cascadelake")
    before = model(8, inner=4, out=4)
    run_passes(before, (densify_groups,), ctx)
    (choice,) = ctx.choices
    assert choice.chosen == "2 groups"
    assert [price.name for price in choice.prices] == ["8 groups", "2 groups", "1 groups"]
    assert run_passes(before, (densify_groups,), PassContext(target=ctx.target)) is before


def test_groups_of_which_no_few_fill_lanes_become_one():
    before = model(3, inner=17, out=17)
    after = widened(before, "x86_64-linux-gnu -mcpu=cascadelake")
    (node,) = (node for node in after.main.nodes if node.op == "conv_integer")
    assert node["groups"] == 1
    x = np.random.default_rng(1).integers(0, 255, (1, 5, 5, 51)).astype(np.uint8)
    assert (interpret(before, x)[0] == interpret(after, x)[0]).all()
