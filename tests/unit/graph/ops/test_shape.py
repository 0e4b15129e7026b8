"""Shapes, and tensors in another shape, order or extent: against NumPy, on numbers and sizes."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from tilewright import sym
from tilewright.base.dtype import F16, F32, I32, I64
from tilewright.base.errors import ExecutionError, UserError
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.ops.shape import slice_bounds
from tilewright.sym import const, evaluate, size


def typed(op, *types, **attributes):
    """The type of a node over values of these types, and the builder that made it."""
    builder = Builder()
    values = [builder.param(f"x{at}", of) for at, of in enumerate(types)]
    return builder.add(op, *values, **attributes), builder


N, M = size("n"), size("m")


def test_shape_is_known_as_expressions():
    value, builder = typed("shape", TensorType(F32, (N, const(3))))
    assert builder.known[value] == (N, const(3))


def test_contents_are_followed_through_moves():
    builder = Builder()
    x = builder.param("x", TensorType(F32, (N, M, const(8))))
    shape = builder.add("shape", x)
    pair = builder.add("slice", shape, starts=(1,), ends=(3,), axes=(0,), steps=(1,))
    both = builder.add("concat", pair, builder.constant(np.array([5])), axis=0)
    turned = builder.add("slice", both, starts=(-1,), ends=(-9,), axes=(0,), steps=(-1,))
    assert builder.known[turned] == (const(5), const(8), M)
    grid = builder.add("transpose", builder.add("reshape", turned, shape=(3, 1)), perm=(1, 0))
    assert builder.known[grid] == (const(5), const(8), M)
    padded = builder.add("pad", turned, pads=(1, 0))
    assert builder.known[padded] == (const(0), const(5), const(8), M)


# ------------------------------------------------------------------------------------ reshape


@pytest.mark.parametrize("shape", [(6, 4), (-1,), (2, -1, 2), (24, 1), (4, 3, 2, 1)])
def test_reshape_keeps_the_order(run_op, rng, shape):
    x = rng.standard_normal((2, 3, 4))
    np.testing.assert_array_equal(run_op("reshape", x, shape=shape), x.reshape(shape))


def test_reshape_by_data(run_op, rng):
    x = rng.standard_normal((2, 6))
    made = run_op("reshape", x, np.array([3, -1]))
    np.testing.assert_array_equal(made, x.reshape(3, 4))


@pytest.mark.parametrize(
    ("given", "target", "rest"),
    [
        ((N, const(12)), (N, -1), const(12)),
        ((N, const(12)), (-1, 4), N * 3),
        ((N, M, const(6)), (M, -1, 2), N * 3),
        ((N * M,), (N, -1), M),
        ((const(0), const(3)), (-1, 3), const(0)),
    ],
)
def test_what_remains_of_a_symbolic_shape(given, target, rest):
    value, _ = typed("reshape", TensorType(F32, given), shape=target)
    assert rest in value.tensor.shape


@pytest.mark.parametrize(
    ("shape", "code"),
    [((-1, -1), "TW1302"), ((-2, 3), "TW1302"), ((0, -1), "TW1302"), ((4, 2), "TW1303")],
)
def test_reshapes_that_cannot_be(shape, code):
    with pytest.raises(UserError) as caught:
        typed("reshape", TensorType(F32, (const(2), const(3))), shape=shape)
    assert caught.value.code == code


def test_reshape_by_data_that_does_not_fit_is_a_fault_of_the_run(run_op):
    with pytest.raises(ExecutionError, match="TW1017"):
        run_op("reshape", np.zeros(6), np.array([4, 2]))


# ------------------------------------------------------------------------------------ expand, tile


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 1), (1, 1), (5, 1, 1, 4)])
def test_expand_is_broadcasting(run_op, rng, shape):
    x = rng.standard_normal((3, 1) if shape != (5, 1, 1, 4) else (2, 1))
    want = np.broadcast_to(x, np.broadcast_shapes(x.shape, shape))
    np.testing.assert_array_equal(run_op("expand", x, shape=shape, symbolic=False), want)
    np.testing.assert_array_equal(run_op("expand", x, np.array(shape), symbolic=False), want)


def test_expand_by_data_keeps_what_it_knows():
    of = TensorType(F32, (const(3), const(1)))
    value, _ = typed("expand", of, TensorType(I64, (const(2),)))
    assert value.tensor.shape[0] == const(3)
    value, _ = typed("expand", of, TensorType(I64, (const(1),)))
    assert value.tensor.shape[0] == const(3)
    value, _ = typed("expand", of, TensorType(I64, (N,)))
    assert value.tensor.shape is None


def test_tile_repeats_the_whole(run_op, rng):
    x = rng.standard_normal((2, 3))
    np.testing.assert_array_equal(run_op("tile", x, repeats=(2, 3)), np.tile(x, (2, 3)))
    np.testing.assert_array_equal(run_op("tile", x, np.array([0, 1])), np.tile(x, (0, 1)))
    with pytest.raises(UserError, match="TW1304"):
        run_op("tile", x, repeats=(2,))


# ------------------------------------------------------------------------------------ transpose


@pytest.mark.parametrize("perm", list(itertools.permutations(range(3))))
def test_transpose(run_op, rng, perm):
    x = rng.standard_normal((2, 3, 4))
    np.testing.assert_array_equal(run_op("transpose", x, perm=perm), x.transpose(perm))


@pytest.mark.parametrize(
    ("perm", "code"), [((0,), "TW1304"), ((0, 0), "TW1301"), ((0, 2), "TW1301")]
)
def test_transposes_that_cannot_be(run_op, perm, code):
    with pytest.raises(UserError) as caught:
        run_op("transpose", np.zeros((2, 3)), perm=perm)
    assert caught.value.code == code


# ------------------------------------------------------------------------------------ concat


def test_concat_adds_up_one_axis(run_op, rng):
    parts = [rng.standard_normal((2, n, 3)) for n in (1, 0, 4)]
    made = run_op("concat", *parts, axis=1)
    np.testing.assert_array_equal(made, np.concatenate(parts, axis=1))
    value, _ = typed(
        "concat", TensorType(F32, (N, const(2))), TensorType(F32, (M, const(2))), axis=0
    )
    assert value.tensor.shape == (N + M, const(2))


def test_a_size_says_more_than_an_expression_that_must_equal_it():
    """As where a sequence is joined with itself, shifted by a slice and a pad."""
    shifted = sym.add(sym.maximum(sym.sub(N, 1), 0), 1)
    parts = [TensorType(F32, (dim, const(2))) for dim in (shifted, N, shifted)]
    made, _ = typed("concat", *parts, axis=1)
    assert made.type.shape == (N, const(6))
    numbered, _ = typed("concat", parts[1], TensorType(F32, (const(5), const(2))), axis=1)
    assert numbered.type.shape == (const(5), const(4))


def test_parts_of_a_concat_fit():
    of = TensorType(F32, (const(2), const(3)))
    for other, code in (
        (TensorType(F32, (const(2), const(4))), "TW1015"),
        (TensorType(F32, (const(2),)), "TW1304"),
    ):
        with pytest.raises(UserError) as caught:
            typed("concat", of, other, axis=0)
        assert caught.value.code == code


# ------------------------------------------------------------------------------------ slice

BOUNDS = [-(1 << 40), -7, -4, -2, -1, 0, 1, 3, 4, 6, 1 << 40]


def taken(n, start, end, step):
    """Python's slice, but that a start before the first element is at it, also backwards."""
    return range(n)[(0 if step < 0 and start < -n else start) : end : step]


