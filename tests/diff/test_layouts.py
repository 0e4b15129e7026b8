"""Operators on images give the same answer in both layouts."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.build import build
from tilewright.graph import interpret, parse
from tilewright.graph.ops.layout import channels_first, channels_last
from tilewright.lower.graph import lower_graph

# operator, shape of x channels first, shapes of the rest, attributes
CASES = {
    "conv": ("conv", (2, 3, 7, 6), [(4, 3, 3, 3), (4,)], "strides = (1, 1), pads = (1, 1, 1, 1)"),
    "conv stride": (
        "conv",
        (1, 4, 9, 8),
        [(6, 2, 3, 2)],
        "strides = (2, 1), pads = (0, 1, 2, 0), groups = 2",
    ),
    "conv cropped": ("conv", (1, 2, 9), [(3, 2, 3)], "strides = (1,), pads = (-1, 2)"),
    "conv 3d": (
        "conv",
        (1, 2, 4, 5, 3),
        [(3, 2, 2, 3, 1)],
        "strides = (1, 2, 1), pads = (1, 0, 0, 0, 1, 0)",
    ),
    "depthwise": (
        "conv",
        (1, 5, 6, 6),
        [(5, 1, 3, 3), (5,)],
        "strides = (1, 1), pads = (1, 1, 1, 1), groups = 5",
    ),
    "transposed": (
        "conv_transpose",
        (1, 4, 5, 4),
        [(4, 3, 3, 3)],
        "strides = (2, 2), pads = (1, 1, 0, 1), output_padding = (0, 0)",
    ),
    "max_pool": (
        "max_pool",
        (1, 3, 6, 7),
        [],
        "kernel = (3, 2), strides = (2, 1), pads = (1, 0, 1, 1), ceil_mode = true",
    ),
    "avg_pool": (
        "avg_pool",
        (2, 3, 6, 7),
        [],
        "kernel = (3, 3), strides = (2, 2), pads = (1, 1, 1, 1)",
    ),
    "lp_pool": ("lp_pool", (1, 3, 6), [], "kernel = (2,), strides = (2,), pads = (0, 0)"),
    "batch_norm": ("batch_norm", (2, 4, 3, 3), [(4,)] * 4, ""),
    "batch_norm flat": ("batch_norm", (3, 4), [(4,)] * 4, ""),
    "group_norm": ("group_norm", (2, 6, 3, 4), [(6,), (6,)], "groups = 3"),
    "instance_norm": ("group_norm", (2, 3, 5), [(3,), (3,)], "groups = 3"),
    "lrn": ("lrn", (1, 7, 3, 2), [], "size = 5"),
}


def module_of(op, shapes, attributes, results=1):
    params = ", ".join(f"%a{at}: f32[{','.join(map(str, s))}]" for at, s in enumerate(shapes))
    names = ", ".join(f"%a{at}" for at in range(len(shapes)))
    out = ", ".join(f"%y{at}" for at in range(results))
    spatial = len(shapes[0]) - 2
    if "conv" in op or "pool" in op:
        attributes += f", dilations = ({'1, ' * spatial})"
    return parse(f"graph @main({params}) {{ {out} = {op}({names}) {{{attributes}}} return {out} }}")


def both(op, shape, rest, attributes, results=1):
    """The answer channels first, and interpreted and natively channels last."""
    random = np.random.default_rng(0)
    arrays = [random.random(s, dtype=np.float32) + 0.1 for s in (shape, *rest)]
    last = np.ascontiguousarray(arrays[0].transpose(channels_last(range(len(shape)))))
    joined = f"{attributes}{', ' if attributes else ''}"
    first = module_of(op, [shape, *rest], attributes, results)
    moved = module_of(op, [last.shape, *rest], joined + 'layout = "channels_last"', results)
    want = interpret(first, *arrays)
    seen = interpret(moved, last, *arrays[1:])
    outs = [np.full_like(y, 0) for y in seen]
    build(lower_graph(moved.main, "kernel"))(last, *arrays[1:], *outs)
    return want, seen, outs


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_layouts_agree(case):
    want, seen, outs = both(*case)
    for found in (seen[0], outs[0]):
        order = channels_first(range(found.ndim))
        np.testing.assert_allclose(found.transpose(order), want[0], rtol=1e-5, atol=1e-5)


def test_indices_of_pooling_count_channels_first_in_both_layouts():
    want, seen, outs = both(
        "max_pool", (2, 3, 6, 6), [], "kernel = (2, 2), strides = (2, 2), pads = (0, 0, 0, 0)", 2
    )
    np.testing.assert_array_equal(seen[1].transpose(0, 3, 1, 2), want[1])
    np.testing.assert_array_equal(outs[1].transpose(0, 3, 1, 2), want[1])


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_regions_of_images(mode, ratio):
    """Partly and wholly outside of the image, smaller than a pixel, of the second image."""
    rois = np.array([[1, 2, 9, 7], [-4, 3, 2, 30], [50, 50, 60, 60], [3.2, 3.1, 3.3, 3.2]], "f4")
    images = np.array([0, 1, 0, 1])
    kinds = f'size = (2, 3), scale = 0.5, sampling_ratio = {ratio}, mode = "{mode}"'

    def module(shape, layout):
        params = f"%x: f32[{shape}], %rois: f32[R, 4], %images: i64[R]"
        call = f'roi_align(%x, %rois, %images) {{{kinds}, layout = "{layout}"}}'
        return parse(f"graph @main({params}) {{ %y = {call} return %y }}")

    x = np.random.default_rng(0).random((2, 19, 8, 7), np.float32)
    first = tw.compile(module("n, 19, h, w", "channels_first"), "cpu", threads=1)
    (want,) = interpret(module("n, 19, h, w", "channels_first"), x, rois, images)
    np.testing.assert_allclose(np.asarray(first(x, rois, images)[0]), want, rtol=1e-5, atol=1e-6)
    last = module("n, h, w, 19", "channels_last")
    moved = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    seen = np.asarray(tw.compile(last, "cpu", threads=1)(moved, rois, images)[0])
    np.testing.assert_allclose(seen.transpose(0, 3, 1, 2), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("frames", ["4", "t"])
@pytest.mark.parametrize(
    ("taps", "pads"),
    [
        ((1, 3, 3), (0, 1, 1)),
        ((3, 1, 1), (1, 0, 0)),
        ((1, 1, 1), (0, 0, 0)),
        ((3, 1, 3), (1, 0, 1)),
    ],
)
def test_windows_that_leave_axes_alone(taps, pads, frames):
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((24, 16, *taps)).astype(np.float32)
    given = parse(
        f"""graph @main(%x: f32[n, 16, {frames}, 6, 5]) {{
          %w = constant() {{data = "w"}}
          %y = conv(%x, %w) {{strides = (1, 1, 1), pads = {pads * 2}, dilations = (1, 1, 1)}}
          %z = relu(%y)
          return %z
        }}""",
        {"w": weights},
    )
    x = rng.standard_normal((2, 16, 4, 6, 5)).astype(np.float32)
    (expected,) = interpret(given, x)
    (got,) = tw.compile(given, threads=1)(x)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-4, atol=1e-4)
