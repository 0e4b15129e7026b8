"""Depthwise convolutions, channels first: lanes along the rows of a plane."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.base.target import Target
from tilewright.rules import schedule
from tilewright.rules.cpu.depthwise_nchw import DEPTHWISE_NCHW
from tilewright.tensor.ir import VECTOR, Block, For, Function
from tilewright.tensor.visit import walk

TARGET = "x86_64-linux-gnu -mcpu=haswell"


def planes(size: int, kernel: int, channels: int, stride: int = 1) -> Function:
    """Padded by half a kernel, and what follows it."""
    half = kernel // 2
    x = te.placeholder((1, channels, size, size), name="x")
    w = te.placeholder((channels, 1, kernel, kernel), name="w")
    padded = te.compute(
        (1, channels, size + 2 * half, size + 2 * half),
        lambda n, c, i, j: te.select(
            te.all(i >= half, i < size + half, j >= half, j < size + half),
            x[n, c, i - half, j - half],
            0.0,
        ),
        name="padded",
    )
    names = (("d", 1), ("u", kernel), ("v", kernel))
    d, u, v = (te.reduce_axis((0, n), name=name) for name, n in names)
    places = (size + stride - 1) // stride
    y = te.compute(
        (1, channels, places, places),
        lambda n, c, i, j: te.sum(
            padded[n, c + d, i * stride + u, j * stride + v] * w[c, d, u, v], axis=(d, u, v)
        ),
        name="y",
    )
    z = te.compute(y.shape, lambda n, c, i, j: te.max(y[n, c, i, j], 0.0), name="z")
    return te.function([x, w, z], name="layer")


@pytest.mark.parametrize(("size", "kernel", "stride"), [(9, 3, 2), (11, 3, 3), (6, 5, 1)], ids=str)
def test_every_plan_keeps_the_answer(check_plans, size, kernel, stride) -> None:
    fn = planes(size, kernel, 2, stride)
    random = np.random.default_rng(0)
    shapes = [tuple(int(each.value) for each in param.shape) for param in fn.params]
    x, w, z = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    check_plans(fn, DEPTHWISE_NCHW, TARGET, [x, w], [(z.shape, np.float32)], plans=5)


def test_a_large_kernel_has_more_sums_than_its_whole_code_would_allow() -> None:
    (decision,) = schedule(planes(28, 7, 4), TARGET).decisions
    fields = dict(each.split("=") for each in decision.choice.plan.split())
    assert decision.choice.rule == "depthwise_nchw"
    assert fields["unroll_axes"] == "1"
    assert int(fields["rows"]) * int(fields["vectors"]) >= 8


def test_what_rows_share_stays_in_registers() -> None:
    (decision,) = schedule(planes(56, 3, 4), TARGET).decisions
    fields = dict(each.split("=") for each in decision.choice.plan.split())
    assert fields["unroll_axes"] == "2"
    sums = int(fields["rows"]) * int(fields["vectors"])
    assert 4 * sums <= Target.parse(TARGET).vector_registers  # with three columns of the kernel


def test_planes_are_padded_by_whole_vectors_whatever_lanes_the_sums_have() -> None:
    (offer,) = schedule(planes(56, 3, 4, 2), TARGET).offers
    plan = "lanes=4 rows=7 vectors=1 unroll_axes=2 parallel=0 by_phase=0"
    made = schedule(planes(56, 3, 4, 2), TARGET, choices={offer.block: ("depthwise_nchw", plan)})
    loops = [each for each in walk(made.schedule.function.body) if isinstance(each, For)]
    around = [
        int(loop.extent.value)
        for loop in loops
        if loop.kind == VECTOR
        and any(isinstance(each, Block) and each.name == "padded" for each in walk(loop.body))
    ]
    assert around == [8]


def test_columns_are_apart_by_phase_of_the_stride() -> None:
    """Strided vectors that extend beyond a row would be gathered."""
    made = schedule(planes(28, 5, 4, 2), TARGET)
    (decision,) = made.decisions
    assert decision.choice.plan.endswith("by_phase=1")
    assert "%vv % 2, %vj_1 + %vv // 2] * %w" in str(made.schedule.function)


def test_one_vector_covers_a_short_row() -> None:
    (decision,) = schedule(planes(14, 3, 4), "x86_64-linux-gnu -mcpu=cascadelake").decisions
    assert decision.choice.plan.startswith("lanes=16")


def signal(length: int, kernel: int, channels: int) -> Function:
    """One row of samples to a channel, padded by half a kernel."""
    half = kernel // 2
    x = te.placeholder((1, channels, length), name="x")
    w = te.placeholder((channels, 1, kernel), name="w")
    padded = te.compute(
        (1, channels, length + 2 * half),
        lambda n, c, i: te.select(te.all(i >= half, i < length + half), x[n, c, i - half], 0.0),
        name="padded",
    )
    d, u = te.reduce_axis((0, 1), name="d"), te.reduce_axis((0, kernel), name="u")
    y = te.compute(
        (1, channels, length),
        lambda n, c, i: te.sum(padded[n, c + d, i + u] * w[c, d, u], axis=(d, u)),
        name="y",
    )
    z = te.compute(y.shape, lambda n, c, i: te.max(y[n, c, i], 0.0), name="z")
    return te.function([x, w, z], name="layer")


@pytest.mark.parametrize("kernel", [3, 301], ids=str)
def test_every_plan_of_a_signal_keeps_the_answer(check_plans, kernel) -> None:
    random = np.random.default_rng(0)
    shapes = ((1, 2, 77), (2, 1, kernel))
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    fn = signal(77, kernel, 2)
    check_plans(fn, DEPTHWISE_NCHW, TARGET, [x, w], [(x.shape, np.float32)], plans=5)


def test_a_signal_is_a_plane_of_one_row() -> None:
    for kernel, axes in ((3, "1"), (301, "0")):
        (decision,) = schedule(signal(500, kernel, 144), TARGET).decisions
        fields = dict(each.split("=") for each in decision.choice.plan.split())
        assert decision.choice.rule == "depthwise_nchw"
        assert (fields["rows"], fields["unroll_axes"]) == ("1", axes)
