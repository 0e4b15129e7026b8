"""Element by element: values at the edges, and contents followed at compile time."""

import numpy as np
import pytest

from tilewright.base.dtype import F32, I64
from tilewright.base.errors import UserError, UserTypeError
from tilewright.graph import Builder, TensorType
from tilewright.sym import const, size


@pytest.mark.parametrize(
    ("op", "a", "b", "want"),
    [
        ("div", [7, -7, 7, -7], [2, 2, -2, -2], [3, -3, -3, 3]),
        ("floordiv", [7, -7], [2, 2], [3, -4]),
        ("mod", [7, -7, 7], [3, 3, -3], [1, 2, -2]),
        ("fmod", [7, -7, 7], [3, 3, -3], [1, -1, 1]),
        ("pow", [2, -1, -1, 3, 1], [3, -1, -2, -1, -5], [8, -1, 1, 0, 1]),
        ("shift_left", [1, 1, 3], [3, 40, -1], [8, 0, 0]),
        ("shift_right", [-8, 8, -8, 8], [1, 1, 40, -1], [-4, 4, -1, 0]),
    ],
)
def test_integers(run_op, op, a, b, want):
    made = run_op(op, np.int32(a), np.int32(b))
    assert made.dtype == np.int32
    assert made.tolist() == want


def test_nan_wins_in_minimum_and_maximum(run_op):
    a, b = np.float32([1, np.nan]), np.float32([np.nan, 1])
    assert np.isnan(run_op("maximum", a, b)).all()
    assert np.isnan(run_op("minimum", a, b)).all()


def test_half_precision_rounds_once(run_op):
    x = np.float16([0.1, 1000.0, -3.0])
    want = np.tanh(x.astype(np.float32)).astype(np.float16)
    assert run_op("tanh", x).tolist() == want.tolist()


def test_shapes_broadcast(run_op):
    made = run_op(
        "add", np.ones((2, 1, 3), np.float32), np.ones((4, 1), np.float32), symbolic=False
    )
    assert made.shape == (2, 4, 3)
    with pytest.raises(UserError, match=r"TW1011.*\[2\] and \[3\]"):
        run_op("add", np.ones(2, np.float32), np.ones(3, np.float32))


def test_operands_have_one_type(run_op):
    with pytest.raises(UserTypeError, match=r"TW1012.*f32 and f64"):
        run_op("add", np.ones(2, np.float32), np.ones(2))
    with pytest.raises(UserTypeError, match="TW1012"):
        run_op("where", np.array(True), np.ones(2, np.float32), np.ones(2, np.int32))


def known(op, *contents, shapes=None):
    """What a builder knows of a node's contents, given those of its inputs."""
    builder = Builder()
    values = []
    for at, items in enumerate(contents):
        shape = (len(items),) if shapes is None else shapes[at]
        value = builder.param("x", TensorType(I64, tuple(const(d) for d in shape)))
        builder.known[value] = tuple(const(x) if isinstance(x, int) else x for x in items)
        values.append(value)
    made = builder.known.get(builder.add(op, *values))
    return None if made is None else [str(x) for x in made]


def test_contents_follow_arithmetic():
    n = size("n")
    assert known("add", [n, 1], [2, 3]) == ["n + 2", "4"]
    assert known("mul", [n], [2]) == ["n * 2"]
    assert known("div", [n], [2]) == ["n // 2"]
    assert known("div", [-7], [2]) == ["-3"]  # towards zero
    assert known("div", [n - 8], [2]) is None  # its sign decides
    assert known("mod", [n], [4]) == ["n % 4"]
    assert known("neg", [n]) == ["n * (-1)"]


def test_contents_broadcast_by_shape():
    made = known("add", [1, 2], [10, 20], shapes=[(2, 1), (1, 2)])
    assert made == ["11", "21", "12", "22"]


def test_contents_are_compared_and_chosen():
    n = size("n")
    assert known("equal", [n, 3], [-1, 3]) == ["0", "1"]
    assert known("less", [n], [4]) is None
    builder = Builder()
    shape = builder.param("x", TensorType(I64, (const(2),)))
    builder.known[shape] = (n, const(-1))
    ones = builder.constant(np.array([1, 1]))
    missing = builder.add("equal", shape, builder.constant(np.array(-1)))
    chosen = builder.add("where", missing, ones, shape)
    assert [str(x) for x in builder.known[chosen]] == ["n", "1"]


def test_contents_of_narrow_types_wrap():
    builder = Builder()
    a = builder.constant(np.array([200], np.uint8))
    assert [str(x) for x in builder.known[builder.add("add", a, a)]] == ["144"]


def test_floats_are_followed_too():
    builder = Builder()
    scale = builder.constant(np.float32([0.5, 2.0]))
    size_in = builder.add("cast", builder.constant(np.array([10, 7])), to=F32)
    target = builder.add("cast", builder.add("floor", builder.add("mul", size_in, scale)), to=I64)
    assert [str(x) for x in builder.known[target]] == ["5", "14"]


@pytest.mark.parametrize(("shape", "bound"), [((2,), (2, 2)), ((2, 1), (4,)), ((2, 1), (3, 1))])
def test_bounds_are_no_larger_than_what_they_bound(run_op, shape, bound):
    with pytest.raises(UserError, match="TW1011"):
        run_op("clip", np.ones(shape), None, np.ones(bound))


def test_bounds_have_the_type_of_what_they_bound(run_op):
    with pytest.raises(UserTypeError, match="TW1012"):
        run_op("clip", np.ones(3, np.uint8), np.zeros((), np.int32))
