"""Recurrent layers, step by step."""

import numpy as np
import pytest

from tilewright.base.dtype import I8, I16, U8
from tilewright.base.errors import UserError

TANH, SIGMOID = ("tanh", 0.0, 0.0), ("sigmoid", 0.0, 0.0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.fixture
def layer(rng):
    """Gates, weights and a state for a number of gates."""

    def make(gates, time=4, batch=3, hidden=5):
        x = rng.standard_normal((time, batch, gates * hidden))
        r = rng.standard_normal((gates * hidden, hidden))
        return x, r, rng.standard_normal((batch, hidden))

    return make


def test_rnn(run_op, layer):
    x, r, h = layer(1)
    made, last = run_op("rnn", x, r, None, h, outputs=2, activations=(TANH,))
    for step in range(4):
        h = np.tanh(x[step] + h @ r.T)
        np.testing.assert_allclose(made[step], h)
    np.testing.assert_allclose(last, h)


@pytest.mark.parametrize("late", [False, True])
def test_gru(run_op, rng, layer, late):
    x, r, h = layer(3)
    bias = rng.standard_normal(15)
    kinds = {"activations": (SIGMOID, TANH), "linear_before_reset": late}
    made, last = run_op("gru", x, r, bias, None, h, outputs=2, **kinds)
    rz, rr, rn = np.split(r, 3)
    bz, br, bn = np.split(bias, 3)
    for step in range(4):
        xz, xr, xn = np.split(x[step], 3, axis=1)
        z, s = sigmoid(xz + h @ rz.T + bz), sigmoid(xr + h @ rr.T + br)
        n = np.tanh(xn + (s * (h @ rn.T + bn) if late else (s * h) @ rn.T + bn))
        h = (1 - z) * n + z * h
        np.testing.assert_allclose(made[step], h)
    np.testing.assert_allclose(last, h)


@pytest.mark.parametrize("coupled", [False, True])
def test_lstm(run_op, rng, layer, coupled):
    x, r, h = layer(4)
    c, peephole = rng.standard_normal((3, 5)), rng.standard_normal(15)
    kinds = {"activations": (SIGMOID, TANH, TANH), "input_forget": coupled}
    made, last, cell = run_op("lstm", x, r, None, h, c, peephole, outputs=3, **kinds)
    pi, po, pf = np.split(peephole, 3)
    for step in range(4):
        xi, xo, xf, xc = np.split(x[step] + h @ r.T, 4, axis=1)
        i = sigmoid(xi + pi * c)
        f = 1 - i if coupled else sigmoid(xf + pf * c)
        c = f * c + i * np.tanh(xc)
        h = sigmoid(xo + po * c) * np.tanh(c)
        np.testing.assert_allclose(made[step], h)
    np.testing.assert_allclose(last, h)
    np.testing.assert_allclose(cell, c)


def test_short_sequences_keep_their_state(run_op, layer):
    x, r, h = layer(4)
    lengths = np.int32([4, 2, 0])
    kinds = {"activations": (SIGMOID, TANH, TANH)}
    made, last, _ = run_op("lstm", x, r, lengths, h, outputs=3, **kinds)
    for at, length in enumerate(lengths):
        one = slice(at, at + 1)
        alone = run_op("lstm", x[:length, one], r, None, h[one], outputs=3, **kinds)
        np.testing.assert_allclose(made[:length, one], alone[0])
        np.testing.assert_allclose(last[one], alone[1])
        assert (made[length:, at] == 0).all()


@pytest.mark.parametrize("states", [U8, I8, I16])
def test_bytes_are_as_near_as_their_steps(run_op, layer, rng, states):
    """The same sums whatever type holds the states; a state is wrong by half a step at most."""
    x, _, h = layer(4)
    hidden = h.shape[1]
    r, zero = rng.integers(-128, 128, (4 * hidden, hidden), np.int8), np.int8([3] * 4 * hidden)
    scale, totals = np.full(4 * hidden, 0.01), (r - 3.0).sum(axis=1).astype(np.int32)
    kinds = {"activations": (SIGMOID, TANH, TANH), "outputs": 3}
    made = run_op("quantized_lstm", x, r, scale, totals, zero, None, h, states=states, **kinds)
    same = run_op("quantized_lstm", x, r, scale, totals, zero, None, h, **kinds)
    real = run_op("lstm", x, (r - 3.0) * scale[:, None], None, h, **kinds)
    for have, again, want in zip(made, same, real, strict=True):
        assert (have == again).all()
        np.testing.assert_allclose(have, want, atol=0.05)


def test_states_without_a_range_are_zero(run_op):
    x, r = np.zeros((1, 1, 4)), np.int8([[5]] * 4)
    kinds = {"activations": (SIGMOID, TANH, TANH)}
    made = run_op("quantized_lstm", x, r, np.ones(4), np.int32([5] * 4), **kinds)
    assert made.item() == 0


def test_reverse_runs_from_the_end(run_op, layer):
    x, r, h = layer(3)
    kinds = {"activations": (SIGMOID, TANH)}
    made, last = run_op("gru", x, r, None, None, h, outputs=2, reverse=True, **kinds)
    other = run_op("gru", x[::-1].copy(), r, None, None, h, outputs=2, **kinds)
    assert (made == other[0][::-1]).all()
    assert (last == other[1]).all()


def test_gates_are_clipped(run_op):
    x, r = np.full((1, 1, 1), 5.0), np.zeros((1, 1))
    made = run_op("rnn", x, r, activations=(("affine", 2.0, 1.0),), clip=3.0)
    assert made.item() == 2 * 3 + 1


def test_what_does_not_fit(run_op):
    with pytest.raises(UserError, match=r"TW1210.*takes ranks 3 and 2"):
        run_op("rnn", np.ones((2, 3)), np.ones((3, 3)), activations=(TANH,))
    with pytest.raises(UserError, match=r"TW1015.*4 gates"):
        run_op("lstm", np.ones((2, 3, 8)), np.ones((12, 3)), activations=(TANH,) * 3)
    with pytest.raises(UserError, match=r"TW1211.*no activation 'swoosh'"):
        run_op("rnn", np.ones((2, 3, 3)), np.ones((3, 3)), activations=(("swoosh", 0.0, 0.0),))
