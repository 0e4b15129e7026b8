"""Which dilated convolutions become plain ones of several images, and that the answer stays."""

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.passes.choose_winograd import choose_winograd
from tilewright.graph.passes.split_dilations import split_dilations
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


@pytest.mark.parametrize(
    ("size", "dilations", "pads"),
    [
        ((28, 28), (2, 2), (2, 2, 2, 2)),
        ((24, 28), (3, 4), (3, 0, 6, 4)),
        ((28, 14), (4, 1), (0,) * 4),
        ((33, 27), (2, 4), (2, 4, 2, 4)),  # images of several sizes are extended
        ((28, 28), (2, 2), (1, 3, 0, 2)),  # and padded before, where padding is no multiple
    ],
)
def test_images_that_windows_see_are_a_batch(size, dilations, pads):
    module = model(size, 64, 64, dilations, pads)
    made = passed(module)
    node = convolution(made)
    assert node["dilations"] == (1, 1)
    assert node["winograd"]
    assert node.inputs[0].type.static_shape[0] == 2 * dilations[0] * dilations[1]
    x = np.random.default_rng(0).standard_normal((2, *size, 64)).astype(np.float32)
    np.testing.assert_allclose(interpret(made, x)[0], interpret(module, x)[0], rtol=1e-4, atol=1e-3)


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
