"""Stages that share rows: one row at a time, or neighbouring ones."""

import numpy as np
import pytest

from tilewright import te
from tilewright.rules import schedule
from tilewright.rules.cpu.fused_reductions import FUSED_REDUCTIONS

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"


def softmax(shape, axis):
    a = te.placeholder(shape, name="a")
    r, s = (te.reduce_axis((0, shape[axis]), name=name) for name in "rs")
    kept = tuple(size for at, size in enumerate(shape) if at != axis)

    def row(at):
        return (*at[:axis], *at[axis + 1 :])

    def along(at, of):
        return (*at[:axis], of, *at[axis:])

    top = te.compute(kept, lambda *at: te.max(a[along(at, r)], axis=r), name="top")
    e = te.compute(shape, lambda *at: te.exp(a[at] - top[row(at)]), name="e")
    total = te.compute(kept, lambda *at: te.sum(e[along(at, s)], axis=s), name="total")
    y = te.compute(shape, lambda *at: e[at] / total[row(at)], name="y")
    return te.function([a, y], name="softmax")


@pytest.mark.parametrize(("shape", "axis"), [((9, 50), 1), ((2, 5, 70), 1), ((4, 6, 7), 1)])
def test_every_plan_keeps_the_answer(check_plans, shape, axis):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    check_plans(softmax(shape, axis), FUSED_REDUCTIONS, SERVER, [x], [(shape, np.float32)])


def test_rows_side_by_side_are_done_together():
    plans = [
        schedule(softmax(shape, axis), SERVER).decisions[0].plan
        for shape, axis in (((12, 128, 128), 2), ((1, 21, 4096), 1), ((64, 30, 7), 1))
    ]
    assert [plan.split()[0] for plan in plans] == ["tile=1", "tile=64", "tile=7"]


def test_neighbours_that_pieces_do_not_divide_are_one_tile():
    small = "aarch64-linux-gnu -mcpu=neoverse-n1"
    plans = [
        schedule(softmax(shape, 1), small).decisions[0].plan
        for shape in ((2, 128, 28, 28), (2, 128, 32, 32), (2, 128, 4000))
    ]
    assert [plan.split()[0] for plan in plans] == ["tile=28", "tile=16", "tile=16"]


def test_a_tile_has_no_more_sums_than_vectors():
    small = "aarch64-linux-gnu -mcpu=neoverse-n1"

    def scheduled(accumulators):
        plan = f"tile=8 accumulators={accumulators} parallel=none chunk=1"
        choices = {"y": (FUSED_REDUCTIONS.name, plan)}
        return schedule(softmax((2, 12, 70), 1), small, choices=choices).schedule.function

    assert str(scheduled(4)) == str(scheduled(2)) != str(scheduled(1))


def test_rows_of_gathered_values_have_lanes_along_themselves():
    a, where = te.placeholder((4096,), name="a"), te.placeholder((64, 1040), "i64", name="where")
    r = te.reduce_axis((0, 1040), name="r")

    def value(i, j):
        return a[te.max(te.min(te.cast(where[i, j], "index"), 4095), 0)]

    total = te.compute((64,), lambda i: te.sum(value(i, r), axis=r), name="total")
    y = te.compute((64, 1040), lambda i, j: value(i, j) - total[i], name="y")
    made = schedule(te.function([a, where, y], name="centred"), SERVER)
    assert made.decisions[0].rule == FUSED_REDUCTIONS.name
    assert "block @total_rf" in str(made.schedule.function)
