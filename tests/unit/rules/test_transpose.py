"""Transposes: how wide tiles are."""

import numpy as np
import pytest

from tilewright import te
from tilewright.rules import schedule
from tilewright.rules.cpu.transpose import TRANSPOSE

SERVER, SMALL = "x86_64-linux-gnu -mcpu=emeraldrapids", "aarch64-linux-gnu -mcpu=neoverse-n1"


def turned(batch, rows, columns):
    a = te.placeholder((batch, rows, columns), name="a")
    b = te.compute((batch, columns, rows), lambda n, i, j: a[n, j, i], name="b")
    return te.function([a, b], name="turned")


@pytest.mark.parametrize("target", [SERVER, SMALL])
def test_every_plan_keeps_the_answer(check_plans, target):
    x = np.random.default_rng(0).standard_normal((2, 19, 70)).astype(np.float32)
    outputs = [((2, 70, 19), np.float32)]
    check_plans(turned(2, 19, 70), TRANSPOSE, target, [x], outputs)


def test_tiles_are_as_wide_as_lines_are_worth():
    plans = [schedule(turned(1, 512, 512), target).decisions[0].plan for target in (SERVER, SMALL)]
    assert plans[0].startswith("row_vectors=2 ")  # two lines of 64 bytes
    assert plans[1].startswith("row_vectors=8 ")  # of 16 bytes each


def test_a_source_that_is_read_at_several_places_is_no_transpose():
    a = te.placeholder((2, 64), name="a")
    b = te.compute((2, 64, 64), lambda n, i, j: a[n, i] - a[n, j], name="b")
    made = schedule(te.function([a, b], name="differences"), SMALL)
    assert [decision.rule for decision in made.decisions] == ["elementwise"]
    c = te.placeholder((64, 64), name="c")
    d = te.compute((64, 64), lambda i, j: c[j, i] - c[i, j], name="d")
    made = schedule(te.function([c, d], name="antisymmetric"), SMALL)
    assert [decision.rule for decision in made.decisions] == ["elementwise"]
