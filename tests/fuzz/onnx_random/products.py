"""Products, convolutions, pooling, normalization, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_random.pick import declarable, new, pick, random_dim
from onnx_random.values import Scope, Shape, Val, fixed, is_fixed

COMMON = ("float32", "float64")


def weights(scope: Scope, dtype: str, shape: tuple[int, ...]) -> Val:
    """Numbers in eighths, known beforehand or an input."""
    dims = tuple(fixed(extent) for extent in shape)
    if scope.rng.random() < 0.2:
        return new(scope, dtype, dims)
    rng = np.random.default_rng(scope.rng.randrange(1 << 30))
    return scope.constant(rng.integers(-8, 9, shape) / 8, dtype)


def product_type(scope: Scope, x: Val, shape: Shape, terms: int, weight: float = 8) -> Val:
    bound = x.bound * weight * terms
    exact = not x.is_float
    return scope.like(x, shape=shape, exact=exact, bound=bound, terms=max(x.terms, terms))


def matmul(scope: Scope) -> None:
    x = pick(scope, (*COMMON, "int32", "int64"), 1, 4, bound=1e4)
    inner = x.shape[-1]
    terms = max(1, max(inner))
    way = scope.rng.choice(["weight", "vector", "batched", "same"])
    if way == "vector":
        y = _operand(scope, x.dtype, (inner,))
        if y is not None:
            scope.add("MatMul", [x, y], [product_type(scope, x, x.shape[:-1], terms)])
        return
    if way == "same" and x.rank > 1:
        perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        turned = scope.like(x, shape=tuple(x.shape[axis] for axis in perm))
        scope.add("Transpose", [x], [turned], perm=perm)
        shape = (*x.shape[:-1], x.shape[-2])
        scope.add("MatMul", [x, turned], [product_type(scope, x, shape, terms, x.bound)])
        return
    n = random_dim(scope, least=1)
    batch = x.shape[:-2] if way == "batched" and x.rank > 2 else ()
    y = _operand(scope, x.dtype, (*batch, inner, n))
    if y is None:
        return
    shape = (*x.shape[:-1], n)
    scope.add("MatMul", [x, y], [product_type(scope, x, shape, terms)])


def _operand(scope: Scope, dtype: str, shape: Shape) -> Val | None:
    """A quiet input or constant, where its dimensions have names or numbers."""
    if not all(declarable(scope, dim) for dim in shape):
        return None
    if all(is_fixed(dim) for dim in shape) and dtype in COMMON:
        return weights(scope, dtype, tuple(dim[0] for dim in shape))
    nasty, scope.nasty = scope.nasty, False
    made = new(scope, dtype, shape)
    scope.nasty = nasty
    return made


def gemm(scope: Scope) -> None:
    x = pick(scope, COMMON, 2, 2, bound=1e4, suits=lambda v: is_fixed(v.shape[1]))
    if not is_fixed(x.shape[1]):
        return
    k, n = x.shape[1][0], scope.rng.randint(1, 9)
    turn = scope.rng.random() < 0.5
    w = weights(scope, x.dtype, (n, k) if turn else (k, n))
    inputs: list[Val | str] = [x, w]
    if scope.rng.random() < 0.7:
        inputs.append(weights(scope, x.dtype, scope.rng.choice([(n,), (1, n), (1,), ()])))
    attributes: dict[str, Any] = {"transB": int(turn)}
    if scope.rng.random() < 0.3:
        attributes |= {"alpha": 0.5, "beta": 2.0}
    made = product_type(scope, x, (x.shape[0], fixed(n)), k + 1, 2)
    scope.add("Gemm", inputs, [made], **attributes)


def einsum(scope: Scope) -> None:
    x = pick(scope, COMMON, 2, 2, bound=1e3, least=1)
    a, b = x.shape
    equation, shape, terms = scope.rng.choice(
        [
            ("ij->ji", (b, a), 1),
            ("ij->i", (a,), max(b)),
            ("ij,ij->", (), x.count),
            ("ij,kj->ik", (a, a), max(b)),
            ("ij,ik->jk", (b, b), max(a)),
            ("ij,ij->ij", (a, b), 1),
        ]
    )
    inputs = [x, x] if "," in equation else [x]
    weight = x.bound if len(inputs) == 2 else 1
    made = product_type(scope, x, shape, terms, weight)
    scope.add("Einsum", inputs, [made], equation=equation)


# ------------------------------------------------------------------------------------ windows


def image(scope: Scope, axes: int, among: tuple[str, ...] = ("float32",)) -> Val | None:
    """A picture: batch, channels, and axes of at least four."""

    def suits(v: Val) -> bool:
        has_channels = is_fixed(v.shape[1]) and v.shape[1][0] > 0
        return has_channels and all(min(dim) >= 4 for dim in v.shape[2:])

    found = [
        v
        for v in scope.visible()
        if v.dtype in among and v.rank == axes + 2 and suits(v) and v.bound < 1e4
    ]
    if found and scope.rng.random() < 0.6:
        return scope.rng.choice(found)
    spatial = [random_dim(scope, least=4) for _ in range(axes)]
    channels = fixed(scope.rng.choice([1, 2, 3, 4, 6, 8]))
    nasty, scope.nasty = scope.nasty, False
    made = new(scope, scope.rng.choice(among), (random_dim(scope, least=1), channels, *spatial))
    scope.nasty = nasty
    return made


def window(n: int, kernel: int, stride: int, dilation: int, pads: int, *, ceil: bool) -> int:
    full = n + pads - dilation * (kernel - 1) - 1
    return (math.ceil(full / stride) if ceil else full // stride) + 1


def windows(dims: Shape, settings: Any, *, ceil: bool = False) -> Shape:
    kernel, strides, dilations, pads = settings
    count = len(dims)
    return tuple(
        tuple(
            window(n, kernel[a], strides[a], dilations[a], pads[a] + pads[a + count], ceil=ceil)
            for n in dim
        )
        for a, dim in enumerate(dims)
    )


def settings_of(scope: Scope, axes: int, *, dilated: bool = True) -> Any:
    kernel = [scope.rng.choice([1, 2, 3, 3]) for _ in range(axes)]
    strides = [scope.rng.choice([1, 1, 2]) for _ in range(axes)]
    wide = dilated and all(k < 3 for k in kernel) and scope.rng.random() < 0.4
    dilations = [2 if wide else 1 for _ in range(axes)]
    pads = [scope.rng.randint(0, (k - 1) * dilations[0] // 2) for k in (*kernel, *kernel)]
    return kernel, strides, dilations, pads


def conv(scope: Scope) -> None:
    axes = scope.rng.choice([1, 2, 2, 2, 3])
    x = image(scope, axes)
    if x is None:
        return
    channels = x.shape[1][0]
    groups = scope.rng.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    out = groups * scope.rng.choice([1, 2, 3, 4])
    kernel, strides, dilations, pads = settings = settings_of(scope, axes)
    shape = windows(x.shape[2:], settings)
    if any(min(dim) < 1 for dim in shape):
        return
    w = weights(scope, x.dtype, (out, channels // groups, *kernel))
    inputs: list[Val | str] = [x, w]
    if scope.rng.random() < 0.6:
        inputs.append(weights(scope, x.dtype, (out,)))
    terms = channels // groups * math.prod(kernel)
    made = product_type(scope, x, (x.shape[0], fixed(out), *shape), terms)
    keywords = {"strides": strides, "dilations": dilations, "pads": pads}
    if scope.rng.random() < 0.15:
        keywords = {"auto_pad": scope.rng.choice(["SAME_UPPER", "SAME_LOWER"]), "strides": strides}
        dims = zip(x.shape[2:], strides, strict=True)
        same = tuple(tuple(-(-n // s) for n in dim) for dim, s in dims)
        made = product_type(scope, x, (x.shape[0], fixed(out), *same), terms)
    scope.add("Conv", inputs, [made], group=groups, kernel_shape=kernel, **keywords)


def conv_transpose(scope: Scope) -> None:
    axes = scope.rng.choice([1, 2])
    x = image(scope, axes)
    if x is None or x.count > 600:
        return
    channels = x.shape[1][0]
    groups = scope.rng.choice([g for g in (1, 1, 2) if channels % g == 0])
    out = scope.rng.choice([1, 2, 3])
    kernel, strides, dilations, pads = settings_of(scope, axes)
    extra = [scope.rng.randint(0, s - 1) for s in strides]
    shape = []
    for a, dim in enumerate(x.shape[2:]):
        span = dilations[a] * (kernel[a] - 1) + 1 + extra[a] - pads[a] - pads[a + axes]
        shape.append(tuple(strides[a] * (n - 1) + span for n in dim))
    if any(min(dim) < 1 for dim in shape):
        return
    w = weights(scope, x.dtype, (channels, out, *kernel))
    made = product_type(
        scope, x, (x.shape[0], fixed(out * groups), *shape), channels * math.prod(kernel)
    )
    scope.add(
        "ConvTranspose",
        [x, w],
        [made],
        group=groups,
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=extra,
    )


def pool(scope: Scope) -> None:
    op = scope.rng.choice(["MaxPool", "AveragePool", "MaxPool", "AveragePool", "LpPool"])
    axes = scope.rng.choice([1, 2, 2, 3])
    x = image(scope, axes)
    if x is None:
        return
    dilated = op == "MaxPool"
    kernel, strides, dilations, pads = settings = settings_of(scope, axes, dilated=dilated)
    # Rounded up, a last window may lie outside entirely; what then is differs by version.
    ceil = op == "MaxPool" and scope.rng.random() < 0.3 and all(s == 1 for s in strides)
    shape = windows(x.shape[2:], settings, ceil=ceil)
    if any(min(dim) < 1 for dim in shape):
        return
    keywords: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if op == "MaxPool":
        keywords |= {"dilations": dilations, "ceil_mode": int(ceil)}
    if op == "AveragePool":
        keywords["count_include_pad"] = int(scope.rng.random() < 0.5)
    terms = 1 if op == "MaxPool" else math.prod(kernel)
    made = scope.like(
        x,
        shape=(*x.shape[:2], *shape),
        exact=op == "MaxPool" and x.exact,
        terms=max(x.terms, terms),
        bound=x.bound * terms,
    )
    scope.add(op, [x], [made], **keywords)


def global_pool(scope: Scope) -> None:
    op = scope.rng.choice(["GlobalAveragePool", "GlobalMaxPool"])
    x = image(scope, scope.rng.choice([1, 2, 3]))
    if x is None:
        return
    ones = (fixed(1),) * (x.rank - 2)
    exact = op == "GlobalMaxPool" and x.exact
    made = scope.like(x, shape=(*x.shape[:2], *ones), exact=exact, terms=max(x.terms, x.count))
    scope.add(op, [x], [made])


def resize(scope: Scope) -> None:
    mode = scope.rng.choice(["nearest", "linear", "cubic"])
    x = image(scope, 2)
    if x is None:
        return
    factor = (
        scope.rng.choice([2.0, 0.5, 1.5]) if mode != "nearest" else scope.rng.choice([2.0, 3.0])
    )
    if x.count * factor**2 > 4096:
        return
    scales = scope.constant(np.array([1, 1, factor, factor], np.float32))
    where = scope.rng.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    where = "asymmetric" if mode == "nearest" else where
    shape = tuple(tuple(int(n * factor) for n in dim) for dim in x.shape[2:])
    made = scope.like(x, shape=(*x.shape[:2], *shape), exact=mode == "nearest", terms=16)
    keywords: dict[str, Any] = {"coordinate_transformation_mode": where}
    if mode == "nearest":
        keywords["nearest_mode"] = "floor"
    scope.add("Resize", [x, "", scales], [made], mode=mode, **keywords)


# ------------------------------------------------------------------------------------ norms


def norm(scope: Scope) -> None:
    kinds = ["BatchNormalization", "InstanceNormalization", "LRN"]
    kinds += ["LayerNormalization"] * 3 if scope.opset >= 17 else []
    kinds += ["GroupNormalization"] if scope.opset >= 21 else []
    kinds += ["RMSNormalization"] if scope.opset >= 23 else []
    op = scope.rng.choice(kinds)
    if op in ("LayerNormalization", "RMSNormalization"):
        layer_norm(scope, op)
        return
    x = image(scope, scope.rng.choice([1, 2]) if op != "LRN" else 2)
    if x is None:
        return
    channels = x.shape[1][0]
    made = scope.like(x, exact=False, bound=1e4, terms=max(x.terms, x.count))
    scale, bias = (weights(scope, x.dtype, (channels,)) for _ in range(2))
    if op == "BatchNormalization":
        rng = np.random.default_rng(scope.rng.randrange(1 << 30))
        mean = weights(scope, x.dtype, (channels,))
        var = scope.constant(rng.integers(1, 9, channels) / 4, x.dtype)
        scope.add(op, [x, scale, bias, mean, var], [made])
    elif op == "LRN":
        scope.add(op, [x], [made], size=scope.rng.choice([1, 3, 5]), alpha=0.01, beta=0.75)
    elif op == "GroupNormalization":
        groups = scope.rng.choice([g for g in (1, 2, channels) if channels % g == 0])
        scope.add(op, [x, scale, bias], [made], num_groups=groups)
    else:
        scope.add(op, [x, scale, bias], [made])


def layer_norm(scope: Scope, op: str) -> None:
    x = pick(scope, COMMON, 1, 4, bound=1e4, suits=lambda v: is_fixed(v.shape[-1]), least=1)
    if not is_fixed(x.shape[-1]) or x.shape[-1][0] < 2:
        return
    made = scope.like(x, exact=False, bound=1e4, terms=max(x.terms, x.shape[-1][0]))
    count = 1 if op == "RMSNormalization" else scope.rng.choice([1, 2])
    parts = [weights(scope, x.dtype, (x.shape[-1][0],)) for _ in range(count)]
    scope.add(op, [x, *parts], [made], axis=-1, epsilon=1e-3)


# ------------------------------------------------------------------------------------ recurrent


def recurrent(scope: Scope) -> None:
    op = scope.rng.choice(["RNN", "GRU", "LSTM"])
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    x = pick(scope, ("float32",), 3, 3, bound=64, least=1, suits=lambda v: is_fixed(v.shape[2]))
    if not is_fixed(x.shape[2]):
        return
    time, batch, features = x.shape
    hidden = scope.rng.choice([1, 3, 4, 8])
    ways = scope.rng.choice([1, 1, 2])
    w = weights(scope, x.dtype, (ways, gates * hidden, features[0]))
    r = weights(scope, x.dtype, (ways, gates * hidden, hidden))
    inputs: list[Val | str] = [x, w, r]
    if scope.rng.random() < 0.6:
        inputs.append(weights(scope, x.dtype, (ways, 2 * gates * hidden)))
    terms = (features[0] + hidden) * max(time)
    y = scope.like(
        x, shape=(time, fixed(ways), batch, fixed(hidden)), exact=False, bound=2, terms=terms
    )
    last = scope.like(
        x, shape=(fixed(ways), batch, fixed(hidden)), exact=False, bound=2, terms=terms
    )
    direction = "bidirectional" if ways == 2 else scope.rng.choice(["forward", "reverse"])
    keywords: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        keywords["linear_before_reset"] = int(scope.rng.random() < 0.5)
    scope.add(op, inputs, [y, last], **keywords)


def spectrum(scope: Scope) -> None:
    if scope.opset < 17:
        return
    n = scope.rng.choice([4, 6, 8, 12])
    batch = random_dim(scope, least=1)
    x = new(scope, "float32", (batch, fixed(n), fixed(1)))
    if x.bound > 100:
        return
    sided = scope.rng.random() < 0.5
    out = n // 2 + 1 if sided else n
    made = scope.like(x, shape=(batch, fixed(out), fixed(2)), exact=False, terms=n * 4)
    if scope.opset >= 20:
        inputs: list[Val | str] = [x, "", scope.constant(np.int64(1))]
        scope.add("DFT", inputs, [made], onesided=int(sided))
    else:
        scope.add("DFT", [x], [made], axis=1, onesided=int(sided))


GENERATORS: tuple[tuple[Callable[[Scope], None], float], ...] = (
    (matmul, 4),
    (gemm, 2),
    (einsum, 1),
    (conv, 4),
    (conv_transpose, 1),
    (pool, 2),
    (global_pool, 0.7),
    (resize, 1),
    (norm, 3),
    (recurrent, 1.2),
    (spectrum, 0.4),
)
