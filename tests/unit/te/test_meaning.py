"""What tensor expressions compute, against NumPy."""

from math import erf

import numpy as np
import pytest

from tilewright import te
from tilewright.base.errors import TilewrightError
from tilewright.tensor import interpret
from tilewright.tensor.verify import verify

rng = np.random.default_rng(0)


def run(args, *arrays, shape, dtype=np.float32):
    """The function's last argument, computed from the arrays."""
    out = np.full(shape, 99, dtype)
    fn = te.function(args)
    verify(fn)
    interpret(fn, *arrays, out)
    return out


def values(*shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("n", "m", "k"), [(3, 4, 5), (1, 1, 1), (0, 4, 5), (3, 0, 5), (7, 2, 3)])
def test_matmul(n, m, k):
    N, M, K = te.var("n"), te.var("m"), te.var("k")
    A, B = te.placeholder((N, K), name="A"), te.placeholder((K, M), name="B")
    r = te.reduce_axis((0, K), name="r")
    C = te.compute((N, M), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    a, b = values(n, k), values(k, m)
    np.testing.assert_allclose(run([A, B, C], a, b, shape=(n, m)), a @ b, rtol=1e-5, atol=1e-6)


def test_softmax_written_in_one_expression():
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    k, l = te.reduce_axis((0, m), name="k"), te.reduce_axis((0, m), name="l")

    def shifted(i, j):
        return te.exp(A[i, j] - te.max(A[i, l], axis=l))

    S = te.compute((n, m), lambda i, j: shifted(i, j) / te.sum(shifted(i, k), axis=k), name="S")
    a = values(4, 7)
    e = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(run([A, S], a, shape=(4, 7)), e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("h", "w"), [(5, 6), (1, 1), (2, 9)])
def test_a_padded_convolution(h, w):
    H, W = te.var("h"), te.var("w")
    X, K = te.placeholder((H, W), name="X"), te.placeholder((3, 3), name="K")
    P = te.compute(
        (H + 2, W + 2),
        lambda y, x: te.if_then_else(
            te.all(y >= 1, y - 1 < H, x >= 1, x - 1 < W), X[y - 1, x - 1], 0.0
        ),
        name="P",
    )
    p, q = te.reduce_axis((0, 3), name="p"), te.reduce_axis((0, 3), name="q")
    Y = te.compute((H, W), lambda y, x: te.sum(P[y + p, x + q] * K[p, q], axis=[p, q]), name="Y")
    x, k = values(h, w), values(3, 3)
    padded = np.pad(x, 1)
    wanted = sum(padded[i : i + h, j : j + w] * k[i, j] for i in range(3) for j in range(3))
    np.testing.assert_allclose(run([X, K, Y], x, k, shape=(h, w)), wanted, rtol=1e-4, atol=1e-5)


def test_argmax_takes_the_first_of_equals():
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), name="k")
    P, V = te.compute((n,), lambda i: te.argmax(A[i, k], axis=k), name="T")
    a = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [-5, -6, -4, -4]], np.float32)
    place, best = np.zeros(3, np.int64), np.zeros(3, np.float32)
    interpret(te.function([A, P, V]), a, place, best)
    assert place.tolist() == a.argmax(1).tolist()
    assert best.tolist() == a.max(1).tolist()


def test_argmin_along_two_axes():
    A = te.placeholder((4, 5), name="A")
    i, j = te.reduce_axis((0, 4), name="i"), te.reduce_axis((0, 5), name="j")
    P = te.compute((), lambda: te.argmin(A[i, j], axis=[i, j])[0], name="P")
    a = values(4, 5)
    assert run([A, P], a, shape=(), dtype=np.int64) == a.argmin()


def test_a_reduction_of_ones_own_over_tuples():
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), name="k")
    spread = te.comm_reducer(
        lambda x, y: (te.min(x[0], y[0]), te.max(x[1], y[1])),
        lambda a, b: (te.max_value(a), te.min_value(b)),
        name="spread",
    )
    low, high = te.compute((n,), lambda i: spread((A[i, k], A[i, k]), axis=k), name="T")
    a = values(3, 5)
    least, most = np.zeros(3, np.float32), np.zeros(3, np.float32)
    interpret(te.function([A, low, high]), a, least, most)
    assert (least == a.min(1)).all()
    assert (most == a.max(1)).all()


def test_where_and_init():
    n = te.var("n")
    A, bias = te.placeholder((n, n), name="A"), te.placeholder((n,), name="bias")
    k = te.reduce_axis((0, n), name="k")
    B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k, where=k >= i, init=bias[i]), name="B")
    a, b = values(5, 5), values(5)
    wanted = b + np.triu(a).sum(1)
    np.testing.assert_allclose(run([A, bias, B], a, b, shape=(5,)), wanted, rtol=1e-5)


def test_gather_reads_where_the_index_is_inside():
    n, m = te.var("n"), te.var("m")
    A, I = te.placeholder((n,), name="A"), te.placeholder((m,), "int32", name="I")

    def picked(i):
        j = te.cast(I[i], "index")
        return te.if_then_else(te.all(j >= 0, j < n), A[j], 0.0)

    B = te.compute((m,), picked, name="B")
    a, picks = np.arange(1, 6, dtype=np.float32), np.array([4, 5, 0, -1], np.int32)
    assert (run([A, I, B], a, picks, shape=(4,)) == [5, 0, 1, 0]).all()


