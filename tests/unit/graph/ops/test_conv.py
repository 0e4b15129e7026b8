"""Convolutions against loops that say what they are."""

import itertools

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.errors import UserError
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.ops.windows import same_pads
from tilewright.sym import const, size


def window(rng, rank, *, most=3):
    return {
        "strides": tuple(rng.integers(1, most + 1, rank).tolist()),
        "dilations": tuple(rng.integers(1, 3, rank).tolist()),
        "pads": tuple(rng.integers(0, 3, 2 * rank).tolist()),
    }


def looped_conv(x, w, strides, dilations, pads, groups=1):
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *((pads[a], pads[a + rank]) for a in range(rank))])
    counts = [
        (x.shape[a + 2] - (w.shape[a + 2] - 1) * dilations[a] - 1) // strides[a] + 1
        for a in range(rank)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *counts))
    outs, ins = w.shape[0] // groups, w.shape[1]
    for n, m, *at in itertools.product(*map(range, out.shape)):
        group = m // outs
        for c, *tap in itertools.product(*map(range, w.shape[1:])):
            place = [a * s + t * d for a, s, t, d in zip(at, strides, tap, dilations, strict=True)]
            out[(n, m, *at)] += x[(n, group * ins + c, *place)] * w[(m, c, *tap)]
    return out


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("case", range(3))
def test_conv(run_op, rng, rank, groups, case):
    kinds = window(rng, rank)
    x = rng.standard_normal((2, 2 * groups, *rng.integers(5, 7, rank)))
    w = rng.standard_normal((3 * groups, 2, *rng.integers(1, 4, rank)))
    bias = rng.standard_normal(3 * groups)
    made = run_op("conv", x, w, bias, groups=groups, **kinds)
    want = looped_conv(x, w, **kinds, groups=groups) + bias.reshape(-1, *[1] * rank)
    np.testing.assert_allclose(made, want, rtol=1e-9, atol=1e-9)


def test_conv_integer_pads_with_its_zero(run_op, rng):
    x, w = rng.integers(0, 256, (1, 2, 5, 5), np.uint8), rng.integers(-9, 9, (4, 2, 3, 3), np.int8)
    x_zero, w_zero = np.uint8(128), np.int8([1, 2, 3, 4])
    bias = np.int32([1, 2, 3, 4])
    kinds = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    made = run_op("conv_integer", x, w, x_zero, w_zero, bias, **kinds)
    centred = w.astype(float) - w_zero.reshape(4, 1, 1, 1)
    want = looped_conv(x - 128.0, centred, **kinds) + bias.reshape(4, 1, 1)
    assert made.dtype == np.int32
    assert (made == want).all()


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("case", range(3))
def test_conv_transpose_is_the_adjoint_of_conv(run_op, rng, rank, groups, case):
    """For all x and y: <conv(x), y> = <x, conv_transpose(y)>."""
    kinds = window(rng, rank, most=2)
    x = rng.standard_normal((2, 2 * groups, *rng.integers(5, 8, rank)))
    w = rng.standard_normal((3 * groups, 2, *rng.integers(1, 4, rank)))
    forward = run_op("conv", x, w, groups=groups, **kinds)
    y = rng.standard_normal(forward.shape)
    reached = [
        (n - 1) * s + (k - 1) * d + 1 - kinds["pads"][a] - kinds["pads"][a + rank]
        for a, (n, s, k, d) in enumerate(
            zip(y.shape[2:], kinds["strides"], w.shape[2:], kinds["dilations"], strict=True)
        )
    ]
    left = tuple(n - r for n, r in zip(x.shape[2:], reached, strict=True))
    back = run_op("conv_transpose", y, w, groups=groups, output_padding=left, **kinds)
    assert back.shape == x.shape
    np.testing.assert_allclose((forward * y).sum(), (x * back).sum())


@pytest.mark.parametrize("rank", [1, 2])
def test_deform_conv_without_offsets_is_conv(run_op, rng, rank):
    kinds = window(rng, rank)
    x = rng.standard_normal((2, 4, *rng.integers(6, 8, rank)))
    w = rng.standard_normal((4, 2, *[3] * rank))
    want = looped_conv(x, w, **kinds, groups=2)
    offset = np.zeros((2, 2 * 3**rank * rank, *want.shape[2:]))
    mask = np.full((2, 2 * 3**rank, *want.shape[2:]), 0.5)
    kinds |= {"groups": 2, "offset_groups": 2}
    np.testing.assert_allclose(run_op("deform_conv", x, w, offset, **kinds), want, atol=1e-9)
    made = run_op("deform_conv", x, w, offset, None, mask, **kinds)
    np.testing.assert_allclose(made, want / 2, atol=1e-9)


