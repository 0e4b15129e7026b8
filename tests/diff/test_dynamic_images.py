"""Images of dynamic sizes, resized and sampled: rows in turn, whole vectors and rests of them."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import UserError
from tilewright.graph.interp import interpret
from tilewright.graph.visit import walk

SIZES = [(9, 11, 20, 23), (20, 33, 7, 6), (4, 4, 8, 8), (1, 1, 5, 9), (3, 8, 0, 4)]
NO_ROWS = (0, 5, 3, 3)
COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)


def check(text, *shapes):
    module = graph.parse(text)
    made = tw.compile(module, threads=2, database="")
    for shape in shapes:
        arrays = [np.random.default_rng(1).uniform(-1.2, 1.2, s).astype(np.float32) for s in shape]
        (got,) = made(*arrays)
        if not arrays[0].size or not np.asarray(got).size:  # where the reference may divide by 0
            assert not np.asarray(got).any()
            continue
        (want,) = interpret(module, *arrays)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)
    return made


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.sampled
def test_resize_to_sizes_of_the_run(mode, coordinates):
    text = f"""graph @main(%x: f32[1, 19, h, w], %y: f32[a, b]) {{
      %r = resize(%x) {{axes = (2, 3), sizes = (expr a, expr b), mode = "{mode}",
        coordinates = "{coordinates}"}}
      return %r
    }}"""
    made = check(text, *[((1, 19, h, w), (a, b)) for h, w, a, b in SIZES])
    h, w, a, b = NO_ROWS
    with pytest.raises(UserError, match="TW4012"):
        made(np.ones((1, 19, h, w), np.float32), np.ones((a, b), np.float32))


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "floor", "ceil", "round_even"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.sampled
def test_nearest_of_a_dynamic_image_by_whole_factors(coordinates, rounding):
    text = f"""graph @main(%x: f32[1, 3, h, w]) {{
      %r = resize(%x) {{axes = (2, 3), scales = (2.0, 4.0), mode = "nearest",
        coordinates = "{coordinates}", nearest = "{rounding}"}}
      return %r
    }}"""
    check(text, *[((1, 3, h, w),) for h, w, _, _ in (*SIZES, NO_ROWS)])


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.sampled
def test_sampling_of_a_dynamic_image(mode, padding):
    text = f"""graph @main(%x: f32[n, 19, h, w], %grid: f32[n, a, b, 2]) {{
      %r = grid_sample(%x, %grid) {{mode = "{mode}", padding = "{padding}"}}
      return %r
    }}"""
    made = check(text, *[((2, 19, h, w), (2, a, b, 2)) for h, w, a, b in SIZES])
    h, w, a, b = NO_ROWS
    with pytest.raises(UserError, match="TW4012"):
        made(np.ones((2, 19, h, w), np.float32), np.ones((2, a, b, 2), np.float32))


def test_scales_that_are_constants_are_attributes_and_axes_of_scale_1_stay():
    """Of four axes two are computed: kernels read neither scales nor the others' weights."""
    text = """graph @main(%x: f32[1, 19, h, w]) {
      %s = constant() {data = f32[4](1.0, 1.0, 2.0, 2.0)}
      %r = resize(%x, none, %s) {axes = (0, 1, 2, 3), mode = "linear"}
      return %r
    }"""
    made = check(text, ((1, 19, 5, 7),))
    (kernel,) = [n for n in walk(made.inside.program.module.main) if n.op == "kernel"]
    assert len(kernel.inputs) == 1
    assert "resize_1" not in made.inside.program.kernels[kernel["function"]].text


IMAGES = [(1, 1), (2, 3), (5, 4), (7, 9), (8, 16), (13, 33), (20, 47)]


@pytest.mark.parametrize("pads", [0, 2])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (7, 2)])
@pytest.mark.sampled
def test_depthwise_convolution_channels_first_of_a_dynamic_image(kernel, stride, pads):
    """Planes reach as far as whole tiles do; only stores have an end."""
    text = f"""graph @main(%x: f32[n, 6, h, w], %w: f32[6, 1, {kernel}, {kernel}]) {{
      %y = conv(%x, %w) {{strides = ({stride}, {stride}), pads = ({pads}, {pads}, {pads}, {pads}),
        dilations = (1, 1), groups = 6}}
      %z = relu(%y)
      return %z
    }}"""
    least = kernel - 2 * pads
    sizes = [(h, w) for h, w in IMAGES if min(h, w) >= least]
    check(text, *[((2, 6, h, w), (6, 1, kernel, kernel)) for h, w in sizes])


def test_depthwise_convolution_of_a_dynamic_signal():
    text = """graph @main(%x: f32[1, 5, n], %w: f32[5, 1, 9]) {
      %y = conv(%x, %w) {strides = (1,), pads = (4, 4), dilations = (1,), groups = 5}
      return %y
    }"""
    check(text, *[((1, 5, n), (5, 1, 9)) for n in (1, 2, 7, 16, 33, 100)])


@pytest.mark.parametrize(("channels", "filters"), [(3, 32), (32, 24), (5, 1)])
def test_pixels_of_a_dynamic_image_are_one_axis(channels, filters):
    text = f"""graph @main(%x: f32[n, {channels}, h, w], %w: f32[{filters}, {channels}, 1, 1],
        %b: f32[{filters}], %r: f32[n, {filters}, h, w]) {{
      %y = conv(%x, %w, %b) {{strides = (1, 1), pads = (0, 0, 0, 0), dilations = (1, 1)}}
      %s = add(%y, %r)
      %z = relu(%s)
      return %z
    }}"""
    weights = ((filters, channels, 1, 1), (filters,))
    shapes = [((2, channels, h, w), *weights, (2, filters, h, w)) for h, w in IMAGES]
    check(text, *shapes)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2), (0, 3, 2, 1), (1, 2, 3, 0)])
@pytest.mark.sampled
def test_transposes_of_dynamic_sizes(perm, dtype):
    """Rows of tiles lie along several axes as one, at distances that the run tells."""
    name = {"uint8": "u8", "float16": "f16", "float32": "f32", "int64": "i64"}[np.dtype(dtype).name]
    module = graph.parse(f"""graph @main(%x: {name}[a, b, c, d]) {{
      %y = transpose(%x) {{perm = {perm}}}
      return %y
    }}""")
    made = tw.compile(module, threads=2, database="")
    for shape in [(1, 5, 3, 7), (2, 64, 9, 11), (1, 33, 8, 16), (3, 4, 1, 30), (2, 0, 3, 4)]:
        x = np.random.default_rng(2).integers(0, 200, shape).astype(dtype)
        np.testing.assert_array_equal(np.asarray(made(x)[0]), x.transpose(perm))
