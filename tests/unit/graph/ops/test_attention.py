"""Attention against loops that say what it is."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.errors import UserError


def looped(q, k, v, allowed=lambda b, i, j: True, added=None, scale=None, cap=0.0):
    out = np.zeros((*q.shape[:3], v.shape[3]))
    group = q.shape[1] // k.shape[1]
    scale = q.shape[3] ** -0.5 if scale is None else scale
    for b, h, i in np.ndindex(*q.shape[:3]):
        scores = []
        for j in range(k.shape[2]):
            score = q[b, h, i] @ k[b, h // group, j] * scale
            score = cap * np.tanh(score / cap) if cap else score
            score += 0 if added is None else added[b, h, i, j]
            scores.append(score if allowed(b, i, j) else -np.inf)
        scores = np.array(scores)
        if np.isneginf(scores).all():
            continue
        weights = np.exp(scores - scores.max())
        out[b, h, i] = weights / weights.sum() @ v[b, h // group]
    return out


@pytest.fixture
def qkv(rng):
    return (
        rng.standard_normal((2, 4, 3, 8)),
        rng.standard_normal((2, 2, 5, 8)),
        rng.standard_normal((2, 2, 5, 6)),
    )


def test_heads_share_keys(run_op, qkv):
    np.testing.assert_allclose(run_op("attention", *qkv, symbolic=False), looped(*qkv))


def test_scale_and_cap(run_op, qkv):
    made = run_op("attention", *qkv, scale=0.7, softcap=1.5)
    np.testing.assert_allclose(made, looped(*qkv, scale=0.7, cap=1.5))


def test_causal_with_past(run_op, qkv):
    made = run_op("attention", *qkv, causal=True, past=2)
    np.testing.assert_allclose(made, looped(*qkv, lambda b, i, j: j <= i + 2))


@pytest.mark.parametrize("window", [(1, -1), (-1, 1), (1, 0), (0, 0)])
def test_windows(run_op, qkv, window):
    left, right = window

    def allowed(b, i, j):
        return (left < 0 or j >= i - left) and (right < 0 or j <= i + right)

    made = run_op("attention", *qkv, window=window)
    np.testing.assert_allclose(made, looped(*qkv, allowed))


def test_lengths_of_sequences(run_op, qkv):
    lengths = np.array([3, 5])
    made = run_op("attention", *qkv, None, lengths, causal=True)

    def allowed(b, i, j):
        return j < lengths[b] and j <= i + lengths[b] - 3

    np.testing.assert_allclose(made, looped(*qkv, allowed))


def test_masks_of_truth_values_and_of_numbers(run_op, rng, qkv):
    added = rng.standard_normal((2, 4, 3, 5))
    np.testing.assert_allclose(run_op("attention", *qkv, added), looped(*qkv, added=added))
    mask = rng.integers(0, 2, (3, 5)).astype(bool)
    made = run_op("attention", *qkv, mask)
    np.testing.assert_allclose(made, looped(*qkv, lambda b, i, j: mask[i, j]))


def test_a_query_that_sees_nothing_gives_zeros(run_op, qkv):
    mask = np.ones((3, 5), bool)
    mask[1] = False
    made, weights = run_op("attention", *qkv, mask, outputs=2, scores="weights")
    assert (made[:, :, 1] == 0).all()
    assert (weights[:, :, 1] == 0).all()
    np.testing.assert_allclose(weights[:, :, [0, 2]].sum(axis=-1), 1)


@pytest.mark.parametrize("scores", ["raw", "capped", "masked", "weights"])
def test_scores_are_shown_as_asked(run_op, rng, qkv, scores):
    q, k, _ = qkv
    added = rng.standard_normal((3, 5))
    _, shown = run_op("attention", *qkv, added, outputs=2, softcap=2.0, scores=scores)
    want = np.matmul(q, np.repeat(k, 2, axis=1).swapaxes(2, 3)) / np.sqrt(8)
    if scores != "raw":
        want = 2 * np.tanh(want / 2)
    if scores in ("masked", "weights"):
        want = want + added
    if scores == "weights":
        want = np.exp(want) / np.exp(want).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(shown, want)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("delta", [False, True])
def test_linear_attention(run_op, rng, gated, delta):
    batch, heads, shared, steps, dk, dv = 2, 4, 2, 3, 5, 6
    q = rng.standard_normal((batch, heads, steps, dk))
    k = rng.standard_normal((batch, shared, steps, dk))
    v = rng.standard_normal((batch, shared, steps, dv))
    state = rng.standard_normal((batch, shared, dk, dv))
    decay = -np.abs(rng.standard_normal((batch, shared, steps, dk))) if gated else None
    beta = np.abs(rng.standard_normal((batch, shared, steps, 1))) if delta else None
    made, last = run_op("linear_attention", q, k, v, state, decay, beta, outputs=2, scale=0.5)
    for b, h in np.ndindex(batch, shared):
        memory = state[b, h].copy()
        for t in range(steps):
            if gated:
                memory = np.exp(decay[b, h, t])[:, None] * memory
            new = v[b, h, t]
            if delta:
                new = beta[b, h, t] * (new - memory.T @ k[b, h, t])
            memory = memory + np.outer(k[b, h, t], new)
            for g in (2 * h, 2 * h + 1):
                np.testing.assert_allclose(made[b, g, t], 0.5 * q[b, g, t] @ memory)
        np.testing.assert_allclose(last[b, h], memory)


@pytest.mark.parametrize(
    ("shapes", "error"),
    [
        ([(2, 3, 8), (2, 4, 5, 8), (2, 4, 5, 8)], "TW1214.*q of attention has rank 3"),
        ([(2, 3, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8)], "TW1214.*3 query heads cannot share 2"),
        ([(2, 4, 4, 8), (2, 2, 5, 7), (2, 2, 5, 8)], "TW1015.*features of queries and keys"),
        ([(2, 4, 4, 8), (2, 2, 5, 8), (2, 2, 6, 8)], "TW1015.*lengths of keys and values"),
    ],
)
def test_heads_that_do_not_fit(run_op, shapes, error):
    with pytest.raises(UserError, match=error):
        run_op("attention", *(np.ones(shape) for shape in shapes))


def test_rounded_weights(run_op, qkv):
    """Weights have the precision of the values; they still add up to one."""
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in qkv)
    made = run_op("attention", q, k, v, round_weights=True, to=F32)
    assert made.dtype == np.float32
    wide = [x.astype(np.float64) for x in (q, k, v)]
    np.testing.assert_allclose(made, looped(*wide), rtol=2e-2, atol=1e-2)
    ones = run_op("attention", q, k, np.ones_like(v), round_weights=True, to=F32)
    np.testing.assert_allclose(ones, 1, rtol=1e-6)
