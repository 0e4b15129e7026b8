"""Placeholders, computations and how tensors are read."""

import functools

import numpy as np
import pytest

from tilewright import sym, te
from tilewright.base.dtype import BF16, F32, I8, I32, INDEX
from tilewright.base.loc import File
from tilewright.te.operation import Read


def test_sizes_are_sizes_and_scalars_are_variables():
    n, alpha = te.var("n"), te.var("alpha", "float32")
    assert isinstance(n, sym.Size)
    assert n.dtype is INDEX
    assert not isinstance(alpha, sym.Size)
    assert alpha.dtype is F32
    assert isinstance(te.size_var("m"), sym.Size)


def test_names_that_the_text_cannot_hold_are_changed():
    assert te.placeholder((1,), name="conv/1:0").name == "conv_1_0"
    assert te.placeholder((1,), name="1x1").name == "_1x1"
    assert te.var("true").name == "true_"
    assert te.var("vector").name == "vector_"
    assert te.var("a.b").name == "a_b"


def test_a_placeholder_has_shape_type_and_name():
    n = te.var("n")
    A = te.placeholder((n, 4), dtype="int8", name="A")
    assert A.shape == (n, sym.const(4))
    assert (A.dtype, A.name, A.ndim) == (I8, "A", 2)
    assert repr(A) == "<Tensor A: i8[n, 4]>"
    assert isinstance(A.op, te.PlaceholderOp)


def test_a_single_dimension_needs_no_tuple():
    n = te.var("n")
    assert te.placeholder(n, name="A").shape == (n,)
    assert te.placeholder(np.int64(3)).shape == (sym.const(3),)


def test_placeholders_default_to_f32_and_take_numpy_names():
    assert te.placeholder((1,)).dtype is F32
    assert te.placeholder((1,), "bfloat16").dtype is BF16
    assert te.placeholder((1,), np.int32).dtype is I32


def test_dimensions_are_simplified():
    n = te.var("n")
    A = te.placeholder((n - 3 + 2 + 1,), name="A")
    assert A.shape == (n,)


def test_an_element_is_read_by_brackets_or_by_a_call():
    A = te.placeholder((8, 8), name="A")
    i, j = sym.var("i"), sym.var("j")
    assert A[i, j] is A(i, j)
    assert isinstance(A[i, j + 1], Read)
    assert str(A[i, 3]) == "A[%i, 3]"
    assert A[i, np.int64(3)] is A[i, 3]


def test_indices_of_other_integer_types_are_converted():
    A, I = te.placeholder((8,), name="A"), te.placeholder((4,), "int32", name="I")
    i = sym.var("i")
    assert str(A[I[i]]) == "A[index(I[%i])]"


def test_a_tensor_without_dimensions_is_a_value():
    A = te.placeholder((), name="A")
    B = te.compute((4,), lambda i: sym.const(1.0, F32) + A, name="B")
    assert str(A[()]) == "A[]"
    assert str(B.op.body[0]) == "1.0 + A[]"
    assert str(te.exp(A)) == "exp(A[])"


def test_a_tensor_is_not_iterable():
    with pytest.raises(TypeError):
        list(te.placeholder((4,)))


def test_equal_tensors_are_one_object():
    A = te.placeholder((4,), name="A")
    assert A.op.output(0) is A


def test_axes_are_named_after_the_arguments():
    B = te.compute((2, 3), lambda row, column: 0.0, name="B")
    assert [axis.name for axis in B.op.axis] == ["row", "column"]


def test_any_number_of_axes_by_star():
    A = te.placeholder((2, 3, 4), name="A")
    B = te.compute(A.shape, lambda *i: A(*i) * 2.0)
    assert [axis.name for axis in B.op.axis] == ["i0", "i1", "i2"]
    C = te.compute(A.shape, lambda b, *i: A(b, *i))
    assert [axis.name for axis in C.op.axis] == ["b", "i0", "i1"]
    D = te.compute((5,), lambda *i: 0.0)
    assert [axis.name for axis in D.op.axis] == ["i"]


def test_arguments_with_defaults_are_left_alone():
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i, source=A: source[i], name="B")
    assert B.op.input_tensors == (A,)


def test_functions_of_other_kinds():
    A = te.placeholder((4,), name="A")

    def element(scale, i):
        return A[i] * scale

    B = te.compute((4,), functools.partial(element, 2.0))
    assert [axis.name for axis in B.op.axis] == ["i"]
    C = te.compute((4,), A.__call__)
    assert C.op.input_tensors == (A,)


def test_numbers_take_the_types_tvm_gives_them():
    assert te.compute((2,), lambda i: 0.0).dtype is F32
    assert te.compute((2,), lambda i: 1).dtype is I32
    assert te.compute((2,), lambda i: True).dtype.is_bool
    assert te.compute((2,), lambda i: np.int8(3)).dtype is I8
    assert te.compute((2,), lambda i: i).dtype is INDEX


