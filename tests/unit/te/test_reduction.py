"""Reductions, built in and of one's own."""

import pytest

from tilewright import sym, te
from tilewright.base.dtype import F32, I32, I64
from tilewright.te.operation import Reduce
from tilewright.tensor.reducers import builtin


@pytest.fixture
def A():
    return te.placeholder((4, 8), name="A")


@pytest.fixture
def k():
    return te.reduce_axis((0, 8), name="k")


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_built_in_reductions_are_the_known_ones(A, k, name):
    value = getattr(te, name)(A[0, k], axis=k)
    assert isinstance(value, Reduce)
    assert value.reducer is builtin(name, F32)
    assert value.axes == (k,)
    assert value.dtype is F32


def test_several_axes(A):
    i, j = te.reduce_axis((0, 4), name="i"), te.reduce_axis((0, 8), name="j")
    value = te.sum(A[i, j], axis=[i, j])
    assert value.axes == (i, j)


def test_without_an_axis_values_are_combined(A):
    i = sym.var("i")
    assert str(te.max(A[i, 0], 0.0)) == "max(A[%i, 0], 0.0)"
    assert str(te.max(0.0, A[i, 0])) == "max(0.0, A[%i, 0])"
    assert str(te.min(A[i, 0], A[i, 1], A[i, 2])) == "min(min(A[%i, 0], A[%i, 1]), A[%i, 2])"
    assert str(te.sum(A[i, 0], 1)) == "A[%i, 0] + 1.0"
    assert te.max(3, 5) is sym.const(5, I32)


def test_a_condition_and_an_initial_value(A, k):
    value = te.sum(A[0, k], axis=k, where=k >= 2, init=1.0)
    assert str(value.where) == "2 <= %k"
    assert value.init == (sym.const(1.0, F32),)


def test_argmax_gives_the_position_and_the_value(A, k):
    position, value = te.argmax(A[0, k], axis=k)
    assert (position.dtype, value.dtype) == (I64, F32)
    assert position.reducer is builtin("argmax", I64, F32)
    assert str(position.sources[0]) == "i64(%k)"


def test_positions_count_from_the_start_of_the_axis(A):
    k = te.reduce_axis((2, 8), name="k")
    position, _ = te.argmin(A[0, k], axis=k, dtype="int32")
    assert str(position.sources[0]) == "i32(%k - 2)"


def test_positions_over_several_axes_are_row_major(A):
    i, j = te.reduce_axis((0, 4), name="i"), te.reduce_axis((0, 8), name="j")
    position, _ = te.argmax(A[i, j], axis=[i, j])
    assert str(position.sources[0]) == "i64(%i * 8 + %j)"


def test_argmax_of_a_given_pair(A, k):
    position, value = te.argmax((te.cast(k, "i32"), A[0, k]), axis=k)
    assert (position.dtype, value.dtype) == (I32, F32)


def test_a_reduction_of_ones_own(A, k):
    product = te.comm_reducer(lambda x, y: x * y, lambda t: te.const(1, t), name="product")
    value = product(A[0, k], axis=k)
    assert value.reducer.name == "product"
    assert str(value.reducer.result[0]) == "%x * %y"
    assert value.reducer.identity == (sym.const(1, F32),)
    assert product(A[1, k], axis=k).reducer is value.reducer


def test_a_reduction_of_tuples(A, k):
    welford = te.comm_reducer(
        lambda x, y: (x[0] + y[0], x[1] + y[1]),
        lambda a, b: (te.const(0, a), te.const(0, b)),
        name="both",
    )
    count, total = welford((te.const(1, "i32"), A[0, k]), axis=k)
    assert (count.dtype, total.dtype) == (I32, F32)
    assert count.reducer is total.reducer


def test_the_domain_of_an_axis():
    n = te.var("n")
    k = te.reduce_axis((1, n), name="k")
    assert (k.dom.start, str(k.dom.extent)) == (sym.ONE, "n - 1")
    assert k.var is k
    assert te.reduce_axis(k.dom).dom.extent is k.extent


def test_thread_axes_carry_their_tag():
    x = te.thread_axis("threadIdx.x")
    assert (x.thread_tag, x.name) == ("threadIdx.x", "threadIdx.x")
    y = te.thread_axis((0, 8), "blockIdx.x", name="bx")
    assert (y.thread_tag, y.name, str(y.extent)) == ("blockIdx.x", "bx", "8")
