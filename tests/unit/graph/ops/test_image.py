"""Images read between their pixels."""

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.errors import UserError
from tilewright.graph import Builder, TensorType
from tilewright.sym import const, size


def test_nearest_repeats_pixels(run_op, rng):
    x = rng.standard_normal((1, 2, 3, 4)).astype(np.float32)
    made = run_op("resize", x, None, np.float32([2, 3]), axes=(2, 3))
    assert (made == x.repeat(2, axis=2).repeat(3, axis=3)).all()


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
def test_a_straight_line_stays_one(run_op, mode, coordinates):
    """Between pixels (not at the borders), smooth modes keep lines."""
    x = np.arange(12.0)
    kinds = {"mode": mode, "coordinates": coordinates, "cubic_a": -0.5}
    made = run_op("resize", x, None, None, np.array([24]), axes=(0,), symbolic=False, **kinds)
    steps = np.diff(made)[6:-6]
    np.testing.assert_allclose(steps, steps[0])


def test_downsampling_with_antialias_takes_all_pixels_in(run_op):
    x = np.tile([0.0, 1.0], 8)
    kinds = {"mode": "linear", "antialias": True}
    made = run_op("resize", x, None, np.float32([0.25]), axes=(0,), **kinds)
    np.testing.assert_allclose(made[1:-1], 0.5, atol=0.05)


@pytest.mark.parametrize(
    ("policy", "want"), [("stretch", (7, 9)), ("not_larger", (7, 7)), ("not_smaller", (9, 9))]
)
def test_aspect_ratios(run_op, policy, want):
    kinds = {"axes": (0, 1), "policy": policy, "symbolic": False}
    made = run_op("resize", np.ones((4, 4)), None, None, np.array([7, 9]), **kinds)
    assert made.shape == want


def test_a_region_is_cropped(run_op):
    x = np.arange(16.0).reshape(4, 4)
    kinds = {"axes": (0, 1), "mode": "linear", "coordinates": "tf_crop_and_resize", "crop": True}
    roi = np.array([0, 1 / 3, 1 / 3, 2.0])
    made = run_op(
        "resize", x, roi, None, np.array([2, 2]), extrapolation=-1.0, symbolic=False, **kinds
    )
    np.testing.assert_allclose(made, [[1, -1], [5, -1]])


def test_sizes_follow_scales():
    builder = Builder()
    x = builder.param("x", TensorType(F32, (size("n"), const(3), size("h"), const(5))))
    scales = builder.constant(np.float32([1.5, 0.6]))
    made = builder.add("resize", x, None, scales, axes=(2, 3))
    assert str(made.type) == "f32[n, 3, h * 3 // 2, 3]"


def test_integers_resize_too(run_op):
    made = run_op("resize", np.uint8([10, 20]), None, np.float32([2]), axes=(0,), mode="linear")
    assert made.tolist() == [10, 12, 17, 20]


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_the_identity_samples_the_image_itself(run_op, rng, align, mode):
    x = rng.standard_normal((2, 3, 4, 5))
    theta = np.tile(np.eye(2, 3), (2, 1, 1))
    shape = np.array(x.shape)
    grid = run_op("affine_grid", theta, shape, align_corners=align, symbolic=False)
    made = run_op("grid_sample", x, grid, mode=mode, align_corners=align)
    np.testing.assert_allclose(made, x, atol=1e-9)


@pytest.mark.parametrize(
    ("padding", "want"), [("zeros", [0, 5, 0]), ("border", [0, 9, 9]), ("reflection", [2, 5, 7])]
)
def test_what_lies_outside(run_op, padding, want):
    x = np.arange(10.0).reshape(1, 1, 10)
    places = np.array([-2.0, 5.0, 11.0]) if padding == "reflection" else [-3.0, 5.0, 12.0]
    places = np.where(np.array(padding) == "border", [-3.0, 12.0, 30.0], places)
    grid = (np.asarray(places) / 4.5 - 1).reshape(1, 3, 1)
    made = run_op("grid_sample", x, grid, padding=padding, align_corners=True)
    np.testing.assert_allclose(made.ravel(), want, atol=1e-9)


def test_what_does_not_fit(run_op):
    with pytest.raises(UserError, match=r"TW1212.*either scales or sizes"):
        run_op("resize", np.ones(4), axes=(0,))
    with pytest.raises(UserError, match=r"TW1212.*no mode 'cosine'"):
        run_op("resize", np.ones(4), None, np.float32([2]), axes=(0,), mode="cosine")
    with pytest.raises(UserError, match=r"TW1212.*no coordinates 'polar'"):
        run_op("resize", np.ones(4), None, np.float32([2]), axes=(0,), coordinates="polar")
    with pytest.raises(UserError, match=r"TW1212.*no nearest 'far'"):
        run_op("resize", np.ones(4), None, np.float32([2]), axes=(0,), nearest="far")
    with pytest.raises(UserError, match=r"TW1212.*no policy 'any'"):
        run_op("resize", np.ones(4), None, np.float32([2]), axes=(0,), policy="any")
    with pytest.raises(UserError, match="TW1208"):
        run_op("resize", np.ones(4), None, np.float32([2]), axes=(1,))
    with pytest.raises(UserError, match=r"TW1213.*rank 4, a grid of rank 3"):
        run_op("grid_sample", np.ones((1, 1, 4, 4)), np.ones((1, 4, 2)))
    with pytest.raises(UserError, match=r"TW1213.*no padding 'ones'"):
        run_op("grid_sample", np.ones((1, 1, 4)), np.ones((1, 4, 1)), padding="ones")
    with pytest.raises(UserError, match="TW1213"):
        run_op("affine_grid", np.ones((2, 3)), np.array([1, 1, 4, 4]))


@pytest.mark.parametrize("data", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_bytes_that_are_no_picture(run_op, data):
    with pytest.raises(UserError, match=r"TW1318.*cannot decode the image"):
        run_op("decode_image", np.frombuffer(data, np.uint8))
