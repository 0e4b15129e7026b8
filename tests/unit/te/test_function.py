"""The tensor functions that stages become, as text."""

import textwrap

import numpy as np
import pytest

from tilewright import te, tensor
from tilewright.base.loc import File
from tilewright.tensor.ir import Block, For
from tilewright.tensor.verify import verify
from tilewright.tensor.visit import walk


def text_of(args, name="f"):
    fn = te.function(args, name=name)
    verify(fn)
    assert tensor.parse(str(fn)) == fn
    return str(fn)


def same(given, wanted):
    assert given.strip() == textwrap.dedent(wanted).strip()


def test_an_elementwise_stage():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] + 1.0, name="B")
    same(
        text_of([A, B]),
        """
        func @f(%A: f32[n], %B: f32[n]) stage scheduled {
          for %i in 0..n {
            block @B(%vi: spatial n = %i) {
              reads %A[%vi]
              writes %B[%vi]
              %B[%vi] = %A[%vi] + 1.0
            }
          }
        }
        """,
    )


def test_a_reduction_has_an_init():
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    A, B = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((n, m), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    same(
        text_of([A, B, C], "matmul"),
        """
        func @matmul(%A: f32[n, k], %B: f32[k, m], %C: f32[n, m]) stage scheduled {
          for %i in 0..n {
            for %j in 0..m {
              for %r in 0..k {
                block @C(%vi: spatial n = %i, %vj: spatial m = %j, %vr: reduce k = %r) {
                  reads %A[%vi, %vr], %B[%vr, %vj]
                  writes %C[%vi, %vj]
                  init {
                    %C[%vi, %vj] = 0.0
                  }
                  %C[%vi, %vj] sum= %A[%vi, %vr] * %B[%vr, %vj]
                }
              }
            }
          }
        }
        """,
    )


def test_an_axis_that_does_not_start_at_zero():
    A = te.placeholder((8,), name="A")
    k = te.reduce_axis((2, 8), name="k")
    B = te.compute((), lambda: te.max(A[k], axis=k), name="B")
    same(
        text_of([A, B]),
        """
        func @f(%A: f32[8], %B: f32[]) stage scheduled {
          for %k in 0..6 {
            block @B(%vk: reduce 6 = %k) {
              reads %A[%vk + 2]
              writes %B[]
              init {
                %B[] = -inf
              }
              %B[] max= %A[%vk + 2]
            }
          }
        }
        """,
    )


def test_where_and_init_of_a_reduction():
    A, bias = te.placeholder((4, 8), name="A"), te.placeholder((4,), name="bias")
    k = te.reduce_axis((0, 8), name="k")
    B = te.compute((4,), lambda i: te.sum(A[i, k], axis=k, where=k >= i, init=bias[i]), name="B")
    text = text_of([A, bias, B])
    assert "init {\n          %B[%vi] = %bias[%vi]" in text
    assert "%B[%vi] sum= select(%vi <= %vk, %A[%vi, %vk], 0.0)" in text
    assert "reads %A[%vi, %vk], %bias[%vi]" in text


def test_stages_come_in_order_and_intermediates_are_allocated():
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((8,), lambda i: B[i] * 2.0, name="C")
    same(
        text_of([A, C]),
        """
        func @f(%A: f32[8], %C: f32[8]) stage scheduled {
          alloc %B: f32[8]
          for %i in 0..8 {
            block @B(%vi: spatial 8 = %i) {
              reads %A[%vi]
              writes %B[%vi]
              %B[%vi] = %A[%vi] + 1.0
            }
          }
          for %i_1 in 0..8 {
            block @C(%vi_1: spatial 8 = %i_1) {
              reads %B[%vi_1]
              writes %C[%vi_1]
              %C[%vi_1] = %B[%vi_1] * 2.0
            }
          }
        }
        """,
    )


def test_an_intermediate_may_be_an_argument_too():
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((8,), lambda i: B[i] * 2.0, name="C")
    fn = te.function([A, B, C])
    assert fn.allocs == ()
    assert [b.name for b in fn.buffers] == ["A", "B", "C"]


def test_arguments_keep_their_order():
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
    assert [b.name for b in te.function([B, A]).buffers] == ["B", "A"]


def test_an_argument_that_is_not_read_stays():
    A, unused = te.placeholder((8,), name="A"), te.placeholder((3,), name="unused")
    B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
    assert [b.name for b in te.function([A, unused, B]).buffers] == ["A", "unused", "B"]


def test_scalars_and_sizes_as_arguments():
    n, alpha = te.var("n"), te.var("alpha", "f32")
    B = te.compute((4,), lambda i: alpha * te.cast(n + i, "f32"), name="B")
    text = text_of([alpha, n, B])
    assert text.startswith("func @f(%alpha: f32, n: index, %B: f32[4]) stage scheduled {")


def test_blocks_of_one_name_are_told_apart():
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i] + 1.0, name="T")
    C = te.compute((8,), lambda i: B[i] * 2.0, name="T")
    fn = te.function([A, C])
    assert [s.name for s in walk(fn.body) if isinstance(s, Block)] == ["T", "T_1"]
    text_of([A, C])


