"""Convolutions in groups of few channels: lanes are the channels of several groups."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.codegen.build import build
from tilewright.rules import schedule
from tilewright.rules.cpu.grouped import GROUPED
from tilewright.tensor.ir import SERIAL, UNROLL, For, Function
from tilewright.tensor.visit import walk

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"


def grouped(size: int, inner: int, out: int, groups: int, stride: int = 1) -> Function:
    """3 x 3, padded by one, and what follows it; `inner` and `out` channels of a group."""
    x = te.placeholder((1, size, size, groups * inner), name="x")
    w = te.placeholder((groups * out, inner, 3, 3), name="w")
    padded = te.compute(
        (1, size + 2, size + 2, groups * inner),
        lambda n, i, j, c: te.select(
            te.all(i >= 1, i < size + 1, j >= 1, j < size + 1), x[n, i - 1, j - 1, c], 0.0
        ),
        name="padded",
    )
    c, u, v = (te.reduce_axis((0, n), name=name) for n, name in ((inner, "c"), (3, "u"), (3, "v")))
    places = (size + stride - 1) // stride
    y = te.compute(
        (1, places, places, groups * out),
        lambda n, i, j, o: te.sum(
            padded[n, i * stride + u, j * stride + v, o // out * inner + c] * w[o, c, u, v],
            axis=(c, u, v),
        ),
        name="y",
    )
    z = te.compute(y.shape, lambda n, i, j, o: te.max(y[n, i, j, o], 0.0), name="z")
    return te.function([x, w, z], name="layer")


def operands(fn: Function) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [tuple(int(each.value) for each in param.shape) for param in fn.params]
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("stride", [1, 2])
def test_every_plan_keeps_the_answer(check_plans, stride) -> None:
    fn = grouped(5, 2, 4, 4, stride)
    x, w, z = operands(fn)
    outputs = [(z.shape, np.float32)]
    target = "x86_64-linux-gnu -mcpu=haswell"
    check_plans(fn, GROUPED, target, [x, w], outputs, constants=("w",), plans=6)


@pytest.mark.parametrize(
    ("inner", "out", "groups"), [(2, 2, 8), (1, 2, 6), (4, 4, 3), (2, 8, 2)], ids=str
)
def test_native_code_keeps_the_answer(inner, out, groups) -> None:
    fn = grouped(9, inner, out, groups)
    made = schedule(fn, "cpu")
    assert "grouped" in [each.rule for each in made.decisions]
    x, w, z = operands(fn)
    want = np.empty_like(z)
    build(fn, "cpu")(x, w, want)
    build(made.schedule.function, "cpu")(x, w, z)
    np.testing.assert_allclose(z, want, 1e-4, 1e-4)


def test_a_vector_has_whole_groups_and_all_of_their_inputs() -> None:
    def groups(inner: int, out: int, count: int) -> str:
        made = schedule(grouped(14, inner, out, count), SERVER, constants=("w",))
        (plan,) = [each.plan for each in made.decisions if each.rule == "grouped"]
        return plan.split()[0]

    assert groups(4, 4, 32) == "groups=4"
    assert groups(4, 4, 6) == "groups=3"  # all vectors alike
    assert groups(8, 4, 32) == "groups=2"  # the inputs of more are not in one vector
    assert groups(4, 16, 4) == "groups=1"


def test_code_for_several_groups_in_a_vector_gathers_nothing() -> None:
    made = schedule(grouped(14, 4, 4, 8), SERVER, constants=("w",))
    assert "gather" not in build(made.schedule.function, SERVER).assembly


def test_channels_of_one_group_are_a_loop() -> None:
    """Unrolled they are a body that LLVM spills in, of some hundred multiply-adds."""
    made = schedule(grouped(8, 16, 16, 4), SERVER, constants=("w",))
    assert [each.rule for each in made.decisions][:1] == ["grouped"]
    kinds = {
        loop.var.name: loop.kind for loop in walk(made.schedule.function.body) if type(loop) is For
    }
    assert kinds["c"] == SERIAL
    assert kinds["v"] == UNROLL
