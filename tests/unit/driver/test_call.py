"""Calls of compiled models: inputs in any form, outputs of the caller's, mistakes named."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import TilewrightError


def test_inputs_come_by_position_or_by_name(module, x):
    by_place, by_name = module(x), module(x=x)
    for a, b in zip(by_place, by_name, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_views_and_lists_are_taken(module, x):
    want = np.asarray(module(x)[0])
    wide = np.zeros((3, 16), np.float32)
    wide[:, ::2] = x
    np.testing.assert_array_equal(np.asarray(module(wide[:, ::2])[0]), want)
    np.testing.assert_array_equal(np.asarray(module(tw.array(x))[0]), want)
    np.testing.assert_array_equal(np.asarray(module(x.astype(">f4"))[0]), want)


def test_outputs_are_written_where_the_caller_wants_them(module, x):
    y, z = np.empty((3, 4), np.float32), np.empty((3, 8), np.float32)
    made = module(x, out=[y, z])
    assert made[0] is y
    np.testing.assert_array_equal(y, np.asarray(module(x)[0]))


def outputs(**change):
    made = {"y": np.empty((3, 4), np.float32), "z": np.empty((3, 8), np.float32)} | change
    return list(made.values())


def read_only():
    array = np.empty((3, 4), np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (np.empty((3, 4), np.float64), "TW4001"),
        (np.empty((3, 4, 1), np.float32), "TW4002"),
        (np.empty((2, 4), np.float32), "TW4003"),
        (np.empty((3, 5), np.float32), "TW4003"),
        (np.empty((3, 8), np.float32)[:, ::2], "TW4004"),
        (read_only(), "TW4006"),
        (np.empty(49, np.int8)[1:].view(np.float32).reshape(3, 4), "TW4007"),
    ],
)
def test_wrong_outputs_are_refused(module, x, wrong, code):
    with pytest.raises(TilewrightError) as caught:
        module(x, out=outputs(y=wrong))
    assert caught.value.code == code


def test_outputs_that_share_memory_are_refused(module, x):
    both = np.empty((6, 8), np.float32)
    for made in (outputs(z=x), [both[:3].reshape(-1)[:12].reshape(3, 4), both[:3]]):
        with pytest.raises(TilewrightError) as caught:
            module(x, out=made)
        assert caught.value.code == "TW4008"


@pytest.mark.parametrize(
    ("args", "named", "code"),
    [
        ((), {}, "TW4009"),
        ((), {"w": 1}, "TW4040"),
        ((np.zeros((1, 8)),), {}, "TW4001"),
        (("text",), {}, "TW4041"),
    ],
)
def test_wrong_inputs_are_refused(module, args, named, code):
    with pytest.raises(TilewrightError) as caught:
        module(*args, **named)
    assert caught.value.code == code


def test_empty_tensors_have_answers(module):
    y, z = module(np.zeros((0, 8), np.float32))
    assert (y.shape, z.shape) == ((0, 4), (0, 8))


def test_a_call_leaves_the_callers_subnormal_numbers_alone():
    text = "graph @main(%x: f32[64], %w: f32[64]) { %y = mul(%x, %w) return %y }"
    small, least = np.full(64, 1e-30, np.float32), np.float32(2**-126)
    (product,) = tw.compile(tw.graph.parse(text), threads=2)(small, small[::-1] * 1e20)
    assert np.all(np.abs(np.asarray(product) - small * (small * 1e20)) < least)
    assert np.all(small * np.float32(1e-10) > 0)  # the thread that called rounds as before


def test_options_are_checked(model):
    for options, code in (
        ({"target": "wasm32"}, "TW6002"),
        ({"precision": "f7"}, "TW6003"),
        ({"precision": "f16"}, "TW6003"),  # of GPUs only
        ({"precision": "f16", "target": "vta-sim"}, "TW6003"),
        ({"without": ("nothing",)}, "TW6004"),
        ({"threads": -1}, "TW4016"),
    ):
        with pytest.raises(TilewrightError) as caught:
            tw.compile(model, **options)
        assert caught.value.code == code


def test_compiling_is_timed(module):
    assert set(module.timings) == {"stages", "passes"}
    assert all(seconds >= 0 for seconds in module.timings["passes"].values())


def test_an_option_that_is_misspelt_is_told_the_nearest():
    with pytest.raises(TypeError, match=r"TW6009.*'thread'(.|\n)*threads"):
        tw.compile("model.onnx", thread=1)
