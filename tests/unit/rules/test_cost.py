"""How work is divided among threads."""

import re

import pytest

from tilewright import te
from tilewright.rules import cost, default_schedule


def test_parts_of_known_rows_are_as_many_as_asked_for():
    assert cost.chunk_rows(1000, 16, row_ns=100.0, is_open=False) == 62
    assert cost.chunk_rows(3, 16, row_ns=100.0, is_open=False) == 1


def test_parts_of_open_rows_pay_for_a_thread_and_no_more():
    assert cost.chunk_rows(1000, 2, row_ns=1000.0, is_open=True) == 10
    assert cost.chunk_rows(1000, 500, row_ns=1000.0, is_open=True) == 2
    assert cost.chunk_rows(1000, 2, row_ns=1e9, is_open=True) == 1


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
