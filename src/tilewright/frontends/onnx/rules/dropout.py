"""Dropout: the identity in inference, a random mask in training."""

from __future__ import annotations

from tilewright.base.dtype import BOOL, F32
from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.frontends.onnx.rules.random import uniform
from tilewright.frontends.onnx.rules.tensors import dims
from tilewright.graph import Value


def _dropout(node: Context) -> tuple[Value, ...]:
    x = node[0]
    if not _may_train(node):
        return (x, _nothing_dropped(node, x)) if node.wants(1) else (x,)
    ratio = node[1] if node.has(1) else node.constant(F32.numpy.type(0.5))
    ratio = node.emit("cast", ratio, to=F32)
    training = node[2]
    kept = node.emit("greater_equal", uniform(node, dims(node, x), F32), ratio)
    share = node.emit("sub", node.constant(F32.numpy.type(1)), ratio)
    scaled = node.emit("div", x, node.emit("cast", share, to=x.tensor.dtype))
    dropped = node.emit("where", kept, scaled, node.like(x, 0.0))
    out = node.emit("where", training, dropped, x)
    mask = node.emit("logical_or", kept, node.emit("logical_not", training))
    return (out, mask)


def _may_train(node: Context) -> bool:
    """Training mode is an input since opset 12; earlier nodes are for inference."""
    if node.opset < 12 or not node.has(2):
        return False
    known = node.builder.data.get(node[2])
    return known is None or bool(known)


def _nothing_dropped(node: Context, x: Value) -> Value:
    """The mask without dropout: ones; before opset 12 zeros, as in ONNX Runtime. Boolean since
    10."""
    kept = node.opset >= 12
    one = node.constant(BOOL.numpy.type(kept)) if node.opset >= 10 else node.like(x, kept)
    return node.emit("expand", one, shape=dims(node, x))


RULES: dict[str, Rule] = {"Dropout": _dropout}
