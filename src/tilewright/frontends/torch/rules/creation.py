"""Creation of tensors: constant, ranges, random.

A model draws the same numbers in every run: the seed of a node is derived from its name.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

from tilewright import sym
from tilewright.base.dtype import F32, F64, I64, DType
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Dim, Rule
from tilewright.graph import Value
from tilewright.graph.types import items_of


def _full(node: Context) -> Value:
    return node.full(node.get("fill_value", 0), node.to, node.out)


def _fill(node: Context) -> Value:
    return node.full(node.args["value"], node.to, node.out)


def _of(number: float) -> Rule:
    return lambda node: node.full(number, node.to, node.out)


def _scalar(node: Context) -> Value:
    return node.value(node.args["s"], node.to)


def _arange(node: Context) -> Value:
    """start + i * step, exact for integers, otherwise computed in f64."""
    start, step = node.get("start", 0), node.get("step", 1)
    if node.to.is_int:  # both are truncated first
        start, step = (int(x) if isinstance(x, float) else x for x in (start, step))
    places = node.iota(node.out[0])
    if all(isinstance(x, (int, sym.Expr)) for x in (start, step)):
        made = node.emit("add", node.emit("mul", places, node.value(step, I64)),
                         node.value(start, I64))  # fmt: skip
        return node.cast(made, node.to)
    scaled = node.emit("mul", node.cast(places, F64), node.value(step, F64))
    return node.cast(node.emit("add", scaled, node.value(start, F64)), node.to)


def _iota(node: Context) -> Value:
    steps = node.emit("mul", node.iota(node.args["length"]), node.value(node.args["step"], I64))
    return node.cast(node.emit("add", steps, node.value(node.args["start"], I64)), node.to)


def _eye(node: Context) -> Value:
    rows, columns = node.out
    on = node.emit("equal", node.unsqueeze(node.iota(rows), 1), node.iota(columns))
    return node.cast(on, node.to)


def _linspace(node: Context) -> Value:
    """Evenly spaced from both ends to the middle, so that the last number is exact.

    For integers the ends are truncated first.
    """
    steps = node.args["steps"]
    start, end = (
        node.cast(node.cast(node.value(node.args[name], F64), I64 if node.to.is_int else F64), F64)
        for name in ("start", "end")
    )
    if not isinstance(steps, int):
        raise Skip("linspace with a dynamic number of steps")
    if steps == 1:
        return node.cast(node.reshape(start, (1,)), node.to)
    step = node.emit("div", node.emit("sub", end, start), float(max(steps - 1, 1)))
    places = node.cast(node.iota(steps), F64)
    up = node.emit("add", start, node.emit("mul", places, step))
    left = node.emit("mul", node.emit("sub", node.value(float(steps - 1), F64), places), step)
    down = node.emit("sub", end, left)
    made = node.emit("where", node.emit("less", places, float(steps // 2)), up, down)
    return node.cast(made, node.to)


# ------------------------------------------------------------------------------------ random


def uniform(node: Context, dims: Sequence[Dim], to: DType, stream: int = 0) -> Value:
    """Uniform numbers in [0, 1), multiples of 2**-24."""
    of = to if to is F64 else F32
    key = zlib.crc32(f"{node.loc}:{stream}".encode())
    bits = node.emit("random_bits", shape=items_of(dims), seed=key)
    high = node.emit("shift_right", bits, 8)
    return node.cast(node.emit("mul", node.emit("cast", high, to=of), 2.0**-24), to)


def normal(node: Context, dims: Sequence[Dim], to: DType) -> Value:
    """Normal numbers by Box and Muller: sqrt(-2 log(1 - u)) cos(2 pi v)."""
    of = to if to is F64 else F32
    u, v = uniform(node, dims, of), uniform(node, dims, of, 1)
    radius = node.emit("sqrt", node.emit("mul", node.emit("log1p", node.emit("neg", u)), -2.0))
    return node.cast(
        node.emit("mul", radius, node.emit("cos", node.emit("mul", v, 2 * math.pi))), to
    )


def _randperm(node: Context) -> Value:
    """The sorting order of random keys."""
    (count,) = node.out
    keys = uniform(node, (count,), F64)
    _, order = node.emit_many("top_k", keys, outputs=2, k=items_of((count,)), axis=0)
    return node.cast(order, node.to)


def _randint(node: Context) -> Value:
    low, high = node.get("low", 0), node.args["high"]
    drawn = uniform(node, node.out, F64)
    spread = node.emit("floor", node.emit("mul", drawn, node.value(high - low, F64)))
    return node.cast(node.emit("add", node.cast(spread, I64), node.value(low, I64)), node.to)


def _dropout(node: Context) -> tuple[Value, Value]:
    x, p = node["input"], node.args["p"]
    if node.get("train") is False or p == 0:
        mask = node.full(True, node.cast(x, node.to).tensor.dtype, node.dims("input"))
        return x, node.emit("equal", mask, 1)
    return dropout(node, x, p)


def dropout(node: Context, x: Value, p: float) -> tuple[Value, Value]:
    """Elements kept with probability 1 - p and scaled by its inverse; and the mask."""
    dims = node.shape(x)
    kept = node.emit("greater_equal", uniform(node, dims, F32), float(p))
    scale = 1 / (1 - p) if p < 1 else 0.0
    return node.emit("mul", node.emit("where", kept, x, node.like(x, 0)), scale), kept


def _rrelu(node: Context) -> tuple[Value, Value]:
    """Negative elements times a random slope; and the slopes, 1 for positive elements."""
    x, low, high = node["self"], float(node.args["lower"]), float(node.args["upper"])
    above = node.emit("greater", x, 0.0)
    if not node.get("training", False):
        slope = node.emit("mul", x, (low + high) / 2)
        return node.emit("where", above, x, slope), node["noise"]
    drawn = node.emit("add", node.emit("mul", uniform(node, node.out, node.to), high - low), low)
    noise = node.emit("where", above, node.like(x, 1), drawn)
    return node.emit("mul", x, noise), noise


def _bernoulli(node: Context) -> Value:
    x = node["self"]
    drawn = uniform(node, node.out, x.tensor.dtype)
    p = node.get("p")
    against = x if p is None else node.value(p, x.tensor.dtype)
    return node.cast(node.emit("less", drawn, against), node.to)


def _distributed(draw: Callable[[Context, Value], Value]) -> Rule:
    """Random numbers of a distribution, by its inverse cumulative distribution function."""

    def rule(node: Context) -> Value:
        of = node.to if node.to.is_float and node.to.bits >= 32 else F32
        return node.cast(draw(node, uniform(node, node.out, of)), node.to)

    return rule


def _uniform(node: Context, u: Value) -> Value:
    low, high = float(node.get("from", 0.0)), float(node.get("to", 1.0))
    return node.emit("add", node.emit("mul", u, high - low), low)


def _exponential(node: Context, u: Value) -> Value:
    return node.emit("div", node.emit("log1p", node.emit("neg", u)), -float(node.get("lambd", 1.0)))


def _cauchy(node: Context, u: Value) -> Value:
    angle = node.emit("mul", node.emit("sub", u, 0.5), math.pi)
    spread = node.emit("mul", node.emit("tan", angle), float(node.get("sigma", 1.0)))
    return node.emit("add", spread, float(node.get("median", 0.0)))


def _geometric(node: Context, u: Value) -> Value:
    tries = node.emit("log1p", node.emit("neg", u))
    return node.emit(
        "add", node.emit("floor", node.emit("div", tries, math.log1p(-node.args["p"]))), 1.0
    )


def _bell(node: Context, u: Value) -> Value:
    """Normal numbers with a mean and a standard deviation."""
    drawn = normal(node, node.out, u.tensor.dtype)
    scaled = node.emit("mul", drawn, node.value(node.get("std", 1.0), u.tensor.dtype))
    return node.emit("add", scaled, node.value(node.get("mean", 0.0), u.tensor.dtype))


def _log_normal(node: Context, u: Value) -> Value:
    return node.emit("exp", _bell(node, u))


def _multinomial(node: Context) -> Value:
    """Positions drawn by weight. Without replacement, those of the greatest log(u) / weight."""
    x, count = node.cast(node["self"], F64), int(node.args["num_samples"])
    *lead, classes = node.dims()
    last = len(lead)
    if not node.get("replacement", False):
        keys = node.emit("div", node.emit("log", uniform(node, node.dims(), F64)), x)
        _, chosen = node.emit_many("top_k", keys, outputs=2, k=(count,), axis=last)
        return chosen
    sums = node.emit("cumsum", x, axis=last)
    total = node.emit("reduce_sum", x, axes=(last,), keepdims=True)
    share = node.emit("mul", uniform(node, (*lead, count), F64), total)
    passed = node.emit("less_equal", node.unsqueeze(sums, last), node.unsqueeze(share, last + 1))
    below = node.emit("reduce_sum", node.cast(passed, I64), axes=(last + 1,), keepdims=False)
    return node.emit("minimum", below, node.number(sym.simplify(sym.sub(classes, 1))))


RULES: dict[str, Rule] = {
    "aten.full": _full,
    "aten.full_like": _full,
    "aten.new_full": _full,
    "aten.fill.Scalar": _fill,
    "aten.fill.Tensor": _fill,
    **{f"aten.{name}": _of(0) for name in ("zeros", "zeros_like", "new_zeros")},
    **{f"aten.{name}": _of(1) for name in ("ones", "ones_like", "new_ones")},
    **{
        f"aten.empty{name}": _of(0) for name in (".memory_format", "_strided", "_like", "_permuted")
    },
    "aten.new_empty": _of(0),
    "aten.new_empty_strided": _of(0),
    "aten.scalar_tensor": _scalar,
    **{f"aten.arange{name}": _arange for name in ("", ".start", ".start_step")},
    "prims.iota": _iota,
    "aten.eye": _eye,
    "aten.eye.m": _eye,
    **{
        f"aten.linspace{name}": _linspace
        for name in ("", ".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor")
    },
    "aten.rand": lambda node: uniform(node, node.out, node.to),
    "aten.rand_like": lambda node: uniform(node, node.out, node.to),
    "aten.randn": lambda node: normal(node, node.out, node.to),
    "aten.randn_like": lambda node: normal(node, node.out, node.to),
    "aten.randperm": _randperm,
    **{f"aten.randint{name}": _randint for name in ("", ".low", "_like", "_like.low_dtype")},
    "aten.native_dropout": _dropout,
    "aten.uniform": _distributed(_uniform),
    "aten.exponential": _distributed(_exponential),
    "aten.cauchy": _distributed(_cauchy),
    "aten.geometric": _distributed(_geometric),
    "aten.log_normal": _distributed(_log_normal),
    "aten.normal_functional": _distributed(_bell),
    **{
        f"aten.normal.{kind}": _distributed(_bell)
        for kind in ("Tensor_Tensor", "Tensor_float", "float_Tensor", "float_float")
    },
    "aten.multinomial": _multinomial,
    "aten.rrelu_with_noise_functional": _rrelu,
    "aten.bernoulli": _bernoulli,
    "aten.bernoulli.p": _bernoulli,
}
