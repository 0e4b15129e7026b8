"""upcast_halves: a model of f16, or bf16, computes in f32 between what it takes and what it gives.

    conv(%x: f16, %w)        ->   conv(cast(%x): f32, cast(%w))
    cast(conv: f16) to f32   ->   conv: f32

Where tensor cores multiply, `lower_precision` rounds what products read, by itself and after all
other passes. Those look at f32 alone: what a batch norm scales, and how attention is written, is
the same in a model that was stored in fewer bits. Sums, norms and softmax between products lose
nothing then. What only moves numbers stays as it is until one of them is computed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.base.dtype import BF16, F16, F32, DType
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, rewrite_matches
from tilewright.graph.types import TensorType, Type
from tilewright.graph.views import is_view
from tilewright.graph.visit import Instead

MOVES = ("concat", "gather", "pad", "reshape", "slice")  # numbers, as views do


def upcast_halves(module: Module, ctx: PassContext) -> Module:
    """Before: relu(%x: f16).   After: cast(relu(cast(%x): f32)) {to = dtype f16}."""
    return _upcast(module, F16)


def upcast_halves_bf16(module: Module, ctx: PassContext) -> Module:
    """The same of bf16."""
    return _upcast(module, BF16)


def _upcast(module: Module, half: DType) -> Module:
    return rewrite_matches(module, (partial(_exact, half=half), partial(_wide, half=half)))


def _exact(node: Node, scope: Scope, *, half: DType) -> Replacement:
    """What was rounded only to be widened again is not rounded."""
    given = node.inputs[0] if node.op == "cast" and node["to"] is F32 else None
    return None if given is None else _before_rounding(given, scope, half)


def _before_rounding(value: Value, scope: Scope, half: DType) -> Value | None:
    """The f32 that a half was made of."""
    cast = scope.producer(value, "cast") if _is(value.type, half) else None
    source = None if cast is None else cast.inputs[0]
    return source if source is not None and source.tensor.dtype is F32 else None


def _wide(node: Node, scope: Scope, *, half: DType) -> Replacement:
    """A node that computes on halves, on f32."""
    is_half = [value is not None and _is(value.type, half) for value in node.inputs]
    if node.op == "cast" or node.bodies or not any(is_half):
        return None
    if not all(isinstance(each.type, TensorType) for each in node.outputs):
        return None
    if node.op in MOVES or is_view(node):
        parts = [value for value in node.inputs if value is not None]
        is_stored = [_before_rounding(value, scope, half) is None for value in parts]
        if all(is_stored) or (node.op == "concat" and any(is_stored)):
            return None  # such as a cache, and what is added to it
    nodes: list[Node] = []

    def cast(value: Value, of: Type, to: DType) -> Value:
        nodes.append(make_node("cast", (value,), {"to": to}, node.loc, types=(of,)))
        return nodes[-1].output

    def wide(value: Value) -> Value:
        found = _before_rounding(value, scope, half)
        return cast(value, _wide_type(value.type, half), F32) if found is None else found

    given = [
        wide(value) if value is not None and narrow else value
        for value, narrow in zip(node.inputs, is_half, strict=True)
    ]
    attributes = {name: F32 if value is half else value for name, value in node.attributes}
    types = [_wide_type(each.type, half) for each in node.outputs]
    hints = [each.name for each in node.outputs]
    made = make_node(node.op, given, attributes, node.loc, hints=hints, types=types)
    nodes.append(made)
    values = [
        cast(new, old.type, half) if _is(old.type, half) else new
        for old, new in zip(node.outputs, made.outputs, strict=True)
    ]
    return Instead(tuple(nodes), tuple(values))


def _is(of: Type, half: DType) -> bool:
    return isinstance(of, TensorType) and of.dtype is half


def _wide_type(of: Type, half: DType) -> Type:
    return replace(of, dtype=F32) if isinstance(of, TensorType) and of.dtype is half else of