def test_several_outputs():
    A = te.placeholder((4,), name="A")
    low, high = te.compute((4,), lambda i: (A[i] - 1.0, te.cast(A[i], "int32")), name="T")
    assert (low.name, high.name) == ("T.v0", "T.v1")
    assert (low.dtype, high.dtype) == (F32, I32)
    assert low.op is high.op
    assert low.op.num_outputs == 2


def test_an_operation_lists_its_inputs_in_order_of_appearance():
    A, B = te.placeholder((4,), name="A"), te.placeholder((4,), name="B")
    C = te.compute((4,), lambda i: B[i] * A[i] + B[i])
    assert C.op.input_tensors == (B, A)


def test_the_location_is_the_users_line():
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i])
    assert isinstance(B.op.loc, File)
    assert B.op.loc.path.endswith("test_compute.py")
    assert B.op.loc.line == A.op.loc.line + 1


def test_attributes_and_tag_are_kept():
    B = te.compute((4,), lambda i: 0.0, tag="injective", attrs={"layout": "NCHW"})
    assert B.op.annotations == (("layout", "NCHW"), ("tag", "injective"))


# --------------------------------------------------------------------------- splitting


def test_a_reduction_at_the_top_stays():
    A, k = te.placeholder((4, 8), name="A"), te.reduce_axis((0, 8), name="k")
    B = te.compute((4,), lambda i: te.sum(A[i, k], axis=k), name="B")
    assert B.op.reduce_axis == (k,)
    assert B.op.input_tensors == (A,)


def test_a_reduction_inside_becomes_a_stage():
    A, k = te.placeholder((4, 8), name="A"), te.reduce_axis((0, 8), name="k")
    B = te.compute((4,), lambda i: te.sum(A[i, k], axis=k) * 2.0, name="B")
    (total,) = B.op.input_tensors
    assert str(B.op.body[0]) == "B_sum[%i] * 2.0"
    assert total.op.reduce_axis == (k,)
    assert total.op.loc == B.op.loc


def test_such_a_stage_has_only_the_axes_it_depends_on():
    A, k = te.placeholder((4, 8), name="A"), te.reduce_axis((0, 8), name="k")
    S = te.compute((4, 8), lambda i, j: te.exp(A[i, j]) / te.sum(te.exp(A[i, k]), axis=k), name="S")
    total = S.op.input_tensors[1]
    assert total.shape == (sym.const(4),)


def test_such_a_stage_keeps_the_condition_around_it():
    A, k = te.placeholder((4, 8), name="A"), te.reduce_axis((0, 8), name="k")
    B = te.compute(
        (4,),
        lambda i: te.if_then_else(i >= 1, te.sum(A[i - 1, k], axis=k), 0.0),
        name="B",
    )
    (total,) = B.op.input_tensors
    assert str(total.op.reduction.where) == "1 <= %i"


def test_a_reduction_inside_a_reduction():
    A = te.placeholder((4, 8, 2), name="A")
    k, r = te.reduce_axis((2, 8), name="k"), te.reduce_axis((0, 2), name="r")
    B = te.compute((4,), lambda i: te.max(te.sum(A[i, k, r], axis=r) * 2.0, axis=k), name="B")
    (total,) = B.op.input_tensors
    assert total.shape == (sym.const(4), sym.const(6))
    assert str(B.op.reduction.sources[0]) == "B_sum[%i, %k - 2] * 2.0"
    assert str(total.op.reduction.sources[0]) == "A[%i, %k + 2, %r]"


def test_different_reductions_of_several_outputs_become_stages():
    A, k = te.placeholder((4, 8), name="A"), te.reduce_axis((0, 8), name="k")
    total, most = te.compute(
        (4,), lambda i: (te.sum(A[i, k], axis=k), te.max(A[i, k], axis=k)), name="B"
    )
    assert [t.name for t in total.op.input_tensors] == ["B_sum", "B_max"]
    assert most.op is total.op


def test_one_component_of_a_tuple_reduction():
    A, k = te.placeholder((4, 8), name="A"), te.reduce_axis((0, 8), name="k")
    B = te.compute((4,), lambda i: te.argmax(A[i, k], axis=k)[0], name="B")
    assert str(B.op.body[0]) == "B_argmax.v0[%i]"


def test_a_reduction_used_as_an_index():
    A = te.placeholder((4, 8), name="A")
    k = te.reduce_axis((0, 8), name="k")
    B = te.compute((4,), lambda i: A[i, te.argmax(A[i, k], axis=k)[0]], name="B")
    assert str(B.op.body[0]) == "A[%i, index(B_argmax.v0[%i])]"
