"""Element-by-element kernels on a GPU: several results of one kernel, pairs that take turns."""

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph, te
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.tensor.passes import lower

TARGET = "cuda -arch=sm_90a"


def check(fn, given, wanted):
    """A schedule against NumPy, as it is and lowered."""
    for each in (fn, lower(fn, "gpu")):
        made = [np.full(want.shape, np.nan, want.dtype) for want in wanted]
        tw.interpret(each, *given, *made)
        for got, want in zip(made, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("side", "channels"), [(6, 24), (5, 12), (8, 16)])
def test_results_of_one_shape_are_stored_by_one_kernel(side, channels):
    """Threads take runs of all elements, which axes that are no powers of two do not divide."""
    shape = f"f16[4, {side}, {side}, {channels}]"
    module = graph.parse(f"""graph @main(%a: {shape}, %b: {shape}, %f: f32[1, 1, 1, {channels}]) {{
      %c = add(%a, %b)
      %d = cast(%c) {{to = dtype f32}}
      %e = mul(%d, %f)
      %g = relu(%e)
      return %c, %g
    }}""")
    made = schedule(lower_graph(module.main, "f"), TARGET)
    assert [each.rule for each in made.decisions] == ["elementwise"]
    rng = np.random.default_rng(0)
    sizes = ((4, side, side, channels), (4, side, side, channels), (1, 1, 1, channels))
    a, b, f = (rng.standard_normal(size) for size in sizes)
    given = (a.astype(np.float16), b.astype(np.float16), f.astype(np.float32))
    total = given[0] + given[1]
    wanted = (total, np.maximum(total.astype(np.float32) * given[2], 0))
    check(made.schedule.function, given, wanted)
    ptx = tw.build(made.schedule.function, TARGET).ptx
    assert ptx.count(".entry") == 1
    assert ".local" not in ptx


def rotated(count, length):
    """Rotary embedding of interleaved pairs."""
    x = te.placeholder((count, length), dtype="f16", name="x")
    c, s = (te.placeholder((count, length), dtype="f32", name=name) for name in "cs")

    def turned(b, i):
        other = te.if_then_else(
            i % 2 < 1, te.cast(x[b, i // 2 * 2 + 1], "f32") * -1.0, te.cast(x[b, i // 2 * 2], "f32")
        )
        return te.cast(te.cast(x[b, i], "f32") * c[b, i] + other * s[b, i], "f16")

    y = te.compute((count, length), turned, name="y")
    return te.function([x, c, s, y], name="rotated")


def test_pairs_that_are_rotated_are_read_in_short_runs():
    """Neighbouring threads read neighbouring memory, each by one access."""
    (decision,) = schedule(rotated(1 << 15, 64), TARGET).decisions
    plan = dict(part.split("=") for part in decision.plan.split())
    assert 1 < int(plan["unroll"]) <= 8
    count, length = 64, 64
    fn = schedule(rotated(count, length), TARGET, choices={"y": decision.choice}).schedule.function
    accesses = re.findall(r"(?:ld|st)\.global\S*", tw.build(fn, TARGET).ptx)
    assert accesses
    assert not any(access.endswith("b16") and ".v" not in access for access in accesses)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((count, length)) for _ in range(3)]
    given = [each.astype(kind) for each, kind in zip(given, "eff", strict=True)]
    pairs = given[0].astype(np.float32).reshape(count, -1, 2)
    other = np.stack((-pairs[..., 1], pairs[..., 0]), -1).reshape(count, length)
    check(fn, given, [(given[0] * given[1] + other * given[2]).astype(np.float16)])
