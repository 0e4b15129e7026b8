"""Recurrent layers, in one direction each.

The input projection is a separate GEMM: `gates` [time, batch, n * hidden] contains x @ w + biases,
gate by gate, and the operator computes only the recurrence. Sequences shorter than the time axis
(`lengths`) keep their state and give zeros after their end. `reverse` runs from the end to the
beginning.

With quantized recurrent weights (`quantized_lstm`), the state is quantized dynamically in every
step, over a range that includes zero, and multiplied in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I8, I16, U8, DType
from tilewright.graph.op import FLOAT, INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.linalg import wide
from tilewright.graph.ops.rules import same_dim
from tilewright.graph.types import TensorType, Type

Array = np.ndarray[Any, Any]

# name: function of x and two parameters, and their defaults
ACTIVATIONS: dict[str, tuple[Callable[[Any, float, float], Any], float, float]] = {
    "relu": (lambda x, a, b: np.maximum(x, 0), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "sigmoid": (lambda x, a, b: 1 / (1 + np.exp(-x)), 0.0, 0.0),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leaky_relu": (lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, 0.0),
    "thresholded_relu": (lambda x, a, b: np.where(x >= a, x, 0), 1.0, 0.0),
    "scaled_tanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hard_sigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), 1.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "softplus": (lambda x, a, b: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 0.0, 0.0),
}


def _state_type(call: Call, gates: int, states: int) -> tuple[Type, ...]:
    """The types of the sequence of hidden states, and of each final state."""
    x, r = call.shape(0), call.shape(1)
    if len(x) != 3 or len(r) != 2:
        raise call.error(
            "TW1210",
            f"{call.op} takes ranks 3 and 2, gates and weights, not {len(x)}, {len(r)}",
        )
    hidden = r[1]
    for dim in (x[2], r[0]):
        same_dim(call, dim, sym.simplify(sym.mul(hidden, gates)), f"{gates} gates and the columns")
    for name, _, _ in call["activations"]:
        if name not in ACTIVATIONS:
            raise call.error(
                "TW1211", f"{call.op} knows no activation {name!r}", f"use {', '.join(ACTIVATIONS)}"
            )
    of = call.tensor(0).dtype
    last = TensorType(of, (x[1], hidden))
    return (TensorType(of, (x[0], x[1], hidden)), *[last] * states)[: call.outputs]


def _function(call: Call, at: int, *, gate: bool = True) -> Callable[[Array], Array]:
    """Activation number `at`; the input of a gate is clipped if the layer has `clip`."""
    name, alpha, beta = call["activations"][at]
    fn, clip = ACTIVATIONS[name][0], call["clip"]
    if clip is None or not gate:
        return lambda x: np.asarray(fn(x, alpha, beta))
    return lambda x: np.asarray(fn(np.clip(x, -clip, clip), alpha, beta))


def _steps(call: Call, count: int, lengths: Array | None) -> Iterator[tuple[int, Array | None]]:
    """Time steps in order, each with a mask of the sequences that have not ended."""
    for step in reversed(range(count)) if call["reverse"] else range(count):
        yield step, None if lengths is None else (step < lengths)[:, None]


def _start(given: Array | None, gates: Array, hidden: int) -> Array:
    return np.zeros((gates.shape[1], hidden), gates.dtype) if given is None else wide(given)


def _keep(running: Array | None, new: Array, old: Array | float) -> Array:
    return new if running is None else np.where(running, new, old)


def _finish(call: Call, of: np.dtype[Any], *arrays: Array) -> tuple[Array, ...]:
    return tuple(array.astype(of) for array in arrays)[: call.outputs]


def _rnn(
    call: Call, gates: Array, r: Array, lengths: Array | None = None, h0: Array | None = None
) -> tuple[Array, ...]:
    """h = f(gates + h @ r)."""
    x, weights = wide(gates), wide(r).T
    f = _function(call, 0)
    h = _start(h0, x, r.shape[1])
    out = np.zeros((*x.shape[:2], r.shape[1]), x.dtype)
    for step, running in _steps(call, len(x), lengths):
        new = f(x[step] + h @ weights)
        h, out[step] = _keep(running, new, h), _keep(running, new, 0.0)
    return _finish(call, gates.dtype, out, h)


def _gru(
    call: Call,
    gates: Array,
    r: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    h0: Array | None = None,
) -> tuple[Array, ...]:
    """z, s = f(gates + h @ r + bias); n = g(...); h = (1 - z) * n + z * h, gates in order z, s, n.

    n uses (s * h) @ r + bias, or with `linear_before_reset` s * (h @ r + bias).
    """
    x, hidden = wide(gates), r.shape[1]
    rz, rr, rn = np.split(wide(r), 3)
    zeros = np.zeros(3 * hidden, x.dtype)
    bz, br, bn = np.split(zeros if bias is None else wide(bias), 3)
    f, g = _function(call, 0), _function(call, 1)
    h = _start(h0, x, hidden)
    out = np.zeros((*x.shape[:2], hidden), x.dtype)
    for step, running in _steps(call, len(x), lengths):
        xz, xr, xn = np.split(x[step], 3, axis=1)
        update = f(xz + h @ rz.T + bz)
        reset = f(xr + h @ rr.T + br)
        if call["linear_before_reset"]:
            candidate = g(xn + reset * (h @ rn.T + bn))
        else:
            candidate = g(xn + (reset * h) @ rn.T + bn)
        new = (1 - update) * candidate + update * h
        h, out[step] = _keep(running, new, h), _keep(running, new, 0.0)
    return _finish(call, gates.dtype, out, h)


def _lstm(
    call: Call,
    gates: Array,
    r: Array,
    lengths: Array | None = None,
    h0: Array | None = None,
    c0: Array | None = None,
    peephole: Array | None = None,
) -> tuple[Array, ...]:
    weights = wide(r).T
    return _lstm_steps(call, gates, lambda h: h @ weights, r.shape[1], lengths, h0, c0, peephole)


def _lstm_steps(
    call: Call,
    gates: Array,
    product: Callable[[Array], Array],
    hidden: int,
    lengths: Array | None,
    h0: Array | None,
    c0: Array | None,
    peephole: Array | None,
) -> tuple[Array, ...]:
    """Gates in order input, output, forget, cell; peepholes input, output, forget."""
    x = wide(gates)
    zeros = np.zeros(3 * hidden, x.dtype)
    pi, po, pf = np.split(zeros if peephole is None else wide(peephole), 3)
    f, g, output = _function(call, 0), _function(call, 1), _function(call, 2, gate=False)
    h, c = _start(h0, x, hidden), _start(c0, x, hidden)
    out = np.zeros((*x.shape[:2], hidden), x.dtype)
    for step, running in _steps(call, len(x), lengths):
        xi, xo, xf, xc = np.split(x[step] + product(h), 4, axis=1)
        let_in = f(xi + pi * c)
        keep = 1 - let_in if call["input_forget"] else f(xf + pf * c)
        cell = keep * c + let_in * g(xc)
        new = f(xo + po * cell) * output(cell)
        h, c = _keep(running, new, h), _keep(running, cell, c)
        out[step] = _keep(running, new, 0.0)
    return _finish(call, gates.dtype, out, h, c)


def _quantized_lstm(
    call: Call,
    gates: Array,
    r: Array,
    scale: Array,
    totals: Array,
    zero: Array | None = None,
    lengths: Array | None = None,
    h0: Array | None = None,
    c0: Array | None = None,
    peephole: Array | None = None,
) -> tuple[Array, ...]:
    """sum of (q - z) * (r - zero)  =  q @ r  -  z * totals  -  zero * sum of q, in i32."""
    weights, offset = r.astype(np.int32).T, state_offset(call["states"])

    def product(h: Array) -> Array:
        low, high = h.min(initial=0), h.max(initial=0)
        step = (high - low) / h.dtype.type(STATE_STEPS) if high > low else h.dtype.type(1)
        point = np.round(-low / step)
        q = np.clip(np.round(h / step) + point, 0, STATE_STEPS).astype(np.int32) - offset
        total = q @ weights - (int(point) - offset) * totals
        if zero is not None:
            total = total - q.sum(axis=1, keepdims=True) * zero.astype(np.int32)
        return np.asarray(total.astype(h.dtype) * (step * scale))

    return _lstm_steps(call, gates, product, r.shape[1], lengths, h0, c0, peephole)


STATE_STEPS = 255  # between the minimum and maximum state


def state_offset(states: DType) -> int:
    """Offset subtracted from a quantized state, 0 to 255, to fit its type."""
    return 1 << (I8.bits - 1) if states is I8 else 0


def _quantized_state_type(call: Call) -> tuple[Type, ...]:
    made = _state_type(call, 4, 2)
    if call["states"] not in (U8, I8, I16):
        raise call.error("TW1211", f"{call.op} has states in u8, i8 or i16, not {call['states']}")
    rows = call.shape(1)[0]
    for at in (2, 3, 4):
        if call.has(at):
            same_dim(call, call.shape(at)[0], rows, "rows of the weights and their parameters")
    return made


_COMMON = (
    Attr("activations", tuple, required=True),  # (name, alpha, beta) for each function
    Attr("reverse", bool, False),
    Attr("clip", float, None),  # inputs of gates are clipped to [-clip, clip]
)
_INPUT_FORGET = Attr("input_forget", bool, False)
_GATES = (Input("gates", FLOAT), Input("r", FLOAT))
_LENGTHS = Input("lengths", INTEGER, optional=True)
_STATE = Input("h0", FLOAT, optional=True)

OPS = (
    Op(
        "rnn",
        "h = f(gates + h @ r) over time: all h, and the last.",
        (*_GATES, _LENGTHS, _STATE),
        lambda call: _state_type(call, 1, 1),
        _rnn,
        OPAQUE,
        _COMMON,
    ),
    Op(
        "gru",
        "A gated recurrent unit over time: all h, and the last.",
        (*_GATES, Input("bias", FLOAT, optional=True), _LENGTHS, _STATE),
        lambda call: _state_type(call, 3, 1),
        _gru,
        OPAQUE,
        (*_COMMON, Attr("linear_before_reset", bool, False)),
    ),
    Op(
        "lstm",
        "A long short-term memory over time: all h, the last h, the last cell.",
        (
            *_GATES,
            _LENGTHS,
            _STATE,
            Input("c0", FLOAT, optional=True),
            Input("peephole", FLOAT, optional=True),
        ),
        lambda call: _state_type(call, 4, 2),
        _lstm,
        OPAQUE,
        (*_COMMON, _INPUT_FORGET),
    ),
    Op(
        "quantized_lstm",
        "An LSTM with recurrent weights in bytes: all h, the last h, the last cell. `scale`, "
        "`zero` and `totals`, the sums of r - zero along k, are per row of r.",
        (
            Input("gates", FLOAT),
            Input("r", INTEGER),
            Input("scale", FLOAT),
            Input("totals", INTEGER),
            Input("zero", INTEGER, optional=True),
            _LENGTHS,
            _STATE,
            Input("c0", FLOAT, optional=True),
            Input("peephole", FLOAT, optional=True),
        ),
        _quantized_state_type,
        _quantized_lstm,
        OPAQUE,
        (*_COMMON, _INPUT_FORGET, Attr("states", DType, U8)),
    ),
)
