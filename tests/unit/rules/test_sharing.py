"""How work is divided among threads: one answer for all rules."""

import re

import numpy as np
import pytest

from tilewright import te
from tilewright.base.target import Target
from tilewright.rules import default_schedule
from tilewright.rules.context import RuleContext
from tilewright.rules.sharing import (
    NONE,
    Work,
    even_share,
    piece_terms,
    sharing_candidates,
    sharing_legal,
    sharing_terms,
)
from tilewright.rules.space import Cost

SERVER = Target.parse("x86_64-linux-gnu -mcpu=emeraldrapids")
ROWS = "rows"


def chosen(work, threads, target=SERVER):
    """The axis and chunk that cost least."""
    context, axes = RuleContext(target, threads), {ROWS: work}
    fields = sharing_candidates(axes, context)
    grid = np.meshgrid(*[np.arange(len(each)) for each in fields.values()], indexing="ij")
    c = {
        name: np.array(values)[at.ravel()]
        for (name, values), at in zip(fields.items(), grid, strict=True)
    }
    kept = np.flatnonzero(sharing_legal(c, axes, context))
    c = {name: column[kept] for name, column in c.items()}
    cost = Cost.of(**sharing_terms(c, axes, work.units * work.unit_cycles, context))
    row = int(np.argmin(cost.cycles))
    assert np.isfinite(cost.cycles).all()
    return c["parallel"][row].item(), c["chunk"][row].item()


def test_one_thread_shares_nothing():
    assert chosen(Work(1 << 20, 100.0), 1) == (NONE, 1)


def test_work_below_two_wake_ups_stays_on_one_thread():
    wake = SERVER.machine.wake_cycles
    assert chosen(Work(1000, 1.5 * wake / 1000), 2)[0] == NONE
    assert chosen(Work(1000, 4 * wake / 1000), 2)[0] == ROWS


def test_much_work_is_cut_into_several_chunks_per_thread():
    axis, chunk = chosen(Work(1600, 10_000.0), 2)
    assert axis == ROWS
    assert chunk == 100  # 8 chunks for each of two threads


def test_even_chunks_are_a_little_above_a_share():
    assert [even_share(whole, 16) for whole in (1600, 1690, 1601, 7, 0)] == [100, 130, 101, 1, 1]


def test_even_chunks_of_any_size_are_found_at_once():
    assert even_share((1 << 61) - 1, 16) == 1 << 57  # a prime number


def test_a_slower_wake_up_keeps_work_on_one_thread():
    slow = Target.parse("x86_64-linux-gnu -mcpu=emeraldrapids -thread-wake-ns=50000")
    wake = SERVER.machine.wake_cycles
    assert chosen(Work(1000, 8 * wake / 1000), 2, slow)[0] == NONE


def test_chunks_of_dynamic_extents_are_no_more_than_two_wake_ups():
    context, wake = RuleContext(SERVER, 2), SERVER.machine.wake_cycles
    assert max(Work(1000, wake / 5, is_dynamic=True).chunks(context)) == 10
    assert Work(1000, 1e9, is_dynamic=True).chunks(context) == (1,)


def test_many_pieces_are_taken_together_and_few_are_waited_for():
    terms = piece_terms(1e6, np.array([0, 1, 8, 800]), SERVER.machine)
    assert terms["dispatch"].argsort(kind="stable").tolist() == [0, 1, 2, 3]
    assert terms["dispatch"][2] == terms["dispatch"][3]
    assert terms["imbalance"].tolist() == [0, 1e5, 1e5 / 8, 1e5 / 8]


def test_static_shares_have_no_chunks():
    assert Work(40, 1000.0, is_static=True).chunks(RuleContext(SERVER, 2)) == (1,)


def scaled(batch):
    a = te.placeholder((batch, 112, 112, 8), name="a")
    b = te.compute(a.shape, lambda n, y, x, c: te.exp(a[n, y, x, c]), name="b")
    return te.function([a, b], name="scaled")


def summed(batch):
    a = te.placeholder((batch, 112, 112, 40), name="a")
    r = te.reduce_axis((0, 40), name="r")
    b = te.compute((batch, 112, 112), lambda n, y, x: te.sum(a[n, y, x, r], axis=r), name="b")
    return te.function([a, b], name="summed")


def turned(batch):
    a = te.placeholder((batch, 64, 112 * 112), name="a")
    b = te.compute((batch, 112 * 112, 64), lambda n, p, c: a[n, c, p], name="b")
    return te.function([a, b], name="turned")


@pytest.mark.parametrize("made", [scaled, summed, turned])
def test_one_image_of_any_number_is_shared_by_threads(made):
    """The number of images is guessed; a part of the work is less than one of them."""
    text = str(default_schedule(made(te.var("b")), threads=2).function)
    counts = re.findall(r"in parallel 0\.\.(.*?)(?: \{| \[)", text)
    assert counts
    assert all(eval(count, {"b": 1}) >= 2 for count in counts)


def test_work_of_any_size_has_a_price():
    work = Work(1 << 62, 1.0, repeats=1 << 20)  # of a model that asks for more than there is
    assert chosen(work, 2)[0] == ROWS