@pytest.mark.parametrize("step", [-3, -1, 1, 2])
def test_all_bounds_are_onnxs(run_op, step):
    x = np.arange(5)
    for start, end in itertools.product(BOUNDS, BOUNDS):
        want = list(taken(5, start, end, step))
        made = run_op("slice", x, starts=(start,), ends=(end,), axes=(0,), steps=(step,))
        np.testing.assert_array_equal(made, want)


@pytest.mark.parametrize("step", [-2, -1, 1, 3])
def test_the_count_of_a_symbolic_slice(step):
    for start, end in itertools.product(BOUNDS, BOUNDS):
        _, count = slice_bounds(const(start), const(end), step, N)
        for n in range(8):
            assert evaluate(count, {N: n}) == len(taken(n, start, end, step))


def test_symbolic_bounds():
    _, count = slice_bounds(const(0), N, 1, M)
    for n, m in itertools.product(range(5), range(5)):
        assert evaluate(count, {N: n, M: m}) == len(range(m)[0:n])
    _, count = slice_bounds(N - 3, const(1 << 40), 1, N)
    for n in range(6):
        assert evaluate(count, {N: n}) == len(range(n)[n - 3 :])


def test_bounds_by_data(run_op, rng):
    x = rng.standard_normal((4, 5, 6))
    made = run_op(
        "slice", x, np.array([1, 0]), np.array([3, 9]), np.array([2, 0]), np.array([1, 2])
    )
    np.testing.assert_array_equal(made, x[0:9:2, :, 1:3])
    made = run_op("slice", x, np.array([1]), np.array([-1]))
    np.testing.assert_array_equal(made, x[1:-1])


