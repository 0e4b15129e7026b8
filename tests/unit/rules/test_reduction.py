"""Reductions by themselves: lanes, accumulators, rows or parts for threads."""

import numpy as np
import pytest

from tilewright import sym, te
from tilewright.rules import schedule
from tilewright.rules.cpu.reduction import REDUCTION
from tilewright.tensor.ir import For, Load, MaskedLoad, Stmt, Store
from tilewright.tensor.passes import lower
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import walk

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"


def summed(shape, axis):
    a = te.placeholder(shape, name="a")
    r = te.reduce_axis((0, shape[axis]), name="r")
    kept = tuple(size for at, size in enumerate(shape) if at != axis)
    b = te.compute(kept, lambda *at: te.sum(a[(*at[:axis], r, *at[axis:])], axis=r), name="b")
    return te.function([a, b], name="summed")


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((6, 70), 1), ((70, 37), 0), ((3, 33, 5), 1), ((5, 4, 1, 8), 0), ((2, 4233), 1)],
)
def test_every_plan_keeps_the_answer(check_plans, shape, axis):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    kept = tuple(size for at, size in enumerate(shape) if at != axis)
    check_plans(summed(shape, axis), REDUCTION, SERVER, [x], [(kept, np.float32)])


def test_lanes_run_along_what_is_contiguous():
    plans = [schedule(summed((1000, 768), axis), SERVER).decisions[0].plan for axis in (0, 1)]
    assert plans[0].startswith("lanes=spatial accumulators=4 ")
    assert plans[1].startswith("lanes=reduction accumulators=4 ")


def test_loops_of_one_step_do_not_part_those_that_lanes_run_along():
    (decision,) = schedule(summed((5, 4, 1, 1, 8), 0), SERVER).decisions
    assert decision.rule == "reduction"
    assert decision.plan.startswith("lanes=spatial ")


def test_few_long_rows_are_cut_for_threads():
    plans = [
        schedule(summed(shape, 1), SERVER, threads=2).decisions[0].plan
        for shape in ((3, 100_000), (1000, 768))
    ]
    assert "parallel=parts" in plans[0]
    assert "parallel=rows" in plans[1]


def test_parts_of_a_row_are_combined_where_they_are_made():
    made = schedule(summed((1000, 768), 1), SERVER, threads=2).schedule.function
    assert str(made).count("in parallel") == 1


def test_long_sums_are_made_of_short_ones():
    short, long = (str(schedule(summed((8, n), 1), SERVER).schedule.function) for n in (768, 9216))
    assert "@b_rf_rf" not in short
    assert "@b_rf_rf" in long


def test_parts_of_long_sums_leave_no_rest_and_are_added_where_they_are_made():
    made = schedule(summed((8, 6400), 1), SERVER).schedule
    assert "where" not in str(made.function)
    near, partial = (made.get_loops(made.get_block(name)) for name in ("b_rf_rf", "b_rf"))
    assert [loop.var for loop in near[: len(partial) - 2]] == [loop.var for loop in partial[:-2]]
    assert len(partial) > 2  # around the lanes: rows, and parts of them


@pytest.mark.parametrize(("shape", "axis", "threads"), [((6, 70, 14), 1, 1), ((9000, 30), 0, 2)])
def test_sums_of_rows_that_fill_no_vector_stay_in_registers(shape, axis, threads):
    """LLVM keeps no sums in registers that are masked in memory at every step."""
    made = schedule(summed(shape, axis), SERVER, threads=threads)
    assert made.decisions[0].plan.startswith("lanes=spatial ")
    loops = [loop for loop in walk(lower(made.schedule.function).body) if isinstance(loop, For)]
    stores = [stmt for loop in loops for stmt in (loop.body, *walk(loop.body)) if is_sum(stmt)]
    assert stores
    for stmt in stores:
        assert stmt.buffer.memory.owner is Owner.THREAD
        assert stmt.mask is None


def is_sum(stmt: Stmt) -> bool:
    """Whether a vector is added to what is there."""
    is_vector = isinstance(stmt, Store) and stmt.value.dtype.lanes > 1
    return is_vector and any(
        isinstance(node, Load | MaskedLoad) and node.buffer is stmt.buffer
        for node in sym.walk(stmt.value)
    )


def test_loops_of_one_step_do_not_make_strided_terms_contiguous():
    """As in a 1x1 convolution, channels first, of an image that is narrower than half a vector."""
    x, w = te.placeholder((64, 7, 7), name="x"), te.placeholder((8, 64, 1, 1), name="w")
    c, r, s = (te.reduce_axis((0, n), name=name) for n, name in ((64, "c"), (1, "r"), (1, "s")))

    def element(m, i, j):
        return te.sum(x[c, i + r, j + s] * w[m, c, r, s], axis=[c, r, s])

    y = te.compute((8, 7, 7), element, name="y")
    (decision,) = schedule(te.function([x, w, y], name="conv"), SERVER).decisions
    assert decision.rule == "reduction"
    assert decision.plan.startswith("lanes=spatial ")
