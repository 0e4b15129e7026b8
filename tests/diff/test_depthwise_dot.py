"""Depthwise convolutions of bytes on dot products: the integers are the interpreter's."""

import numpy as np
import pytest
from grids import every_pair

import tilewright as tw
from tilewright.base.dots import tap_dot_of
from tilewright.base.target import Target
from tilewright.cli.inspect import describe_schedules
from tilewright.graph import parse
from tilewright.graph.interp import interpret

HOST = Target.parse("cpu")
NUMPY = {"u8": np.uint8, "i8": np.int8}


def program(of, height, width, channels, kernel, strides, dilations):
    window = ", ".join(map(str, kernel))
    ends = f"%x: {of}[2, {height}, {width}, {channels}], %w: i8[{channels}, 1, {window}]"
    return parse(
        f"""
        graph @main({ends}, %s: f32[{channels}]) {{
          %y = conv_integer(%x, %w) {{dilations = {dilations}, groups = {channels},
            layout = "channels_last", pads = (0, 0, 0, 0), strides = {strides}}}
          %f = cast(%y) {{to = dtype f32}}
          %z = mul(%f, %s)
          return %z, %y
        }}
        """
    )


def check(of, sizes, channels, kernel, strides=(1, 1), dilations=(1, 1), threads=1, dynamic=False):
    shown = ("h", "w") if dynamic else sizes
    made = program(of, *shown, channels, kernel, strides, dilations)
    random, limits = np.random.default_rng(0), np.iinfo(NUMPY[of])
    x = random.integers(limits.min, limits.max, (2, *sizes, channels), endpoint=True)
    w = random.integers(-128, 127, (channels, 1, *kernel), endpoint=True)
    given = (x.astype(NUMPY[of]), w.astype(np.int8), random.random(channels).astype(np.float32))
    compiled = tw.compile(made, threads=threads)
    for ours, want in zip(compiled(*given), interpret(made, *given), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), want)
    return compiled


@pytest.mark.parametrize(
    ("of", "threads", "kernel", "strides"),
    every_pair(
        ("u8", "i8"),
        (1, 2),
        ((3, 3), (5, 5), (2, 4), (7, 1), (4, 3), (9, 2)),
        ((1, 1), (2, 2), (1, 3)),
    ),
)
def test_windows_of_any_size(of, threads, kernel, strides):
    check(of, (17, 19), 48, kernel, strides, threads=threads)


@pytest.mark.parametrize("channels", [4, 8, 16, 20, 24, 36, 64, 144])
@pytest.mark.parametrize("image", ["u8", "u8, dynamic", "i8", "i8, dynamic"])
@pytest.mark.sampled
def test_channels_of_any_number(channels, image):
    of, _, dynamic = image.partition(", ")
    check(of, (9, 11), channels, (3, 3), dynamic=bool(dynamic))


def test_taps_that_lie_apart():
    for of in NUMPY:
        check(of, (14, 13), 32, (3, 3), dilations=(2, 2))
        check(of, (14, 13), 32, (3, 3), dilations=(1, 2))


def test_the_host_uses_its_instruction():
    for of in NUMPY:
        if tap_dot_of(HOST, of, "i8") is not None:
            compiled = check(of, (30, 30), 64, (3, 3))
            kernels = describe_schedules(compiled, {})
            rules = [made["rule"] for kernel in kernels for made in kernel["decisions"]]
            assert "depthwise_dot" in rules
