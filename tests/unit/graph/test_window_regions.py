"""Regions of a convolution's result whose windows meet padding with the same weights."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.build import store_constant
from tilewright.graph.ir import Node
from tilewright.graph.window_regions import Band, bands, multiplied_share, regions
from tilewright.sym import const


def test_bands_see_the_weights_that_meet_the_image():
    assert bands(33, 3, 18, 18, 33) == [
        Band(0, 15, 1, 3),
        Band(15, 18, 1, 2),
        Band(18, 33, 0, 2),
    ]
    assert bands(8, 3, 1, 0, 6) == [Band(0, 6, 0, 3)]


def test_positions_that_see_nothing_are_in_no_band():
    assert bands(4, 1, 1, 2, 8) == [Band(2, 6, 0, 1)]


def model(size, taps, dilations, pads):
    b, rng = Builder(), np.random.default_rng(0)
    x = b.param("x", TensorType(F32, tuple(map(const, (2, *size, 3)))))
    w = rng.standard_normal((4, 3, *taps)).astype(np.float32)
    bias = b.constant(rng.standard_normal(4).astype(np.float32))
    y = b.add("conv", x, b.constant(w), bias, layout="channels_last", strides=(1, 1),
              pads=pads, dilations=dilations)  # fmt: skip
    return b.module(y), w


@pytest.mark.parametrize(
    ("size", "taps", "dilations", "pads"),
    [
        ((9, 9), (3, 3), (4, 4), (4,) * 4),
        ((9, 7), (3, 3), (6, 5), (6, 5, 6, 5)),
        ((8, 9), (3, 1), (3, 1), (5, 0, 1, 0)),
        ((8, 9), (2, 3), (1, 2), (0,) * 4),  # one region
        ((12, 5), (5, 3), (2, 3), (4, 3, 2, 1)),
        ((6, 9), (3, 3), (2, 4), (-1, 4, 2, -2)),
    ],
)
def test_regions_together_are_the_result(size, taps, dilations, pads):
    module, w = model(size, taps, dilations, pads)
    *before, node = module.main.nodes
    constants, stored = dict(module.constants), list[Node]()

    def cut(part):
        stored.append(store_constant(constants, np.ascontiguousarray(w[part]), "part"))
        return stored[-1].output

    convs, joined = regions(node, cut)
    share = sum(
        np.prod(each.output.tensor.static_shape[:-1]) * np.prod(each.inputs[1].tensor.static_shape)
        for each in convs
    )
    whole = np.prod(node.output.tensor.static_shape[:-1]) * w.size
    assert multiplied_share(node) == pytest.approx(share / whole)
    main = replace(module.main, nodes=(*before, *stored, *convs, *joined))
    made = replace(module, graphs={"main": main}, constants=constants)
    x = np.random.default_rng(1).standard_normal((2, *size, 3)).astype(np.float32)
    np.testing.assert_allclose(interpret(made, x)[0], interpret(module, x)[0], 1e-5, 1e-5)
