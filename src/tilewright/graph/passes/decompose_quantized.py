"""decompose_quantized: quantized layers as integer contractions and requantization, bit-exact.

    quantized_conv(%x, %w, %b, %m, %s)   ->   requantize(conv_integer(%x, %w), %b, %m, %s)

For targets that do not run such layers as a whole, such as CPUs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from tilewright.base.dtype import I8, I32
from tilewright.base.passes import PassContext
from tilewright.graph.ir import Attribute, Module, Node, Value
from tilewright.graph.match import MatchRule, Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType

BYTE, WORD = TensorType(I8, ()), TensorType(I32, ())
LIMITS = ("zero", "low", "high")


def decompose_quantized(module: Module, ctx: PassContext) -> Module:
    """Before: quantized_add(%x, %y).   After: requantize(add(mul(%x, a), mul(%y, b)), ...)."""
    return decompose_all_but(module, ())


def decompose_all_but(module: Module, kept: Collection[Value]) -> Module:
    """The same for all layers except those that define values in `kept`."""

    def unless_kept(rule: MatchRule) -> MatchRule:
        def applied(node: Node, scope: Scope) -> Replacement:
            is_kept = any(value in kept for value in node.outputs)
            return None if is_kept else rule(node, scope)

        return applied

    return rewrite_matches(module, [unless_kept(rule) for rule in RULES])


def _limits(node: Node) -> dict[str, Attribute]:
    return {name: given(node, name) for name in LIMITS}


def given(node: Node, name: str) -> Any:
    """An attribute of a layer, or its default."""
    attr = next(attr for attr in OPS[node.op].attributes if attr.name == name)
    return node.get(name, attr.default)


def _zero(steps: Steps) -> Value | None:
    """The zero point of a layer's input; None if it is 0."""
    number = given(steps.like, "x_zero")
    return steps.constant(np.array(number), BYTE, "x_zero") if number else None


def _conv(node: Node, scope: Scope) -> Replacement:
    if node.op != "quantized_conv":
        return None
    steps = Steps(node, scope)
    zero = _zero(steps)
    kept = {name: given(node, name) for name in ("strides", "pads", "dilations", "groups")}
    operands = (*node.inputs[:2], zero) if zero is not None else node.inputs[:2]
    sums = steps.add("conv_integer", *operands, **kept)
    shaped = [steps.add("reshape", value, shape=(-1, 1, 1)) for value in node.inputs[2:5]]
    steps.add("requantize", sums, *shaped, **_limits(node))
    return steps.done()


def _matmul(node: Node, scope: Scope) -> Replacement:
    if node.op != "quantized_matmul":
        return None
    steps = Steps(node, scope)
    x = node.inputs[0]
    assert x is not None
    shape = x.tensor.shape
    if shape is not None and len(shape) > 2:
        x = steps.add("reshape", x, shape=(shape[0], -1))
    zero = _zero(steps)
    operands = (x, node.inputs[1], zero) if zero is not None else (x, node.inputs[1])
    sums = steps.add("matmul_integer", *operands)
    steps.add("requantize", sums, *node.inputs[2:5], **_limits(node))
    return steps.done()


def _batch_matmul(node: Node, scope: Scope) -> Replacement:
    if node.op != "quantized_batch_matmul":
        return None
    steps = Steps(node, scope)
    zeros = [steps.constant(np.array(given(node, at)), BYTE, at) for at in ("x_zero", "y_zero")]
    sums = steps.add("matmul_integer", *node.inputs, *zeros)
    numbers = [("bias", 0), ("multiplier", node["multiplier"]), ("shift", node["shift"])]
    parameters = [steps.constant(np.array(number), WORD, name) for name, number in numbers]
    steps.add("requantize", sums, *parameters, **_limits(node))
    return steps.done()


def _add(node: Node, scope: Scope) -> Replacement:
    if node.op != "quantized_add":
        return None
    steps = Steps(node, scope)
    terms = [
        steps.add(
            "mul",
            steps.add("cast", value, to=I32),
            steps.constant(np.array(node[factor]), WORD, factor),
        )
        for value, factor in zip(node.inputs[:2], ("a", "b"), strict=True)
    ]
    numbers = [
        steps.constant(np.array(node[name]), WORD, name) for name in ("bias", "multiplier", "shift")
    ]
    steps.add("requantize", steps.add("add", *terms), *numbers, **_limits(node))
    return steps.done()


def _pool(node: Node, scope: Scope) -> Replacement:
    if node.op != "quantized_max_pool":
        return None
    steps = Steps(node, scope)
    kept = {name: given(node, name) for name in ("kernel", "strides", "pads", "dilations")}
    steps.add("max_pool", node.inputs[0], **kept)
    return steps.done()


def _concat(node: Node, scope: Scope) -> Replacement:
    if node.op != "quantized_concat":
        return None
    steps = Steps(node, scope)
    parts = []
    names = ("biases", "multipliers", "shifts")
    for value, *numbers in zip(node.inputs, *(node[name] for name in names), strict=True):
        parameters = [
            steps.constant(np.array(number), WORD, name)
            for number, name in zip(numbers, names, strict=True)
        ]
        wide = steps.add("cast", value, to=I32)
        parts.append(steps.add("requantize", wide, *parameters, **_limits(node)))
    if len(parts) > 1:
        steps.add("concat", *parts, axis=node["axis"])
    return steps.done()


RULES: tuple[MatchRule, ...] = (_conv, _matmul, _batch_matmul, _add, _pool, _concat)
