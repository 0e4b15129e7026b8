"""Index bounds: proved, refused, or left as conditions on the sizes for the entry."""

import numpy as np
import pytest

from tilewright import te
from tilewright.base.errors import UserError
from tilewright.codegen.build import build
from tilewright.tensor.interp import interpret


def requires(args):
    return [str(cond) for cond in te.function(args).requires]


def message(args):
    with pytest.raises(UserError) as caught:
        te.function(args)
    return caught.value.code, caught.value.message


def sizes(names):
    return [te.var(name) for name in names.split()]


def transposed_matmul(declare_a, declare_b):
    m, n, h = sizes("m n h")
    A = te.placeholder(declare_a(m, n, h), name="A")
    B = te.placeholder(declare_b(m, n, h), name="B")
    k = te.reduce_axis((0, h), name="k")
    C = te.compute((m, n), lambda y, x: te.sum(A[k, y] * B[k, x], axis=k), name="C")
    return [A, B, C]


def test_the_transposed_matmul_needs_no_check():
    args = transposed_matmul(lambda m, n, h: (h, m), lambda m, n, h: (h, n))
    assert requires(args) == []


def test_the_transposed_matmul_as_the_paper_prints_it_is_checked_at_entry():
    args = transposed_matmul(lambda m, n, h: (m, h), lambda m, n, h: (n, h))
    assert requires(args) == ["h <= m", "m <= h", "h <= n", "n <= h"]


def test_an_offset_by_a_parameter():
    n, m, offset = sizes("n m offset")
    A = te.placeholder((n,), name="A")
    B = te.compute((m,), lambda i: A[i + offset], name="B")
    assert requires([offset, A, B]) == ["m + offset <= n"]


def test_a_guard_is_relied_upon():
    (n,) = sizes("n")
    A = te.placeholder((n,), name="A")
    B = te.compute(
        (n + 2,), lambda i: te.if_then_else(te.all(i >= 1, i < n + 1), A[i - 1], 0.0), name="B"
    )
    assert requires([A, B]) == []


def test_the_other_arm_relies_on_the_opposite():
    n, m = sizes("n m")
    A, B = te.placeholder((n,), name="A"), te.placeholder((m,), name="B")
    C = te.compute((n + m,), lambda i: te.if_then_else(i < n, A[i], B[i - n]), name="C")
    assert requires([A, B, C]) == []


def test_a_guard_that_is_not_enough_limits_the_check():
    n, m, p = sizes("n m p")
    A, P = te.placeholder((n,), name="A"), te.placeholder((p,), name="P")
    B = te.compute((m,), lambda i: te.if_then_else(i < p, A[i], 0.0), name="B")
    assert requires([A, P, B]) == ["min(m, p) <= n"]


def test_the_condition_of_a_reduction_is_relied_upon():
    n, m = sizes("n m")
    A = te.placeholder((n,), name="A")
    k = te.reduce_axis((0, m), name="k")
    B = te.compute((1,), lambda i: te.sum(A[k], axis=k, where=k < n), name="B")
    assert requires([A, B, te.placeholder((m,), name="M")]) == []


def test_a_guard_around_a_nested_reduction_is_relied_upon():
    A, k = te.placeholder((4, 8), name="A"), te.reduce_axis((0, 8), name="k")
    B = te.compute(
        (4,), lambda i: te.if_then_else(i >= 1, te.sum(A[i - 1, k], axis=k), 0.0), name="B"
    )
    assert requires([A, B]) == []


