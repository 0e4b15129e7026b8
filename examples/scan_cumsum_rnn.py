"""Recurrences: `te.scan` as a running sum, and as a simple recurrent cell.

A scan computes step t of its state from the steps before. What stands between the state and the
update, here the product of the weights with the last state, runs step by step inside the same loop.
"""

import numpy as np

from tilewright import te
from tilewright.tensor import Function, interpret


def running_sum() -> Function:
    """out[t, i] = x[0, i] + ... + x[t, i]"""
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: X[0, i], name="init")
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i], name="update")
    total = te.scan(init, update, state, inputs=[X], name="total")
    return te.function([X, total], name="running_sum")


def recurrent_cell() -> Function:
    """h[t] = tanh(W_x x[t] + W_h h[t - 1] + b), with h[0] given; x[0] is not read."""
    steps, batch = te.var("steps"), te.var("batch")
    inputs, hidden = te.var("inputs"), te.var("hidden")
    X = te.placeholder((steps, batch, inputs), name="X")
    Wx = te.placeholder((hidden, inputs), name="Wx")
    Wh = te.placeholder((hidden, hidden), name="Wh")
    bias = te.placeholder((hidden,), name="bias")
    start = te.placeholder((1, batch, hidden), name="start")
    state = te.placeholder((steps, batch, hidden), name="state")

    i = te.reduce_axis((0, inputs), name="i")
    k = te.reduce_axis((0, hidden), name="k")
    shape = (steps, batch, hidden)
    # Does not depend on the state, so it is computed for all steps beforehand.
    from_input = te.compute(
        shape, lambda t, b, j: te.sum(X[t, b, i] * Wx[j, i], axis=i), name="from_input"
    )
    from_state = te.compute(
        shape, lambda t, b, j: te.sum(state[t - 1, b, k] * Wh[j, k], axis=k), name="from_state"
    )
    update = te.compute(
        shape,
        lambda t, b, j: te.tanh(from_input[t, b, j] + from_state[t, b, j] + bias[j]),
        name="update",
    )
    H = te.scan(start, update, state, inputs=[X, Wx, Wh, bias], name="H")
    return te.function([X, Wx, Wh, bias, start, H], name="recurrent_cell")


def main() -> None:
    rng = np.random.default_rng(0)

    def values(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    fn = running_sum()
    print(fn)
    for m, n in ((1, 3), (5, 4), (9, 1)):
        x, out = values(m, n), np.full((m, n), np.nan, np.float32)
        interpret(fn, x, out)
        np.testing.assert_allclose(out, x.cumsum(0), rtol=1e-4, atol=1e-5)
        print(f"running sum of {m} x {n} agrees with NumPy")

    fn = recurrent_cell()
    for steps, batch, inputs, hidden in ((1, 2, 3, 4), (6, 2, 5, 3)):
        x, start = values(steps, batch, inputs), values(1, batch, hidden)
        wx, wh, bias = values(hidden, inputs), values(hidden, hidden), values(hidden)
        out = np.full((steps, batch, hidden), np.nan, np.float32)
        interpret(fn, x, wx, wh, bias, start, out)
        wanted = [start[0]]
        for t in range(1, steps):
            wanted.append(np.tanh(x[t] @ wx.T + wanted[-1] @ wh.T + bias))
        np.testing.assert_allclose(out, np.stack(wanted), rtol=1e-4, atol=1e-5)
        print(f"{steps} steps of a cell of {hidden} agree with NumPy")


if __name__ == "__main__":
    main()
