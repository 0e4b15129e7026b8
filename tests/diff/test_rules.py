"""Default schedules keep the answer: graphs lowered, scheduled and run natively."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import default_schedule

BODIES = {
    "a chain with a broadcast": """
      %y = add(%x, %w)
      %z = relu(%y)
      %c = greater(%z, %x)
      %q = where(%c, %z, %x)
    """,
    "a value that several use": """
      %e = exp(%x)
      %a = add(%e, %w)
      %q = mul(%a, %e)
    """,
    "softmax": """
      %y = mul(%x, %w)
      %q = softmax(%y) {axes = (1,)}
    """,
}


@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("columns", [1, 7, 16, 1000])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_default_schedules_keep_the_answer(body, columns, rows):
    module = graph.parse(
        f"graph @main(%x: f32[n, {columns}], %w: f32[{columns}]) -> (f32[n, {columns}]) {{"
        f"{body} return %q }}"
    )
    scheduled = default_schedule(lower_graph(module.main, "kernel"), "cpu", threads=2)
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, columns), dtype=np.float32)
    w = random.standard_normal(columns, dtype=np.float32)
    out = np.full_like(x, np.nan)
    tw.build(scheduled.function)(x, w, out, rows)
    (want,) = graph.interpret(module, x, w)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)


def test_elementwise_producers_disappear_and_lanes_are_vectors():
    module = graph.parse(
        "graph @main(%x: f32[64, 1024]) -> (f32[64, 1024]) { %y = relu(%x) %z = neg(%y) return %z }"
    )
    text = str(default_schedule(lower_graph(module.main, "kernel"), "cpu", threads=2).function)
    assert text.count("block @") == 1
    assert "in vector 0.." in text
    assert "in parallel 0.." in text
