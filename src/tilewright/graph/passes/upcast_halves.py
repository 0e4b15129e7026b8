"""upcast_halves: f16 or bf16 models compute in f32 between inputs and outputs.

    conv(%x: f16, %w)        ->   conv(cast(%x): f32, cast(%w))
    cast(conv: f16) to f32   ->   conv: f32

`lower_precision` rounds the operands of contractions for tensor cores, after all other passes.
These match f32 only: batch norms and attention look the same in a model that was stored in 16 bits.
Sums, norms and softmax between contractions then lose no accuracy. Data movement stays in 16 bits
until a value is computed with.
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

FIXED = ("cast", "bitcast", "call")  # the types of operands are part of their meaning
MOVES = ("concat", "gather", "pad", "reshape", "slice")  # numbers, as views do


def upcast_halves(module: Module, ctx: PassContext) -> Module:
    """Before: relu(%x: f16).   After: cast(relu(cast(%x): f32)) {to = dtype f16}."""
    return _upcast(module, F16)


def upcast_halves_bf16(module: Module, ctx: PassContext) -> Module:
    """The same for bf16."""
    return _upcast(module, BF16)


def _upcast(module: Module, half: DType) -> Module:
    return rewrite_matches(module, (partial(_exact, half=half), partial(_wide, half=half)))


def _exact(node: Node, scope: Scope, *, half: DType) -> Replacement:
    """Remove a rounding that is undone by widening."""
    given = node.inputs[0] if node.op == "cast" and node["to"] is F32 else None
    return None if given is None else _before_rounding(given, scope, half)


def _before_rounding(value: Value, scope: Scope, half: DType) -> Value | None:
    """The f32 value that a 16-bit value was rounded from."""
    cast = scope.producer(value, "cast") if _is(value.type, half) else None
    source = None if cast is None else cast.inputs[0]
    return source if source is not None and source.tensor.dtype is F32 else None


def _wide(node: Node, scope: Scope, *, half: DType) -> Replacement:
    """Compute a 16-bit node in f32."""
    is_half = [value is not None and _is(value.type, half) for value in node.inputs]
    if node.op in FIXED or node.bodies or not any(is_half):
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
