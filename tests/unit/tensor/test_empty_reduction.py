"""A reduction whose symbolic extent turns out to be zero gives the identity."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.tensor import interpret, lower


def rows(reduction):
    n, k = te.var("n"), te.var("k")
    A = te.placeholder((n, k), name="A")
    r = te.reduce_axis((0, k), name="r")
    return te.function([A, te.compute((n,), lambda i: reduction(A[i, r], axis=r), name="B")])


def split(fn):
    sch = tw.Schedule(fn)
    i, r = sch.get_loops(sch.get_block("B"))
    sch.split(r, [None, 4])
    sch.parallel(i)
    return sch.function


def threaded(fn):
    sch = tw.Schedule(fn)
    sch.bind(sch.get_loops(sch.get_block("B"))[0], "threadIdx.x")
    return sch.function


def decomposed(fn):
    sch = tw.Schedule(fn)
    block = sch.get_block("B")
    outer, _ = sch.split(sch.get_loops(block)[1], [None, 4])
    sch.decompose_reduction(block, outer)
    return sch.function


def fused(fn):
    sch = tw.Schedule(fn)
    block = sch.get_block("B")
    sch.decompose_reduction(block, sch.get_loops(block)[0])
    sch.fuse(*sch.get_loops(block))
    return sch.function


def rfactored(at):
    def change(fn):
        sch = tw.Schedule(fn)
        parts = sch.split(sch.get_loops(sch.get_block("B"))[1], [None, 4])
        sch.rfactor(parts[at], 0)
        return sch.function

    return change


def blockized(fn):
    sch = tw.Schedule(fn)
    sch.blockize(sch.get_loops(sch.get_block("B"))[1])
    return sch.function


CHANGES = {
    "none": lambda fn: fn,
    "split": split,
    "threaded": threaded,
    "lowered": lower,
    "decomposed": decomposed,
    "fused": fused,
    "rfactored outer": rfactored(0),
    "rfactored inner": rfactored(1),
    "blockized": blockized,
}


@pytest.mark.parametrize(("reduction", "identity"), [(te.sum, 0.0), (te.max, -np.inf)])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_empty_reduction_gives_the_identity(reduction, identity, change):
    out = np.full(3, np.nan, np.float32)
    interpret(change(rows(reduction)), np.zeros((3, 0), np.float32), out)
    assert out.tolist() == [identity] * 3
