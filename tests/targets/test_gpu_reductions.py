"""Few long sums on a GPU: blocks that share one, and a kernel that combines their parts."""

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.tensor.passes import lower

TARGET = "cuda -arch=sm_90a"
PLAN = "threads=32 per_result=32 vector={} parts=32"


def check(module, made, *given):
    (want,) = graph.interpret(module, *given)
    out = np.full(np.shape(want), np.nan, np.float32)
    tw.interpret(lower(made.schedule.function, "gpu"), *given, out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "length", "vector"), [(1, 4096, 1), (3, 4096, 2), (2, 4099, 1), (1, 100, 1)]
)
def test_blocks_share_a_sum(rows, length, vector):
    module = graph.parse(f"""graph @main(%x: f32[{rows}, {length}]) {{
      %y = reduce_sum(%x) {{axes = (1,), keepdims = false}}
      return %y
    }}""")
    choice = Choice("reduction", PLAN.format(vector))
    made = schedule(lower_graph(module.main, "sum"), TARGET, choices={"y_wide": choice})
    assert [each.plan for each in made.decisions] == [choice.plan]
    check(module, made, np.random.default_rng(0).standard_normal((rows, length), np.float32))


@pytest.mark.parametrize(
    ("rows", "length", "plan"),
    [
        (64, 64, "threads=64 per_result=8 vector=4 parts=1"),
        (64, 48, "threads=128 per_result=4 vector=1 parts=1"),
        (6, 64, "threads=64 per_result=32 vector=2 parts=1"),
        (4096, 64, None),
    ],
)
def test_a_block_has_several_short_sums(rows, length, plan):
    module = graph.parse(f"""graph @main(%x: f32[{rows}, {length}]) {{
      %s = mul(%x, %x)
      %m = reduce_mean(%s) {{axes = (1,), keepdims = true}}
      %y = sqrt(%m)
      return %y
    }}""")
    choices = None if plan is None else {"m_sum": Choice("reduction", plan)}
    made = schedule(lower_graph(module.main, "sum"), TARGET, choices=choices)
    (chosen,) = [each.plan for each in made.decisions if each.rule == "reduction"]
    assert "parts=1" in chosen
    assert "per_result=1 " not in chosen
    check(module, made, np.random.default_rng(0).standard_normal((rows, length), np.float32))


@pytest.mark.parametrize("threads", [64, 128])
def test_several_sums_of_windows_share_little_memory(threads):
    """Blocks have windows of several rows and channels, and store partial sums of their own."""
    module = graph.parse("""graph @main(%x: f32[1, 8, 24, 32]) {
      %y = avg_pool(%x) {kernel = (8, 8), strides = (8, 8), pads = (0, 0, 0, 0), dilations = (1, 1)}
      return %y
    }""")
    choice = Choice("reduction", f"threads={threads} per_result=8 vector=1 parts=1")
    made = schedule(lower_graph(module.main, "pool"), TARGET, choices={"y_sum": choice})
    ptx = tw.build(made.schedule.function, TARGET).ptx
    (size,) = re.findall(r"\.shared .*_rf\S*\[(\d+)\]", ptx)
    assert int(size) == 4 * threads
    check(module, made, np.random.default_rng(0).standard_normal((1, 8, 24, 32), np.float32))


def test_long_sums_are_shared_and_short_ones_are_not():
    for length, is_shared in ((1 << 20, True), (1 << 12, False), (1000 * 1000, True)):
        module = graph.parse(f"""graph @main(%x: f32[1, {length}]) {{
          %y = reduce_sum(%x) {{axes = (1,), keepdims = false}}
          return %y
        }}""")
        made = schedule(lower_graph(module.main, "sum"), TARGET)
        assert ("parts=1" not in made.decisions[0].plan.split()) is is_shared


def test_the_norm_of_an_image_is_three_kinds_of_kernels():
    """Means and deviations, of one element each, are made where sums end."""
    module = graph.parse("""graph @main(%x: f32[1, 16, 16, 16], %s: f32[16], %b: f32[16]) {
      %y = group_norm(%x, %s, %b) {groups = 1, epsilon = 1e-6}
      return %y
    }""")
    shared = {name: Choice("reduction", PLAN.format(1)) for name in ("y_mean_sum", "y_spread_sum")}
    made = schedule(lower_graph(module.main, "norm"), TARGET, choices=shared)
    assert [each.rule for each in made.decisions] == ["reduction", "reduction", "elementwise"]
    random = np.random.default_rng(0)
    given = [random.standard_normal(shape, np.float32) for shape in ((1, 16, 16, 16), 16, 16)]
    check(module, made, *given)
