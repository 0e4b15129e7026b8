"""ONNX Runtime's image operators (com.microsoft): channels last, group norms with a skip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.dtype import F32
from tilewright.frontends.onnx.rules.activation import swish
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.conv import conv
from tilewright.frontends.onnx.rules.microsoft import activated
from tilewright.frontends.onnx.rules.pool import max_pool
from tilewright.frontends.onnx.rules.tensors import dims, reshape, transpose
from tilewright.graph import Value


def channels_first(node: Context, value: Value) -> Value:
    rank = len(dims(node, value))
    return transpose(node, value, 0, rank - 1, *range(1, rank - 1))


def channels_last(node: Context, value: Value) -> Value:
    rank = len(dims(node, value))
    return transpose(node, value, 0, *range(2, rank), 1)


def _moved(node: Context, *places: int) -> Context:
    """The node with some inputs transposed to channels first."""
    inputs = [
        channels_first(node, value) if at in places and value is not None else value
        for at, value in enumerate(node.inputs)
    ]
    return replace(node, inputs=inputs)


def _nhwc_conv(node: Context) -> Value:
    """The weights are channels last, too."""
    return channels_last(node, conv(_moved(node, 0, 1)))


def _nhwc_fused_conv(node: Context) -> Value:
    out = channels_last(node, conv(_moved(node, 0)))
    if node.has(3):
        out = node.emit("add", out, node[3])
    return activated(node, out, node.attr("activation_params", ()))


def _nhwc_max_pool(node: Context) -> Value:
    return channels_last(node, max_pool(_moved(node, 0))[0])


def _group_norm(node: Context, x: Value) -> Value:
    """Group normalization, by default channels last, optionally followed by SiLU."""
    last = bool(node.attr("channels_last", 1))
    of = x.tensor.dtype
    wide = x if of.bits >= 32 else node.emit("cast", x, to=F32)
    gamma, beta = (node.emit("cast", node[at], to=wide.tensor.dtype) for at in (1, 2))
    out = node.emit(
        "group_norm",
        channels_first(node, wide) if last else wide,
        gamma,
        beta,
        groups=node.attr("groups"),
        epsilon=node.attr("epsilon", 1e-5),
    )
    out = channels_last(node, out) if last else out
    kind = node.attr("activation")
    if kind not in (0, 1):
        raise Skip(f"{node.op_type} with activation {kind}")
    out = swish(node, out) if kind == 1 else out
    return out if wide is x else node.emit("cast", out, to=of)


def _skip_group_norm(node: Context) -> Sequence[Value]:
    """x + skip + bias, normalized; the sum is the second output."""
    last = bool(node.attr("channels_last", 1))
    total = node.emit("add", node[0], _for_each_image(node, node[3], last=last))
    if node.has(4):
        total = node.emit("add", total, _for_each_image(node, node[4], last=last))
    return (_group_norm(node, total), total)


def _for_each_image(node: Context, value: Value, *, last: bool) -> Value:
    """Values per channel, or per image and channel, reshaped to the rank of images."""
    rank, shape = node.rank(), dims(node, value)
    if len(shape) == rank:
        return value
    images, channels = shape[:-1] or (1,), shape[-1]
    ones = (1,) * (rank - 2)
    return reshape(node, value, *images, *((*ones, channels) if last else (channels, *ones)))


RULES: dict[str, Rule] = {
    "NhwcConv": _nhwc_conv,
    "NhwcFusedConv": _nhwc_fused_conv,
    "NhwcMaxPool": _nhwc_max_pool,
    "GroupNorm": lambda node: _group_norm(node, node[0]),
    "SkipGroupNorm": _skip_group_norm,
}
