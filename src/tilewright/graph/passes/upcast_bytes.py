"""upcast_bytes: widen byte operands of integer contractions to i16, where targets multiply i16.

AVX2 and AVX-512 without VNNI add pairs of i16 products; their byte products saturate. The producer
of an operand widens it once; weights are widened at compile time.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.base.dots import multiplies
from tilewright.base.dtype import I8, I16, U8
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, remade, rewrite_matches
from tilewright.graph.passes.match_signs import PRODUCTS, is_depthwise
from tilewright.graph.types import TensorType


def upcast_bytes(module: Module, ctx: PassContext) -> Module:
    """Before: matmul_integer(%u8, %i8).   After: matmul_integer(cast(%u8), %i16)."""
    target = ctx.target
    if not isinstance(target, Target) or not multiplies(target, "i16", "i16"):
        return module
    return rewrite_matches(
        module, (partial(widen, target=target), partial(widen_states, target=target))
    )


def widen(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """Widen a contraction of bytes without zero points that the target cannot multiply directly."""
    if node.op not in PRODUCTS or is_depthwise(node) or any(node.inputs[2:4]):
        return None
    if node.get("winograd", 0):
        return None  # its transformed bytes have 16 bits
    a, b = node.inputs[:2]
    if a is None or b is None or any(each.tensor.dtype not in (I8, U8) for each in (a, b)):
        return None
    if multiplies(target, a.tensor.dtype.name, b.tensor.dtype.name):
        return None
    steps = Steps(node, scope)
    wide = [_wide(steps, value) for value in (a, b)]
    steps.add(node.op, *wide, *node.inputs[2:], **dict(node.attributes))
    return steps.done()


def widen_states(node: Node, scope: Scope, *, target: Target) -> Replacement:
    """Widen a recurrent layer that quantizes its states to what the target cannot multiply."""
    of = node.get("states", U8)
    if node.op != "quantized_lstm" or of is I16 or multiplies(target, of.name, "i8"):
        return None
    gates, r, *others = node.inputs
    assert r is not None
    steps = Steps(node, scope)
    r = _wide(steps, r)
    attributes = {**dict(node.attributes), "states": I16}
    return [*steps.nodes, remade(node, node.op, gates, r, *others, **attributes)]


def _wide(steps: Steps, value: Value) -> Value:
    array = steps.scope.constant(value)
    if array is None:
        return steps.add("cast", value, to=I16)
    return steps.constant(array.astype(np.int16), TensorType(I16, ()), value.name)
