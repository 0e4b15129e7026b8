"""Other operators of ONNX Runtime (com.microsoft), some of which ONNX has adopted since."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright import sym
from tilewright.base.dtype import F32, I32
from tilewright.frontends.onnx.rules.activation import gelu
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.conv import RULES as CONVOLUTIONS
from tilewright.frontends.onnx.rules.image import RULES as IMAGES
from tilewright.frontends.onnx.rules.indexing import RULES as INDEXING
from tilewright.frontends.onnx.rules.microsoft import unpacked
from tilewright.frontends.onnx.rules.microsoft_images import channels_first, channels_last
from tilewright.frontends.onnx.rules.shape import RULES as SHAPES
from tilewright.frontends.onnx.rules.tensors import dims, item, part, reshape, stack, transpose
from tilewright.graph import Value

OPSET = 17  # of the ONNX rules that are reused


def _as_in_onnx(rule: Rule) -> Rule:
    return lambda node: rule(replace(node, opset=OPSET))


def _expand_dims(node: Context) -> Value:
    axes = node.ints(1)
    if axes is None:
        raise Skip("ExpandDims along a dynamic axis")
    return node.unsqueeze(node[0], *axes)


def _qlinear_conv(node: Context) -> Value:
    rule = CONVOLUTIONS["QLinearConv"]
    if not node.attr("channels_last", 0):
        out = rule(node)
        assert isinstance(out, Value)
        return out
    out = rule(replace(node, inputs=[channels_first(node, node[0]), *node.inputs[1:]]))
    assert isinstance(out, Value)
    return channels_last(node, out)


def _distances(node: Context) -> Value:
    """The distances between the rows of two matrices."""
    metric = node.attr("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise Skip(f"CDist by {metric}")
    apart = node.emit("sub", node.unsqueeze(node[0], 1), node.unsqueeze(node[1], 0))
    total = node.emit("reduce_sum", node.emit("mul", apart, apart), axes=(2,), keepdims=False)
    return total if metric == "sqeuclidean" else node.emit("sqrt", total)


def _complex_mul(node: Context, *, conjugate: bool) -> Value:
    """Multiply complex numbers stored as pairs along the last axis; optionally by the conjugate."""
    (a, b), (c, d) = (
        [item(node, node[at], which, node.rank(at) - 1) for which in (0, 1)] for at in (0, 1)
    )
    if conjugate:
        d = node.emit("neg", d)
    ac, bd, ad, bc = (node.emit("mul", *pair) for pair in ((a, c), (b, d), (a, d), (b, c)))
    real, imaginary = node.emit("sub", ac, bd), node.emit("add", ad, bc)
    return stack(node, [real, imaginary], len(dims(node, real)))


def _gemm_fast_gelu(node: Context) -> Value:
    product = node.emit("matmul", node[0], node[1])
    product = node.emit("add", product, node[2]) if node.has(2) else product
    return gelu(node, product, tanh=True)


def _gather_block_quantized(node: Context) -> Value:
    """Rows of a block-quantized table, dequantized."""
    table, ids, scales, zero = node[0], node[1], node[2], node.get(3)
    rank, bits = node.rank(), node.attr("bits", 4)
    along, across = (
        node.axis(node.attr(f"{name}_axis", default), rank)
        for name, default in (("gather", 0), ("quantize", 1))
    )
    of = table.tensor.dtype
    if along >= across or across != rank - 1 or bits not in (4, 8) or not of.is_int:
        raise Skip("GatherBlockQuantized of a table that is not quantized along its last axis")

    def rows(value: Value, length: int | None) -> Value:
        picked = node.emit("gather", value, ids, axis=along)
        if of.bits < 8 or length is None or bits == 8:
            return picked
        outer = dims(node, picked)[:-1]
        return part(node, reshape(node, unpacked(node, picked, bits), *outer, -1), 0, length, -1)

    blocks, bytes_each = dims(node, scales)[-1], dims(node, table)[-1]
    if not isinstance(blocks, int) or not isinstance(bytes_each, int):
        raise Skip("GatherBlockQuantized of a table of unknown size")
    width = bytes_each * (8 // bits) if of.bits == 8 else bytes_each
    numbers, factors = rows(table, width), rows(scales, None)
    last = len(dims(node, numbers)) - 1
    if zero is not None:
        zero = rows(zero, blocks)
    elif of.bits == 8:
        middle = node.like(numbers, 1 << (bits - 1))
        zero = node.emit("expand", middle, shape=dims(node, factors))
    block = node.attr("block_size", 128)
    to = scales.tensor.dtype
    return node.emit("dequantize", numbers, factors, zero, to=to, axis=last, block_size=block)


# The numbers that four bits stand for, in units of the largest magnitude of their block: positive
# floats of three bits (the fourth is a sign), and quantiles of the normal distribution (NF4).
FLOATS4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
QUANTILES4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


def _matmul_bnb4(node: Context) -> Value:
    """GEMM with weights [n, k] of four bits that index a table, scaled in blocks of all weights."""
    k, n, block = (node.attr(name) for name in ("K", "N", "block_size"))
    kinds = ((*FLOATS4, *(-value for value in FLOATS4)), QUANTILES4)
    table = node.constant(np.array(kinds[node.attr("quant_type")], np.float32))
    halves = node.emit("shift_right", node[1], 4), node.emit("bit_and", node[1], 15)
    codes = reshape(node, stack(node, halves, 1), dims(node, node[1])[0] * 2)
    blocks = -(-n * k // block)
    weights = node.emit("gather", table, part(node, codes, 0, n * k, 0), axis=0)
    weights = node.emit("pad", weights, pads=(0, blocks * block - n * k), axes=(0,))
    scales = node.unsqueeze(node.emit("cast", node[2], to=F32), 1)
    weights = node.emit("mul", reshape(node, weights, blocks, block), scales)
    weights = reshape(node, part(node, reshape(node, weights, -1), 0, n * k, 0), n, k)
    if node.attr("transB", 1):
        weights = transpose(node, weights, 1, 0)
    out = node.emit("matmul", node.emit("cast", node[0], to=F32), weights)
    return node.emit("cast", out, to=node[0].tensor.dtype)


def _matmul_integer16(node: Context) -> Value:
    return node.emit("matmul", *(node.cast(node[at], I32) for at in (0, 1)))


def _inverse(node: Context) -> Value:
    """The columns that an LU factorization takes to those of the identity."""
    x, n = node[0], dims(node, node[0])[-1]
    packed, pivots, _ = node.emit_many("lu", x, outputs=3)
    order = node.emit("row_order", pivots, rows=n)
    rows = node.unsqueeze(order, len(dims(node, order)))
    identity = node.cast(node.emit("equal", rows, node.iota(n)), x.tensor.dtype)
    half = node.emit("triangular_solve", packed, identity, lower=True, unit=True)
    return node.emit("triangular_solve", packed, half, lower=False)


def _unfold(node: Context) -> Value:
    """Windows along an axis, their elements along a new last axis."""
    rank, length, step = node.rank(), node.attr("size"), node.attr("step", 1)
    axis = node.axis(node.attr("dim", -1), rank)
    count = sym.add(sym.floordiv(sym.sub(node.dims()[axis], length), step), 1)
    starts = node.emit("mul", node.iota(count), step)
    places = node.emit("add", node.unsqueeze(starts, 1), node.iota(length))
    windows = node.emit("gather", node[0], places, axis=axis)  # [..., windows, elements, ...]
    perm = [at for at in range(rank + 1) if at != axis + 1]
    return transpose(node, windows, *perm, axis + 1)


def _tokenizer(node: Context) -> Value:
    """With an empty separator, or a pattern that matches any character, tokens are characters."""
    separators, pattern = tuple(node.attr("separators", ())), node.attr("tokenexp", "")
    if separators == ("",) or (not separators and pattern == "."):
        separators, pattern = (), "(?s:.)"
    if not separators and not pattern:
        raise Skip("Tokenizer without separators or a pattern")
    return node.emit(
        "tokenize",
        node[0],
        separators=separators,
        pattern="" if separators else pattern,
        least=node.attr("mincharnum", 1),
        pad=node.attr("pad_value", ""),
        mark=bool(node.attr("mark", 0)),
    )


RULES: dict[str, Rule] = {
    "Trilu": _as_in_onnx(SHAPES["Trilu"]),
    "Pad": _as_in_onnx(SHAPES["Pad"]),
    "Range": _as_in_onnx(SHAPES["Range"]),
    "GatherND": _as_in_onnx(INDEXING["GatherND"]),
    "GridSample": _as_in_onnx(IMAGES["GridSample"]),
    "TorchEmbedding": lambda node: node.emit("gather", node[0], node[1], axis=0),
    "ExpandDims": _expand_dims,
    "QLinearConv": _qlinear_conv,
    "CDist": _distances,
    "ComplexMul": lambda node: _complex_mul(node, conjugate=False),
    "ComplexMulConj": lambda node: _complex_mul(node, conjugate=True),
    "GemmFastGelu": _gemm_fast_gelu,
    "GatherBlockQuantized": _gather_block_quantized,
    "MatMulBnb4": _matmul_bnb4,
    "MatMulInteger16": _matmul_integer16,
    "Inverse": _inverse,
    "UnfoldTensor": _unfold,
    "Tokenizer": _tokenizer,
}
