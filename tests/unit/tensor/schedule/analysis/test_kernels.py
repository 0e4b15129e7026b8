"""Kernels are checked where a step changed them, or what they have to themselves."""

import pytest

from tilewright import te
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.schedule.analysis import kernels


@pytest.fixture
def checked(monkeypatch):
    """The kernels that are checked, in order."""
    found, check = [], kernels._check_kernel
    monkeypatch.setattr(
        kernels, "_check_kernel", lambda fn, root, own: [found.append(root), check(fn, root, own)]
    )
    return found


def doubled_in_steps(count):
    """So many blocks, each of which doubles what the one before it made."""
    stages = [te.placeholder((64,), name="A")]
    for at in range(count):
        before = stages[-1]
        stages.append(te.compute((64,), lambda i, x=before: x[i] + x[i], name=f"B{at}"))
    return Schedule(te.function([stages[0], stages[-1]], name="f"))


def test_a_kernel_that_stays_is_not_checked_again(checked):
    sch = doubled_in_steps(4)
    for at in range(4):
        (loop,) = sch.get_loops(sch.get_block(f"B{at}"))
        block, thread = sch.split(loop, [None, 32])
        sch.bind(block, "blockIdx.x")
        sch.copy().bind(thread, "threadIdx.x")
        sch.bind(thread, "threadIdx.x")
    assert len(checked) == 3 * 4


def test_a_kernel_is_checked_again_where_others_share_what_was_its_own(checked):
    sch = doubled_in_steps(2)
    (loop,) = sch.get_loops(sch.get_block("B1"))
    sch.compute_at(sch.get_block("B0"), loop)
    sch.bind(loop, "threadIdx.x")
    (known,) = kernels.check_kernels(sch.function, sch.function)
    assert [buffer.name for buffer in known.own] == ["B0"]
    del checked[:]
    kernels.check_kernels(sch.function, sch.function, [known])
    assert checked == []
    kernels.check_kernels(sch.function, sch.function, [kernels.Checked(known.root, set())])
    assert checked == [known.root]
