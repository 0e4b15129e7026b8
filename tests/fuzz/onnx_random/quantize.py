"""Quantization. Scales are powers of two, so that every rounding is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_random.pick import new, pick, random_dim, random_shape
from onnx_random.products import image, settings_of, windows
from onnx_random.values import Scope, Val, fixed, is_fixed

SMALL = ("int8", "uint8")


def point(scope: Scope, dtype: str, shape: tuple[int, ...] = ()) -> Val:
    rng = np.random.default_rng(scope.rng.randrange(1 << 30))
    low = 0 if dtype.startswith("u") else -5
    return scope.constant(rng.integers(low, 6, shape), dtype)


def scale(scope: Scope, shape: tuple[int, ...] = ()) -> Val:
    rng = np.random.default_rng(scope.rng.randrange(1 << 30))
    return scope.constant(2.0 ** rng.integers(-5, -1, shape), "float32")


def quantize(scope: Scope) -> None:
    x = pick(scope, ("float32",), 0, 4, exact=True, bound=1e4)
    kinds = [*SMALL, *(("int16", "uint16") if scope.opset >= 21 else ())]
    dtype = scope.rng.choice(kinds)
    axes = [at for at, dim in enumerate(x.shape) if is_fixed(dim) and dim[0]]
    shape: tuple[int, ...] = ()
    keywords: dict[str, Any] = {}
    if axes and scope.rng.random() < 0.4:
        axis = scope.rng.choice(axes)
        shape, keywords = (x.shape[axis][0],), {"axis": axis}
    s, z = scale(scope, shape), point(scope, dtype, shape)
    most = 2.0 ** int(dtype.removeprefix("u").removeprefix("int"))
    q = scope.like(x, dtype=dtype, bound=most)
    scope.add("QuantizeLinear", [x, s, z], [q], **keywords)
    if scope.rng.random() < 0.7:
        made = scope.like(q, dtype="float32", bound=most)
        scope.add("DequantizeLinear", [q, s, z], [made], **keywords)


def dequantize(scope: Scope) -> None:
    x = pick(scope, (*SMALL, "int32"), 0, 3, bound=1e4)
    inputs: list[Val | str] = [x, scale(scope)]
    if x.dtype != "int32" and scope.rng.random() < 0.7:
        inputs.append(point(scope, x.dtype))
    scope.add("DequantizeLinear", inputs, [scope.like(x, dtype="float32", bound=x.bound + 8)])


def dynamic(scope: Scope) -> None:
    x = pick(scope, ("float32",), 1, 3, exact=True, bound=100, least=1)
    outputs = [
        Val(scope.fresh(), "uint8", x.shape, exact=False, bound=256),
        Val(scope.fresh(), "float32", (), exact=False),
        Val(scope.fresh(), "uint8", (), exact=False),
    ]
    scope.end("DynamicQuantizeLinear", [x], outputs)


def matmul_integer(scope: Scope) -> None:
    k, n = scope.rng.randint(1, 9), scope.rng.randint(1, 6)
    a = new(
        scope, scope.rng.choice(SMALL), (*random_shape(scope, 0, 1), random_dim(scope), fixed(k))
    )
    b = new(scope, scope.rng.choice(SMALL), (fixed(k), fixed(n)))
    inputs: list[Val | str] = [a, b]
    if scope.rng.random() < 0.6:
        inputs += [point(scope, a.dtype), point(scope, b.dtype)]
    made = Val(scope.fresh(), "int32", (*a.shape[:-1], fixed(n)), bound=1e6)
    scope.add("MatMulInteger", inputs, [made])


def qlinear_matmul(scope: Scope) -> None:
    k, n = scope.rng.randint(1, 9), scope.rng.randint(1, 6)
    dtype = scope.rng.choice(SMALL)
    a = new(scope, dtype, (random_dim(scope), fixed(k)))
    b = new(scope, dtype, (fixed(k), fixed(n)))
    parts = [a, scale(scope), point(scope, dtype), b, scale(scope), point(scope, dtype)]
    made = Val(scope.fresh(), dtype, (a.shape[0], fixed(n)), bound=256)
    scope.add("QLinearMatMul", [*parts, scale(scope), point(scope, dtype)], [made])


def qlinear_conv(scope: Scope) -> None:
    integer = scope.rng.random() < 0.4
    x = image(scope, 2, ("uint8",))
    if x is None:
        return
    channels, out = x.shape[1][0], scope.rng.choice([1, 2, 4])
    kernel, strides, dilations, pads = settings = settings_of(scope, 2)
    shape = windows(x.shape[2:], settings)
    if any(min(dim) < 1 for dim in shape):
        return
    rng = np.random.default_rng(scope.rng.randrange(1 << 30))
    dtype = "uint8" if integer else scope.rng.choice(SMALL)
    low = 0 if dtype == "uint8" else -8
    w = scope.constant(rng.integers(low, 9, (out, channels, *kernel)), dtype)
    keywords = {"strides": strides, "dilations": dilations, "pads": pads}
    dims = (x.shape[0], fixed(out), *shape)
    if integer:
        made = Val(scope.fresh(), "int32", dims, bound=1e6)
        inputs: list[Val | str] = [x, w]
        if scope.rng.random() < 0.5:
            inputs += [point(scope, "uint8"), point(scope, "uint8")]
        scope.add("ConvInteger", inputs, [made], **keywords)
        return
    parts: list[Val | str] = [x, scale(scope), point(scope, "uint8")]
    parts += [w, scale(scope), point(scope, dtype), scale(scope), point(scope, "uint8")]
    if scope.rng.random() < 0.5:
        parts.append(scope.constant(rng.integers(-20, 20, out), "int32"))
    made = Val(scope.fresh(), "uint8", dims, bound=256)
    scope.add("QLinearConv", parts, [made], **keywords)


GENERATORS: tuple[tuple[Callable[[Scope], None], float], ...] = (
    (quantize, 2),
    (dequantize, 1),
    (dynamic, 0.5),
    (matmul_integer, 1),
    (qlinear_matmul, 1),
    (qlinear_conv, 1),
)