def test_slices_that_cannot_be(run_op):
    with pytest.raises(UserError, match="TW1305"):
        run_op("slice", np.zeros(4), starts=(0,), ends=(1,), axes=(0,), steps=(0,))
    with pytest.raises(UserError, match="TW1301"):
        run_op("slice", np.zeros(4), starts=(0,), ends=(1,), axes=(1,))
    with pytest.raises(UserError, match="TW1304"):
        run_op("slice", np.zeros(4), starts=(0,), ends=(1, 2), axes=(0,))


# ------------------------------------------------------------------------------------ pad


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad_is_numpys(run_op, rng, mode):
    x = rng.standard_normal((3, 4))
    made = run_op("pad", x, pads=(1, 2, 0, 3), mode=mode)
    np.testing.assert_array_equal(made, np.pad(x, ((1, 0), (2, 3)), mode=mode))


def test_negative_pads_remove(run_op, rng):
    x = rng.standard_normal((4, 5))
    made = run_op("pad", x, np.array([-1, 2, 1, -2]), np.array(7.0))
    want = np.pad(x[1:, :3], ((0, 1), (2, 0)), constant_values=7.0)
    np.testing.assert_array_equal(made, want)
    assert run_op("pad", x, pads=(-3, 0, -3, 0)).shape == (0, 5)


def test_pad_of_named_axes(run_op, rng):
    x = rng.standard_normal((2, 3, 4))
    made = run_op("pad", x, np.array([1, 2]), None, np.array([-2]))
    np.testing.assert_array_equal(made, np.pad(x, ((0, 0), (1, 2), (0, 0))))


@pytest.mark.parametrize("of", [ml_dtypes.bfloat16, ml_dtypes.int4, bool, np.uint8])
def test_pad_of_small_types(run_op, of):
    made = run_op("pad", np.ones(2, of), np.array([1, 0]), np.zeros((), of))
    assert made.dtype == of
    assert made.astype(float).tolist() == [0.0, 1.0, 1.0]


def test_pads_that_cannot_be(run_op):
    with pytest.raises(UserError, match="TW1306"):
        run_op("pad", np.zeros(4), pads=(1, 1), mode="mirror")
    with pytest.raises(UserError, match="TW1304"):
        run_op("pad", np.zeros(4), pads=(1, 1, 1))


# ------------------------------------------------------------------------------------ range


@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(0, 5, 1), (10, 4, -2), (3, 3, 1), (0, 7, 3)]
)
def test_ranges_of_integers(run_op, start, limit, delta):
    want = np.arange(start, limit, delta)
    attributes = {"start": start, "limit": limit, "delta": delta}
    np.testing.assert_array_equal(run_op("range", **attributes, to=I32), want.astype(np.int32))
    arrays = [np.array(v, np.int32) for v in (start, limit, delta)]
    np.testing.assert_array_equal(run_op("range", *arrays, to=I32), want.astype(np.int32))


def test_ranges_of_floats(run_op):
    made = run_op("range", *(np.array(v, np.float16) for v in (1.0, 5.0, 2.0)), to=F16)
    assert made.dtype == np.float16
    assert made.tolist() == [1.0, 3.0]


def test_the_count_of_a_symbolic_range():
    value, _ = typed("range", start=0, limit=N, delta=1, to=I64)
    assert value.tensor.shape == (N,)
    value, _ = typed("range", start=2, limit=N, delta=3, to=I64)
    for n in range(9):
        assert evaluate(value.tensor.shape[0], {N: n}) == len(range(2, n, 3))
    with pytest.raises(UserError, match="TW1305"):
        typed("range", start=0, limit=5, delta=0, to=I64)


def test_lists_of_sizes_are_told_by_the_arguments():
    builder = Builder()
    x = builder.param("x", TensorType(F32, (N, M)))
    listed = builder.add("dims", values=(N + 1, 7), to=I64)
    scalar = builder.add("dims", values=N * M, to=I32)
    one, two = interpret(builder.module(listed, scalar), np.zeros((3, 4), np.float32), check=True)
    assert x.name == "x"
    assert one.tolist() == [4, 7]
    assert two.dtype == np.int32
    assert two == 12
