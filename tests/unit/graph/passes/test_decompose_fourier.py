"""Fourier transforms by matrix products give what the transforms give."""

import itertools

import numpy as np
import pytest

from tilewright.base.passes import PassContext, run_passes
from tilewright.graph import interpret, parse
from tilewright.graph.passes import decompose
from tilewright.graph.verify import verify

PRIME, MANY = 263, 300


def agree(text, x, *, op, tolerance=2e-6):
    """The module by products, after checking that it computes the same."""
    module = parse(text)
    made = run_passes(module, (decompose,), PassContext())
    verify(made)
    ops = [node.op for node in made.graphs["main"].nodes]
    (want,), (got,) = interpret(module, x), interpret(made, x)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, atol=tolerance * (1 + np.abs(want).max()))
    assert op not in ops
    return ops


def signal(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 15, 16, PRIME, MANY, 512])
@pytest.mark.parametrize(
    ("inverse", "onesided", "parts"),
    [
        (False, False, 1),
        (False, False, 2),
        (False, True, 1),
        (False, True, 2),
        (True, False, 2),
        (True, True, 2),
    ],
)
def test_transforms_of_every_kind(count, inverse, onesided, parts):
    """As long as the signal is, longer and shorter, along either axis."""
    given = count // 2 + 1 if inverse and onesided else count
    for length, axis in itertools.product((count, count + 5, max(1, count - 3)), (0, 1)):
        if length > 256 and length not in (PRIME, MANY, 512):  # long ones take long here
            continue
        shape = (3, given, parts) if axis else (given, 3, parts)
        flags = f"inverse = {str(inverse).lower()}, onesided = {str(onesided).lower()}"
        dims = ", ".join(map(str, shape))
        text = f"""graph @main(%x: f32[{dims}]) {{
          %y = dft(%x) {{axis = {axis}, length = {length}, {flags}}}
          return %y
        }}"""
        agree(text, signal(*shape), op="dft")


def test_many_values_take_two_products():
    text = f"""graph @main(%x: f32[b, {MANY}, 2]) {{
      %y = dft(%x) {{axis = 1}}
      return %y
    }}"""
    ops = agree(text, signal(4, MANY, 2), op="dft")
    assert ops.count("matmul") == 2


def test_a_long_prime_stays():
    text = """graph @main(%x: f32[1, 100003, 1]) {
      %y = dft(%x) {axis = 1}
      return %y
    }"""
    made = run_passes(parse(text), (decompose,), PassContext())
    assert [node.op for node in made.graphs["main"].nodes] == ["dft"]


@pytest.mark.parametrize("size", ["90", "n"])
@pytest.mark.parametrize(("onesided", "parts"), [(True, 1), (True, 2), (False, 1), (False, 2)])
def test_frames_are_a_convolution(size, onesided, parts):
    text = f"""graph @main(%x: f32[2, {size}, {parts}]) {{
      %w = constant() {{data = f32[4](0.5, 1.0, 2.0, 0.25)}}
      %y = stft(%x, none, %w) {{step = 3, onesided = {str(onesided).lower()}}}
      return %y
    }}"""
    ops = agree(text, signal(2, 90, parts), op="stft")
    assert "conv" in ops


@pytest.mark.parametrize("size", ["900", "n"])
@pytest.mark.parametrize(("count", "window"), [(512, True), (401, True), (400, False)])
def test_long_real_frames_take_half_the_products(size, count, window):
    numbers = ", ".join(str(1 + at % 7) for at in range(count))
    seen = f"%w = constant() {{data = f32[{count}]({numbers})}}" if window else ""
    text = f"""graph @main(%x: f32[2, {size}, 1]) {{
      {seen}
      %y = stft(%x, none, {"%w" if window else "none"}) {{step = 100, length = {count}}}
      return %y
    }}"""
    ops = agree(text, signal(2, 900, 1), op="stft")
    assert "conv" not in ops
    assert ops.count("matmul") == 2
