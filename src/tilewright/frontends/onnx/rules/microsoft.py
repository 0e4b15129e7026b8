"""ONNX Runtime's operators (com.microsoft): fused activations, GEMMs, norms, int8."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym
from tilewright.base.dtype import F32, I8, I16, I32
from tilewright.frontends.onnx.rules.activation import (
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    swish,
)
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.conv import conv
from tilewright.frontends.onnx.rules.linalg import by_row, gemm
from tilewright.frontends.onnx.rules.pool import avg_pool
from tilewright.frontends.onnx.rules.quantize import RULES as QUANTIZE
from tilewright.frontends.onnx.rules.quantize import dynamic_quantize
from tilewright.frontends.onnx.rules.recurrent import layer
from tilewright.frontends.onnx.rules.tensors import dims, item, part, reshape, transpose
from tilewright.graph import Value

# ------------------------------------------------------------------ fused activations


def activated(node: Context, x: Value, numbers: Sequence[float] = ()) -> Value:
    """Apply the activation that the node names, with its parameters, to x."""
    name = node.attr("activation", "") or ""
    alone = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid"}
    if not name:
        return x
    if name in alone:
        return node.emit(alone[name], x)
    if name == "LeakyRelu":
        return leaky_relu(node, x, *numbers[:1])
    if name == "Elu":
        return elu(node, x, *numbers[:1])
    if name == "HardSwish":
        return hard_swish(node, x)
    if name == "HardSigmoid":
        return hard_sigmoid(node, x, *numbers[:2])
    if name == "Clip":
        return node.emit("clip", x, *(node.like(x, bound) for bound in numbers[:2]))
    raise Skip(f"{node.op_type} with activation {name}")


def _numbers(node: Context) -> list[float]:
    found = [node.attr(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return [number for number in found if number is not None]


def _fused_conv(node: Context) -> Value:
    out = conv(node)
    if node.has(3):
        out = node.emit("add", out, node[3])
    return activated(node, out, node.attr("activation_params", ()))


def _fused_matmul(node: Context) -> Value:
    a, b = (_operand(node, at, side) for at, side in ((0, "A"), (1, "B")))
    product = node.emit("matmul", a, b)
    alpha = node.attr("alpha", 1.0)
    product = product if alpha == 1.0 else node.emit("mul", product, alpha)
    return activated(node, product, _numbers(node))


def _operand(node: Context, at: int, side: str) -> Value:
    """An operand, transposed as the attributes say."""
    value, rank = node[at], node.rank(at)
    axes = list(range(rank))
    if node.attr(f"transBatch{side}", 0):  # the first axis comes after the other batch axes
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if node.attr(f"trans{side}", 0) and rank > 1:
        axes = [*axes[:-2], axes[-1], axes[-2]]
    return value if axes == list(range(rank)) else transpose(node, value, *axes)


def _bias_gelu(node: Context, *, tanh: bool) -> Value:
    x = node[0] if node.get(1) is None else node.emit("add", node[0], node[1])
    return gelu(node, x, tanh=tanh)


def _bias_split_gelu(node: Context) -> Value:
    x = node.emit("add", node[0], node[1])
    width = dims(node, x)[2]
    if not isinstance(width, int):
        raise Skip("BiasSplitGelu of unknown width")
    left, right = part(node, x, 0, width // 2, 2), part(node, x, width // 2, width, 2)
    return node.emit("mul", left, gelu(node, right))


def _bias_softmax(node: Context) -> Value:
    data, bias, axis = node[0], node[1], node.attr("axis", 1) % node.rank()
    if node.attr("is_inner_broadcast", 1) and bias.tensor.rank != data.tensor.rank:
        raise Skip("BiasSoftmax that broadcasts inner axes")
    axes = tuple(range(axis, node.rank()))
    return node.emit("softmax", node.emit("add", data, bias), axes=axes)


# ------------------------------------------------------------------ normalization


def _skip_norm(node: Context, *, simplified: bool) -> tuple[Value | None, ...]:
    """The sum of two inputs (and a bias), normalized over the last axis; output 3 is the sum."""
    total = node.emit("add", node[0], node[1])
    bias = node.get(3 if simplified else 4)
    if bias is not None:
        total = node.emit("add", total, bias)
    axis, epsilon = node.rank() - 1, node.attr("epsilon", 1e-12)
    if simplified:
        out = node.emit("rms_norm", total, node[2], axis=axis, epsilon=epsilon)
        return (out, None, None, total)
    outputs = 3 if node.wants(1) or node.wants(2) else 1
    made = node.emit_many(
        "layer_norm", total, node[2], node.get(3), outputs=outputs, axis=axis, epsilon=epsilon
    )
    return (*made, *[None] * (3 - outputs), total)


def _embed_layer_norm(node: Context, *, quantized: bool = False) -> tuple[Value | None, ...]:
    """Embeddings of words, positions and segments, added and normalized; and the lengths of texts.

    If quantized, inputs 2 to 6 have their scales at 8 to 12 and their zero points at 13 to 17.
    """

    def real(at: int, rows: Value | None = None) -> Value:
        table = node[at] if rows is None else rows
        if not quantized:
            return table
        return node.emit("dequantize", table, node[at + 6], node.get(at + 11), to=F32)

    def looked_up(at: int, ids: Value) -> Value:
        return real(at, node.emit("gather", node[at], ids, axis=0))

    ids = node[0]
    batch, length = dims(node, ids)
    total = looked_up(2, ids)
    if node.has(8) and not quantized:
        places = looked_up(3, node[8])
    else:
        places = real(3, part(node, node[3], 0, length, 0))
    total = node.emit("add", total, places)
    if node.has(1):
        total = node.emit("add", total, looked_up(4, node[1]))
    epsilon = node.attr("epsilon", 1e-12)
    out = node.emit("layer_norm", total, real(5), real(6), axis=2, epsilon=epsilon)
    if node.has(7):
        mask = node.emit("cast", node[7], to=I32)
        index = node.emit("reduce_sum", mask, axes=(1,), keepdims=False)
    else:
        index = node.emit("expand", node.constant(0), shape=(batch,))
        index = node.emit("cast", index, to=I32)
    return (out, index, total)


# ------------------------------------------------------------------ int8


def _real(node: Context, at: int) -> Value:
    """Dequantize an input, followed by its scale and its zero point."""
    return node.emit("dequantize", node[at], node[at + 1], node.get(at + 2), to=F32)


def _quantized(node: Context, real: Value, at: int, like: int = 0) -> Value:
    """Quantize a value by the scale and zero point at `at`, to the type of input `like`."""
    to = node[like].tensor.dtype
    return node.emit("quantize", real, node[at], node.get(at + 1), to=to)


def _qlinear_binary(op: str) -> Rule:
    def rule(node: Context) -> Value:
        return _quantized(node, node.emit(op, _real(node, 0), _real(node, 3)), 6)

    return rule


def _qlinear_unary(fn: Callable[[Context, Value], Value]) -> Rule:
    return lambda node: _quantized(node, fn(node, _real(node, 0)), 3)


def _softmax(node: Context, x: Value) -> Value:
    axis = node.attr("axis", -1) % node.rank()
    all_behind = node.attr("opset", 13) < 13
    axes = tuple(range(axis, node.rank())) if all_behind else (axis,)
    return node.emit("softmax", x, axes=axes)


def _global_mean(node: Context, x: Value) -> Value:
    first = 1 if node.attr("channels_last", 0) else 2
    last = node.rank() - (1 if node.attr("channels_last", 0) else 0)
    return node.emit("reduce_mean", x, axes=tuple(range(first, last)), keepdims=True)


def _mean(node: Context, x: Value) -> Value:
    axes = node.attr("axes", tuple(range(node.rank())))
    return node.emit("reduce_mean", x, axes=axes, keepdims=bool(node.attr("keepdims", 1)))


def _avg_pool(node: Context, x: Value) -> Value:
    if node.attr("channels_last", 0):
        raise Skip("QLinearAveragePool with channels last")
    return avg_pool(node, x)


def _qlinear_concat(node: Context) -> Value:
    parts = [_real(node, at) for at in range(2, len(node.inputs), 3)]
    axis = node.attr("axis") % node.rank(2)
    joined = node.emit("concat", *parts, axis=axis)
    return _quantized(node, joined, 0, like=1)


def _qlinear_where(node: Context) -> Value:
    chosen = node.emit("where", node[0], _real(node, 1), _real(node, 4))
    return _quantized(node, chosen, 7, like=1)


def scaled_product(
    node: Context,
    factors: tuple[Value, Value],
    scales: tuple[Value, Value],
    zeros: tuple[Value | None, Value | None],
    bias: Value | None = None,
) -> Value:
    """The dequantized GEMM of quantized matrices, plus a bias."""
    total = node.emit("matmul_integer", *factors, *zeros)
    scale = node.emit("mul", *scales)
    real = node.emit("mul", node.emit("cast", total, to=scale.tensor.dtype), scale)
    return real if bias is None else node.emit("add", real, bias)


def _matmul_integer_to_float(node: Context) -> Value:
    zeros = (by_row(node, node.get(4)), node.get(5))
    scales = (by_row(node, node[2]), node[3])
    assert scales[0] is not None
    return scaled_product(node, (node[0], node[1]), (scales[0], node[3]), zeros, node.get(6))


def _dynamic_quantize_matmul(node: Context) -> Value:
    a, scale, zero = dynamic_quantize(node, node[0])
    zeros = (zero, node.get(3))
    return scaled_product(node, (a, node[1]), (scale, node[2]), zeros, node.get(4))


class _QuantizedWeights:
    """Transposed 8-bit weights: [directions, k, gates]. Their scales and zero points are per
    direction, or per direction and column."""

    def projected(self, node: Context, x: Value, at: int) -> Value:
        scale, zero = (item(node, node[place], at) for place in (8, 9))
        quantized, x_scale, x_zero = dynamic_quantize(node, x)
        # Flatten time steps and batch to rows of one GEMM: a dynamic one may be of length one.
        *rows, k = dims(node, quantized)
        flat, w = reshape(node, quantized, sym.mul(*rows), k), item(node, node[1], at)
        made = scaled_product(node, (flat, w), (x_scale, scale), (x_zero, zero))
        return reshape(node, made, *rows, dims(node, made)[-1])

    def recurrent(self, node: Context, at: int) -> tuple[Value | None, ...]:
        """Signed bytes, and of their rows the scales, the sums less zero points, and the zero
        points."""
        r = _signed(node, transpose(node, item(node, node[2], at), 1, 0))
        rows = (dims(node, r)[0],)
        scale = node.emit("expand", item(node, node[10], at), shape=rows)
        zero = node.emit("expand", _signed(node, item(node, node[11], at)), shape=rows)
        less = node.emit(
            "sub", *(node.emit("cast", v, to=I32) for v in (r, node.unsqueeze(zero, 1)))
        )
        return r, scale, node.emit("reduce_sum", less, axes=(1,), keepdims=False), zero


def _signed(node: Context, value: Value) -> Value:
    """Convert unsigned bytes to signed ones by subtracting 128."""
    if value.tensor.dtype is I8:
        return value
    return node.emit("cast", node.emit("sub", node.emit("cast", value, to=I16), 128), to=I8)


def _qgemm(node: Context) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero = (node[at] for at in range(6))
    a = transpose(node, a, 1, 0) if node.attr("transA", 0) else a
    b = transpose(node, b, 1, 0) if node.attr("transB", 0) else b
    total = node.emit("matmul_integer", a, b, a_zero, b_zero)
    if node.has(6):
        total = node.emit("add", total, node[6])
    scale = node.emit("mul", node.emit("mul", a_scale, b_scale), node.attr("alpha", 1.0))
    real = node.emit("mul", node.emit("cast", total, to=F32), scale)
    if not node.has(7):
        return real
    return node.emit("quantize", real, node[7], node[8], to=node[8].tensor.dtype)


ROWS_OF_BYTES = 4  # accuracy level at which rows are quantized too


def _matmul_n_bits(node: Context) -> Value:
    """GEMM with sub-byte weights, packed to bytes in blocks along k."""
    bits, block = node.attr("bits", 4), node.attr("block_size")
    rows, columns = node.attr("N"), node.attr("K")
    if bits not in (2, 4, 8):
        raise Skip(f"MatMulNBits of {bits} bits")
    blocks = -(-columns // block)
    scales = reshape(node, node.emit("cast", node[2], to=F32), rows, blocks)
    weights = reshape(node, unpacked(node, node[1], bits), rows, blocks * block)
    zero, groups = node.get(3), node.get(4)
    if zero is None:
        zero = node.like(weights, 1 << (bits - 1))
    elif zero.tensor.dtype is weights.tensor.dtype:
        zero = part(node, reshape(node, unpacked(node, zero, bits), rows, -1), 0, blocks, 1)
    else:  # half-quadratic quantization: a zero point need not be an integer
        zero = reshape(node, node.emit("cast", zero, to=F32), rows, blocks)
    x = node.emit("cast", node[0], to=F32)
    missing = blocks * block - columns
    if missing:  # pad the last block of a row, like that of the weights
        x = node.emit("pad", x, pads=(0, missing), axes=(node.rank() - 1,))
    if groups is not None:
        real = _in_groups(node, weights, scales, zero, groups)
        out = node.emit("matmul", x, transpose(node, real, 1, 0))
    elif zero.tensor.dtype is F32:
        out = _packed_product(node, x, weights, scales, zero, bits)
    else:
        if node.attr("accuracy_level", 0) == ROWS_OF_BYTES:
            x = _rounded_blocks(node, x, block)
        real = node.emit("dequantize", weights, scales, zero, to=F32, axis=1, block_size=block)
        out = node.emit("matmul", x, transpose(node, real, 1, 0))
    out = out if node.get(5) is None else node.emit("add", out, node.emit("cast", node[5], to=F32))
    return node.emit("cast", out, to=node[0].tensor.dtype)


def _packed_product(
    node: Context, x: Value, weights: Value, scales: Value, zero: Value, bits: int
) -> Value:
    """x times the transpose of (weights - zero) * scales, blocks along k, with real zero points."""
    rows, blocks = dims(node, scales)
    middle, per_byte = 1 << (bits - 1), 1 if bits == 8 else 2
    packed = transpose(node, reshape(node, weights, rows, blocks, node.attr("block_size")), 1, 2, 0)
    if per_byte == 2:
        half = node.attr("block_size") // 2
        low, high = part(node, packed, 0, half, 1), part(node, packed, half, 2 * half, 1)
        packed = node.emit("bit_or", low, node.emit("shift_left", high, 4))
    offset = node.emit("mul", node.emit("sub", node.like(zero, middle), zero), scales)
    scales, offset = (transpose(node, value, 1, 0) for value in (scales, offset))
    inputs = (x, packed, scales, offset)
    return node.emit("matmul_packed", *inputs, per_byte=per_byte, zero=middle)


def _in_groups(node: Context, weights: Value, scales: Value, zero: Value, groups: Value) -> Value:
    """Dequantize weights whose groups are not consecutive: each position along k names its own."""
    missing = node.attr("block_size") * dims(node, scales)[1] - node.attr("K")
    if missing and dims(node, groups) == (node.attr("K"),):
        groups = node.emit("pad", groups, pads=(0, missing), axes=(0,))
    factors = node.emit("gather", scales, groups, axis=1)
    if zero.tensor.rank:
        zero = node.emit("gather", zero, groups, axis=1)
    less = node.emit("sub", *(node.emit("cast", value, to=F32) for value in (weights, zero)))
    return node.emit("mul", less, factors)


def _rounded_blocks(node: Context, x: Value, block: int) -> Value:
    """Quantize blocks along the last axis of x to signed bytes, each by its own range."""
    *outer, last = dims(node, x)
    apart = reshape(node, x, *outer, last // block, block)
    most = node.emit("reduce_max", node.emit("abs", apart), axes=(len(outer) + 1,), keepdims=False)
    scale = node.emit("div", most, 127.0)
    nothing = node.emit("equal", most, 0.0)  # all zeros
    scale = node.emit("where", nothing, node.like(scale, 1.0), scale)
    blocks = {"axis": len(outer), "block_size": block}
    quantized = node.emit("quantize", x, scale, to=I8, reciprocal=True, **blocks)
    return node.emit("dequantize", quantized, scale, to=F32, **blocks)


def unpacked(node: Context, packed: Value, bits: int) -> Value:
    """Unpack the values in each byte, lowest bits first, along a new last axis."""
    if bits == 8:
        return packed
    mask = (1 << bits) - 1
    pieces = [
        node.emit("bit_and", node.emit("shift_right", packed, shift), mask)
        for shift in range(0, 8, bits)
    ]
    last = len(dims(node, packed))
    return node.emit("concat", *(node.unsqueeze(p, last) for p in pieces), axis=last)


def _rms_norm(node: Context) -> Value:
    axis = node.attr("axis", -1) % node.rank()
    return node.emit("rms_norm", node[0], node[1], axis=axis, epsilon=node.attr("epsilon", 1e-5))


RULES: dict[str, Rule] = {
    **QUANTIZE,
    "Gelu": lambda node: gelu(node, node[0]),
    "FastGelu": lambda node: _bias_gelu(node, tanh=True),
    "BiasGelu": lambda node: _bias_gelu(node, tanh=False),
    "QuickGelu": lambda node: swish(node, node[0], node.attr("alpha", 1.702)),
    "BiasSplitGelu": _bias_split_gelu,
    "BiasSoftmax": _bias_softmax,
    "BiasAdd": lambda node: node.emit("add", node.emit("add", node[0], node[1]), node[2]),
    "FusedConv": _fused_conv,
    "FusedGemm": lambda node: activated(node, gemm(node), _numbers(node)),
    "FusedMatMul": _fused_matmul,
    "FusedMatMulActivation": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "SimplifiedLayerNormalization": _rms_norm,
    "SkipLayerNormalization": lambda node: _skip_norm(node, simplified=False),
    "SkipSimplifiedLayerNormalization": lambda node: _skip_norm(node, simplified=True),
    "EmbedLayerNormalization": _embed_layer_norm,
    "QEmbedLayerNormalization": lambda node: _embed_layer_norm(node, quantized=True),
    "QLinearAdd": _qlinear_binary("add"),
    "QLinearMul": _qlinear_binary("mul"),
    "QLinearSigmoid": _qlinear_unary(lambda node, x: node.emit("sigmoid", x)),
    "QLinearLeakyRelu": _qlinear_unary(
        lambda node, x: leaky_relu(node, x, node.attr("alpha", 0.01))
    ),
    "QLinearSoftmax": _qlinear_unary(_softmax),
    "QLinearGlobalAveragePool": _qlinear_unary(_global_mean),
    "QLinearAveragePool": _qlinear_unary(_avg_pool),
    "QLinearReduceMean": _qlinear_unary(_mean),
    "QLinearConcat": _qlinear_concat,
    "QLinearWhere": _qlinear_where,
    "QGemm": _qgemm,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "DynamicQuantizeLSTM": lambda node: layer(node, _QuantizedWeights(), "quantized_lstm"),
    "MatMulNBits": _matmul_n_bits,
}
