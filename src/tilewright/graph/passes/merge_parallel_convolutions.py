"""merge_parallel_convolutions: a sum of convolutions of one image as a single convolution.

Networks trained with several branches per layer add up their results. Here their weights are added
instead, each at the position of its window within the largest one, so that the image is read and
multiplied once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, Steps, rewrite_matches


def merge_parallel_convolutions(module: Module, ctx: PassContext) -> Module:
    """Before: add(conv(%x, %v), conv(%x, %w)).   After: conv(%x, %vw)."""
    return rewrite_matches(module, (merge,))


@dataclass(frozen=True)
class _Branch:
    """A convolution with constant weights that is used only in the sum."""

    node: Node
    weights: Array
    bias: Array | None

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.weights.shape[2:])

    @property
    def low(self) -> tuple[int, ...]:
        """The offset of the window's start from an output position, along each axis."""
        return tuple(self.node["pads"][: len(self.kernel)])

    def shift(self, inner: _Branch) -> tuple[int, ...] | None:
        """The offset of another window within this one; None if it does not fit."""
        found = []
        steps = zip(self.node["dilations"], inner.node["dilations"], strict=True)
        for axis, (step, other) in enumerate(steps):
            at, rest = divmod(self.low[axis] - inner.low[axis], step)
            size = inner.kernel[axis]
            if rest or at < 0 or at + size > self.kernel[axis] or (size > 1 and step != other):
                return None
            found.append(at)
        return tuple(found)


def merge(node: Node, scope: Scope) -> Replacement:
    """Merge the first two terms of a sum that are compatible convolutions of one image."""
    if node.op != "add":
        return None
    terms = _terms(node, scope)
    branches = [branch for term in terms if (branch := _branch(term, scope)) is not None]
    for outer in branches:
        for inner in branches:
            shift = outer.shift(inner) if _is_alike(outer, inner) else None
            if shift is not None:
                merged = {outer.node.output, inner.node.output}
                rest = [term for term in terms if term not in merged]
                return _merged(node, outer, inner, shift, rest, scope)
    return None


def _terms(node: Node, scope: Scope) -> list[Value]:
    """The terms of a sum without broadcasting; partial sums with other users are terms."""
    found: list[Value] = []
    stack = [node]
    while stack:
        for value in stack.pop().inputs:
            inner = scope.producer(value, "add")
            if inner is not None and _has_one_use(inner.output, scope):
                stack.append(inner)
            elif value is not None:
                found.append(value)
    is_plain = all(term.type == node.output.type for term in found)
    return found if is_plain else []


def _has_one_use(value: Value, scope: Scope) -> bool:
    """Whether only the sum uses a value; values made by this pass are used once."""
    return scope.uses.get(value, 1) == 1


def _branch(term: Value, scope: Scope) -> _Branch | None:
    node = scope.producer(term, "conv")
    if node is None or not _has_one_use(term, scope) or not term.tensor.dtype.is_float:
        return None
    weights = scope.constant(node.inputs[1])
    stored = node.inputs[2] if len(node.inputs) > 2 else None
    bias = scope.constant(stored)
    is_plain = node.get("layout") is None and all(isinstance(pad, int) for pad in node["pads"])
    if weights is None or not is_plain or (stored is not None and bias is None):
        return None
    return _Branch(node, weights, bias)


def _is_alike(outer: _Branch, inner: _Branch) -> bool:
    """Whether two convolutions differ only in weights, windows and padding."""
    a, b = outer.node, inner.node
    same = all(a[name] == b[name] for name in ("strides", "groups"))
    types = outer.weights.dtype == inner.weights.dtype
    return a is not b and a.inputs[0] is b.inputs[0] and same and types


def _merged(
    node: Node,
    outer: _Branch,
    inner: _Branch,
    shift: tuple[int, ...],
    rest: list[Value],
    scope: Scope,
) -> Replacement:
    steps, like = Steps(node, scope), outer.node.inputs[1]
    assert like is not None
    around = [(0, 0), (0, 0)]
    for at, size, whole in zip(shift, inner.kernel, outer.kernel, strict=True):
        around.append((at, whole - at - size))
    weights = outer.weights.astype(np.float64) + np.pad(inner.weights, around)
    stored: list[Value] = [steps.constant(weights, like.tensor, "weights")]
    biases = [b.bias.astype(np.float64) for b in (outer, inner) if b.bias is not None]
    if biases:
        stored.append(steps.constant(sum(biases), like.tensor, "bias"))
    value = steps.add("conv", outer.node.inputs[0], *stored, **dict(outer.node.attributes))
    for term in rest:
        value = steps.add("add", value, term)
    return steps.done()
