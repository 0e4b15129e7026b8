"""Recurrent layers as scans: step t holds the states after t elements of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import sym, te
from tilewright.base.dtype import I32, INDEX, DType
from tilewright.graph.ops.recurrent import STATE_STEPS, state_offset
from tilewright.lower.base import Lowering, Use, wide, wide_type
from tilewright.lower.linalg import summed
from tilewright.sym import Expr
from tilewright.te import Tensor

Function = Callable[[Expr], Expr]
Products = Callable[[Expr, Expr, int, Expr], Expr]  # GEMM of a step's state with a unit of a gate


def _activation(name: str, alpha: float, beta: float, of: DType) -> Function:
    zero, one = te.const(0, of), te.const(1, of)
    a, b = te.const(alpha, of), te.const(beta, of)
    functions: dict[str, Function] = {
        "relu": lambda x: te.max(x, zero),
        "tanh": te.tanh,
        "sigmoid": te.sigmoid,
        "affine": lambda x: a * x + b,
        "leaky_relu": lambda x: te.select(x >= zero, x, a * x),
        "thresholded_relu": lambda x: te.select(x >= a, x, zero),
        "scaled_tanh": lambda x: a * te.tanh(b * x),
        "hard_sigmoid": lambda x: te.min(te.max(a * x + b, zero), one),
        "elu": lambda x: te.select(x >= zero, x, a * te.expm1(te.min(x, zero))),
        "softsign": lambda x: x / (one + te.abs(x)),
        "softplus": lambda x: te.max(x, zero) + te.log1p(te.exp(-te.abs(x))),
    }
    return functions[name]


class Layer:
    """Shared by the layers: the time axis, states, and masks of ended sequences."""

    def __init__(self, use: Use, gates: Tensor, r: Tensor, lengths: Tensor | None) -> None:
        self.use, self.gates, self.r, self.lengths = use, gates, r, lengths
        self.of = wide_type(gates.dtype)
        self.length, self.batch, self.hidden = gates.shape[0], gates.shape[1], r.shape[1]
        self.times = sym.simplify(sym.add(self.length, 1))

    def function(self, at: int, *, gate: bool = True) -> Function:
        """Activation number `at`; the input of a gate is clipped if the layer has `clip`."""
        name, alpha, beta = self.use["activations"][at]
        fn, clip = _activation(name, alpha, beta, self.of), self.use["clip"]
        if clip is None or not gate:
            return fn
        low, high = te.const(-clip, self.of), te.const(clip, self.of)
        return lambda x: fn(te.min(te.max(x, low), high))

    def state(self, name: str, given: Tensor | None) -> tuple[Tensor, Tensor]:
        """A state and its initial value."""
        rest, label = (self.batch, self.hidden), f"{self.use.name}_{name}"
        start = te.compute(
            (1, *rest),
            lambda _, b, j: (
                te.const(0, self.of) if given is None else te.cast(given[b, j], self.of)
            ),
            name=f"{label}_start",
        )
        return te.placeholder((self.times, *rest), self.of, name=label), start

    def stage(self, name: str, body: Callable[[Expr, Expr, Expr], Any]) -> Any:
        """A stage per step, [time, batch, hidden]; several for several values."""
        shape = (self.times, self.batch, self.hidden)
        return te.compute(shape, body, name=f"{self.use.name}_{name}")

    def sums(
        self, name: str, read: Callable[[Expr, Expr, Expr], Expr], gates: int, first: int = 0
    ) -> Tensor:
        """GEMM of a state with the weights of some gates, [time, batch, gate, hidden]."""
        return te.compute(
            (self.times, self.batch, sym.const(gates), self.hidden),
            lambda t, b, g, j: self.product(
                lambda k: read(t, b, k), sym.add(sym.mul(self.hidden, g + first), j)
            ),
            name=f"{self.use.name}_{name}",
        )

    def place(self, t: Expr) -> Expr:
        """The sequence element of step t."""
        return sym.sub(self.length, t) if self.use["reverse"] else sym.sub(t, 1)

    def x(self, t: Expr, b: Expr, gate: int, j: Expr) -> Expr:
        """The projected input of a gate at step t."""
        return wide(self.gates[self.place(t), b, self.row(gate, j)])

    def row(self, gate: int, j: Expr) -> Expr:
        return sym.add(sym.mul(self.hidden, gate), j)

    def product(self, read: Callable[[Expr], Expr], row: Expr) -> Expr:
        """The product of a state with a row of the weights."""
        of = self.of if self.r.dtype.is_float else I32
        return summed(self.hidden, lambda k: read(k) * te.cast(self.r[row, k], of), te.const(0, of))

    def running(self, place: Expr, b: Expr, new: Expr, old: Expr) -> Expr:
        """The new value while the sequence has not ended, else the old one."""
        if self.lengths is None:
            return new
        return te.select(place < te.cast(self.lengths[b], INDEX), new, old)

    def finish(self, *states: Tensor) -> tuple[Tensor, ...]:
        """All steps of the first state, zeros after a sequence's end; the final values of all
        states."""
        use, hidden = self.use, states[0]

        def element(t: Expr, b: Expr, j: Expr) -> Expr:
            step = sym.sub(self.length, t) if use["reverse"] else sym.add(t, 1)
            value = self.running(t, b, hidden[step, b, j], te.const(0, self.of))
            return te.cast(value, use.dtype)

        last = [
            te.compute(
                (self.batch, self.hidden),
                lambda b, j, state=state: te.cast(state[self.length, b, j], use.dtype),
                name=f"{use.name}_last",
            )
            for state in states
        ]
        return (te.compute(use.shape, element, name=use.name), *last)[: use.call.outputs]


def _rnn(
    use: Use, gates: Tensor, r: Tensor, lengths: Tensor | None, h0: Tensor | None
) -> tuple[Tensor, ...]:
    layer = Layer(use, gates, r, lengths)
    f = layer.function(0)
    h, start = layer.state("h", h0)
    sums = layer.sums("sums", lambda t, b, k: h[t - 1, b, k], 1)

    def step(t: Expr, b: Expr, j: Expr) -> Expr:
        new = f(layer.x(t, b, 0, j) + sums[t, b, 0, j])
        return layer.running(layer.place(t), b, new, h[t - 1, b, j])

    return layer.finish(te.scan(start, layer.stage("step", step), h, name=f"{use.name}_all"))


def _gru(
    use: Use,
    gates: Tensor,
    r: Tensor,
    bias: Tensor | None,
    lengths: Tensor | None,
    h0: Tensor | None,
) -> tuple[Tensor, ...]:
    layer = Layer(use, gates, r, lengths)
    f, g = layer.function(0), layer.function(1)
    h, start = layer.state("h", h0)
    zero, one = te.const(0, layer.of), te.const(1, layer.of)

    def offset(row: Expr) -> Expr:
        return zero if bias is None else te.cast(bias[row], layer.of)

    linear = bool(use["linear_before_reset"])
    sums = layer.sums("sums", lambda t, b, k: h[t - 1, b, k], 3 if linear else 2)

    def gate(at: int, t: Expr, b: Expr, j: Expr) -> Expr:
        return f(layer.x(t, b, at, j) + sums[t, b, at, j] + offset(layer.row(at, j)))

    if not linear:
        kept = layer.stage("kept", lambda t, b, j: gate(1, t, b, j) * h[t - 1, b, j])
        inner = layer.sums("inner", lambda t, b, k: kept[t, b, k], 1, first=2)

    def candidate(t: Expr, b: Expr, j: Expr) -> Expr:
        base, row = layer.x(t, b, 2, j), layer.row(2, j)
        if linear:
            return g(base + gate(1, t, b, j) * (sums[t, b, 2, j] + offset(row)))
        return g(base + inner[t, b, 0, j] + offset(row))

    def step(t: Expr, b: Expr, j: Expr) -> Expr:
        part, before = gate(0, t, b, j), h[t - 1, b, j]
        new = (one - part) * candidate(t, b, j) + part * before
        return layer.running(layer.place(t), b, new, before)

    return layer.finish(te.scan(start, layer.stage("step", step), h, name=f"{use.name}_all"))


def _lstm(
    use: Use,
    gates: Tensor,
    r: Tensor,
    lengths: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    peephole: Tensor | None,
) -> tuple[Tensor, ...]:
    layer = Layer(use, gates, r, lengths)

    def products(h: Tensor) -> Products:
        sums = layer.sums("sums", lambda t, b, k: h[t - 1, b, k], 4)
        return lambda t, b, at, j: sums[t, b, at, j]

    return _lstm_steps(layer, products, h0, c0, peephole)


def _quantized_lstm(
    use: Use,
    gates: Tensor,
    r: Tensor,
    scale: Tensor,
    totals: Tensor,
    zero: Tensor | None,
    lengths: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    peephole: Tensor | None,
) -> tuple[Tensor, ...]:
    layer = Layer(use, gates, r, lengths)

    def products(h: Tensor) -> Products:
        """sum of (q - z) * (r - zero)  =  q @ r  -  z * totals  -  zero * sum of q, in i32."""
        step, point = _state_range(layer, h)
        q = layer.stage(
            "states",
            lambda t, b, k: te.cast(
                te.round(h[t - 1, b, k] / step[t, 0]) + point[t, 0], use["states"]
            ),
        )
        sums = layer.sums("sums", lambda t, b, k: te.cast(q[t, b, k], I32), 4)
        of_states = te.compute(
            (layer.times, layer.batch),
            lambda t, b: summed(layer.hidden, lambda k: te.cast(q[t, b, k], I32), te.const(0, I32)),
            name=f"{use.name}_of_states",
        )

        def product(t: Expr, b: Expr, at: int, j: Expr) -> Expr:
            row = layer.row(at, j)
            total = sums[t, b, at, j] - te.cast(point[t, 0], I32) * totals[row]
            if zero is not None:
                total = total - te.cast(zero[row], I32) * of_states[t, b]
            return te.cast(total, layer.of) * (step[t, 0] * scale[row])

        return product

    return _lstm_steps(layer, products, h0, c0, peephole)


def _state_range(layer: Layer, h: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and zero point of the quantized state at every step."""
    use, of = layer.use, layer.of
    steps, offset = te.const(STATE_STEPS, of), te.const(state_offset(use["states"]), of)

    def bound(name: str, combine: te.Reduction) -> Tensor:
        """The minimum or maximum state, including zero."""

        def element(t: Expr, _: Expr) -> Expr:
            b = te.reduce_axis((0, layer.batch), name="b")
            k = te.reduce_axis((0, layer.hidden), name="k")
            return combine(h[t - 1, b, k], axis=[b, k])

        return te.compute((layer.times, 1), element, name=f"{use.name}_{name}")

    low, high = bound("low", te.min), bound("high", te.max)

    def element(t: Expr, _: Expr) -> tuple[Expr, Expr]:
        least = te.min(low[t, 0], te.const(0, of))
        width = te.max(high[t, 0], te.const(0, of)) - least
        step = te.select(width > 0, width / steps, te.const(1, of))
        return step, te.round(-least / step) - offset

    step, point = te.compute((layer.times, 1), element, name=f"{use.name}_range")
    return step, point


