"""Operators as older opsets had them."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret


def run(op, *inputs, opset, outputs=1, **attributes):
    """The results of one node at an opset."""
    names = ["" if x is None else f"x{at}" for at, x in enumerate(inputs)]
    made = [f"y{at}" for at in range(outputs)]
    node = helper.make_node(op, names, made, **attributes)
    feeds = {name: np.asarray(x) for name, x in zip(names, inputs, strict=True) if x is not None}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=n) for n in made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    results = interpret(import_model(model), *feeds.values(), check=True)
    return results[0] if outputs == 1 else results


def floats(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_bounds_of_clip_were_attributes():
    x = np.float32([-2, 0, 2])
    assert run("Clip", x, opset=6, min=-1.0, max=1.0).tolist() == [-1, 0, 1]
    assert run("Clip", x, opset=6, max=1.0).tolist() == [-2, 0, 1]
    assert run("Clip", x, np.float32(-1), opset=11).tolist() == [-1, 0, 2]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_ran_over_all_axes_behind(op):
    x = floats(2, 3, 4)
    old, new = run(op, x, opset=11, axis=1), run(op, x.reshape(2, 12), opset=13, axis=1)
    np.testing.assert_array_equal(old, new.reshape(2, 3, 4))
    assert (run(op, x, opset=13) == run(op, x, opset=13, axis=2)).all()


def test_masks_of_dropout_had_the_type_of_the_data():
    x = floats(2, 3)
    for opset, kind in ((7, np.float32), (10, bool), (12, bool)):
        out, mask = run("Dropout", x, opset=opset, outputs=2)
        assert (out == x).all()
        assert mask.dtype == kind
        assert (mask == (opset >= 12)).all()  # as ONNX Runtime's


def test_dropout_in_training():
    x = np.ones((64, 64), np.float32)
    given = (np.float32(0.25), np.array(True))
    out, mask = run("Dropout", x, *given, opset=13, outputs=2, seed=1)
    assert 0.7 < mask.mean() < 0.8
    np.testing.assert_allclose(out, np.where(mask, 1 / 0.75, 0), rtol=1e-6)
    again, _ = run("Dropout", x, *given, opset=13, outputs=2, seed=1)
    assert (again == out).all()


def test_operands_were_aligned_at_an_axis():
    x, y = floats(2, 3, 4), floats(3)
    made = run("Add", x, y, opset=6, broadcast=1, axis=1)
    np.testing.assert_array_equal(made, x + y[:, None])
    np.testing.assert_array_equal(run("PRelu", x, y, opset=6), np.where(x < 0, x * y[:, None], x))


def test_scales_of_upsample_were_an_attribute():
    x = floats(1, 1, 2, 3)
    want = x.repeat(2, axis=2).repeat(2, axis=3)
    assert (run("Upsample", x, opset=7, scales=[1.0, 1.0, 2.0, 2.0]) == want).all()
    scales = np.float32([1, 1, 2, 2])
    assert (run("Upsample", x, scales, opset=9) == want).all()
    assert (run("Resize", x, scales, opset=10) == want).all()


def test_batch_normalization_for_each_element():
    x, numbers = floats(2, 3, 4), [floats(3, 4) for _ in range(3)]
    variance = np.abs(floats(3, 4))
    made = run("BatchNormalization", x, *numbers, variance, opset=7, spatial=0)
    scale, bias, mean = numbers
    want = (x - mean) / np.sqrt(variance + 1e-5) * scale + bias
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [9, 15])
def test_batch_normalization_in_training(opset):
    x, (scale, bias, mean) = floats(4, 3, 5), floats(3, 3)
    variance = np.abs(floats(3))
    kinds = {"training_mode": 1} if opset > 9 else {}
    out, new_mean, new_variance = run(
        "BatchNormalization", x, scale, bias, mean, variance, opset=opset, outputs=3, **kinds
    )
    centre, spread = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
    np.testing.assert_allclose(new_mean, mean * 0.9 + centre * 0.1, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(new_variance, variance * 0.9 + spread * 0.1, rtol=1e-4)
    plain = (x - centre[:, None]) / np.sqrt(spread[:, None] + 1e-5)
    want = plain * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-5)


def test_scales_of_group_normalization_belonged_to_groups():
    x, scale, bias = floats(2, 4, 3), floats(2), floats(2)
    old = run("GroupNormalization", x, scale, bias, opset=18, num_groups=2)
    new = run("GroupNormalization", x, scale.repeat(2), bias.repeat(2), opset=21, num_groups=2)
    np.testing.assert_array_equal(old, new)


def test_regions_were_not_shifted():
    x, rois, images = floats(1, 2, 6, 6), np.float32([[1, 1, 4, 4]]), np.array([0])
    kinds = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    mode = {"coordinate_transformation_mode": "output_half_pixel"}
    old = run("RoiAlign", x, rois, images, opset=10, **kinds)
    np.testing.assert_array_equal(old, run("RoiAlign", x, rois, images, opset=16, **kinds, **mode))
    assert not np.allclose(old, run("RoiAlign", x, rois, images, opset=16, **kinds))


def test_the_axis_of_a_transform_became_an_input():
    x = floats(2, 3, 5, 1)
    old = run("DFT", x, opset=17, axis=2)
    np.testing.assert_array_equal(old, run("DFT", x, None, np.array(2), opset=20))
    np.testing.assert_array_equal(old, run("DFT", x, opset=20))
