"""ONNX Runtime's own operators (com.microsoft), interpreted, against ONNX Runtime."""

import numpy as np
import onnx
import pytest
from one_node import model_of, onnxruntime_results
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.base.errors import Unsupported
from tilewright.driver.optimize import staged_graph
from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret
from tilewright.graph.visit import walk

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")


def check(op, *inputs, outputs=("y",), rtol=1e-4, atol=1e-5, ulps=0, **attributes):
    """Both agree; quantized results may differ by `ulps` where a rounding is a tie."""
    model = model_of(op, inputs, list(outputs), **attributes)
    feeds, expected = onnxruntime_results(model, inputs)
    given = interpret(import_model(model), *feeds, check=True)
    assert len(given) == len(expected)
    for have, want in zip(given, expected, strict=True):
        assert have.shape == want.shape
        assert have.dtype == want.dtype
        if want.dtype.kind == "O":
            assert have.tolist() == want.tolist()
        elif want.dtype.kind in "iu":
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
def test_integer_products(columns, narrow_weights, rng):
    a = rng.integers(0, 255, (2, 5, 8), np.uint8)
    b = narrow_weights(8, 6)
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


@pytest.mark.parametrize("k", [64, 40])
@pytest.mark.parametrize(
    ("bits", "zeros", "grouped"),  # beside groups, ONNX Runtime overlooks packed zero points
    [
        (2, "packed", False),
        (4, "packed", False),
        (4, "real", False),
        (4, "real", True),
        (4, "", True),
    ],
)
def test_matmul_n_bits_of_groups_and_real_zero_points(bits, k, zeros, grouped, rng):
    n, block = 6, 16
    blocks = -(-k // block)
    packed = rng.integers(0, 255, (n, blocks, block * bits // 8), np.uint8)
    scales = np.abs(floats(rng, n, blocks)) * 0.1
    zero = {
        "packed": rng.integers(0, 255, (n, -(-blocks * bits // 8)), np.uint8),
        "real": floats(rng, n, blocks) + np.float32(1 << (bits - 1)),
    }
    groups = rng.integers(0, blocks, k).astype(np.int32) if grouped else None
    inputs = (floats(rng, 3, k), packed, scales, zero.get(zeros), groups, floats(rng, n))
    check("MatMulNBits", *inputs, N=n, K=k, bits=bits, block_size=block, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("k", [64, 1024])
def test_matmul_n_bits_with_real_zero_points_keeps_large_weights_packed(rows, k, rng):
    n, block = 272, 16
    packed = rng.integers(0, 255, (n, k // block, block // 2), np.uint8)
    scales, zero = floats(rng, n, k // block), floats(rng, n, k // block) + np.float32(8)
    a = floats(rng, rows, k)
    model = model_of("MatMulNBits", (a, packed, scales, zero), ["y"], N=n, K=k, block_size=block)
    constants = dict(zip(("x1", "x2", "x3"), (packed, scales, zero), strict=True))
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    del model.graph.input[1:]
    (have,) = tw.compile(model, threads=1)(a)
    session = ort.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(have, session.run(None, {"x0": a})[0], rtol=1e-3, atol=1e-2)
    operators = {node.op for node in walk(staged_graph(model, "fused").main)}
    assert ("matmul_packed" in operators) == (k > 64)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("n", "k"), [(6, 32), (3, 21)])
def test_matmul_by_a_table_of_four_bits(kind, n, k, rng):
    block = 16
    packed = rng.integers(0, 255, -(-n * k // 2), np.uint8)
    scales = np.abs(floats(rng, -(-n * k // block)))
    kinds = {"N": n, "K": k, "block_size": block, "quant_type": kind}
    check("MatMulBnb4", floats(rng, 2, 3, k), packed, scales, **kinds)


SWIGLU = {
    "swiglu_fusion": 1,
    "swiglu_limit": 1.5,
    "activation_alpha": 1.702,
    "activation_beta": 1.0,
}


@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu", "identity"])
def test_mixture_of_experts(activation, normalized, rng):
    experts, hidden, inner, n = 5, 8, 6, 7
    wide = 2 * inner if activation == "swiglu" else inner
    shapes = [(n, hidden), (n, experts), (experts, wide, hidden), (experts, wide)]
    shapes += [(experts, hidden, inner), (experts, hidden)]
    more = SWIGLU if activation == "swiglu" else {}
    given = {"k": 2, "activation_type": activation, "normalize_routing_weights": normalized}
    check("MoE", *(floats(rng, *shape) for shape in shapes), **given, **more)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("weighted", [False, True])
def test_mixture_of_experts_with_weights_of_few_bits(bits, zeros, block, weighted, rng):
    """One more than is routed to: an expert without rows is left out."""
    experts, hidden, inner, per_byte = 5, 64, 128, 8 // bits

    def layer(n, k):
        blocks = (k // block,) if block else ()
        codes = rng.integers(0, 256, (experts, n, k // per_byte), np.uint8)
        scales = np.abs(floats(rng, experts, n, *blocks)) * 0.02
        packed = (experts, n, k // block // per_byte) if block else (experts, n // per_byte)
        return codes, scales, rng.integers(0, 256, packed, np.uint8) if zeros else None

    x, router = floats(rng, 2, 3, hidden), floats(rng, 6, experts)
    router[:, 3] = -9
    first, second = layer(2 * inner, hidden), layer(hidden, inner)
    bias = floats(rng, experts, 2 * inner)
    inputs = [x, router, *first[:2], bias, *second[:2], None, None, None, None]
    inputs += [first[2], second[2], None, np.abs(router)] if weighted else [first[2], second[2]]
    while inputs[-1] is None:
        inputs.pop()
    given = {"k": 2, "activation_type": "swiglu", "expert_weight_bits": bits, **SWIGLU}
    given |= {"block_size": block} if block else {}
    given |= {"normalize_routing_weights": 1} if weighted else {}
    check("QMoE", *inputs, rtol=1e-2, atol=1e-2, **given)  # ONNX Runtime rounds rows of 8 bits


@pytest.mark.parametrize(("bits", "block"), [(2, 16), (4, 16), (8, 32)])
@pytest.mark.parametrize(("hidden", "inner"), [(48, 80), (40, 56)])
def test_mixture_of_experts_with_bytes_and_blocks_cut_short(bits, block, hidden, inner, rng):
    """Zero points of an odd number of blocks end within a byte, the last block before its end."""
    experts, per_byte = 2, 8 // bits
    inputs, zeros = [floats(rng, 3, hidden), floats(rng, 3, experts)], []
    for n, k in ((inner, hidden), (hidden, inner)):
        blocks = -(-k // block)
        inputs.append(rng.integers(0, 256, (experts, n, k // per_byte), np.uint8))
        inputs += [np.abs(floats(rng, experts, n, blocks)) * 0.02, None]
        zeros.append(rng.integers(0, 256, (experts, n, -(-blocks // per_byte)), np.uint8))
    given = {"activation_type": "silu", "expert_weight_bits": bits, "block_size": block}
    check("QMoE", *inputs, None, None, None, *zeros, rtol=2e-2, atol=2e-2, **given)


def test_mixture_of_experts_with_scores_of_others_is_refused(rng):
    shapes = [(3, 8), (3, 6), (4, 5, 8), None, (4, 8, 5)]
    inputs = [None if shape is None else floats(rng, *shape) for shape in shapes]
    with pytest.raises(Unsupported, match="4 experts, with scores of 6"):
        import_model(model_of("MoE", inputs, ["y"], k=2))


def test_mixture_of_experts_natively_with_constant_weights(rng):
    """Weights are packed where they stand; rows of each expert are known to the run alone."""
    experts, hidden, inner = 4, 32, 64
    codes = [rng.integers(0, 256, (experts, *shape), np.uint8)
             for shape in ((inner, hidden // 2), (hidden, inner // 2))]  # fmt: skip
    scales = [np.abs(floats(rng, experts, n)) * 0.02 for n in (inner, hidden)]
    x, router = floats(rng, 9, hidden), floats(rng, 9, experts)
    inputs = [x, router, codes[0], scales[0], None, codes[1], scales[1]]
    model = model_of("QMoE", inputs, ["y"], k=2, activation_type="silu", expert_weight_bits=4)
    values = {f"x{at}": value for at, value in enumerate(inputs) if at > 1 and value is not None}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in values.items())
    kept = [value for value in model.graph.input if value.name not in values]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    compiled = tw.compile(model)
    assert not compiled.fallbacks
    session = ort.InferenceSession(model.SerializeToString())
    (want,) = session.run(None, {"x0": x, "x1": router})
    np.testing.assert_allclose(np.asarray(compiled(x, router)[0]), want, rtol=1e-3, atol=1e-3)


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


def test_qattention(narrow_weights, rng):
    x = rng.integers(0, 255, (2, 4, 8), np.uint8)
    w = narrow_weights(8, 24)
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


@pytest.mark.parametrize("bias", [False, True])
def test_decoder_masked_attention_with_a_cache(bias, rng):
    heads, width, past, room = 2, 8, 3, 6
    q, k, v = (rng.standard_normal((2, 1, width)).astype(np.float32) for _ in range(3))
    more = rng.standard_normal(3 * width).astype(np.float32) if bias else None
    cache = [rng.standard_normal((2, heads, room, 4)).astype(np.float32) for _ in range(2)]
    mask = np.array([[1, 0, 1, 1], [1, 1, 1, 1]], np.int32)
    outputs = ("y", "pk", "pv")
    shared = {"num_heads": heads, "past_present_share_buffer": 1, "mask_filter_value": -1e4}
    length = np.array([past], np.int32)
    op = "DecoderMaskedMultiHeadAttention"
    for seen in (None, mask):
        more_inputs = (None, None, more) if bias else ()
        check(op, q, k, v, seen, None, *cache, length, *more_inputs, outputs=outputs, **shared)


def test_decoder_masked_attention_without_a_cache(rng):
    q = rng.standard_normal((2, 1, 8)).astype(np.float32)
    whole = [rng.standard_normal((2, 2, 5, 4)).astype(np.float32) for _ in range(2)]
    check("DecoderMaskedMultiHeadAttention", q, *whole, num_heads=2)


def test_decoder_masked_attention_of_beams(rng):
    heads, beams, past, room = 2, 3, 2, 4
    q, k, v = (rng.standard_normal((2 * beams, 1, 8)).astype(np.float32) for _ in range(3))
    cache = [rng.standard_normal((2 * beams, heads, room, 4)).astype(np.float32) for _ in range(2)]
    origin = rng.integers(0, beams, (2, beams, room)).astype(np.int32)
    length, width = np.array([past], np.int32), np.array([beams], np.int32)
    more = {"num_heads": heads, "past_present_share_buffer": 1, "outputs": ("y", "pk", "pv")}
    op = "DecoderMaskedMultiHeadAttention"
    check(op, q, k, v, None, None, *cache, length, width, origin, **more)


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


# How many keys are in the cache and new, how many of each sequence are valid then, and in all.
CACHES = {
    "a cache that grows": (5, 1, (5, 5), 6),
    "several at a time": (5, 3, (7,), 8),
    "a prompt into a buffer": (12, 5, (4, 4), 5),
    "padded prompts": (0, 5, (4, 2), 5),
    "padded prompts into a buffer": (12, 5, (4, 2), 5),
    "several into a buffer": (12, 3, (7,), 8),
    "different lengths": (5, 1, (5, 3), 6),
    "different lengths in a buffer": (12, 1, (5, 3), 6),
}


def cached_attention(rng, past, new, lasts, total, is_packed=False, tables=True):
    """The inputs of GroupQueryAttention with 4 heads of queries, 2 of keys."""
    q, k, v = (floats(rng, len(lasts), new, heads * 16) for heads in (4, 2, 2))
    given = [np.concatenate((q, k, v), 2), None, None] if is_packed else [q, k, v]
    given += [floats(rng, len(lasts), 2, past, 16) for _ in range(2)]
    given += [np.array(lasts, np.int32), scalar(total, np.int32)]
    return [*given, *([floats(rng, 16, 8), floats(rng, 16, 8)] if tables else [])]


GROUPED = {"num_heads": 4, "kv_num_heads": 2}


def check_caches(inputs, run, **attributes):
    """Both agree on the queries that are no padding, and on the caches."""
    model = model_of("GroupQueryAttention", inputs, ["y", "key", "value"], **attributes)
    feeds = {f"x{at}": value for at, value in enumerate(inputs) if value is not None}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    want = ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    have = [np.asarray(value) for value in run(model, feeds)]
    for ours, theirs in zip(have[1:], want[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs, last in zip(have[0], want[0], inputs[5], strict=True):
        np.testing.assert_allclose(ours[: last + 1], theirs[: last + 1], rtol=1e-4, atol=1e-5)


def interpreted(model, feeds):
    return interpret(import_model(model), *feeds.values(), check=True)


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize(("rotary", "window", "is_packed"), [(0, -1, False), (1, 3, True)])
def test_group_query_attention_of_caches(cache, rotary, window, is_packed, rng):
    inputs = cached_attention(rng, *cache, is_packed=is_packed, tables=bool(rotary))
    kinds = {**GROUPED, "do_rotary": rotary, "local_window_size": window}
    check_caches(inputs, interpreted, **kinds)


@pytest.mark.parametrize("name", ["a prompt into a buffer", "several into a buffer"])
def test_group_query_attention_with_a_bias_over_a_buffer(name, rng):
    past, new, lasts, total = CACHES[name]
    inputs = cached_attention(rng, past, new, lasts, total, tables=False)
    bias = floats(rng, 1, 4, new, total)
    check_caches([*inputs, None, None, None, bias], interpreted, **GROUPED)


@pytest.mark.parametrize("name", ["different lengths", "a prompt into a buffer", "no cache"])
@pytest.mark.parametrize("zero", [False, True])
def test_group_query_attention_with_a_sink(name, zero, rng):
    inputs = cached_attention(rng, *CACHES.get(name, (0, 4, (3, 3), 4)))
    if name == "no cache":
        inputs[3:5] = None, None
    sink = [] if zero else [None, None, floats(rng, 4)]
    how = {**GROUPED, "do_rotary": 1, "local_window_size": 3, "smooth_softmax": int(zero)}
    check_caches([*inputs, *sink], interpreted, **how)


def test_group_query_attention_with_norms(rng):
    """ONNX Runtime, which has no norms in it on a CPU, is given normalized queries and keys."""
    inputs = cached_attention(rng, *CACHES["different lengths"])
    scales, normed = [floats(rng, 16), floats(rng, 16)], []
    for x, scale in zip(inputs[:2], scales, strict=True):
        heads = x.reshape(*x.shape[:2], -1, 16)
        size = np.sqrt((heads**2).mean(-1, keepdims=True) + np.float32(1e-3))
        normed.append((heads / size * scale).reshape(x.shape))

    def with_norms(model, feeds):
        given = [*inputs, *[None] * 5, *scales]
        more = {**GROUPED, "do_rotary": 1, "qk_norm_epsilon": 1e-3}
        model = model_of("GroupQueryAttention", given, ["y", "key", "value"], **more)
        return interpreted(model, {at: x for at, x in enumerate(given) if x is not None})

    check_caches([*normed, *inputs[2:]], with_norms, **GROUPED, do_rotary=1)


def test_group_query_attention_with_a_sink_compiled(rng):
    def compiled(model, feeds):
        return tw.compile(model, threads=1)(**feeds)

    inputs = cached_attention(rng, *CACHES["several into a buffer"])
    check_caches([*inputs, None, None, floats(rng, 4)], compiled, **GROUPED, do_rotary=1)


@pytest.mark.parametrize("name", ["different lengths in a buffer", "several into a buffer"])
def test_group_query_attention_of_caches_compiled(name, rng):
    def compiled(model, feeds):
        return tw.compile(model, threads=1)(**feeds)

    check_caches(cached_attention(rng, *CACHES[name]), compiled, **GROUPED, do_rotary=1)


@pytest.mark.parametrize("cache", [(12, 3, (1,), 8), (12, 1, (14,), 6), (3, 1, (5,), 6)])
def test_group_query_attention_rejects_lengths_outside_its_cache(cache, rng):
    inputs = cached_attention(rng, *cache, tables=False)
    model = model_of("GroupQueryAttention", inputs, ["y", "key", "value"], **GROUPED)
    with pytest.raises(tw.TilewrightError, match="do not fit its cache"):
        tw.compile(model, threads=1)(*inputs)


# ------------------------------------------------- images, where channels are last


def run_by_peer(text, *feeds):
    """The answers of ONNX Runtime to a model made of ONNX's own operators."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>' + text)
    session = ort.InferenceSession(model.SerializeToString())
    names = [info.name for info in session.get_inputs()]
    return session.run(None, dict(zip(names, feeds, strict=True)))


def check_against(text, op, *inputs, outputs=("y",), **attributes):
    """An operator that ONNX Runtime has for GPUs alone, against what it stands for."""
    expected = run_by_peer(text, *(value for value in inputs if value is not None))
    feeds = [value for value in inputs if value is not None]
    model = import_model(model_of(op, inputs, list(outputs), **attributes))
    given = interpret(model, *feeds, check=True)
    for have, want in zip(given, expected, strict=True):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


NORM = "z = GroupNormalization <num_groups = 2, epsilon = 0.001> (t, gamma, beta)"


def test_group_norm(rng):
    x, gamma, beta = floats(rng, 2, 4, 5, 6), floats(rng, 6), floats(rng, 6)
    text = f"""g (float[2,4,5,6] x, float[6] gamma, float[6] beta) => (float[2,4,5,6] y) {{
        t = Transpose <perm = [0,3,1,2]> (x)
        {NORM}
        s = Sigmoid (z)
        a = Mul (z, s)
        y = Transpose <perm = [0,2,3,1]> (a)
    }}"""
    check_against(text, "GroupNorm", x, gamma, beta, groups=2, epsilon=0.001, activation=1)
    x = np.ascontiguousarray(np.moveaxis(x, 3, 1))
    text = f"""g (float[2,6,4,5] t, float[6] gamma, float[6] beta) => (float[2,6,4,5] z) {{
        {NORM}
    }}"""
    kinds = {"groups": 2, "epsilon": 0.001, "activation": 0, "channels_last": 0}
    check_against(text, "GroupNorm", x, gamma, beta, **kinds)


@pytest.mark.parametrize("skip", [(2, 4, 5, 6), (2, 1, 1, 6), (2, 6)])
def test_skip_group_norm(skip, rng):
    inputs = (floats(rng, 2, 4, 5, 6), floats(rng, 6), floats(rng, 6), floats(rng, *skip))
    whole = skip if len(skip) == 4 else (2, 1, 1, 6)
    shape, full = (",".join(map(str, dims)) for dims in (skip, whole))
    text = f"""g (float[2,4,5,6] x, float[6] gamma, float[6] beta, float[{shape}] s, float[6] b)
        => (float[2,4,5,6] y, float[2,4,5,6] total) <int64[4] full = {{{full}}}> {{
        r = Reshape (s, full)
        u = Add (x, r)
        total = Add (u, b)
        t = Transpose <perm = [0,3,1,2]> (total)
        {NORM}
        y = Transpose <perm = [0,2,3,1]> (z)
    }}"""
    kinds = {"groups": 2, "epsilon": 0.001, "activation": 0, "outputs": ("y", "total")}
    check_against(text, "SkipGroupNorm", *inputs, floats(rng, 6), **kinds)


def test_convolutions_with_channels_last(rng):
    x, w, bias = floats(rng, 1, 6, 7, 4), floats(rng, 6, 3, 3, 2), floats(rng, 6)
    kinds = {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 1]}
    text = """g (float[1,6,7,4] x, float[6,{}] w, float[6] b) => (float[1,3,7,6] y) {{
        t = Transpose <perm = [0,3,1,2]> (x)
        {}
        c = Conv <group = 2, pads = [1,1,1,1], strides = [2,1]> (t, {}, b)
        y = Transpose <perm = [0,2,3,1]> (c)
    }}"""
    moved = text.format("3,3,2", "v = Transpose <perm = [0,3,1,2]> (w)", "v")
    check_against(moved, "NhwcConv", x, w, bias, **kinds)
    w = floats(rng, 6, 2, 3, 3)
    check_against(text.format("2,3,3", "", "w"), "NhwcFusedConv", x, w, bias, **kinds)


def test_quantized_convolution_with_channels_last(rng):
    x, w = rng.integers(0, 255, (1, 6, 7, 4), np.uint8), rng.integers(-9, 9, (6, 4, 3, 3), np.int8)
    inputs = (x, scalar(0.02), scalar(120, np.uint8), w, scalar(0.01), scalar(0, np.int8))
    more = (scalar(0.9), scalar(128, np.uint8), rng.integers(-99, 99, 6, np.int32))
    check("QLinearConv", *inputs, *more, channels_last=1, pads=[1, 1, 1, 1], ulps=1)


def test_max_pool_with_channels_last(rng):
    x = rng.integers(0, 255, (2, 6, 7, 4), np.uint8)
    check("NhwcMaxPool", x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0])


# ------------------------------------------------- older names and small operators


def test_operators_that_onnx_has_by_now(rng):
    x = floats(rng, 2, 4, 5)
    check("Trilu", x, scalar(1, np.int64), upper=0)
    check("Pad", x, np.array([0, 1, 2, 0, 0, 1]), scalar([0.5]))
    check("Pad", x, np.array([0, 1, 2, 0, 0, 1]), mode="reflect")
    check("Range", scalar(1.5), scalar(7.0), scalar(2.0))
    check("GatherND", x, np.array([[0, 3], [1, 0]]))
    grid = rng.uniform(-1.2, 1.2, (2, 3, 3, 2)).astype(np.float32)
    check("GridSample", floats(rng, 2, 3, 4, 5), grid, mode="bilinear", padding_mode="border")


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(metric, rng):
    check("CDist", floats(rng, 4, 3), floats(rng, 5, 3), metric=metric)


@pytest.mark.parametrize("op", ["ComplexMul", "ComplexMulConj"])
def test_complex_products(op, rng):
    a, b = floats(rng, 3, 4, 2), floats(rng, 3, 4, 2)
    of = [x[..., 0] + 1j * x[..., 1] for x in (a, b)]
    want = of[0] * (of[1].conj() if op.endswith("Conj") else of[1])
    (given,) = interpret(import_model(model_of(op, (a, b), ["y"])), a, b, check=True)
    np.testing.assert_allclose(given[..., 0] + 1j * given[..., 1], want, rtol=1e-4, atol=1e-5)


def test_rows_of_a_table(rng):
    table, ids = floats(rng, 6, 3), np.array([[0, 5], [2, 2]])
    text = "g (float[6,3] w, int64[2,2] i) => (float[2,2,3] y) { y = Gather <axis = 0> (w, i) }"
    check_against(text, "TorchEmbedding", table, ids)


def test_a_product_and_its_gelu(rng):
    x, w, bias = floats(rng, 4, 3), floats(rng, 3, 5), floats(rng, 5)
    text = """g (float[4,3] x, float[3,5] w, float[5] b) => (float[4,5] y) {
        p = MatMul (x, w)
        s = Add (p, b)
        y = Gelu <approximate = "tanh"> (s)
    }"""
    check_against(text, "GemmFastGelu", x, w, bias)


def test_a_dimension_more(rng):
    text = """<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[2,3] x) => (float[2,1,3] y) <int64 axis = {1}> {
        y = com.microsoft.ExpandDims (x, axis)
    }"""
    x = floats(rng, 2, 3)
    (given,) = interpret(import_model(onnx.parser.parse_model(text)), x, check=True)
    np.testing.assert_array_equal(given, x[:, None])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_of_a_quantized_table(bits, zeros, rng):
    packed = 8 // bits
    table = rng.integers(0, 255, (6, 32 // packed), np.uint8)
    scales = floats(rng, 6, 2)
    points = rng.integers(0, 255, (6, 2 // packed), np.uint8) if zeros else None
    ids = np.array([[0, 5], [3, 3]])
    given = (table, ids, scales, *([points] if zeros else []))
    kinds = {"bits": bits, "block_size": 16, "quantize_axis": 1, "gather_axis": 0}
    check("GatherBlockQuantized", *given, **kinds)


def test_matmul_of_16_bits(rng):
    a, b = (rng.integers(-9999, 9999, shape, np.int16) for shape in ((2, 3, 4), (4, 5)))
    check("MatMulInteger16", a, b)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 5, 5), (2, 1, 1)])
def test_inverse(shape, rng):
    check("Inverse", floats(rng, *shape) + 3 * np.eye(shape[-1], dtype=np.float32))


@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("step", [1, 2])
def test_windows_along_an_axis(dim, step, rng):
    check("UnfoldTensor", floats(rng, 2, 7, 8), dim=dim, size=3, step=step)


# ------------------------------------------------- quantized tables and layers


@pytest.mark.parametrize("segments", [False, True])
def test_quantized_embedding(segments, rng):
    ids = rng.integers(0, 10, (2, 5), np.int32)
    kinds = rng.integers(0, 2, (2, 5), np.int32) if segments else None
    tables = [rng.integers(0, 255, shape, np.uint8) for shape in ((10, 8), (6, 8), (2, 8), 8, 8)]
    scales = [scalar(value) for value in (0.02, 0.03, 0.01, 0.05, 0.04)]
    zeros = [scalar(value, np.uint8) for value in (120, 100, 128, 90, 110)]
    if not segments:
        tables[2] = scales[2] = zeros[2] = None
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    more = {"outputs": ("y", "mask"), "epsilon": 1e-3}
    check("QEmbedLayerNormalization", ids, kinds, *tables, mask, *scales, *zeros, **more)


@pytest.mark.parametrize("lengths", [None, [2, 1], [3, 2]])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm_with_quantized_weights(direction, lengths, rng):
    count, hidden, width = (2 if direction == "bidirectional" else 1), 5, 4
    weights = [rng.integers(0, 255, (count, n, 4 * hidden), np.uint8) for n in (width, hidden)]
    scales = [scalar([0.004] * count), scalar([0.005] * count)]
    zeros = [scalar([value] * count, np.uint8) for value in (120, 130)]
    x, bias = floats(rng, 3, 2, width), floats(rng, count, 8 * hidden)
    lengths = None if lengths is None else np.array(lengths, np.int32)
    inputs = (x, *weights, bias, lengths, *[None] * 3, scales[0], zeros[0], scales[1], zeros[1])
    # Ranges are those of a batch; what counts of a sequence that has ended is up to a runtime.
    exact = 1e-5 if lengths is None else 1e-2
    kinds = {"hidden_size": hidden, "direction": direction, "rtol": exact, "atol": exact}
    check("DynamicQuantizeLSTM", *inputs, outputs=("y", "h", "c"), **kinds)
    model = import_model(
        model_of("DynamicQuantizeLSTM", inputs, ["y"], hidden_size=hidden, direction=direction)
    )
    products = [node for node in walk(model.main) if node.op == "matmul_integer"]
    assert [node.inputs[0].tensor.rank for node in products] == [2] * count  # rows of all steps


@pytest.mark.parametrize(
    "how",
    [
        {"separators": [" "]},
        {"separators": [" ", "[,-]"], "mark": 1, "pad_value": "#"},
        {"separators": [""]},
        {"separators": ["x*"]},  # an empty match takes a character away
        {"tokenexp": "[a-z]+", "mincharnum": 2, "mark": 1},
        {"tokenexp": "."},
        {"tokenexp": r"\b\w\w+\b"},  # of ASCII, as RE2's classes are
        {"tokenexp": r"[[:alpha:]]+|[^\s\D]+"},
        {"tokenexp": "t|th|the|c?a"},  # the longest, not the first
        {"tokenexp": r"th?|\bca?"},
        {"tokenexp": "(?i)É[A-Z]+$"},  # at the end, not before the last line break
        {"separators": ["c|ca", r"\W"]},
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_tokenizer(how, empty):
    words = np.array([["a bc, déf gh", "", "xx  yy"], ["b\n", "the cat-dog", " ,٣é\n"]], object)
    words = np.full((1, 2), "", object) if empty else words
    check("Tokenizer", words, **{"mark": 0, "mincharnum": 1, "pad_value": "", **how})


def test_text_of_unknown_length_is_counted(rng):
    """A tokenizer before `TfIdfVectorizer`, as skl2onnx writes text classifiers."""
    pool = {"pool_strings": ["b", "the", "the", "b"], "ngram_counts": [0, 2]}
    pool |= {"ngram_indexes": [2, 0, 1], "weights": [0.5, 2.0, 3.0], "mode": "TFIDF"}
    lengths = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0}
    nodes = [
        helper.make_node("Tokenizer", ["x"], ["words"], domain="com.microsoft", mark=0,
                         mincharnum=1, pad_value="#", tokenexp="[a-z]+"),
        helper.make_node("TfIdfVectorizer", ["words"], ["y"], **pool, **lengths),
    ]  # fmt: skip
    info = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    graph = helper.make_graph(nodes, "text", [info], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    words = np.array(["the b, the b", "", "b c"], object)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": words})
    compiled = tw.compile(model)
    assert set(compiled.fallbacks) == {"tokenize", "count_grams"}
    np.testing.assert_array_equal(np.asarray(compiled(words)[0]), want)
