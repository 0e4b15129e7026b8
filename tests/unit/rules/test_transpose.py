"""Transposes: how wide tiles are."""

import numpy as np
import pytest

from tilewright import te
from tilewright.rules import schedule
from tilewright.rules.cpu.transpose import TRANSPOSE
from tilewright.rules.rule import Choice
from tilewright.rules.space import plan_text

SERVER, SMALL = "x86_64-linux-gnu -mcpu=emeraldrapids", "aarch64-linux-gnu -mcpu=neoverse-n1"


def turned(batch, rows, columns, dtype="float32"):
    a = te.placeholder((batch, rows, columns), dtype, name="a")
    b = te.compute((batch, columns, rows), lambda n, i, j: a[n, j, i], name="b")
    return te.function([a, b], name="turned")


@pytest.mark.parametrize("target", [SERVER, SMALL])
def test_every_plan_keeps_the_answer(check_plans, target):
    x = np.random.default_rng(0).standard_normal((2, 19, 70)).astype(np.float32)
    outputs = [((2, 70, 19), np.float32)]
    check_plans(turned(2, 19, 70), TRANSPOSE, target, [x], outputs)


def shifted(rows, columns):
    a = te.placeholder((rows, columns), name="a")
    b = te.compute((columns - 2, rows), lambda i, j: a[j, i + 2], name="b")
    return te.function([a, b], name="shifted")


def test_tiles_are_as_wide_as_lines_are_worth():
    plans = [schedule(shifted(512, 514), target).decisions[0].plan for target in (SERVER, SMALL)]
    assert plans[0].startswith("row_vectors=2 square=1 ")  # two lines of 64 bytes
    assert plans[1].startswith("row_vectors=8 square=1 ")  # of 16 bytes each


def test_short_rows_are_shared_out_by_many_threads():
    """Of 64 columns there are four strips at most."""
    made = schedule(turned(1, 3136, 64), SERVER, threads=16)
    assert "parallel=columns" in made.decisions[0].plan


def test_lines_of_many_rows_are_read_whole():
    """What L1 does not keep until the next strip comes again: the lines of 3136 rows do."""
    for target in (SERVER, SMALL):
        (offer,) = schedule(turned(1, 3136, 64), target).offers
        columns = offer.space.columns()
        narrow, *_, wide = [
            int(np.flatnonzero((columns["row_vectors"] == n) & (columns["square"] == 4))[0])
            for n in sorted(set(columns["row_vectors"].tolist()))
        ]
        cycles = offer.cost(columns).cycles
        assert cycles[narrow] > 1.2 * cycles[wide]


@pytest.mark.parametrize("target", [SERVER, SMALL])
def test_squares_are_turned_in_registers(target):
    made = schedule(turned(1, 64, 28), target, threads=2)
    assert "square=4" in made.decisions[0].plan
    assert "% 4" in str(made.schedule.function)
    rows = [loop for loop in str(made.schedule.function).splitlines() if " in vector 0..16" in loop]
    assert rows  # a square is one vector


def test_strips_of_squares_are_even():
    a = te.placeholder((1, 64, 28, 28), name="a")
    b = te.compute((1, 28, 28, 64), lambda n, i, j, c: a[n, c, i, j], name="b")
    made = schedule(te.function([a, b], name="image"), SERVER)
    assert made.decisions[0].plan.startswith("row_vectors=2 square=4")  # 28 elements, not 32
    assert " < 28" not in str(made.schedule.function)


@pytest.mark.parametrize("target", [SERVER, SMALL])
def test_a_row_with_padding_is_turned_whole(check_plans, target):
    a = te.placeholder((2, 19, 28), name="a")
    b = te.compute(
        (2, 32, 19),
        lambda n, i, j: te.if_then_else(te.all(i >= 2, i < 30), a[n, j, i - 2], 0.0),
        name="b",
    )
    fn = te.function([a, b], name="padded")
    x = np.random.default_rng(0).standard_normal((2, 19, 28)).astype(np.float32)
    check_plans(fn, TRANSPOSE, target, [x], [((2, 32, 19), np.float32)])
    found = schedule(fn, target, threads=2).offers[-1]
    turned_whole = [p for p in plans_of(found) if p.square > 1]
    assert turned_whole
    assert all(found.problem.strips(plan.row_vectors) == 1 for plan in turned_whole)


@pytest.mark.parametrize("target", [SERVER, SMALL])
@pytest.mark.parametrize("sizes", [(1, 130, 1, 200), (1, 64, 5, 28), (7, 64, 9, 28)])
@pytest.mark.sampled
def test_every_plan_can_be_applied(sizes, target):
    """Also those whose chunks leave a rest."""
    batch, channels, height, width = sizes
    a = te.placeholder(sizes, name="a")
    shape = (batch, height, width, channels)
    b = te.compute(shape, lambda n, i, j, c: a[n, c, i, j], name="b")
    fn = te.function([a, b], name="image")
    made = schedule(fn, target, threads=4)
    assert not made.refusals
    (offer,) = made.offers
    for plan in plans_of(offer):
        choices = {offer.block: Choice(TRANSPOSE.name, plan_text(plan))}
        assert not schedule(fn, target, threads=4, choices=choices).refusals


def plans_of(offer):
    columns = offer.space.columns()
    return [offer.space.plan_at(columns, row) for row in range(len(columns["square"]))]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "int32"])
@pytest.mark.parametrize("target", [SERVER, SMALL, "x86_64-linux-gnu -mcpu=haswell"])
def test_narrow_elements_are_turned_by_squares_that_are_a_part_of_a_register(
    check_plans, dtype, target
):
    made = schedule(turned(1, 64, 784, dtype), target)
    assert "square=4" in made.decisions[0].plan
    x = np.random.default_rng(0).integers(0, 99, (2, 19, 70)).astype(dtype)
    check_plans(turned(2, 19, 70, dtype), TRANSPOSE, target, [x], [((2, 70, 19), dtype)])


def test_rows_of_the_result_that_are_shorter_than_a_register_are_turned():
    """Of 64 bytes, where squares fill a quarter of it."""
    made = schedule(turned(1, 24, 784, "uint8"), SERVER)
    assert made.decisions[0].rule == "transpose"


def test_a_source_that_is_read_at_several_places_is_no_transpose():
    a = te.placeholder((2, 64), name="a")
    b = te.compute((2, 64, 64), lambda n, i, j: a[n, i] - a[n, j], name="b")
    made = schedule(te.function([a, b], name="differences"), SMALL)
    assert [decision.rule for decision in made.decisions] == ["elementwise"]
    c = te.placeholder((64, 64), name="c")
    d = te.compute((64, 64), lambda i, j: c[j, i] - c[i, j], name="d")
    made = schedule(te.function([c, d], name="antisymmetric"), SMALL)
    assert [decision.rule for decision in made.decisions] == ["elementwise"]