def test_deform_conv_reads_between_elements(run_op):
    x = np.arange(4.0).reshape(1, 1, 4)
    kinds = {"strides": (1,), "dilations": (1,), "pads": (0, 0)}
    offset = np.array([[[0.5, 0.25, -1.0, 5.0]]])
    made = run_op("deform_conv", x, np.ones((1, 1, 1)), offset, **kinds)
    assert made.ravel().tolist() == [0.5, 1.25, 1.0, 0.0]


def test_col2im_adds_where_blocks_overlap(run_op):
    columns = np.ones((1, 4, 4), np.float32)
    kinds = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    made = run_op("col2im", columns, np.array([3, 3]), np.array([2, 2]), **kinds, symbolic=False)
    assert made.reshape(3, 3).tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]


def test_shapes_are_exact_expressions():
    n, h, w = size("n"), size("h"), size("w")
    builder = Builder()
    x = builder.param("x", TensorType(F32, (n, const(3), h, w)))
    weights = builder.param("w", TensorType(F32, tuple(map(const, (8, 3, 3, 3)))))
    kinds = {"strides": (2, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    made = builder.add("conv", x, weights, **kinds)
    assert str(made.type) == "f32[n, 8, (h + 1) // 2, w]"


def test_automatic_pads_of_unknown_sizes():
    assert same_pads((7,), (3,), (2,), (1,), lower=False) == (1, 1)
    assert same_pads((8,), (3,), (2,), (1,), lower=False) == (0, 1)
    assert same_pads((8,), (3,), (2,), (1,), lower=True) == (1, 0)
    assert same_pads((size("n"),), (3,), (1,), (1,), lower=True) == (1, 1)  # whatever n is


def test_pads_may_depend_on_sizes():
    """SAME pads of a stride of two: one more where the size is odd."""
    w = np.ones((1, 1, 3), np.float32)
    builder = Builder()
    n = size("n")
    a = builder.param("x", TensorType(F32, (const(1), const(1), n)))
    b = builder.param("w", TensorType(F32, (const(1), const(1), const(3))))
    pads = same_pads((n,), (3,), (2,), (1,), lower=False)
    y = builder.add("conv", a, b, strides=(2,), dilations=(1,), pads=pads)
    for length in (7, 8):
        x = np.ones((1, 1, length), np.float32)
        (made,) = interpret(builder.module(y), x, w, check=True)
        assert made.shape == (1, 1, 4)


@pytest.mark.parametrize(
    ("shapes", "changes", "error"),
    [
        ([(1, 3, 8), (4, 3, 3, 3)], {}, "TW1204.*rank 3, weights 4"),
        ([(1, 3), (4, 3)], {}, "TW1204.*at least one spatial axis"),
        ([(1, 3, 8), (4, 3, 3)], {"strides": (1, 1)}, "TW1204.*strides of conv needs 1 values"),
        ([(1, 3, 8), (4, 3, 3)], {"strides": (0,)}, "TW1204.*must be positive"),
        ([(1, 3, 8), (4, 3, 3)], {"pads": (1,)}, "TW1204.*pads of conv needs 2 values"),
        ([(1, 3, 8), (4, 2, 3)], {}, "TW1015.*channels of conv differ: 3 and 2"),
        ([(1, 4, 8), (3, 2, 3)], {"groups": 2}, "TW1205.*2 groups do not divide 3"),
        ([(1, 3, 8), (4, 3, 3), (5,)], {}, "TW1015.*bias"),
        ([(1, 3, 8), (4, 3, 3), (4, 1)], {}, "TW1204.*bias of conv has rank 2"),
    ],
)
def test_what_does_not_fit(run_op, shapes, changes, error):
    kinds = {"strides": (1,), "dilations": (1,), "pads": (0, 0), **changes}
    with pytest.raises(UserError, match=error):
        run_op("conv", *(np.ones(shape) for shape in shapes), **kinds)
