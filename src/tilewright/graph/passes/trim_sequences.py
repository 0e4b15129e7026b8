"""trim_sequences: run recurrent layers only up to the longest sequence of the batch.

Batches are padded to a common length, in some models to the longest input they accept. Steps after
the end of a sequence give zeros and leave its states unchanged. Steps after the end of all
sequences are left out, as is the projection of their input; how many is known at run time.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.base.dtype import I64
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, remade, rewrite_matches, shape_of
from tilewright.graph.ops.recurrent import OPS
from tilewright.graph.types import item_of
from tilewright.graph.visit import Instead
from tilewright.sym import ONE, ZERO, Const, Expr

# The position of the lengths among the inputs of each layer.
LENGTHS = {op.name: [given.name for given in op.inputs].index("lengths") for op in OPS}


def trim_sequences(module: Module, ctx: PassContext) -> Module:
    """Before: lstm(%gates, %r, %lengths).
    After: pad(lstm(%gates[:max(%lengths)], %r, %lengths))."""
    return rewrite_matches(module, (trim,))


def trim(node: Node, scope: Scope) -> Replacement:
    """A layer whose sequences may be shorter than the time axis."""
    at = LENGTHS.get(node.op)
    if at is None or at >= len(node.inputs):
        return None
    gates, lengths = node.inputs[0], node.inputs[at]
    if gates is None or lengths is None:
        return None
    time = _time(gates)
    known = scope.constant(lengths)
    if known is not None and isinstance(time, Const) and (known >= time.value).all():
        inputs = (*node.inputs[:at], None, *node.inputs[at + 1 :])
        return [remade(node, node.op, *inputs, **dict(node.attributes))]
    if time is ONE or time is ZERO:
        return None
    steps = Steps(node, scope)
    short = _first_steps(gates, _longest(lengths, steps), steps)
    layer = make_node(
        node.op,
        (short, *node.inputs[1:]),
        dict(node.attributes),
        node.loc,
        hints=[value.name for value in node.outputs],
    )
    steps.nodes.append(layer)
    every, *last = layer.outputs
    left_out = sym.simplify(sym.sub(time, _time(every)))
    whole = steps.add("pad", every, pads=(0, 0, 0, item_of(left_out), 0, 0))
    return Instead(tuple(steps.nodes), (whole, *last))


def _longest(lengths: Value, steps: Steps) -> Value | int:
    """The length of the longest sequence."""
    known = steps.scope.constant(lengths)
    if known is not None:
        return int(known.max(initial=0))
    longest = steps.add("reduce_max", steps.add("cast", lengths, to=I64), axes=(0,), keepdims=True)
    return steps.add("maximum", longest, steps.constant([0], longest.tensor, "none"))


def _first_steps(value: Value, end: Value | int, steps: Steps) -> Value:
    """(x @ w + b)[:end] as x[:end] @ w + b, where nothing else uses the rest."""
    scope = steps.scope
    made = scope.producer(value, "add", "matmul")
    if made is not None and scope.is_used_once(value):
        x, other = made.inputs
        assert x is not None
        assert other is not None
        ranks = len(shape_of(x) or ()), len(shape_of(other) or ())
        if ranks == (3, 2 if made.op == "matmul" else 1):
            return steps.add(made.op, _first_steps(x, end, steps), other)
    if isinstance(end, int):
        return steps.add("slice", value, axes=(0,), starts=(0,), ends=(end,))
    return steps.add("slice", value, None, end, axes=(0,), starts=(0,))


def _time(value: Value) -> Expr:
    shape = shape_of(value)
    assert shape is not None
    time: Expr = shape[0]
    return time
