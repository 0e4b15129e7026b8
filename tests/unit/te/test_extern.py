"""Kernels from elsewhere, and hardware instructions."""

import numpy as np
import pytest

from tilewright import te, tensor
from tilewright.base.errors import ExecutionError
from tilewright.rules import schedule
from tilewright.tensor import externs
from tilewright.tensor.intrin import intrinsic
from tilewright.tensor.ir import Call, Eval, ExternCall
from tilewright.tensor.visit import blocks


def test_an_external_kernel_is_a_block_over_whole_tensors():
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    A, B = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    C = te.extern((n, m), [A, B], "sgemm", name="C")
    fn = te.function([A, B, C])
    (block,) = blocks(fn.body)
    assert isinstance(block.body, ExternCall)
    assert block.body.loc == C.op.loc
    text = str(fn)
    assert tensor.parse(text) == fn
    assert "reads %A[0 +: n, 0 +: k], %B[0 +: k, 0 +: m]\n" in text
    assert "writes %C[0 +: n, 0 +: m]\n" in text
    assert "extern sgemm(%A[0 +: n, 0 +: k], %B[0 +: k, 0 +: m]) -> (%C[0 +: n, 0 +: m])\n" in text


def test_its_behavior_is_registered():
    A = te.placeholder((4,), name="A")
    te.extern((4,), [A], "twice_it", behavior=lambda a, b: np.multiply(a, 2, out=b))
    behavior = externs.behavior("twice_it")
    out = np.zeros(4)
    behavior(np.ones(4), out)
    assert out.tolist() == [2, 2, 2, 2]


def test_several_outputs_and_types():
    A = te.placeholder((4,), name="A")
    B, C = te.extern([(4,), (2, 2)], [A], "split", name="S", dtype=["f32", "int8"])
    assert (B.name, C.name) == ("S.v0", "S.v1")
    assert (str(B.dtype), str(C.dtype)) == ("f32", "i8")
    text = str(te.function([A, B, C]))
    assert "extern split(%A[0 +: 4]) -> (%S.v0[0 +: 4], %S.v1[0 +: 2, 0 +: 2])" in text


def test_a_function_of_the_buffers_as_in_tvm():
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i] + 1.0, name="B")
    C = te.extern((4,), [B], lambda ins, outs: te.call_packed("lib.kernel", ins[0], outs[0]))
    D = te.compute((4,), lambda i: C[i] * 2.0, name="D")
    text = str(te.function([A, D]))
    assert "extern lib.kernel(%B[0 +: 4]) -> (%extern[0 +: 4])" in text


# --------------------------------------------------------------------------- instructions


def gemm8x8(**names):
    """As in the TVM paper (OSDI 2018, section 4.3)."""
    w, x = te.placeholder((8, 8)), te.placeholder((8, 8))
    k = te.reduce_axis((0, 8))
    y = te.compute((8, 8), lambda i, j: te.sum(w[i, k] * x[j, k], axis=k))

    def gemm_intrin_lower(inputs, outputs):
        ww_ptr = inputs[0].access_ptr("r")
        xx_ptr = inputs[1].access_ptr("r")
        zz_ptr = outputs[0].access_ptr("w")
        compute = te.hardware_intrin("gemm8x8", ww_ptr, xx_ptr, zz_ptr)
        reset = te.hardware_intrin("fill_zero", zz_ptr)
        update = te.hardware_intrin("fuse_gemm8x8_add", ww_ptr, xx_ptr, zz_ptr)
        return compute, reset, update

    return te.decl_tensor_intrin(y.op, gemm_intrin_lower, **names)


def test_the_declaration_of_the_paper():
    declared = gemm8x8()
    assert declared.name == "gemm8x8"
    assert intrinsic("gemm8x8") is declared
    assert isinstance(declared.compute, Eval)
    assert isinstance(declared.reset, Eval)
    assert isinstance(declared.update, Eval)
    assert isinstance(declared.update.value, Call)
    assert declared.update.value.op == "fuse_gemm8x8_add"
    assert (len(declared.inputs), len(declared.outputs)) == (2, 1)
    assert declared.update.value.args[2].buffer is declared.outputs[0]
    assert declared.behavior.name == "gemm8x8"
    assert str(declared.behavior).count("sum=") == 1


def test_an_intrinsic_can_be_named():
    assert gemm8x8(name="mine").name == "mine"
    assert intrinsic("mine").behavior.name == "mine"


def test_a_single_statement_and_views_of_buffers():
    a = te.placeholder((4, 2), name="a")
    b = te.compute((4, 2), lambda i, j: a[i, j] * 2.0, name="b")
    seen = {}

    def lower(inputs, outputs):
        (source,), (target,) = inputs, outputs
        seen["shape"] = [int(dim.value) for dim in source.shape]
        seen["type"] = str(source.dtype)
        seen["strides"] = [str(stride) for stride in source.strides]
        seen["element"] = str(source[1, 0])
        seen["pointer"] = str(source.access_ptr("r", 1, 0))
        return te.hardware_intrin("double", source.access_ptr("r"), target.access_ptr("w"))

    declared = te.decl_tensor_intrin(b.op, lower)
    assert declared.name == "double"
    assert declared.reset is None
    assert seen == {
        "shape": [4, 2],
        "type": "f32",
        "strides": [
            "(address(%a[1, 0]) - address(%a[0, 0])) // 4",
            "(address(%a[0, 1]) - address(%a[0, 0])) // 4",
        ],
        "element": "%a[1, 0]",
        "pointer": "address(%a[1, 0])",
    }


