"""Models of one kernel or a few, of the sizes and settings that layers of real models have.

Random graphs are wide but small: what register tiles, blocks of caches, tails, packed weights and
variants for few rows do shows at dozens of channels and odd extents alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_random.pick import fill
from onnx_random.products import weights, window
from onnx_random.quantize import point, scale
from onnx_random.values import CHOICES, Dim, Scope, Shape, Val, fixed

CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 66, 96, 130)
PRODUCTS = 20_000_000  # of one kernel: what the reference computes in a moment
SMALL_BYTES = 9  # above weights of bytes: their sums are exact in f32

Made = Val | None  # None: the settings drawn fit nothing


def tensor(scope: Scope, shape: Shape, dtype: str = "float32") -> Val:
    return scope.input(dtype, shape, fill(scope, dtype))


def extent(scope: Scope, most: int) -> int:
    """Small ones as often as large ones."""
    return round(math.exp(scope.rng.uniform(0, math.log(most + 0.49))))


def dim(scope: Scope, most: int, name: str = "") -> Dim:
    """A number, or in some models a name with an extent for each choice."""
    if name and scope.rng.random() < 0.35:
        if name not in scope.names:
            extents = tuple(extent(scope, most) for _ in range(CHOICES))
            if len(set(extents)) == 1 or extents in scope.names.values():
                return fixed(extents[0])
            scope.names[name] = extents
        return scope.names[name]
    return fixed(extent(scope, most))


def most_of(*dims: Dim) -> int:
    return max(math.prod(each) for each in zip(*dims, strict=True))


# ------------------------------------------------------------------------------------ windows


def window_settings(scope: Scope, axes: int) -> tuple[list[int], list[int], list[int], list[int]]:
    rng = scope.rng
    kernel = [rng.choice([1, 2, 3, 3, 3, 4, 5, 7])] * axes
    if rng.random() < 0.3:
        kernel = [rng.choice([1, 2, 3, 5]) for _ in range(axes)]
    strides = [rng.choice([1, 1, 1, 2, 2, 3])] * axes
    if rng.random() < 0.2:
        strides = [rng.choice([1, 2, 3]) for _ in range(axes)]
    dilations = [rng.choice([1, 1, 1, 1, 2, 3])] * axes
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    pads = [each // 2 for each in (*reach, *reach)]
    if rng.random() < 0.5:
        pads = [rng.randint(0, each) for each in (*reach, *reach)]
    return kernel, strides, dilations, pads


def windows(dims: Shape, settings: Any) -> Shape:
    kernel, strides, dilations, pads = settings
    axes = range(len(dims))
    return tuple(
        tuple(
            window(
                n, kernel[a], strides[a], dilations[a], pads[a] + pads[a + len(dims)], ceil=False
            )
            for n in dims[a]
        )
        for a in axes
    )


def picture(scope: Scope, channels: int, axes: int, dtype: str = "float32") -> Val:
    spatial = [dim(scope, {1: 120, 2: 34, 3: 9}[axes], name) for name in "hwd"[:axes]]
    return tensor(scope, (dim(scope, 3, "b"), fixed(channels), *spatial), dtype)


def grouping(scope: Scope) -> tuple[int, int, int]:
    """Groups, channels in and out of each."""
    rng = scope.rng
    way = rng.choice(["one", "one", "one", "few", "depthwise"])
    if way == "one":
        return 1, rng.choice(CHANNELS), rng.choice(CHANNELS)
    if way == "few":
        return rng.choice([2, 3, 4, 8]), rng.choice(CHANNELS[:11]), rng.choice(CHANNELS[:11])
    return rng.choice(CHANNELS[3:]), 1, rng.choice([1, 1, 1, 2, 3])


def conv(scope: Scope) -> Made:
    axes = scope.rng.choice([1, 2, 2, 2, 2, 3])
    groups, inward, outward = grouping(scope)
    x = picture(scope, groups * inward, axes)
    for _ in range(scope.rng.choice([1, 1, 2])):
        made = convolved(scope, x, axes, groups, inward, outward)
        if made is None:
            return None
        x = activated(scope, made, residual=True)
        groups, inward, outward = 1, groups * outward, scope.rng.choice(CHANNELS)
    return x


def convolved(scope: Scope, x: Val, axes: int, groups: int, inward: int, outward: int) -> Made:
    kernel, strides, dilations, pads = settings = window_settings(scope, axes)
    spatial, terms = windows(x.shape[2:], settings), inward * math.prod(kernel)
    if any(min(each) < 1 for each in spatial):
        return None
    if most_of(x.shape[0], *spatial) * terms * groups * outward > PRODUCTS:
        return None
    w = weights(scope, "float32", (groups * outward, inward, *kernel))
    inputs = [x, w]
    if scope.rng.random() < 0.6:
        inputs.append(weights(scope, "float32", (groups * outward,)))
    shape = (x.shape[0], fixed(groups * outward), *spatial)
    made = scope.like(x, shape=shape, terms=max(x.terms, terms))
    scope.add("Conv", inputs, [made], group=groups, strides=strides, dilations=dilations, pads=pads)
    return made


def conv_transpose(scope: Scope) -> Made:
    axes = scope.rng.choice([1, 2, 2])
    groups, inward, outward = grouping(scope)
    x = picture(scope, groups * inward, axes)
    kernel, strides, dilations, pads = window_settings(scope, axes)
    spatial = tuple(
        tuple(
            strides[a] * (n - 1) + dilations[a] * (kernel[a] - 1) + 1 - pads[a] - pads[a + axes]
            for n in x.shape[2 + a]
        )
        for a in range(axes)
    )
    terms = inward * math.prod(kernel)
    if any(min(each) < 1 for each in spatial):
        return None
    if most_of(x.shape[0], *spatial) * terms * groups * outward > PRODUCTS:
        return None
    w = weights(scope, "float32", (groups * inward, outward, *kernel))
    made = scope.like(x, shape=(x.shape[0], fixed(groups * outward), *spatial), terms=terms)
    scope.add(
        "ConvTranspose", [x, w], [made], group=groups, strides=strides, dilations=dilations,
        pads=pads,
    )  # fmt: skip
    return activated(scope, made)


def pool(scope: Scope) -> Made:
    axes = scope.rng.choice([1, 2, 2, 2, 3])
    x = picture(scope, scope.rng.choice(CHANNELS), axes)
    kernel, strides, dilations, pads = window_settings(scope, axes)
    op = scope.rng.choice(["MaxPool", "AveragePool"])
    if op == "AveragePool":
        dilations = [1] * axes
    pads = [min(p, (k - 1) // 2) for p, k in zip(pads, (*kernel, *kernel), strict=True)]
    spatial = windows(x.shape[2:], (kernel, strides, dilations, pads))
    if any(min(each) < 1 for each in spatial) or x.count > 300_000:
        return None
    keywords: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if op == "MaxPool":
        keywords["dilations"] = dilations
    else:
        keywords["count_include_pad"] = scope.rng.randint(0, 1)
    made = scope.like(x, shape=(*x.shape[:2], *spatial), terms=math.prod(kernel))
    scope.add(op, [x], [made], **keywords)
    return activated(scope, made)


# ------------------------------------------------------------------------------------ products


def matmul(scope: Scope) -> Made:
    rng = scope.rng
    m, k, n = dim(scope, 150, "m"), fixed(extent(scope, 300)), fixed(extent(scope, 300))
    batch = (dim(scope, 4, "b"),) if rng.random() < 0.4 else ()
    if most_of(*batch, m, k, n) > PRODUCTS:
        return None
    x = tensor(scope, (*batch, m, k))
    way = rng.choice(["weights", "weights", "operand", "transposed", "gemm"])
    shape = (*batch, m, n)
    made = scope.like(x, shape=shape, terms=k[0])
    if way == "weights":
        scope.add("MatMul", [x, weights(scope, "float32", (k[0], n[0]))], [made])
    elif way == "operand":
        scope.add("MatMul", [x, tensor(scope, (*batch, k, n))], [made])
    elif way == "transposed":
        y = tensor(scope, (*batch, n, k))
        turned = scope.like(y, shape=(*batch, k, n))
        order = [*range(len(batch)), len(batch) + 1, len(batch)]
        scope.add("Transpose", [y], [turned], perm=order)
        scope.add("MatMul", [x, turned], [made])
    elif batch:
        return None
    else:
        turn = rng.randint(0, 1)
        w = weights(scope, "float32", (n[0], k[0]) if turn else (k[0], n[0]))
        scope.add("Gemm", [x, w, weights(scope, "float32", (n[0],))], [made], transB=turn)
    made = activated(scope, made, residual=True)
    return normalized(scope, made) if rng.random() < 0.3 else made


def attention(scope: Scope) -> Made:
    """Heads of queries and keys, from rows of features, as exporters write it."""
    rng = scope.rng
    heads, size = rng.choice([1, 2, 3, 4, 6]), rng.choice([4, 8, 15, 16, 24, 32, 64])
    batch, queries = dim(scope, 2, "b"), dim(scope, 70, "t")
    keys = queries if rng.random() < 0.5 else dim(scope, 70, "s")
    if most_of(batch, fixed(heads * size), queries, keys) > PRODUCTS:
        return None

    def headed(length: Dim, order: list[int]) -> Val:
        rows = tensor(scope, (batch, length, fixed(heads * size)))
        parts = scope.like(rows, shape=(batch, length, fixed(heads), fixed(size)))
        scope.add("Reshape", [rows, scope.ints([0, 0, heads, size])], [parts])
        turned = scope.like(rows, shape=tuple(parts.shape[axis] for axis in order))
        return scope.add("Transpose", [parts], [turned], perm=order)

    q, k, v = headed(queries, [0, 2, 1, 3]), headed(keys, [0, 2, 3, 1]), headed(keys, [0, 2, 1, 3])
    shape = (batch, fixed(heads), queries, keys)
    scores = scope.like(q, shape=shape, terms=size)
    factor = scope.constant(np.float32(size**-0.5))
    if rng.random() < 0.5:
        q = scope.add("Mul", [q, factor], [scope.like(q)])
        scope.add("MatMul", [q, k], [scores])
    else:
        scope.add("MatMul", [q, k], [scores])
        scores = scope.add("Mul", [scores, factor], [scope.like(scores)])
    if rng.random() < 0.5:
        mask = tensor(scope, (batch, fixed(1), rng.choice([fixed(1), queries]), keys))
        scores = scope.add("Add", [scores, mask], [scope.like(scores)])
    weight = scope.add("Softmax", [scores], [scope.like(scores, terms=4 * max(keys))], axis=-1)
    made = scope.like(weight, shape=(batch, fixed(heads), queries, fixed(size)))
    scope.add("MatMul", [weight, v], [made])
    rows = scope.like(made, shape=(batch, queries, fixed(heads), fixed(size)))
    scope.add("Transpose", [made], [rows], perm=[0, 2, 1, 3])
    joined = scope.like(rows, shape=(batch, queries, fixed(heads * size)))
    scope.add("Reshape", [rows, scope.ints([0, 0, heads * size])], [joined])
    w = weights(scope, "float32", (heads * size, heads * size))
    last = scope.like(joined, terms=max(joined.terms, heads * size))
    return activated(scope, scope.add("MatMul", [joined, w], [last]), residual=True)


def recurrent(scope: Scope) -> Made:
    rng = scope.rng
    op, ways = rng.choice(["GRU", "LSTM"]), rng.choice([1, 1, 2])
    gates = {"GRU": 3, "LSTM": 4}[op]
    time, batch = dim(scope, 12, "t"), dim(scope, 5, "b")
    features, hidden = extent(scope, 66), extent(scope, 66)
    x = tensor(scope, (time, batch, fixed(features)))
    random = np.random.default_rng(rng.randrange(1 << 30))

    def small(*shape: int) -> Val:
        return scope.constant(random.integers(-8, 9, shape) / 64, "float32")

    inputs = [x, small(ways, gates * hidden, features), small(ways, gates * hidden, hidden)]
    if rng.random() < 0.6:
        inputs.append(small(ways, 2 * gates * hidden))
    terms = 4 * (features + hidden) * max(time)
    y = scope.like(x, shape=(time, fixed(ways), batch, fixed(hidden)), terms=terms)
    last = scope.like(x, shape=(fixed(ways), batch, fixed(hidden)), terms=terms)
    keywords: dict[str, Any] = {"hidden_size": hidden}
    keywords["direction"] = "bidirectional" if ways == 2 else rng.choice(["forward", "reverse"])
    if op == "GRU":
        keywords["linear_before_reset"] = rng.randint(0, 1)
    return scope.add(op, inputs, [y, last], **keywords)


# ------------------------------------------------------------------------------------ rows


def rows(scope: Scope) -> Made:
    x = tensor(scope, (dim(scope, 40, "b"), dim(scope, 40, "t"), fixed(extent(scope, 700))))
    if scope.rng.random() < 0.5:
        x = activated(scope, x, residual=True)
    return normalized(scope, x)


def normalized(scope: Scope, x: Val) -> Val:
    """Something that reduces one axis, mostly the last."""
    rng = scope.rng
    last, axis = x.shape[-1][0], x.rank - 1 if rng.random() < 0.7 else rng.randrange(x.rank)
    made = scope.like(x, terms=max(x.terms, 4 * max(x.shape[axis])))
    kinds = ["Softmax", "LogSoftmax", "ReduceMean", "ReduceMax", "ReduceL2", "CumSum", "TopK"]
    op = rng.choice([*kinds, *(["LayerNormalization"] * 4 if scope.opset >= 17 else [])])
    if op == "LayerNormalization":
        parts = [weights(scope, "float32", (last,)) for _ in range(2)]
        return scope.add(op, [x, *parts], [made], axis=-1, epsilon=1e-3)
    if op in ("Softmax", "LogSoftmax"):
        return scope.add(op, [x], [made], axis=axis)
    if op == "CumSum":
        made = scope.like(x, terms=max(x.terms, 4 * max(x.shape[axis])))
        return scope.add(op, [x, scope.constant(np.int64(axis))], [made])
    if op == "TopK":
        k = rng.randint(1, min(x.shape[axis]))
        shape = tuple(fixed(k) if at == axis else d for at, d in enumerate(x.shape))
        values, places = scope.like(x, shape=shape), scope.fresh()
        scope.add(op, [x, scope.ints([k])], [values, Val(places, "int64", shape)], axis=axis)
        scope.values.pop()  # places of equal values are no one's matter
        return values
    centred = scope.like(x)
    shape = tuple(fixed(1) if at == axis else d for at, d in enumerate(x.shape))
    part = scope.like(made, shape=shape)
    if scope.opset >= 18:
        scope.add(op, [x, scope.ints([axis])], [part])
    else:
        scope.add(op, [x], [part], axes=[axis])
    return scope.add("Sub", [x, part], [centred])


def activated(scope: Scope, x: Val, *, residual: bool = False) -> Val:
    """What follows a product, element by element."""
    rng = scope.rng
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        op = rng.choice(["Relu", "Sigmoid", "Tanh", "HardSwish", "Clip", "bias", "add", "silu"])
        made = scope.like(x)
        if op == "HardSwish" and scope.opset < 14:
            continue
        if op == "Clip":
            bounds = [scope.constant(np.float32(each)) for each in (-1, 6)]
            x = scope.add(op, [x, *bounds], [made])
        elif op == "bias":
            x = scope.add("Mul", [x, weights(scope, "float32", (1,) * x.rank)], [made])
        elif op == "add" and residual:
            x = scope.add("Add", [x, tensor(scope, x.shape)], [made]) if declared(scope, x) else x
        elif op == "silu":
            gate = scope.add("Sigmoid", [x], [scope.like(x)])
            x = scope.add("Mul", [x, gate], [made])
        elif op not in ("add", "bias"):
            x = scope.add(op, [x], [made])
    return x


def declared(scope: Scope, x: Val) -> bool:
    """Whether an input may have the shape of a value."""
    return all(len(set(d)) == 1 or d in scope.names.values() for d in x.shape)


# ------------------------------------------------------------------------------------ bytes


def byte_weights(scope: Scope, dtype: str, shape: tuple[int, ...]) -> Val:
    random = np.random.default_rng(scope.rng.randrange(1 << 30))
    low = 0 if dtype == "uint8" else 1 - SMALL_BYTES
    return scope.constant(random.integers(low, SMALL_BYTES, shape), dtype)


def conv_of_bytes(scope: Scope) -> Made:
    rng = scope.rng
    axes = rng.choice([1, 2, 2, 2])
    groups, inward, outward = grouping(scope)
    way = rng.choice(["integer", "linear", "pairs"])
    given = "uint8" if way != "pairs" else rng.choice(["uint8", "int8"])
    x = picture(scope, groups * inward, axes, given)
    kernel, strides, dilations, pads = settings = window_settings(scope, axes)
    spatial, terms = windows(x.shape[2:], settings), inward * math.prod(kernel)
    if any(min(each) < 1 for each in spatial):
        return None
    if most_of(x.shape[0], *spatial) * terms * groups * outward > PRODUCTS:
        return None
    keywords = {"group": groups, "strides": strides, "dilations": dilations, "pads": pads}
    shape, out = (x.shape[0], fixed(groups * outward), *spatial), groups * outward
    if way == "integer":
        w = byte_weights(scope, "uint8", (out, inward, *kernel))
        made = Val(scope.fresh(), "int32", shape)
        zeros = [point(scope, "uint8"), point(scope, "uint8")] if rng.random() < 0.6 else []
        return scope.add("ConvInteger", [x, w, *zeros], [made], **keywords)
    w = byte_weights(scope, "int8", (out, inward, *kernel))
    zero = scope.constant(np.zeros((), np.int8))
    if way == "linear":
        parts = [x, scale(scope), point(scope, given), w, scale(scope), zero]
        made = Val(scope.fresh(), given, shape)
        parts += [scale(scope), point(scope, given)]
        return scope.add("QLinearConv", parts, [made], **keywords)
    a = Val(scope.fresh(), "float32", x.shape)
    scope.add("DequantizeLinear", [x, scale(scope), point(scope, given)], [a])
    b = Val(scope.fresh(), "float32", w.shape)
    scope.add("DequantizeLinear", [w, scale(scope, (out,)), zeros_of(scope, out)], [b], axis=0)
    made = scope.add("Conv", [a, b], [Val(scope.fresh(), "float32", shape)], **keywords)
    if rng.random() < 0.5:
        made = scope.add("Relu", [made], [scope.like(made)])
    q = Val(scope.fresh(), given, shape)
    s, z = scale(scope), point(scope, given)
    scope.add("QuantizeLinear", [made, s, z], [q])
    return scope.add("DequantizeLinear", [q, s, z], [Val(scope.fresh(), "float32", shape)])


def zeros_of(scope: Scope, count: int) -> Val:
    return scope.constant(np.zeros(count, np.int8))


def matmul_of_bytes(scope: Scope) -> Made:
    rng = scope.rng
    m, k, n = dim(scope, 100, "m"), extent(scope, 200), extent(scope, 200)
    batch = (dim(scope, 3, "b"),) if rng.random() < 0.3 else ()
    shape = (*batch, m, fixed(n))
    w = byte_weights(scope, rng.choice(["int8", "uint8"]), (k, n))
    if rng.random() < 0.5:
        x = tensor(scope, (*batch, m, fixed(k)), rng.choice(["uint8", "int8"]))
        zeros = [point(scope, x.dtype), point(scope, w.dtype)] if rng.random() < 0.7 else []
        made = Val(scope.fresh(), "int32", shape)
        return scope.add("MatMulInteger", [x, w, *zeros], [made])
    a = tensor(scope, (*batch, m, fixed(k)), "uint8")
    if w.dtype == "uint8":
        return None
    left = Val(scope.fresh(), "float32", a.shape)
    scope.add("DequantizeLinear", [a, scale(scope), point(scope, "uint8")], [left])
    right = Val(scope.fresh(), "float32", w.shape)
    scope.add("DequantizeLinear", [w, scale(scope, (n,)), zeros_of(scope, n)], [right], axis=1)
    made = scope.add("MatMul", [left, right], [Val(scope.fresh(), "float32", shape)])
    s, z, q = scale(scope), point(scope, "uint8"), Val(scope.fresh(), "uint8", shape)
    return scope.add("QuantizeLinear", [made, s, z], [q])


KERNELS: tuple[tuple[Callable[[Scope], Made], float], ...] = (
    (conv, 8),
    (conv_transpose, 1.5),
    (pool, 2),
    (matmul, 5),
    (attention, 3),
    (recurrent, 1.5),
    (rows, 3),
    (conv_of_bytes, 4),
    (matmul_of_bytes, 2),
)
