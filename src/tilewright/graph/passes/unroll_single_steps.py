"""unroll_single_steps: recurrent layers of one step as GEMMs and element-wise operators.

On a GPU, where kernels have a launch cost, one step of a scan is many kernels for little work. As
primitives it is a GEMM with an epilogue. The projection of the input, if its weights are constant
and only the layer uses it, is merged with the GEMM of the state: x @ w + h @ r is [x, h] @ [w; r].

Layers that clip, have peepholes, several sequence lengths or unusual activations are left alone.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Scope, Steps, rewrite_matches, shape_of
from tilewright.graph.visit import Instead
from tilewright.sym import ONE, Const

ACTIVATIONS = ("relu", "tanh", "sigmoid")  # those that are graph operators


def unroll_single_steps(module: Module, ctx: PassContext) -> Module:
    """Before: lstm(%gates, %r, none, %h, %c).   After: products, sigmoid, tanh, mul, add."""
    return rewrite_matches(module, (_unrolled,))


def _unrolled(node: Node, scope: Scope) -> Instead | None:
    layer = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}.get(node.op)
    if layer is None or node.get("clip") is not None:
        return None
    gates, r = node.inputs[:2]
    assert gates is not None
    assert r is not None
    dims, weights = shape_of(gates), shape_of(r)
    if dims is None or weights is None or gates.tensor.dtype.bits < 32:
        return None
    if dims[0] is not ONE or not all(isinstance(dim, Const) for dim in (*dims, *weights)):
        return None
    if any(name not in ACTIVATIONS for name, *_ in node["activations"]):
        return None
    steps = Steps(node, scope)
    batch, hidden = int(dims[1].value), int(weights[1].value)
    made = layer(node, steps, batch, hidden)
    if made is None:
        return None
    new, *last = made
    whole = steps.add("reshape", new, shape=(1, batch, hidden))
    values = (whole, new, *last)[: len(node.outputs)]
    return Instead(tuple(steps.nodes), values)


def _given(node: Node, at: int) -> Value | None:
    return node.inputs[at] if at < len(node.inputs) else None


def _activation(node: Node, steps: Steps, at: int, x: Value) -> Value:
    name, *_ = node["activations"][at]
    return steps.add(name, x)


def _parts(steps: Steps, x: Value, hidden: int, count: int) -> list[Value]:
    """Split a tensor by gates."""
    return [
        steps.add("slice", x, axes=(1,), starts=(at * hidden,), ends=((at + 1) * hidden,))
        for at in range(count)
    ]


def _summed(node: Node, steps: Steps, h: Value | None, batch: int) -> Value:
    """The gates before activation: the projections of input and state, added."""
    gates, r = node.inputs[:2]
    assert gates is not None
    assert r is not None
    columns = int(gates.tensor.shape[2].value)  # type: ignore[index, union-attr]
    if h is None:
        return steps.add("reshape", gates, shape=(batch, columns))
    joined = _joined(node, steps, h, batch)
    if joined is not None:
        return joined
    x = steps.add("reshape", gates, shape=(batch, columns))
    return steps.add("add", x, steps.add("matmul", h, steps.add("transpose", r, perm=(1, 0))))


def _joined(node: Node, steps: Steps, h: Value, batch: int) -> Value | None:
    """[x, h] @ [w; r] + bias, if the gates are x @ w + bias and have no other use."""
    scope, (gates, r) = steps.scope, node.inputs[:2]
    assert gates is not None
    assert r is not None
    added = scope.producer(gates, "add")
    if added is None or not scope.is_used_once(gates):
        return None
    for product, bias in (added.inputs, added.inputs[::-1]):
        made = None if product is None else scope.producer(product, "matmul")
        if made is None or bias is None or not scope.is_used_once(made.output):
            continue
        x, w = made.inputs
        weights, recurrent = scope.constant(w), scope.constant(r)
        if x is None or weights is None or recurrent is None or weights.ndim != 2:
            continue
        if scope.constant(bias) is None or len(shape_of(bias) or (1, 1)) != 1:
            continue
        rows = steps.add("reshape", x, shape=(batch, weights.shape[0]))
        state = steps.add("concat", rows, h, axis=1)
        both = np.concatenate([weights, recurrent.T])
        stacked = steps.constant(both, r.tensor, "weights")
        return steps.add("add", steps.add("matmul", state, stacked), bias)
    return None


def _rnn(node: Node, steps: Steps, batch: int, hidden: int) -> tuple[Value, ...] | None:
    if _given(node, 2) is not None:
        return None
    total = _summed(node, steps, _given(node, 3), batch)
    return (_activation(node, steps, 0, total),)


def _gru(node: Node, steps: Steps, batch: int, hidden: int) -> tuple[Value, ...] | None:
    """z, s = f(gates + h @ r + bias); n = g(x + s * (h @ r + bias)); h' = n + z * (h - n)."""
    bias, lengths, h = (_given(node, at) for at in (2, 3, 4))
    if lengths is not None or h is None or not node.get("linear_before_reset", False):
        return None
    gates, r = node.inputs[:2]
    assert gates is not None
    assert r is not None
    x = steps.add("reshape", gates, shape=(batch, 3 * hidden))
    state = steps.add("matmul", h, steps.add("transpose", r, perm=(1, 0)))
    if bias is not None:
        state = steps.add("add", state, bias)
    given, kept = _parts(steps, x, hidden, 3), _parts(steps, state, hidden, 3)
    update, reset = (
        _activation(node, steps, 0, steps.add("add", given[at], kept[at])) for at in (0, 1)
    )
    hidden_part = steps.add("mul", reset, kept[2])
    candidate = _activation(node, steps, 1, steps.add("add", given[2], hidden_part))
    moved = steps.add("mul", update, steps.add("sub", h, candidate))
    return (steps.add("add", candidate, moved),)


def _lstm(node: Node, steps: Steps, batch: int, hidden: int) -> tuple[Value, ...] | None:
    lengths, h, c, peephole = (_given(node, at) for at in (2, 3, 4, 5))
    if lengths is not None or peephole is not None or node.get("input_forget", False):
        return None
    total = _summed(node, steps, h, batch)
    let_in, out, keep, cell = _parts(steps, total, hidden, 4)
    fresh = steps.add("mul", _activation(node, steps, 0, let_in), _activation(node, steps, 1, cell))
    if c is not None:
        kept = steps.add("mul", _activation(node, steps, 0, keep), c)
        fresh = steps.add("add", kept, fresh)
    shown = _activation(node, steps, 2, fresh)
    return steps.add("mul", _activation(node, steps, 0, out), shown), fresh
