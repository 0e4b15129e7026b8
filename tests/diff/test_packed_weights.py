"""Products by weights of few bits, native against the references and ONNX Runtime."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import graph, te
from tilewright.base.dots import code_dots_of
from tilewright.base.dtype import F32, I8
from tilewright.base.errors import TilewrightError
from tilewright.base.target import Target
from tilewright.base.tolerances import relative
from tilewright.graph.ops.linalg import packed_codes, unpacked
from tilewright.sym import const, size

ROWS = [1, 3, 4, 7, 16]


def _held(compiled) -> int:
    return sum(array.nbytes for array in compiled.inside.program.module.constants.values())


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_bytes_become_floats(kind):
    n = 256
    x = te.placeholder((n,), name="x", dtype=kind)
    y = te.compute((n,), lambda i: te.cast(x[i], "f32"), name="y")
    sch = tw.Schedule(te.function([x, y], name="widen"))
    (loop,) = sch.get_loops(sch.get_block("y"))
    _, lane = sch.split(loop, [None, 16])
    sch.vectorize(lane)
    given = np.arange(n).astype(np.uint8).view(np.int8 if kind == "i8" else np.uint8)
    made = np.zeros(n, np.float32)
    tw.build(sch.function, target="cpu")(given, made)
    np.testing.assert_array_equal(made, given.astype(np.float32))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [16, 48, 50])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.sampled
def test_weights_of_four_bits(rows, columns, moved):
    rng = np.random.default_rng(0)
    groups, length = 3, 8
    b = rng.integers(0, 256, (groups, length, columns), np.uint8)
    scale, offset = rng.standard_normal((2, groups, columns)).astype(np.float32)
    inputs, params = ["%a", "%b", "%s"], f"%b: u8[3, 8, {columns}], %s: f32[3, {columns}]"
    given = (b, scale)
    if moved:
        inputs, params, given = (
            [*inputs, "%o"],
            params + f", %o: f32[3, {columns}]",
            (*given, offset),
        )
    module = graph.parse(
        f"graph @main(%a: f32[{rows}, 48], {params}) {{ %y = matmul_packed({', '.join(inputs)}) "
        "{per_byte = 2, zero = 8} return %y }"
    )
    a = rng.standard_normal((rows, 48)).astype(np.float32)
    weights = unpacked(*given, per_byte=2, zero=8)
    (made,) = tw.compile(module, threads=1)(a, *given)
    np.testing.assert_allclose(made, a @ weights, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        graph.interpret(module, a, *given)[0], a @ weights, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "kind", [np.int8, np.uint8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
)
def test_weights_of_eight_bits_stay_bytes_for_one_row(kind):
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((1024, 512)) * 40).clip(0, 200).astype(kind)
    scale = rng.random(512).astype(np.float32) / 100
    build = graph.Builder()
    a = build.param("a", graph.TensorType(F32, (const(1), const(1024))))
    stored = build.constant(w), build.constant(scale)
    module = build.module(build.add("matmul", a, build.add("dequantize", *stored, to=F32, axis=1)))
    x = rng.standard_normal((1, 1024)).astype(np.float32)
    compiled = tw.compile(module, threads=1)
    np.testing.assert_allclose(
        compiled(x)[0], x @ (w.astype(np.float32) * scale), rtol=1e-4, atol=1e-4
    )
    assert _held(compiled) == w.nbytes + scale.nbytes


@pytest.mark.parametrize(
    ("rows", "bits", "block"),
    [(1, 8, 0), (3, 8, 32), ("n", 8, 128), (3, 4, 0), (1, 4, 64), ("n", 4, 32)],
)
@pytest.mark.parametrize("spread", [0.0, 4.0])
@pytest.mark.sampled
def test_rows_of_floats_lose_nothing_as_digits(rows, bits, block, spread):
    rng, k, n = np.random.default_rng(0), 4096, 80
    w = rng.integers(-(1 << bits - 1), 1 << bits - 1, (k, n)).astype(np.int8)
    scale = rng.random((k // block, n) if block else n).astype(np.float32)
    build = graph.Builder()
    row = size("n") if rows == "n" else const(rows)
    a = build.param("a", graph.TensorType(F32, (row, const(k))))
    stored = build.constant(w), build.constant(scale)
    how = {"axis": 0, "block_size": block} if block else {"axis": 1}
    real = build.add("dequantize", *stored, to=F32, **how)
    module = build.module(build.add("matmul", a, real))
    x = rng.standard_normal((5 if rows == "n" else rows, k))
    x = (x * np.exp(spread * rng.standard_normal(x.shape))).astype(np.float32)  # some far larger
    x[-1, : k // 2] = 0
    weights = w * np.repeat(scale, block, axis=0) if block else w * scale
    exact = x.astype(np.float64) @ (weights.astype(np.float64))
    ours = np.asarray(tw.compile(module, threads=1)(x)[0])
    apart = np.abs(ours - exact)
    lost = relative("float32", k) * (np.abs(x).astype(np.float64) @ np.abs(weights))
    assert np.all(apart <= lost)
    if any(code_dots_of(Target.parse("cpu"), of) for of in ("i8", "u8")):  # else sums of floats
        summed = np.abs(x @ weights.astype(np.float32) - exact)
        assert np.all(apart.max(axis=1) < 2 * summed.max(axis=1))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e-40, 1e36])
def test_rows_with_numbers_that_have_no_digits(number):
    rng, k, n = np.random.default_rng(0), 1024, 512
    w, scale = rng.integers(-128, 128, (k, n)).astype(np.int8), np.full(n, 2.0**-7, np.float32)
    build = graph.Builder()
    a = build.param("a", graph.TensorType(F32, (const(2), const(k))))
    stored = build.constant(w), build.constant(scale)
    module = build.module(build.add("matmul", a, build.add("dequantize", *stored, to=F32, axis=1)))
    x = np.zeros((2, k), np.float32)
    x[0, 7], x[1] = number, 1
    made = np.asarray(tw.compile(module, threads=1)(x)[0])
    np.testing.assert_allclose(made[1], (w * scale).sum(axis=0), rtol=1e-5)
    if np.isfinite(number):
        np.testing.assert_allclose(made[0], x[0, 7] * w[7] * scale, rtol=1e-5, atol=1e-36)
    else:
        assert not np.isfinite(made[0][w[7] != 0]).any()


def _model(rows, k, n, block, with_zero, bits=4, **attributes):
    rng, blocks = np.random.default_rng(0), -(-k // block)
    weights = rng.integers(0, 256, (n, blocks, block * bits // 8), np.uint8)
    scales = rng.random((n, blocks), np.float32) / 10
    inputs, stored = ["x", "b", "s"], [("b", weights), ("s", scales)]
    if with_zero:
        inputs.append("z")
        stored.append(("z", rng.integers(0, 256, (n, -(-blocks * bits // 8)), np.uint8)))
    attributes |= {"K": k, "N": n, "bits": bits, "block_size": block}
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **attributes)
    shapes = [("x", [rows, k]), ("y", [rows, n])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, of) for name, of in shapes)
    initializers = [numpy_helper.from_array(array, name) for name, array in stored]
    of = helper.make_graph([node], "g", [x], [y], initializers)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(of, opset_imports=sets, ir_version=10)


@pytest.mark.parametrize("rows", [1, 16, "rows"])
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("with_zero", [False, True])
@pytest.mark.sampled
def test_matmul_n_bits_keeps_its_weights_packed(rows, block, with_zero):
    k, n = 1024, 512
    model = _model(rows, k, n, block, with_zero)
    x = np.random.default_rng(1).standard_normal((5 if rows == "rows" else rows, k))
    x = x.astype(np.float32)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    compiled = tw.compile(model, threads=1)
    np.testing.assert_allclose(compiled(x)[0], want, rtol=1e-4, atol=1e-4)
    assert _held(compiled) == k * n // 2 + (2 if with_zero else 1) * 4 * k * n // block


@pytest.mark.parametrize("rows", [1, 16])
def test_blocks_of_dequantized_int4_stay_packed(rows):
    k, n, block = 1024, 512, 64
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(-8, 8, (k, n)), rng.random((k // block, n), np.float32)
    stored = [
        helper.make_tensor("w", TensorProto.INT4, [k, n], codes.ravel().astype(ml_dtypes.int4)),
        numpy_helper.from_array(scales, "s"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=0, block_size=block),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    shapes = [("x", [rows, k]), ("y", [rows, n])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, of) for name, of in shapes)
    of = helper.make_graph(nodes, "g", [x], [y], stored)
    model = helper.make_model(of, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    given = rng.standard_normal((rows, k)).astype(np.float32)
    want = given @ (codes * np.repeat(scales, block, axis=0))  # ONNX Runtime rounds x to bytes
    compiled = tw.compile(model, threads=1)
    np.testing.assert_allclose(compiled(given)[0], want, rtol=1e-4, atol=1e-3)
    assert _held(compiled) == k * n // 2 + 4 * k * n // block


@pytest.mark.parametrize(
    ("params", "attributes", "code"),
    [
        ("%a: f32[], %b: u8[1, 8, 4], %s: f32[1, 4]", "", "TW1202"),
        ("%a: f32[2, 8], %b: u8[8, 4], %s: f32[1, 4]", "", "TW1202"),
        ("%a: f32[2, 8], %b: u8[1, 8, 4], %s: f32[]", "", "TW1202"),
        ("%a: f16[2, 8], %b: u8[1, 8, 4], %s: f32[1, 4]", "", "TW1007"),
        ("%a: f32[2, 8], %b: f32[1, 8, 4], %s: f32[1, 4]", "", "TW1007"),
        ("%a: f32[2, 16], %b: f8e4m3[1, 8, 4], %s: f32[1, 4]", "per_byte = 2", "TW1007"),
        ("%a: i8[2, 8], %b: i8[1, 8, 4], %s: f32[1, 4]", "", "TW1007"),
        ("%a: i8[2, 8], %b: f8e4m3[1, 8, 4], %s: f32[1, 4], %t: f32[2, 1]", "", "TW1007"),
        ("%a: i8[2, 8], %b: i8[1, 8, 4], %s: f32[1, 4], %t: f32[1]", "", "TW1202"),
        ("%a: i8[2, 8], %b: i8[1, 8, 4], %s: f32[1, 4], %t: f32[2, 4]", "", "TW1015"),
    ],
)
def test_what_is_no_product_of_packed_weights_is_refused(params, attributes, code):
    given = "%a, %b, %s" + (", none, %t" if "%t" in params else "")
    with pytest.raises(TilewrightError) as refused:
        graph.parse(
            f"graph @main({params}) {{ %y = matmul_packed({given}) {{{attributes}}} return %y }}"
        )
    assert refused.value.code == code


@pytest.mark.parametrize("rows", [1, 3, 8, 19, "n"])
@pytest.mark.parametrize("per_byte", [1, 2])
@pytest.mark.parametrize("columns", [16, 48])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.sampled
def test_sums_of_integers_over_groups_are_exact(rows, per_byte, columns, moved):
    rng = np.random.default_rng(0)
    groups, length = 3, 32
    b = rng.integers(-128, 128, (groups, length // per_byte, columns)).astype(np.int8)
    scale = np.ones((groups, columns), np.float32)
    offset = rng.integers(-8, 8, (groups, columns)).astype(np.float32)
    a = rng.integers(-127, 128, (5 if rows == "n" else rows, groups * length)).astype(np.int8)
    a_scale = np.exp2(rng.integers(-2, 2, (len(a), groups))).astype(np.float32)
    build = graph.Builder()
    row = size("n") if rows == "n" else const(rows)
    given = [
        build.param("a", graph.TensorType(I8, (row, const(groups * length)))),
        build.constant(b),
        build.constant(scale),
        build.constant(offset) if moved else None,
        build.param("t", graph.TensorType(F32, (row, const(groups)))),
    ]
    module = build.module(
        build.add("matmul_packed", *given, per_byte=per_byte, zero=0 if moved else 16)
    )
    (want,) = graph.interpret(module, a, a_scale)
    codes = packed_codes(b, per_byte).astype(np.int64) - (0 if moved else 16)
    by_group = np.einsum("mgk,gkn->mgn", a.reshape(-1, groups, length).astype(np.int64), codes)
    if moved:
        by_group = by_group + a.reshape(-1, groups, length).sum(2, dtype=int)[..., None] * offset
    np.testing.assert_array_equal(want, (by_group * a_scale[..., None]).sum(axis=1))
    compiled = tw.compile(module, threads=1)
    np.testing.assert_array_equal(compiled(a, a_scale)[0], want)


def _rounded(x, block):
    """Rows as ONNX Runtime quantizes them: bytes with a sign, each block by its own range."""
    apart = np.pad(x, ((0, 0), (0, -x.shape[1] % block))).reshape(len(x), -1, block)
    scale = np.abs(apart).max(axis=2, keepdims=True) / np.float32(127)
    by = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    rounded = np.rint(apart * by) * scale
    return rounded.reshape(len(x), -1)[:, : x.shape[1]].astype(np.float32)


@pytest.mark.parametrize(
    ("rows", "k", "n", "bits", "block"),
    [
        (1, 1024, 512, 4, 32),
        (1, 1024, 512, 8, 128),
        (16, 1024, 512, 4, 16),
        ("rows", 1024, 512, 4, 256),
        ("rows", 1024, 512, 8, 64),
        (3, 1000, 512, 4, 64),
        (2, 1024, 511, 4, 32),
    ],
)
@pytest.mark.parametrize("with_zero", [False, True])
@pytest.mark.sampled
def test_rows_of_bytes_meet_weights_of_few_bits(rows, k, n, bits, block, with_zero):
    model = _model(rows, k, n, block, with_zero, bits, accuracy_level=4)
    whole = _model(rows, k, n, block, with_zero, bits)
    x = np.random.default_rng(1).standard_normal((5 if rows == "rows" else rows, k))
    x = x.astype(np.float32)
    x[0, :block] = 0
    feed = {"x": x}
    (exact,) = onnxruntime.InferenceSession(whole.SerializeToString()).run(None, feed)
    (theirs,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    (want,) = onnxruntime.InferenceSession(whole.SerializeToString()).run(
        None, {"x": _rounded(x, block)}
    )
    compiled = tw.compile(model, threads=1)
    ours = np.asarray(compiled(x)[0])
    np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-3)
    assert np.abs(ours - exact).max() <= 1.5 * np.abs(theirs - exact).max()
