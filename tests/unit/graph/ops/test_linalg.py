"""Products of matrices, sums of products, determinants."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.bf16x6 import pieces_of
from tilewright.base.dtype import F32
from tilewright.base.errors import UserError
from tilewright.graph import Builder, TensorType
from tilewright.sym import size


@pytest.mark.parametrize("shapes", [
    [(2, 3), (3, 4)], [(3,), (3, 4)], [(2, 3), (3,)], [(3,), (3,)], [(5, 2, 3), (3, 4)],
    [(5, 1, 2, 3), (4, 3, 2)], [(3,), (5, 3, 4)], [(5, 2, 3), (3,)], [(0, 3), (3, 4)],
    [(2, 0), (0, 4)],
])  # fmt: skip
def test_matmul_is_numpys(run_op, rng, shapes):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    made = run_op("matmul", a, b, symbolic=len(shapes[0]) < 4)
    np.testing.assert_allclose(made, np.matmul(a, b), rtol=1e-6)


def test_matmul_of_small_floats_accumulates_in_f32(run_op):
    a = np.full((1, 4096), 0.01, ml_dtypes.bfloat16)
    made = run_op("matmul", a, np.ones((4096, 1), ml_dtypes.bfloat16))
    assert made.dtype == ml_dtypes.bfloat16
    assert abs(float(made[0, 0]) - 4096 * float(a[0, 0])) < 0.25


def test_matmul_keeps_symbolic_dimensions():
    n, m, k = size("n"), size("m"), size("k")
    builder = Builder()
    a, b = (
        builder.param("a", TensorType(F32, (n, m, k))),
        builder.param("b", TensorType(F32, (k, m))),
    )
    assert str(builder.add("matmul", a, b).type) == "f32[n, m, m]"


def test_matmul_integer_is_exact(run_op, rng):
    a = rng.integers(0, 256, (2, 5, 300), np.uint8)
    b = rng.integers(-128, 128, (300, 4), np.int8)
    a_zero, b_zero = np.uint8(7), rng.integers(-9, 9, 4).astype(np.int8)
    made = run_op("matmul_integer", a, b, a_zero, b_zero)
    want = (a.astype(int) - 7) @ (b.astype(int) - b_zero.astype(int))
    assert made.dtype == np.int32
    assert (made == want).all()


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ab,bc->ac", [(2, 3), (3, 4)]),
        ("aab->b", [(3, 3, 4)]),
        ("abc->ca", [(2, 3, 4)]),
        ("ab,cb,a->c", [(2, 3), (4, 3), (2,)]),
        ("ab,ab->", [(2, 3), (2, 3)]),
        (",a->a", [(), (3,)]),
    ],
)
def test_einsum_is_numpys(run_op, rng, equation, shapes):
    arrays = [rng.standard_normal(shape) for shape in shapes]
    made = run_op("einsum", *arrays, equation=equation, symbolic=equation != "aab->b")
    np.testing.assert_allclose(made, np.einsum(equation, *arrays), rtol=1e-12)


def test_determinants_of_a_stack(run_op, rng):
    x = rng.standard_normal((2, 3, 4, 4))
    np.testing.assert_allclose(run_op("det", x, symbolic=False), np.linalg.det(x))


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "error"),
    [
        ("matmul", [(2, 3), (4, 5)], {}, "TW1015.*differ: 3 and 4"),
        ("matmul", [(), (4, 5)], {}, "TW1202.*not scalars"),
        ("matmul", [(2, 3, 4), (3, 4, 5)], {}, "TW1011"),
        ("einsum", [(2, 3)], {"equation": "ab,bc->ac"}, "TW1203.*names 2 operands, got 1"),
        ("einsum", [(2, 3), (3,)], {"equation": "ab,bc->ac"}, "TW1203.*does not name 1"),
        ("einsum", [(2, 3), (4, 5)], {"equation": "ab,bc->ac"}, "TW1015.*named 'b'"),
        ("det", [(2, 3)], {}, "TW1015.*sides"),
        ("det", [(2,)], {}, "TW1202"),
    ],
)
def test_shapes_that_do_not_fit(run_op, op, shapes, attributes, error):
    with pytest.raises(UserError, match=error):
        run_op(op, *(np.ones(shape) for shape in shapes), **attributes)


@pytest.mark.parametrize(("k", "length", "parts"), [(64, 64, 1), (50, 64, 1), (70, 32, 3)])
def test_products_of_pieces_are_as_exact_as_f32(run_op, rng, k, length, parts):
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 5, k), (k, 7)))
    pieces = run_op("bf16_pieces", a, symbolic=False, length=length, parts=parts)
    stack = (parts,) if parts > 1 else ()
    assert pieces.shape == (*stack, 2, 5, 3, length)
    padded = np.pad(b, [(0, parts * length - k), (0, 0)]).reshape(*stack, length, 7)
    made = run_op("matmul_pieces", pieces, pieces_of(padded, -3))
    assert made.dtype == np.float32
    made = made.sum(axis=0) if parts > 1 else made
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(made - exact).max() <= 3 * np.abs(a @ b - exact).max()


@pytest.mark.parametrize(
    ("op", "shapes", "dtype", "attributes"),
    [
        ("bf16_pieces", [(2, 40)], np.float32, {"length": 32}),
        ("bf16_pieces", [(2, 40)], np.float64, {"length": 64}),
        ("matmul_pieces", [(2, 3, 32), (2, 32, 4)], ml_dtypes.bfloat16, {}),
        ("matmul_pieces", [(2, 3, 32), (3, 64, 4)], ml_dtypes.bfloat16, {}),
        ("matmul_pieces", [(5, 2, 3, 32), (4, 3, 32, 4)], ml_dtypes.bfloat16, {}),
        ("matmul_pieces", [(2, 3, 32), (3, 32, 4)], np.float32, {}),
    ],
)
def test_pieces_that_do_not_fit_are_refused(run_op, op, shapes, dtype, attributes):
    with pytest.raises(UserError, match="TW1"):
        run_op(op, *(np.zeros(shape, dtype) for shape in shapes), **attributes)
