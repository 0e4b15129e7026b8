"""Convolutions of bytes by Winograd's method: the integers of direct ones, on every machine."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.dots import dots_of
from tilewright.base.dtype import DType, dtype
from tilewright.base.target import Target
from tilewright.cli.inspect import describe_schedules
from tilewright.graph import Builder, TensorType
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.sym import const
from tilewright.sym import size as named

# The host as one that multiplies no bytes: where it does, the pass does not choose Winograd.
PLAIN = "cpu -mattr=-amx-tile,-avx512vnni,-avxvnni"
HERE = [PLAIN if Target.host().has("avx2") else "cpu"]
WITHOUT_BYTES = Target.parse("x86_64-linux-gnu -mcpu=haswell")
BYTES = ["u8", "i8"]


def values(rng, of: DType, *shape):
    """Bytes, the largest of which meet."""
    made = rng.integers(of.min, of.max, shape, endpoint=True)
    return np.where(rng.random(shape) < 0.5, of.max if rng.random() < 0.5 else of.min, made)


def model(x_type, w, height, width, pads=(1, 1, 1, 1), bias=None, **attributes):
    b = Builder()
    dims = [const(d) if isinstance(d, int) else named(d) for d in (2, height, width, w.shape[1])]
    x = b.param("x", TensorType(dtype(x_type), tuple(dims)))
    more = () if bias is None else (None, None, b.constant(bias))
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": pads, "layout": "channels_last"}
    return b.module(b.add("conv_integer", x, b.constant(w), *more, **window, **attributes))


def rules_of(compiled):
    """The rules that made its kernels."""
    rows = describe_schedules(compiled, {})
    return [decision["rule"] for row in rows for decision in row["decisions"]]


def multiplies_pairs(target):
    return bool(dots_of(Target.parse(target), "i16", "i16", "i32"))


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize(("x_type", "w_type"), [(x, w) for x in BYTES for w in BYTES])
@pytest.mark.parametrize(
    ("channels", "out", "size"), [(64, 64, (14, 13)), (6, 48, (3, 4)), (34, 16, (9, 30))]
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.sampled
def test_tiles_give_the_integers_of_direct_sums(
    target, x_type, w_type, channels, out, size, threads
):
    rng = np.random.default_rng(0)
    w = values(rng, dtype(w_type), out, channels, 3, 3).astype(dtype(w_type).numpy)
    bias = rng.integers(-(1 << 20), 1 << 20, out).astype(np.int32)
    x = values(rng, dtype(x_type), 2, *size, channels).astype(dtype(x_type).numpy)
    direct = model(x_type, w, *size, bias=bias)
    tiled = model(x_type, w, *size, bias=bias, winograd=2)
    (want,) = graph.interpret(direct, x)
    compiled = tw.compile(tiled, target=target, threads=threads)
    np.testing.assert_array_equal(compiled(x)[0], want)
    assert "winograd" in rules_of(compiled) or not multiplies_pairs(target)


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1)])
def test_images_of_any_size(target, pads):
    rng = np.random.default_rng(0)
    w = values(rng, dtype("i8"), 32, 16, 3, 3).astype(np.int8)
    compiled = tw.compile(model("u8", w, "h", "v", pads, winograd=2), target=target, threads=2)
    assert "winograd" in rules_of(compiled) or not multiplies_pairs(target)
    for size in ((3, 3), (8, 17), (21, 6)):
        x = values(rng, dtype("u8"), 2, *size, 16).astype(np.uint8)
        (want,) = graph.interpret(model("u8", w, *size, pads), x)
        np.testing.assert_array_equal(compiled(x)[0], want)


def test_more_channels_than_sums_in_i32_hold_are_summed_directly():
    w = np.full((16, 2048, 3, 3), -128, np.int8)
    x = np.full((2, 3, 3, 2048), 255, np.uint8)
    (want,) = graph.interpret(model("u8", w, 3, 3), x)
    (got,) = tw.compile(model("u8", w, 3, 3, winograd=2), threads=1)(x)
    np.testing.assert_array_equal(got, want)


def test_the_schedule_multiplies_pairs_of_i16():
    module = graph.parse("""
        graph @main(%x: u8[1, 28, 28, 64], %w: i8[64, 64, 3, 3]) {
          %y = conv_integer(%x, %w) {strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1),
                                     winograd = 2, layout = "channels_last"}
          return %y
        }""")
    made = schedule(lower_graph(module.main, "kernel"), WITHOUT_BYTES, constants=("w",))
    assert "winograd" in [each.rule for each in made.decisions], made.refusals
    assert "madd_i16_dot_256" in str(made.schedule.function)
