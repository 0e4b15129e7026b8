"""The verifier in C says what the one in Python says."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.accel.build.random import random_stream
from tilewright.accel.isa import Instruction
from tilewright.accel.isa.steps import check_extents
from tilewright.accel.isa.stream import check_stream
from tilewright.accel.isa.table import BY_NAME, QUEUES
from tilewright.accel.verify import explain, is_accepted
from tilewright.base.errors import TilewrightError
from tilewright.base.geometry import Geometry

TINY = Geometry(1, 4, 4, inp_bytes=256, wgt_bytes=1024, acc_bytes=1024, uop_bytes=512)


def changed(stream, random):
    """One field of one task with another value, tokens more often than others."""
    number = int(random.integers(len(stream.instructions) - 1))
    task = stream.instructions[number]
    fields = BY_NAME[task.op].fields
    at = int(random.integers(2 if random.random() < 0.5 else len(fields)))
    values = list(task.values)
    if fields[at].is_set and fields[at].names == QUEUES:
        values[at] ^= 1 << int(random.integers(len(QUEUES)))
    else:
        values[at] = max(0, values[at] + int(random.integers(-3, 4)))
    tasks = list(stream.instructions)
    tasks[number] = Instruction(task.op, tuple(values))
    return replace(stream, instructions=tuple(tasks))


@pytest.mark.parametrize(
    "seed", [pytest.param(at, marks=[pytest.mark.fuzz] if at >= 25 else []) for at in range(100)]
)
def test_both_verifiers_agree_on_changed_streams(seed):
    random = np.random.default_rng(seed)
    stream = random_stream(TINY, seed)
    explain(stream)
    assert is_accepted(stream)
    for _ in range(8):
        other = changed(stream, random)
        try:
            check_stream(other)
            check_extents(other)
        except TilewrightError:
            continue  # no stream at all
        try:
            explain(other)
            want = True
        except TilewrightError:
            want = False
        assert is_accepted(other) == want
