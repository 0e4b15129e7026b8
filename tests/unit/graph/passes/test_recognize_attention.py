"""Masks of attention that are known; what the pass writes otherwise is in tests/ir."""

import numpy as np
import pytest

from tilewright import graph
from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext
from tilewright.graph import Builder, TensorType
from tilewright.graph.passes import recognize_attention
from tilewright.graph.verify import verify
from tilewright.sym import const


def windows(images, is_known=True):
    """Attention inside of four windows: a bias of each of two heads, and what each window hides."""
    random = np.random.default_rng(0)
    b = Builder()
    shape = (4 * images, 2, 9, 8)
    q, k, v = (b.param(name, TensorType(F32, tuple(map(const, shape)))) for name in "qkv")
    bias = b.constant(random.standard_normal((1, 2, 9, 9)).astype(np.float32))
    hidden = np.where(random.random((1, 4, 1, 9, 9)) < 0.3, -100, 0).astype(np.float32)
    mask = b.constant(hidden)
    if not is_known:
        mask = b.param("m", TensorType(F32, tuple(map(const, hidden.shape))))
    scores = b.add("matmul", q, b.add("transpose", k, perm=(0, 1, 3, 2)))
    scores = b.add("reshape", b.add("add", scores, bias), shape=(images, 4, 2, 9, 9))
    scores = b.add("reshape", b.add("add", scores, mask), shape=(4 * images, 2, 9, 9))
    return b.module(b.add("matmul", b.add("softmax", scores, axes=(3,)), v))


@pytest.mark.parametrize("images", [1, 3])
def test_masks_of_heads_and_of_windows_are_one(images):
    before = windows(images)
    after = recognize_attention(before, PassContext())
    verify(after)
    (made,) = [node for node in after.main.nodes if node.op == "attention"]
    assert made.inputs[3].tensor.static_shape == (4 * images, 2, 9, 9)
    given = np.random.default_rng(1).standard_normal((3, 4 * images, 2, 9, 8)).astype(np.float32)
    (want,), (got,) = graph.interpret(before, *given), graph.interpret(after, *given)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_mask_that_a_call_tells_stays():
    after = recognize_attention(windows(2, is_known=False), PassContext())
    assert not any(node.op == "attention" for node in after.main.nodes)


def test_masks_of_what_is_seen_hide_in_bf16_too():
    module = graph.parse(
        """graph @main(%q: bf16[4, 2, 8], %k: bf16[4, 8, 2], %v: bf16[4, 2, 8]) {
          %zero = constant() {data = bf16[](0.0)}
          %low = constant() {data = bf16[](-1e9)}
          %known = constant() {data = bool[2, 2, 2, 2](true, false, true, false, true, false,
            true, false, false, true, false, true, false, true, false, true)}
          %mask = where(%known, %zero, %low)
          %s = matmul(%q, %k)
          %r = reshape(%s) {shape = (2, 2, 2, 2)}
          %a = add(%r, %mask)
          %w = softmax(%a) {axes = (3,)}
          %p = reshape(%w) {shape = (4, 2, 2)}
          %y = matmul(%p, %v)
          return %y
        }"""
    )
    made = recognize_attention(module, PassContext())
    assert "attention" in {node.op for node in made.main.nodes}
    verify(made)