def test_phases_may_be_left_to_the_behavior():
    a, k = te.placeholder((4, 2), name="a"), te.reduce_axis((0, 2), name="k")
    b = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="b")

    def lower(inputs, outputs):
        add = te.hardware_intrin("add_rows", inputs[0].access_ptr("r"), outputs[0].access_ptr("rw"))
        return None, None, add

    declared = te.decl_tensor_intrin(b.op, lower)
    assert (declared.compute, declared.reset) == (None, None)
    assert declared.name == "add_rows"


def test_an_instruction_inside_an_expression():
    A = te.placeholder((4,), "int32", name="A")
    B = te.compute((4,), lambda i: te.hardware_intrin("crc", A[i], dtype="int32"), name="B")
    fn = te.function([A, B])
    assert "%B[%vi] = crc:i32(%A[%vi])" in str(fn)
    assert tensor.parse(str(fn)) == fn


@pytest.mark.parametrize("mask", ["r", "w", "rw"])
def test_the_first_element_is_addressed(mask):
    buffer = tensor.Buffer("a", te.placeholder((4, 2)).shape, te.placeholder((1,)).dtype)
    assert str(te.BufferView(buffer).access_ptr(mask)) == "address(%a[0, 0])"


def test_pieces_of_work_that_follow_others():
    """Each instance writes elements of its own; what follows finds all that was written."""
    A, at = te.placeholder((4,), name="A"), te.placeholder((3,), "int64", name="at")

    def copied(ins, outs, i):
        return tensor.ir.Store(outs[0].buffer, (i,), ins[0][i])

    def doubled(ins, outs, i):
        place = te.cast(ins[1][i], "index")
        return tensor.ir.Store(outs[0].buffer, (place,), ins[0][place] * 2.0)

    B = te.extern((4,), [A, at], copied, name="B", dtype="f32", over=(4,), then=[((3,), doubled)])
    fn = te.function([A, at, B])
    assert tensor.parse(str(fn)) == fn
    assert str(fn).count("independent = 1") == 2
    result = np.zeros(4, np.float32)
    tensor.interpret(fn, np.arange(4, dtype=np.float32), np.array([3, 0, 2]), result)
    np.testing.assert_array_equal(result, [0, 1, 4, 6])


def test_a_symbol_has_no_pieces():
    A = te.placeholder((4,), name="A")
    with pytest.raises(TypeError, match="whole tensors"):
        te.extern((4,), [A], "my_kernel", over=(4,))


def _copied(ins, outs, i):
    return tensor.ir.Store(outs[0].buffer, (i,), ins[0][i])


@pytest.mark.parametrize(
    ("then", "match"),
    [
        (None, "not extents and a function"),
        ([_copied], "not extents and a function"),
        ([((4,),)], "not extents and a function"),
        ([((4,), "my_kernel")], "not extents and a function"),
        (((4,), _copied), "not extents and a function"),
        ([("n", _copied)], "TW2402"),
        ([((4,), lambda *_: None)], "not a statement"),
    ],
)
def test_what_follows_is_extents_and_functions(then, match):
    A = te.placeholder((4,), name="A")
    with pytest.raises(TypeError, match=match):
        te.extern((4,), [A], _copied, name="B", over=(4,), then=then)


@pytest.mark.parametrize("over", [None, "n", (2.5,)])
def test_pieces_are_counted_by_extents(over):
    with pytest.raises(TypeError, match="TW2402"):
        te.extern((4,), [te.placeholder((4,), name="A")], _copied, name="B", over=over)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_pieces_that_meet_are_found(target):
    """Nothing proves that places of data differ: a run of the interpreter tells."""
    A, at = te.placeholder((600,), name="A"), te.placeholder((600,), "int64", name="at")

    def moved(ins, outs, i):
        return tensor.ir.Store(outs[0].buffer, (te.cast(ins[1][i], "index"),), ins[0][i])

    B = te.extern((600,), [A, at], moved, name="B", dtype="f32", over=600)
    fn = schedule(te.function([A, at, B]), target, threads=4).schedule.function
    values, places = np.arange(600, dtype=np.float32), np.arange(600)[::-1].copy()
    result = np.zeros(600, np.float32)
    tensor.interpret(fn, values, places, result)
    np.testing.assert_array_equal(result, values[::-1])
    places[1] = places[0]
    with pytest.raises(ExecutionError, match="race"):
        tensor.interpret(fn, values, places, result)