def test_a_scalar_argument():
    n, alpha = te.var("n"), te.var("alpha", "float32")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] * alpha, name="B")
    a = values(5)
    out = np.zeros(5, np.float32)
    interpret(te.function([alpha, A, B]), 2.5, a, out)
    np.testing.assert_allclose(out, a * np.float32(2.5))


def test_a_running_sum():
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: X[0, i], name="init")
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i], name="update")
    S = te.scan(init, update, state, inputs=[X], name="S")
    for steps in (1, 2, 7):
        x = values(steps, 3)
        np.testing.assert_allclose(run([X, S], x, shape=x.shape), x.cumsum(0), rtol=1e-5)


def test_two_coupled_recurrences():
    m = te.var("m")
    a, b = te.placeholder((m,), "i64", name="a"), te.placeholder((m,), "i64", name="b")
    zero = te.compute((1,), lambda _: te.const(0, "i64"), name="zero")
    one = te.compute((1,), lambda _: te.const(1, "i64"), name="one")
    next_a = te.compute((m,), lambda t: b[t - 1], name="next_a")
    next_b = te.compute((m,), lambda t: a[t - 1] + b[t - 1], name="next_b")
    A, B = te.scan([zero, one], [next_a, next_b], [a, b], name="fibonacci")
    first, second = np.zeros(10, np.int64), np.zeros(10, np.int64)
    interpret(te.function([A, B]), first, second)
    assert first.tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    assert second.tolist() == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]


def test_two_scans_may_share_their_stages():
    m = te.var("m")
    X, state = te.placeholder((m,), name="X"), te.placeholder((m,), name="state")
    twice = te.compute((m,), lambda t: state[t - 1] * 2.0, name="twice")
    update = te.compute((m,), lambda t: twice[t] + X[t], name="update")
    zero = te.compute((1,), lambda _: 0.0, name="zero")
    one = te.compute((1,), lambda _: 1.0, name="one")
    A = te.scan(zero, update, state, name="A")
    B = te.scan(one, update, state, name="B")
    x = values(5)
    out = np.zeros((2, 5), np.float32)
    interpret(te.function([X, A, B]), x, out[0], out[1])
    wanted = np.array([[0.0] * 5, [1.0] * 5], np.float32)
    for t in range(1, 5):
        wanted[:, t] = wanted[:, t - 1] * 2 + x[t]
    np.testing.assert_allclose(out, wanted, rtol=1e-5)


def test_an_external_kernel():
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    A, B = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    C = te.extern(
        (n, m), [A, B], "test_sgemm", name="C", behavior=lambda a, b, c: np.matmul(a, b, out=c)
    )
    D = te.compute((n, m), lambda i, j: te.max(C[i, j], 0.0), name="D")
    a, b = values(3, 4), values(4, 5)
    wanted = np.maximum(a @ b, 0)
    np.testing.assert_allclose(run([A, B, D], a, b, shape=(3, 5)), wanted, rtol=1e-5)


def test_a_tensor_without_dimensions():
    A = te.placeholder((), name="A")
    B = te.compute((), lambda: A[()] * 3.0, name="B")
    assert run([A, B], np.array(2, np.float32), shape=()) == 6


def test_the_misdeclared_matmul_is_refused_at_entry():
    m, n, h = te.var("m"), te.var("n"), te.var("h")
    A, B = te.placeholder((m, h), name="A"), te.placeholder((n, h), name="B")
    k = te.reduce_axis((0, h), name="k")
    C = te.compute((m, n), lambda y, x: te.sum(A[k, y] * B[k, x], axis=k), name="C")
    a, b = values(4, 4), values(4, 4)
    np.testing.assert_allclose(run([A, B, C], a, b, shape=(4, 4)), a.T @ b, rtol=1e-5)
    for rows, columns, depth in ((5, 4, 4), (4, 5, 4), (4, 4, 5)):
        with pytest.raises(TilewrightError):
            run([A, B, C], values(rows, depth), values(columns, depth), shape=(rows, columns))


@pytest.mark.parametrize("name", ["exp", "log1p", "tanh", "sigmoid", "gelu", "erf", "floor", "abs"])
def test_scalar_functions(name):
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: getattr(te, name)(A[i]), name="B")
    a = np.linspace(0.1, 3, 8).astype(np.float32)
    wanted = {
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "erf": np.vectorize(erf, otypes=[np.float32]),
        "gelu": np.vectorize(lambda x: x / 2 * (1 + erf(x / 2**0.5)), otypes=[np.float32]),
    }.get(name) or getattr(np, name)
    np.testing.assert_allclose(run([A, B], a, shape=(8,)), wanted(a), rtol=1e-5)


def test_integer_division_of_both_kinds():
    A = te.placeholder((4,), "int32", name="A")
    B = te.compute((4,), lambda i: te.div(A[i], 2) * 100 + te.floordiv(A[i], 2), name="B")
    a = np.array([-3, -2, 3, 5], np.int32)
    out = run([A, B], a, shape=(4,), dtype=np.int32)
    assert out.tolist() == [-1 * 100 - 2, -1 * 100 - 1, 1 * 100 + 1, 2 * 100 + 2]


def test_a_loop_index_as_a_value():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] * te.cast(i, "f32"), name="B")
    a = values(5)
    np.testing.assert_allclose(run([A, B], a, shape=(5,)), a * np.arange(5), rtol=1e-6)
