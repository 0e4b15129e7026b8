"""Attention of rounded numbers on tiles, against the interpreter of graphs."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import graph, tensor
from tilewright.base.target import Target
from tilewright.lower.graph import lower_graph
from tilewright.rules import default_schedule

needs_tiles = pytest.mark.skipif(
    not Target.parse("cpu").has("amx-bf16"), reason="this machine has no AMX"
)
# batch, query heads, key heads, queries, keys, features, width, attributes, shape of a mask
CASES = {
    "whole tiles": (1, 2, 2, 64, 96, 32, 64, "", ""),
    "odd sizes": (2, 3, 3, 37, 45, 40, 24, "", ""),
    "less than a tile": (1, 2, 2, 16, 17, 16, 16, "", ""),
    "shared keys": (1, 4, 2, 33, 70, 64, 32, "", ""),
    "causal": (1, 2, 2, 100, 100, 64, 64, "causal = true", ""),
    "causal, keys before": (1, 2, 1, 70, 121, 32, 20, "causal = true, past = 51", ""),
    "causal, more queries": (1, 2, 2, 90, 40, 32, 16, "causal = true", ""),
    "window": (1, 2, 2, 130, 130, 32, 16, "window = (9, 40)", ""),
    "narrow window": (1, 2, 1, 300, 300, 32, 32, "causal = true, window = (33, -1)", ""),
    "window, keys before": (1, 1, 1, 70, 300, 32, 32, "window = (20, 5), past = 217", ""),
    "cap": (1, 1, 1, 40, 40, 32, 32, "softcap = 2.0, scale = 0.3", ""),
    "added for each query": (1, 2, 2, 45, 50, 32, 32, "", "f32[1, 1, 45, 50]"),
    "hidden for all queries": (2, 2, 2, 45, 50, 32, 32, "", "bool[2, 1, 1, 50]"),
}

SERVER = "x86_64-linux-gnu -mcpu=sapphirerapids"


def attention(case):
    """A graph, and what it is given."""
    b, h, g, s, t, d, f, attributes, mask = CASES[case]
    chosen = ", ".join(x for x in ("round_weights = true", "to = dtype f32", attributes) if x)
    more, used = (f", %m: {mask}", ", %m") if mask else ("", "")
    module = graph.parse(
        f"graph @main(%q: bf16[{b}, {h}, {s}, {d}], %k: bf16[{b}, {g}, {t}, {d}], "
        f"%v: bf16[{b}, {g}, {t}, {f}]{more}) -> (f32[{b}, {h}, {s}, {f}]) {{"
        f"%y = attention(%q, %k, %v{used}) {{{chosen}}} return %y }}"
    )
    rng = np.random.default_rng(len(case))
    shapes = ((b, h, s, d), (b, g, t, d), (b, g, t, f))
    inputs = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes]
    if mask:
        added = rng.standard_normal(module.main.params[3].tensor.static_shape)
        inputs.append(added > -1 if mask.startswith("bool") else added.astype(np.float32))
    return module, inputs


def run(case, target, threads, call):
    module, inputs = attention(case)
    function = default_schedule(lower_graph(module.main, "k"), target, threads=threads).function
    outermost = [line for line in str(function).splitlines() if line.startswith("  for ")]
    assert len(outermost) == 3  # keys, values, tiles of queries
    assert "amx_bf16_dot" in str(function)
    (want,) = graph.interpret(module, *inputs)
    got = np.full_like(want, np.nan)
    call(function, *inputs, got)
    # A weight at the border of two numbers may be rounded the other way.
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=4e-3)


@needs_tiles
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_attention_on_tiles_keeps_the_answer(case, threads):
    run(case, "cpu", threads, lambda function, *args: tw.build(function)(*args))


@pytest.mark.parametrize("case", ["less than a tile", "shared keys"])
def test_the_interpreter_agrees(case):
    run(case, SERVER, 1, tensor.interpret)


def test_tiles_of_keys_that_a_window_hides_are_left_out():
    module = graph.parse(
        "graph @main(%q: bf16[1, 2, 320, 32]) -> (f32[1, 2, 320, 32]) { %y = attention(%q, %q, %q) "
        "{causal = true, window = (64, -1), round_weights = true, to = dtype f32} return %y }"
    )
    made = default_schedule(lower_graph(module.main, "k"), SERVER, threads=2)
    lowered = str(tensor.passes.lower(made.function))
    assert "amx" in lowered
    assert "f32[10240]" not in lowered  # 32 queries by 320 keys
    tiles = "in max(0, %ax0_ax1_ax2 % 10 - 2)..%ax0_ax1_ax2 % 10 + 1 "
    assert lowered.count(tiles) == 2  # of scores, and of values


def test_no_more_scores_exist_than_a_tile_has():
    module, _ = attention("causal")
    made = default_schedule(lower_graph(module.main, "k"), SERVER, threads=2)
    lowered = str(tensor.passes.lower(made.function))
    assert "f32[4096]" in lowered  # 32 queries by 128 keys
    assert "in parallel 0..8 " in lowered  # two heads of four tiles