def _lstm_steps(
    layer: Layer,
    products: Callable[[Tensor], Products],
    h0: Tensor | None,
    c0: Tensor | None,
    peephole: Tensor | None,
) -> tuple[Tensor, ...]:
    """Gates in order input, output, forget, cell; peepholes input, output, forget."""
    use = layer.use
    f, g, output = layer.function(0), layer.function(1), layer.function(2, gate=False)
    (h, h_start), (c, c_start) = layer.state("h", h0), layer.state("c", c0)
    one = te.const(1, layer.of)
    product = products(h)

    def gate(at: int, t: Expr, b: Expr, j: Expr, cell: Expr | None) -> Expr:
        total = layer.x(t, b, at, j) + product(t, b, at, j)
        if peephole is None or cell is None:
            return total
        return total + te.cast(peephole[layer.row(at, j)], layer.of) * cell

    def new_cell(t: Expr, b: Expr, j: Expr) -> Expr:
        before = c[t - 1, b, j]
        let_in = f(gate(0, t, b, j, before))
        keep = one - let_in if use["input_forget"] else f(gate(2, t, b, j, before))
        return keep * before + let_in * g(gate(3, t, b, j, None))

    def step(t: Expr, b: Expr, j: Expr) -> tuple[Expr, Expr]:
        cell = new_cell(t, b, j)
        new, place = f(gate(1, t, b, j, cell)) * output(cell), layer.place(t)
        return (
            layer.running(place, b, new, h[t - 1, b, j]),
            layer.running(place, b, cell, c[t - 1, b, j]),
        )

    made = te.scan((h_start, c_start), layer.stage("step", step), (h, c), name=f"{use.name}_all")
    return layer.finish(*made)


LOWERINGS: dict[str, Lowering] = {
    "rnn": _rnn,
    "gru": _gru,
    "lstm": _lstm,
    "quantized_lstm": _quantized_lstm,
}
