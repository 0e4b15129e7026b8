"""Layouts of a saved model's parts, as data: where every byte comes from."""

from functools import partial

import numpy as np
import pytest

from tilewright.accel.layers import Factor, Layout, Products
from tilewright.accel.saved import gather_indices, saved_backend
from tilewright.base.geometry import Geometry
from tilewright.base.target import Target

GEOMETRIES = [Geometry(), Geometry(1, 4, 4), Geometry(2, 16, 16)]
PACKED = [
    (Layout((3, 20, 5, 7)), (3, 20, 5, 7)),
    (Layout((2, 3, 21, 19), depth=2), (2, 3, 21, 19)),
    (Layout((9, 37)), (9, 37)),
    (Factor((2, 5, 19), zero=3, other=-128), (2, 5, 19)),
    (Factor((2, 5, 19), zero=-7, other=2, is_weights=True), (2, 19, 5)),
]


def moved(indices, given):
    """What parts.c does."""
    flat = given.reshape(-1)
    return np.where(indices >= 0, flat[np.maximum(indices, 0)], (~indices).astype(np.int8))


@pytest.mark.parametrize("g", GEOMETRIES, ids=lambda g: g.options)
@pytest.mark.parametrize(("layout", "shape"), PACKED)
def test_packing_is_indices_and_numbers(layout, shape, g):
    move = partial(layout.pack, fill=-77, g=g)
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    want = move(x).reshape(-1).view(np.int8)
    np.testing.assert_array_equal(moved(gather_indices(move, shape), x), want)


@pytest.mark.parametrize("g", GEOMETRIES, ids=lambda g: g.options)
@pytest.mark.parametrize("layout", [Layout((3, 20, 5, 7)), Layout((9, 37)), Products((2, 5, 19))])
def test_unpacking_is_indices(layout, g):
    shape = (layout.size_bytes(g),)
    packed = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    indices = gather_indices(partial(layout.unpack, g=g), shape)
    want = layout.unpack(packed, g)
    np.testing.assert_array_equal(moved(indices, packed), want.reshape(-1))
    assert indices.min() >= 0


def test_hardware_is_named_by_the_environment_of_who_calls():
    assert saved_backend(Target.parse("vta-sim -bus=128")) == "functional"
    assert saved_backend(Target.parse("vta")) == "$TILEWRIGHT_ACCELERATOR"