def test_a_dimension_that_is_empty_only_where_nothing_runs_needs_no_check():
    (m,) = sizes("m")
    A = te.placeholder((m,), name="A")
    first, last = te.max(m - 3, 0), te.min(m, 5)
    extent = te.max((last - first + 1) // 2, 0)  # 0 where m is
    B = te.compute((extent,), lambda i: A[te.max(te.min(first + i * 2, m - 1), 0)], name="B")
    assert requires([A, B]) == []
    C = te.compute((extent + 1,), lambda i: A[te.max(te.min(first + i * 2, m - 1), 0)], name="C")
    assert requires([A, C]) != []


def test_an_extent_that_divides_by_a_size_says_nothing_of_its_being_zero():
    m, n, k = sizes("m n k")
    given = [te.placeholder((size,), name=size.name.upper()) for size in (m, n, k)]
    A = te.placeholder((m + k,), name="A")
    B = te.compute((n // m,), lambda i: A[i], name="B")
    assert requires([*given, A, B]) == ["1 <= m", "n // m <= m + k"]


def test_clamped_indices_are_inside():
    (n,) = sizes("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[te.max(te.min(i + 1, n - 1), 0)], name="B")
    assert requires([A, B]) == []


def test_a_padded_convolution_needs_no_check():
    h, w = sizes("h w")
    X, K = te.placeholder((h, w), name="X"), te.placeholder((3, 3), name="K")
    P = te.compute(
        (h + 2, w + 2),
        lambda y, x: te.if_then_else(
            te.all(y >= 1, y - 1 < h, x >= 1, x - 1 < w), X[y - 1, x - 1], 0.0
        ),
        name="P",
    )
    p, q = te.reduce_axis((0, 3), name="p"), te.reduce_axis((0, 3), name="q")
    Y = te.compute((h, w), lambda y, x: te.sum(P[y + p, x + q] * K[p, q], axis=[p, q]), name="Y")
    assert requires([X, K, Y]) == []


def test_a_read_whose_guard_is_never_met_needs_no_check():
    A = te.placeholder((1,), name="A")
    B = te.compute(
        (3,),
        lambda i: te.if_then_else(te.all(i * 2 - 3 >= 0, i * 2 - 3 < 1), A[i * 2 - 3], 0.0),
        name="B",
    )
    assert requires([A, B]) == []


def test_a_strided_read_needs_no_check():
    (n,) = sizes("n")
    A = te.placeholder((n,), name="A")
    B = te.compute(((n - 1) // 2 + 1,), lambda i: A[i * 2], name="B")
    assert requires([A, B]) == []


def test_flattening_needs_no_check():
    n, m = sizes("n m")
    A = te.placeholder((n, m), name="A")
    B = te.compute((n * m,), lambda i: A[i // m, i % m], name="B")
    assert requires([A, B]) == []


def test_a_remainder_by_a_size_needs_it_not_to_be_zero():
    n, m = sizes("n m")
    A = te.placeholder((m,), name="A")
    B = te.compute((n,), lambda i: A[i % m], name="B")
    assert requires([A, B]) == ["1 <= m or n == 0"]


def test_a_shape_divided_by_a_size():
    n, m = sizes("n m")
    A, M = te.placeholder((n,), name="A"), te.placeholder((m,), name="M")
    B = te.compute((n // m,), lambda i: A[i], name="B")
    assert requires([A, M, B])[0] == "1 <= m"


def test_an_intermediate_needs_a_shape_that_is_not_negative():
    n, m = sizes("n m")
    A, M = te.placeholder((n,), name="A"), te.placeholder((m,), name="M")
    B = te.compute((n - m,), lambda i: A[i] + A[i + m], name="B")
    k = te.reduce_axis((0, n - m), name="k")
    C = te.compute((), lambda: te.sum(B[k], axis=k), name="C")
    assert requires([A, M, C]) == ["m <= n"]
    # As an argument its shape is what the caller passes, hence not negative.
    assert requires([A, M, B, C]) == []


def test_conditions_are_not_repeated():
    n, m = sizes("n m")
    A = te.placeholder((n,), name="A")
    B = te.compute((m,), lambda i: A[i] + A[i] * 2.0, name="B")
    C = te.compute((m,), lambda i: A[i] + B[i], name="C")
    assert requires([A, B, C]) == ["m <= n"]


def test_the_stronger_condition_stays():
    n, m = sizes("n m")
    A = te.placeholder((n,), name="A")
    B = te.compute((m,), lambda i: A[i] + A[i + 2], name="B")
    assert requires([A, B]) == ["m + 1 < n"]


def test_an_index_read_from_memory_is_refused():
    n, m = sizes("n m")
    A, I = te.placeholder((n,), name="A"), te.placeholder((m,), "int32", name="I")
    B = te.compute((m,), lambda i: A[I[i]], name="B")
    with pytest.raises(UserError) as caught:
        te.function([A, I, B])
    assert caught.value.code == "TW2425"
    assert "te.if_then_else(te.all(" in caught.value.help
    assert "te.min(te.max(index(I[i]), 0), n - 1) where n >= 1" in caught.value.help


def test_a_clamp_to_a_dimension_that_may_be_empty_is_refused():
    n, m = sizes("n m")
    A, I = te.placeholder((n,), name="A"), te.placeholder((m,), "int32", name="I")
    B = te.compute((m,), lambda i: A[te.min(te.max(te.cast(I[i], "index"), 0), n - 1)], name="B")
    assert message([A, I, B])[0] == "TW2425"


def clamped(A, j, n):
    return te.if_then_else(n >= 1, A[te.min(te.max(j, 0), n - 1)], 0.0)


def guarded(A, j, n):
    return te.if_then_else(te.all(j >= 0, j < n), A[j], 0.0)


def counted(A, j, n):
    return clamped(A, te.select(j < 0, j + n, j), n)


@pytest.mark.parametrize("of", ["int64", "int32"])
@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("form", [clamped, guarded, counted])
def test_wild_indices_read_inside_natively(form, size, of):
    n, m = sizes("n m")
    A, I = te.placeholder((n,), name="A"), te.placeholder((m,), of, name="I")
    B = te.compute((m,), lambda i: form(A, te.cast(I[i], "index"), n), name="B")
    fn = te.function([A, I, B])
    assert fn.requires == ()
    limits = np.iinfo(of)
    wild = np.array([0, 4, 5, -1, -5, -6, 10**9, -(10**9), limits.max, limits.min], of)
    table = np.arange(1, size + 1, dtype=np.float32)
    native, reference = np.zeros(len(wild), np.float32), np.zeros(len(wild), np.float32)
    build(fn)(table, wild, native)
    interpret(fn, table, wild, reference)
    np.testing.assert_array_equal(native, reference)


def test_a_guard_in_the_type_of_the_memory():
    m = te.var("m")
    A, I = te.placeholder((8,), name="A"), te.placeholder((m,), "int32", name="I")
    B = te.compute((m,), lambda i: guarded(A, I[i], 8), name="B")
    assert requires([A, I, B]) == []


def test_the_type_of_the_memory_is_a_bound():
    m = te.var("m")
    A, I = te.placeholder((256,), name="A"), te.placeholder((m,), "uint8", name="I")
    B = te.compute((m,), lambda i: A[I[i]], name="B")
    assert requires([A, I, B]) == []


def test_the_read_inside_such_an_index_is_checked():
    n, m = sizes("n m")
    A, I = te.placeholder((n,), name="A"), te.placeholder((m,), "int32", name="I")
    B = te.compute((n,), lambda i: guarded(A, te.cast(I[i], "index"), n), name="B")
    assert requires([A, I, B]) == ["n <= m"]


def test_reading_past_the_end_is_refused_at_once():
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i + 1], name="B")
    assert message([A, B]) == (
        "TW2420",
        "B reads outside A: index 0 of A[i + 1] runs from 1 to 8, the dimension has extent 8",
    )


def test_reading_before_the_start_is_refused_at_once():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i - 1], name="B")
    assert message([A, B]) == (
        "TW2420",
        "B reads outside A: index 0 of A[i - 1] runs from -1 to n - 2, the dimension has extent n",
    )


def test_a_constant_index_past_the_end_is_refused():
    A = te.placeholder((8,), name="A")
    B = te.compute((2,), lambda i: A[8], name="B")
    assert message([A, B])[1] == (
        "B reads outside A: index 0 of A[8] is 8, the dimension has extent 8"
    )


def test_reading_outside_whenever_anything_runs_is_refused():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i + n], name="B")
    assert message([A, B])[0] == "TW2420"


def test_nothing_is_read_over_an_empty_domain():
    A = te.placeholder((8,), name="A")
    B = te.compute((0,), lambda i: A[i + 100], name="B")
    assert requires([A, B]) == []


def test_a_guard_that_cannot_be_used_is_told_apart():
    A = te.placeholder((8,), name="A")
    C = te.placeholder((8,), "bool", name="C")
    B = te.compute((8,), lambda i: te.if_then_else(C[i], A[i + 1], 0.0), name="B")
    assert message([A, C, B]) == (
        "TW2421",
        "cannot show that B reads inside A: index 0 of A[i + 1] runs from 1 to 8 for all we "
        "can tell, the dimension has extent 8",
    )


def test_bounds_that_nobody_knows():
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[te.popcount(i)], name="B")
    assert message([A, B]) == (
        "TW2421",
        "cannot tell whether B reads inside A: no bounds are known for index 0 of A[popcount(i)]",
    )


def test_a_divisor_that_may_be_zero():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n, n), lambda i, j: A[i % j], name="B")
    assert message([A, B]) == (
        "TW2421",
        "cannot show that the divisor j in B is not zero",
    )


def test_no_factor_of_a_loop_that_runs_is_zero():
    """Of an image of what windows leave, flattened: none of a row may be left."""
    h, v = te.var("h"), te.var("v")
    tall, wide = te.max(h - 2, 0), te.max(v - 2, 0)
    A = te.placeholder((h, v), name="A")
    W = te.compute((tall, wide), lambda y, x: A[y, x] + A[y + 2, x + 2], name="W")
    B = te.compute((tall * wide,), lambda i: W[i // wide, i % wide], name="B")
    te.function([A, B], name="flattened")


def test_no_factor_of_several_is_zero():
    n, h, v = te.var("n"), te.var("h"), te.var("v")
    tall, wide = te.max(h - 2, 0), te.max(v - 2, 0)
    A = te.placeholder((n, h, v), name="A")
    W = te.compute((n, tall, wide), lambda b, y, x: A[b, y, x], name="W")
    B = te.compute(
        (n * tall * wide,),
        lambda i: W[i // (tall * wide), i // wide % tall, i % wide],
        name="B",
    )
    te.function([A, B], name="flattened")


def test_factors_that_may_be_negative_say_nothing():
    h, v = te.var("h"), te.var("v")
    A = te.placeholder((h, v), name="A")
    B = te.compute(((h - 2) * (v - 2),), lambda i: A[i // (v - 2), i % (v - 2)], name="B")
    assert message([A, B])[0] == "TW2421"
