"""Which dilated convolutions become plain ones of several images, and that the answer stays."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.passes.choose_winograd import choose_winograd
from tilewright.graph.passes.split_dilations import _batch, _side_by_side, split_dilations
from tilewright.sym import const

SERVER = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
GPU = Target.parse("cuda -arch=sm_90a")


def model(size, channels, out, dilations, pads, layout="channels_last", fixed=True, strides=(1, 1)):
    b = Builder()
    shape = (2, *size, channels) if layout == "channels_last" else (2, channels, *size)
    x = b.param("x", TensorType(F32, tuple(map(const, shape))))
    filters = np.random.default_rng(1).standard_normal((out, channels, 3, 3)).astype(np.float32)
    if fixed:
        w = b.constant(filters)
    else:
        w = b.param("w", TensorType(F32, tuple(map(const, filters.shape))))
    window = {"strides": strides, "pads": pads, "dilations": dilations}
    return b.module(b.add("conv", x, w, layout=layout, **window))


def passed(module, target=SERVER, is_lowered=False):
    setting = target and KernelSetting(target, 1)
    costs = target and KernelCosts(setting, use_cache=False, is_lowered=is_lowered)
    context = PassContext(target=target, costs=costs)
    return run_passes(module, (split_dilations, choose_winograd), context)


def convolution(module):
    return next(node for node in module.main.nodes if node.op == "conv")


SIZES = [
    ((28, 28), (2, 2), (2, 2, 2, 2)),
    ((24, 28), (3, 4), (3, 0, 6, 4)),
    ((28, 14), (4, 1), (0,) * 4),
    ((28, 14), (4, 1), (8, 1, 0, 2)),
    ((33, 27), (2, 4), (2, 4, 2, 4)),  # images of several sizes are extended
    ((28, 28), (2, 2), (1, 3, 0, 2)),  # and padded before, where padding is no multiple
    ((19, 18), (2, 3), (6, 9, 2, 3)),  # or wider than a window
    ((5, 7), (6, 8), (6, 8, 6, 8)),
    ((20, 20), (2, 2), (4, 0, 0, 4)),
]


@pytest.mark.parametrize(("size", "dilations", "pads"), SIZES)
@pytest.mark.parametrize("form", [_batch, _side_by_side])
def test_the_answer_stays(size, dilations, pads, form):
    module = model(size, 3, 5, dilations, pads)
    *before, node = module.main.nodes
    first, plain, last = form(node)
    assert plain["dilations"] == (1, 1)
    split = replace(module.main, nodes=(*before, *first, plain, *last))
    x = np.random.default_rng(0).standard_normal((2, *size, 3)).astype(np.float32)
    (want,) = interpret(module, x)
    (found,) = interpret(replace(module, graphs={"main": split}), x)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "dilations", "images"),
    [
        ((28, 28), (2, 2), 2),  # side by side: tiles go on from one to the next
        ((33, 27), (2, 4), 2),
    ],
)
def test_plain_convolutions_of_several_images_take_less_time(size, dilations, images):
    made = passed(model(size, 64, 64, dilations, 2 * dilations))
    node = convolution(made)
    assert node["dilations"] == (1, 1)
    assert node["winograd"]
    assert node.inputs[0].type.static_shape[0] == images


@pytest.mark.parametrize(
    "changed",
    [
        {"size": (9, 9), "dilations": (8, 8), "pads": (8,) * 4},  # images of little but zeros
        {"strides": (2, 2)},
        {"channels": 3},  # hardly anything to multiply
        {"out": 72},  # vectors that are not full
        {"fixed": False},
        {"layout": "channels_first"},
        {"target": GPU, "layout": "channels_first"},
        {"target": None},
        {"is_lowered": True},
    ],
)
def test_others_stay_as_they_are(changed):
    usual = {"size": (28, 28), "channels": 64, "out": 64, "dilations": (2, 2), "pads": (2,) * 4}
    given = {key: value for key, value in changed.items() if key in ("target", "is_lowered")}
    described = usual | {key: value for key, value in changed.items() if key not in given}
    found = convolution(passed(model(**described), **given))
    assert found["dilations"] == described["dilations"]
