"""Random tensors, computed from random bits.

A model draws the same numbers in each run: a node without a seed gets one derived from its name.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

from tilewright.base.dtype import F32, F64, I32, I64, DType
from tilewright.frontends.onnx.rules.base import Context, Rule, element_type
from tilewright.graph import Value
from tilewright.graph.types import items_of
from tilewright.sym import Expr

Draw = Callable[[Context, Sequence[Expr | int], DType], Value]


def uniform(node: Context, dims: Sequence[Expr | int], to: DType, stream: int = 0) -> Value:
    """Uniform numbers in [0, 1), multiples of 2**-24."""
    of = to if to is F64 else F32
    seed = node.attr("seed")
    label = str(node.loc) if seed is None else repr(float(seed))
    key = zlib.crc32(f"{label}:{stream}".encode())
    bits = node.emit("random_bits", shape=items_of(dims), seed=key)
    high = node.emit("shift_right", bits, 8)
    drawn = node.emit("mul", node.emit("cast", high, to=of), 2.0**-24)
    return drawn if of is to else node.emit("cast", drawn, to=to)


def _normal(node: Context, dims: Sequence[Expr | int], to: DType) -> Value:
    """Box-Muller transform: sqrt(-2 log(1 - u)) cos(2 pi v)."""
    of = to if to is F64 else F32
    u, v = uniform(node, dims, of), uniform(node, dims, of, 1)
    radius = node.emit("sqrt", node.emit("mul", node.emit("log1p", node.emit("neg", u)), -2.0))
    drawn = node.emit("mul", radius, node.emit("cos", node.emit("mul", v, 2 * math.pi)))
    drawn = node.emit("mul", drawn, node.attr("scale", 1.0))
    drawn = node.emit("add", drawn, node.attr("mean", 0.0))
    return drawn if of is to else node.emit("cast", drawn, to=to)


def _uniform(node: Context, dims: Sequence[Expr | int], to: DType) -> Value:
    low, high = node.attr("low", 0.0), node.attr("high", 1.0)
    of = to if to is F64 else F32
    drawn = node.emit("mul", uniform(node, dims, of), high - low)
    drawn = node.emit("add", drawn, low)
    return drawn if of is to else node.emit("cast", drawn, to=to)


def _of_shape(draw: Draw) -> Rule:
    def rule(node: Context) -> Value:
        return draw(node, node.attr("shape"), element_type(node.attr("dtype", 1)))

    return rule


def _like(draw: Draw) -> Rule:
    def rule(node: Context) -> Value:
        code = node.attr("dtype")
        to = node[0].tensor.dtype if code is None else element_type(code)
        return draw(node, node.dims(), to)

    return rule


def _bernoulli(node: Context) -> Value:
    """1 with the input's probability."""
    code = node.attr("dtype")
    to = node[0].tensor.dtype if code is None else element_type(code)
    drawn = uniform(node, node.dims(), node[0].tensor.dtype)
    hit = node.emit("less", drawn, node[0])
    return hit if to.is_bool else node.emit("cast", hit, to=to)


def _multinomial(node: Context) -> Value:
    """The number of cumulative class weights below a random fraction of the total."""
    x, (batch, classes) = node[0], node.dims()
    code = node.attr("dtype")
    to = I32 if code is None else element_type(code)
    most = node.emit("reduce_max", x, axes=(1,), keepdims=True)
    sums = node.emit("cumsum", node.emit("exp", node.emit("sub", x, most)), axis=1)
    total = node.emit("slice", sums, starts=(-1,), ends=(1 << 40,), axes=(1,))
    drawn = uniform(node, (batch, node.attr("sample_size", 1)), x.tensor.dtype)
    share = node.unsqueeze(node.emit("mul", drawn, total), 2)
    below = node.emit("less_equal", node.unsqueeze(sums, 1), share)
    count = node.emit("reduce_sum", node.emit("cast", below, to=I64), axes=(2,), keepdims=False)
    last = node.emit("dims", values=items_of([classes - 1])[0])
    return node.emit("cast", node.emit("minimum", count, last), to=to)


RULES: dict[str, Rule] = {
    "RandomNormal": _of_shape(_normal),
    "RandomNormalLike": _like(_normal),
    "RandomUniform": _of_shape(_uniform),
    "RandomUniformLike": _like(_uniform),
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
}