def test_several_outputs_are_stored_by_one_block():
    A = te.placeholder((8,), name="A")
    B, C = te.compute((8,), lambda i: (A[i] + 1.0, A[i] * 2.0), name="T")
    same(
        text_of([A, B, C]),
        """
        func @f(%A: f32[8], %T.v0: f32[8], %T.v1: f32[8]) stage scheduled {
          for %i in 0..8 {
            block @T(%vi: spatial 8 = %i) {
              reads %A[%vi]
              writes %T.v0[%vi], %T.v1[%vi]
              %T.v0[%vi] = %A[%vi] + 1.0
              %T.v1[%vi] = %A[%vi] * 2.0
            }
          }
        }
        """,
    )


def test_a_tuple_reduction_is_one_update():
    A = te.placeholder((4, 8), name="A")
    k = te.reduce_axis((0, 8), name="k")
    position, value = te.compute((4,), lambda i: te.argmax(A[i, k], axis=k), name="T")
    text = text_of([A, position, value])
    assert "(%T.v0[%vi], %T.v1[%vi]) argmax= (i64(%vk), %A[%vi, %vk])" in text
    assert "%T.v0[%vi] = 9223372036854775807\n" in text


def test_a_reduction_of_ones_own_is_declared():
    A = te.placeholder((4, 8), name="A")
    k = te.reduce_axis((0, 8), name="k")
    pairs = te.comm_reducer(
        lambda x, y: (x[0] + y[0], x[1] * y[1]),
        lambda a, b: (te.const(0, a), te.const(1, b)),
        name="pairs",
    )
    B, C = te.compute((4,), lambda i: pairs((A[i, k], A[i, k]), axis=k), name="T")
    assert (
        "reducer pairs(%x0: f32, %x1: f32, %y0: f32, %y1: f32) = (%x0 + %y0, %x1 * %y1) "
        "identity (f32(0.0), f32(1.0))\n"
    ) in text_of([A, B, C])


def test_no_dimensions_no_loops():
    A = te.placeholder((), name="A")
    B = te.compute((), lambda: A[()] + 1.0, name="B")
    same(
        text_of([A, B]),
        """
        func @f(%A: f32[], %B: f32[]) stage scheduled {
          block @B() {
            reads %A[]
            writes %B[]
            %B[] = %A[] + 1.0
          }
        }
        """,
    )


def test_a_reduction_over_nothing_is_its_init():
    A = te.placeholder((4, 0), name="A")
    k = te.reduce_axis((0, 0), name="k")
    B = te.compute((4,), lambda i: te.sum(A[i, k], axis=k), name="B")
    same(
        text_of([A, B]),
        """
        func @f(%A: f32[4, 0], %B: f32[4]) stage scheduled {
          for %i in 0..4 {
            block @B(%vi: spatial 4 = %i) {
              writes %B[%vi]
              %B[%vi] = 0.0
            }
          }
        }
        """,
    )


def test_loops_and_blocks_know_the_users_line():
    A = te.placeholder((8,), name="A")
    line = A.op.loc.line + 2
    B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
    for stmt in walk(te.function([A, B]).body):
        if isinstance(stmt, (For, Block)):
            assert isinstance(stmt.loc, File)
            assert (stmt.loc.path.rpartition("/")[2], stmt.loc.line) == ("test_function.py", line)


def test_attributes_annotate_the_block():
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i], name="B", tag="injective", attrs={"rows": (1, 2)})
    text = text_of([A, B])
    assert "annotate rows = (1, 2,)" in text
    assert 'annotate tag = "injective"' in text


def test_a_size_may_come_from_any_argument():
    n = te.var("n")
    A, S = te.placeholder((n * 2,), name="A"), te.placeholder((n,), name="S")
    B = te.compute((n,), lambda i: A[i * 2] + S[i], name="B")
    assert [str(d) for d in te.function([S, A, B]).buffers[1].shape] == ["n * 2"]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "uint8", "int64"])
def test_every_type_can_be_summed(dtype):
    A = te.placeholder((4, 8), dtype, name="A")
    k = te.reduce_axis((0, 8), name="k")
    B = te.compute((4,), lambda i: te.sum(A[i, k], axis=k), name="B")
    assert te.function([A, B]).buffers[1].dtype is A.dtype
    text_of([A, B])


def test_building_twice_gives_equal_functions():
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i] + np.float32(1.5), name="B")
    assert te.function([A, B]) == te.function([A, B])
