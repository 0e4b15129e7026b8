"""recognize_norms: layer norm, RMS norm and softmax from the primitives that exporters write.

As one operator, a norm keeps each row in cache and its sums in f32; as primitives, intermediates
would pass through memory. Only complete patterns match, none of whose intermediates has other uses.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import (
    Any,
    Apply,
    Either,
    Found,
    Number,
    Replacement,
    Scope,
    remade,
    rewrite_matches,
    shape_of,
)
from tilewright.sym import ONE


def recognize_norms(module: Module, ctx: PassContext) -> Module:
    """Before: %d = sub(%x, mean(%x)); ...; %y = div(%d, %s).   After: %y = layer_norm(%x)."""
    whole = rewrite_matches(module, RULES)
    return rewrite_matches(whole, (unscaled_rms_norm,))


X = Any("x")


def _squared(of: Any | Apply) -> Either:
    return Either(Apply("mul", of, of), Apply("pow", of, Number(2.0)))


def _root(of: Apply) -> Either:
    return Either(Apply("sqrt", of), Apply("pow", of, Number(0.5)))


def _inverse(of: Apply) -> Either:
    return Either(
        Apply("rsqrt", of),
        Apply("reciprocal", _root(of)),
        Apply("div", Number(1.0), _root(of)),
        Apply("pow", of, Number(-0.5)),
    )


MEAN = Apply("reduce_mean", X, name="mean")
CENTRED = Apply("sub", X, MEAN)
SPREAD = Apply("add", Apply("reduce_mean", _squared(CENTRED), name="spread"), Number("epsilon"))
SQUARES = Apply("add", Apply("reduce_mean", _squared(X), name="spread"), Number("epsilon"))
SCALED = Apply("mul", _inverse(SPREAD), Any("scale"))

LAYER_NORMS = (
    Apply("div", CENTRED, _root(SPREAD)),
    Apply("mul", CENTRED, _inverse(SPREAD)),
    Apply("mul", CENTRED, SCALED),
    Apply("add", Apply("mul", X, SCALED), Apply("sub", Any("bias"), Apply("mul", MEAN, SCALED))),
)
RMS_NORMS = (
    Apply("mul", Apply("div", X, _root(SQUARES)), Any("scale")),
    Apply("mul", Apply("mul", X, _inverse(SQUARES)), Any("scale")),
    Apply("mul", X, Apply("mul", _inverse(SQUARES), Any("scale"))),
)
UNSCALED_RMS_NORMS = (
    Apply("div", X, _root(SQUARES)),
    Apply("mul", X, _inverse(SQUARES)),
)
SHIFTED = Apply("sub", X, Apply("reduce_max", X, name="max"))
SOFTMAX = Apply(
    "div", Apply("exp", SHIFTED), Apply("reduce_sum", Apply("exp", SHIFTED), name="sum")
)
LOG_SOFTMAX = Apply(
    "sub", SHIFTED, Apply("log", Apply("reduce_sum", Apply("exp", SHIFTED), name="sum"))
)
LOG_OF_SOFTMAX = Apply("log", Apply("softmax", X, name="softmax"))


def _axes(found: Found, *names: str) -> tuple[int, ...] | None:
    """The axes that all reductions of a match reduce, if they are the same."""
    nodes: list[Node] = [found[name] for name in names if name in found]
    first = nodes[0].get("axes")
    for node in nodes:
        if node.get("axes") != first or not node.get("keepdims", True):
            return None
    if not isinstance(first, tuple) or not all(isinstance(axis, int) for axis in first):
        return None
    return tuple(sorted(first))


def _from_axis(x: Value, axes: tuple[int, ...] | None) -> int | None:
    """The first of axes that are the last ones of x."""
    shape = shape_of(x)
    if axes is None or shape is None or not axes:
        return None
    trailing = axes == tuple(range(len(shape) - len(axes), len(shape)))
    return axes[0] if trailing else None


def _fits(operand: Value, x: Value, axis: int) -> bool:
    """Whether an operand varies along the normalized axes only."""
    shape, full = shape_of(operand), shape_of(x)
    if shape is None or full is None or len(shape) > len(full):
        return False
    lead = len(full) - len(shape)
    return all(dim is ONE for at, dim in enumerate(shape, lead) if at < axis)


def layer_norm(node: Node, scope: Scope) -> Replacement:
    """(x - mean) / sqrt(variance + epsilon)."""
    for pattern in LAYER_NORMS:
        found = scope.match_node(pattern, node)
        if found is None or not scope.is_private(found, node):
            continue
        x: Value = found["x"]
        axis = _from_axis(x, _axes(found, "spread", "mean"))
        operands: list[Value] = [found[name] for name in ("scale", "bias") if name in found]
        if axis is None or node.output.type != x.type:
            continue
        if all(_fits(operand, x, axis) for operand in operands):
            return (remade(node, "layer_norm", x, *operands, axis=axis, epsilon=found["epsilon"]),)
    return None


def rms_norm(node: Node, scope: Scope) -> Replacement:
    """x / sqrt(mean square + epsilon) * scale."""
    for pattern in RMS_NORMS:
        found = scope.match_node(pattern, node)
        if found is None or not scope.is_private(found, node):
            continue
        x, scale = found["x"], found["scale"]
        axis = _from_axis(x, _axes(found, "spread"))
        if axis is not None and node.output.type == x.type and _fits(scale, x, axis):
            return (remade(node, "rms_norm", x, scale, axis=axis, epsilon=found["epsilon"]),)
    return None


def unscaled_rms_norm(node: Node, scope: Scope) -> Replacement:
    """The same without a scale. Matched last, since a multiplication after it may be the scale."""
    for pattern in UNSCALED_RMS_NORMS:
        found = scope.match_node(pattern, node)
        if found is None or not scope.is_private(found, node):
            continue
        x: Value = found["x"]
        axis = _from_axis(x, _axes(found, "spread"))
        if axis is not None and node.output.type == x.type:
            one = scope.new_constant(np.ones((), x.tensor.dtype.numpy), "one", node)
            how = {"axis": axis, "epsilon": found["epsilon"]}
            return one, remade(node, "rms_norm", x, one.output, **how)
    return None


def scale_of_norm(node: Node, scope: Scope) -> Replacement:
    """Fold the multiplication and addition after a layer norm into its scale and bias."""
    if node.op not in ("mul", "add") or len(node.inputs) != 2:
        return None
    for norm, operand in (node.inputs, node.inputs[::-1]):
        made = scope.producer(norm, "layer_norm")
        if made is None or operand is None or norm is None or made["axis"] is None:
            continue
        scale, bias = (*made.inputs[1:], None, None)[:2]
        if bias is not None or (scale is None) != (node.op == "mul") or len(made.outputs) > 1:
            continue
        x = made.inputs[0]
        if x is None or node.output.type != x.type or not scope.is_used_once(norm):
            continue
        if _fits(operand, x, made["axis"]) and operand.tensor.dtype is x.tensor.dtype:
            attributes = dict(made.attributes)
            given = (operand,) if scale is None else (scale, operand)
            return (remade(node, "layer_norm", x, *given, **attributes),)
    return None


def softmax(node: Node, scope: Scope) -> Replacement:
    """exp(x - max(x)) / its sum, and the logarithm of that."""
    for pattern, op in ((SOFTMAX, "softmax"), (LOG_SOFTMAX, "log_softmax")):
        found = scope.match_node(pattern, node)
        if found is None or not scope.is_private(found, node):
            continue
        axes = _axes(found, "max", "sum")
        if axes is not None and node.output.type == found["x"].type:
            return (remade(node, op, found["x"], axes=axes),)
    return None


def log_of_softmax(node: Node, scope: Scope) -> Replacement:
    """log(softmax(x)) as log_softmax(x)."""
    found = scope.match_node(LOG_OF_SOFTMAX, node)
    if found is None or not scope.is_private(found, node):
        return None
    return (remade(node, "log_softmax", found["x"], axes=found["softmax"]["axes"]),)


RULES = (layer_norm, rms_norm, scale_of_norm, softmax, log_of_softmax)
