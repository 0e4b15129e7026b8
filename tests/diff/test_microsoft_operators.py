"""ONNX Runtime's own operators (com.microsoft), interpreted, against ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")

F, U8, I8, I32, I64 = (
    TensorProto.FLOAT,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.INT32,
    TensorProto.INT64,
)
CODES = {"float32": F, "uint8": U8, "int8": I8, "int32": I32, "int64": I64, "bool": 9}


def model_of(op, inputs, outputs, domain="com.microsoft", **attributes):
    """One node over inputs (None where absent), all graph inputs."""
    names = ["" if value is None else f"x{at}" for at, value in enumerate(inputs)]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(name, CODES[value.dtype.name], value.shape)
        for name, value in zip(names, inputs, strict=True)
        if value is not None
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = helper.make_graph([node], "test", infos, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(op, *inputs, outputs=("y",), rtol=1e-4, atol=1e-5, ulps=0, **attributes):
    """Both agree; quantized results may differ by `ulps` where a rounding is a tie."""
    model = model_of(op, inputs, list(outputs), **attributes)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    feeds = {f"x{at}": value for at, value in enumerate(inputs) if value is not None}
    expected = session.run(None, feeds)
    given = interpret(import_model(model), *feeds.values(), check=True)
    assert len(given) == len(expected)
    for have, want in zip(given, expected, strict=True):
        assert have.shape == want.shape
        assert have.dtype == want.dtype
        if want.dtype.kind in "iu":
            assert np.abs(have.astype(int) - want.astype(int)).max(initial=0) <= ulps
        else:
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def scalar(value, of=np.float32):
    return np.array(value, of)


@pytest.mark.parametrize("op", ["Gelu", "QuickGelu", "FastGelu"])
def test_activation(op, rng):
    check(op, floats(rng, 2, 3, 8))


@pytest.mark.parametrize("op", ["FastGelu", "BiasGelu"])
def test_activation_with_bias(op, rng):
    check(op, floats(rng, 2, 3, 8), floats(rng, 8))


@pytest.mark.parametrize("bits", range(8))
def test_fused_matmul(bits, rng):
    flip_a, flip_b, batch = bits & 1, bits >> 1 & 1, bits >> 2
    shapes = [(2, 3, 4, 5), (2, 3, 5, 6)]
    if batch:  # the first axis of the batch stands behind the others
        shapes = [(3, 2, 4, 5), (3, 2, 5, 6)]
        a, b = (np.moveaxis(floats(rng, *shape), 2, 0) for shape in shapes)
    else:
        a, b = (floats(rng, *shape) for shape in shapes)
    if flip_a:
        a = np.swapaxes(a, -1, 0 if batch else -2)
    if flip_b:
        b = np.swapaxes(b, -1, 0 if batch else -2)
    more = {"transBatchA": 1, "transBatchB": 1} if batch else {}
    arrays = [np.ascontiguousarray(x) for x in (a, b)]
    check("FusedMatMul", *arrays, transA=flip_a, transB=flip_b, alpha=0.5, **more)


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid"])
def test_fused_conv_and_gemm(activation, rng):
    numbers = {"LeakyRelu": [0.2], "HardSigmoid": [0.3, 0.4]}.get(activation, [])
    more = {"activation_params": numbers} if numbers else {}
    x, w, bias = floats(rng, 1, 3, 6, 6), floats(rng, 4, 3, 3, 3), floats(rng, 4)
    check("FusedConv", x, w, bias, activation=activation, pads=[1, 1, 1, 1], **more)
    names = ("activation_alpha", "activation_beta")
    more = dict(zip(names, numbers, strict=False))
    a, b, c = floats(rng, 3, 4), floats(rng, 5, 4), floats(rng, 5)
    check("FusedGemm", a, b, c, transB=1, alpha=0.7, beta=0.3, activation=activation, **more)


def test_skip_layer_norm(rng):
    x, skip = floats(rng, 2, 3, 8), floats(rng, 2, 3, 8)
    gamma, beta, bias = (floats(rng, 8) for _ in range(3))
    check("SkipLayerNormalization", x, skip, gamma, beta, bias, epsilon=1e-5)
    check("SkipLayerNormalization", x, skip, gamma, outputs=("y", "", "", "sum"))
    check("SkipSimplifiedLayerNormalization", x, skip, gamma, bias, outputs=("y", "", "", "sum"))


def test_simplified_layer_norm(rng):
    check("SimplifiedLayerNormalization", floats(rng, 2, 3, 8), floats(rng, 8), domain="")


def test_embed_layer_norm(rng):
    ids = rng.integers(0, 10, (2, 4)).astype(np.int32)
    segments = rng.integers(0, 2, (2, 4)).astype(np.int32)
    tables = [floats(rng, rows, 8) for rows in (10, 6, 2)]
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    norms = [floats(rng, 8), floats(rng, 8)]
    outputs = ("y", "index")
    check("EmbedLayerNormalization", ids, segments, *tables, *norms, mask, outputs=outputs)
    rest = (*tables[:2], None, *norms)
    check("EmbedLayerNormalization", ids, None, *rest, outputs=("y", "index", "sum"))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_qlinear_arithmetic(kind, rng):
    info = np.iinfo(kind)
    a, b = (rng.integers(info.min, info.max, (2, 3, 4), kind, endpoint=True) for _ in range(2))
    zero = scalar(5, kind)
    operands = (a, scalar(0.02), zero, b, scalar(0.03), scalar(3, kind))
    check("QLinearAdd", *operands, scalar(0.05), zero, ulps=1)
    check("QLinearMul", *operands, scalar(0.05), zero, ulps=1)
    one = (a, scalar(0.02), zero, scalar(1 / 256), scalar(info.min, kind))
    check("QLinearSigmoid", *one, ulps=1)
    check("QLinearLeakyRelu", a, scalar(0.02), zero, scalar(0.03), zero, alpha=0.2, ulps=1)
    check("QLinearSoftmax", *one, axis=-1, opset=13, ulps=1)


def test_qlinear_pooling_and_joining(rng):
    x = rng.integers(0, 255, (1, 3, 6, 6), np.uint8)
    numbers = (scalar(0.02), scalar(100, np.uint8), scalar(0.03), scalar(90, np.uint8))
    check("QLinearGlobalAveragePool", x, *numbers, ulps=1)
    check("QLinearAveragePool", x, *numbers, kernel_shape=[2, 2], strides=[2, 2], ulps=1)
    part = (x, scalar(0.02), scalar(100, np.uint8))
    check("QLinearConcat", scalar(0.03), scalar(9, np.uint8), *part, *part, axis=1, ulps=1)
    cond = rng.integers(0, 2, (1, 3, 6, 6)).astype(bool)
    more = (x[:, :, ::-1].copy(), scalar(0.03), scalar(7, np.uint8))
    check("QLinearWhere", cond, *part, *more, scalar(0.03), scalar(9, np.uint8), ulps=1)


@pytest.mark.parametrize("columns", [1, 6])
def test_integer_products(columns, rng):
    a = rng.integers(0, 255, (2, 5, 8), np.uint8)
    b = rng.integers(-128, 127, (8, 6), np.int8)
    scale = np.abs(floats(rng, columns)) if columns > 1 else scalar(0.02)
    zero = np.zeros(columns, np.int8) if columns > 1 else scalar(3, np.int8)
    bias = floats(rng, 6)
    a_zero = scalar(7, np.uint8)
    check("MatMulIntegerToFloat", a, b, scalar(0.1), scale, a_zero, zero, bias, rtol=1e-3)
    check("DynamicQuantizeMatMul", floats(rng, 2, 5, 8), b, scale, zero, bias, rtol=1e-3)
    flat = (a[0], scalar(0.1), a_zero, b, scale, zero)
    check("QGemm", *flat, rng.integers(-99, 99, 6).astype(np.int32), rtol=1e-3)
    check("QGemm", *flat, None, scalar(9.0), scalar(128, np.uint8), ulps=1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_n_bits(bits, zeros, rng):
    n, k, block = 6, 32, 16
    packed = rng.integers(0, 255, (n, k // block, block * bits // 8), np.uint8)
    scales = np.abs(floats(rng, n, k // block)) * 0.1
    zero = rng.integers(0, 255, (n, k // block * bits // 8), np.uint8) if zeros else None
    inputs = (floats(rng, 3, k), packed, scales, *([] if zero is None else [zero]))
    check("MatMulNBits", *inputs, N=n, K=k, bits=bits, block_size=block, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["none", "lengths", "raw", "square"])
def test_attention(causal, mask, rng):
    x, w, bias = floats(rng, 2, 4, 8), floats(rng, 8, 24), floats(rng, 24)
    masks = {
        "none": None,
        "lengths": np.array([3, 4], np.int32),
        "raw": np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32),
        "square": np.tril(np.ones((2, 4, 4), np.int32)),
    }
    given = (x, w, bias) if masks[mask] is None else (x, w, bias, masks[mask])
    check("Attention", *given, num_heads=2, unidirectional=causal)


def test_attention_with_past(rng):
    x, w, bias = floats(rng, 2, 4, 8), floats(rng, 8, 24), floats(rng, 24)
    past = floats(rng, 2, 2, 2, 3, 4)
    outputs = ("y", "present")
    check("Attention", x, w, bias, None, past, num_heads=2, unidirectional=1, outputs=outputs)


def test_qattention(rng):
    x = rng.integers(0, 255, (2, 4, 8), np.uint8)
    w = rng.integers(-128, 127, (8, 24), np.int8)
    numbers = (floats(rng, 24), scalar(0.02), scalar(0.01))
    zeros = (scalar(100, np.uint8), scalar(0, np.int8))
    check("QAttention", x, w, *numbers, None, *zeros, num_heads=2)


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention(causal, rng):
    q, k, v = (floats(rng, 2, length, 8) for length in (4, 6, 6))
    if causal:
        k, v = k[:, :4].copy(), v[:, :4].copy()
    bias, more = floats(rng, 24), floats(rng, 2, 2, 4, k.shape[1])
    kinds = {"num_heads": 2, "unidirectional": causal}
    check("MultiHeadAttention", q, k, v, **kinds)
    check("MultiHeadAttention", q, k, v, bias, None, more, **kinds)
    pad = np.ones((2, k.shape[1]), np.int32)
    pad[0, -2:] = 0
    check("MultiHeadAttention", q, k, v, None, pad, **kinds)


def test_multi_head_attention_with_past(rng):
    q, k, v = (floats(rng, 2, 2, 8) for _ in range(3))
    past = [floats(rng, 2, 2, 3, 4) for _ in range(2)]
    outputs = ("y", "key", "value")
    more = (None, None, None)
    check("MultiHeadAttention", q, k, v, *more, *past, num_heads=2, outputs=outputs)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved, rng):
    tables = [floats(rng, 9, 4), floats(rng, 9, 4)]
    x = floats(rng, 2, 3, 16)
    places = np.array([[0, 1, 2], [4, 5, 6]], np.int64)
    kinds = {"interleaved": interleaved}
    check("RotaryEmbedding", x, places, *tables, **kinds)
    check("RotaryEmbedding", x, np.array([2], np.int64), *tables, **kinds)
    check("RotaryEmbedding", floats(rng, 2, 2, 3, 8), places, *tables, **kinds)


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("window", [-1, 2])
def test_group_query_attention(past, rotary, window, rng):
    length = 4 if not past else 1
    q, k, v = (floats(rng, 2, length, heads * 16) for heads in (4, 2, 2))
    cache = [floats(rng, 2, 2, past, 16) for _ in range(2)] if past else [None, None]
    total = past + length
    lengths = np.array([total - 1] * 2, np.int32)
    tables = [floats(rng, 16, 8), floats(rng, 16, 8)] if rotary else []
    check(
        "GroupQueryAttention",
        *(q, k, v, *cache, lengths, scalar(total, np.int32), *tables),
        outputs=("y", "key", "value"),
        num_heads=4,
        kv_num_heads=2,
        do_rotary=rotary,
        local_window_size=window,
    )
