"""The verifier: planted faults are found, and named."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from tilewright.accel.build import Conv, build_conv, build_gemm
from tilewright.accel.cycle import cycles
from tilewright.accel.isa import Instruction, parse
from tilewright.accel.order import order
from tilewright.accel.simulate import simulate
from tilewright.accel.verify import verify
from tilewright.base.errors import ExecutionError, UserError
from tilewright.base.geometry import Geometry

SMALL = Geometry(1, 4, 4, inp_bytes=1024, wgt_bytes=4096, acc_bytes=4096, uop_bytes=512)
STREAMS = {
    "gemm": build_gemm(SMALL, (5, 3, 4), (2, 2, 2)),
    "gemm, one slot": build_gemm(SMALL, (4, 2, 2), (2, 1, 1), slots=1),
    "conv": build_conv(SMALL, Conv(2, 6, 5, 2), rows=2, outputs=1, channels=1),
}


@pytest.fixture(params=STREAMS.values(), ids=STREAMS.keys())
def stream(request):
    return request.param


def fill(stream):
    random = np.random.default_rng(5)
    return {
        one.name: random.integers(0, 100, one.size_bytes).astype(np.uint8)
        for one in stream.buffers
        if one.role == "in"
    }


def without(stream, number, field, queue):
    """The stream without one bit of `pop` or `push` of a task."""
    task = stream.instructions[number]
    values = list(task.values)
    at = [one.name for one in task.opcode.fields].index(field)
    values[at] &= ~(1 << queue)
    tasks = list(stream.instructions)
    tasks[number] = Instruction(task.op, tuple(values))
    return replace(stream, instructions=tuple(tasks))


def token_ends(stream):
    """Every push and every pop: (number, field, queue)."""
    for number, task in enumerate(stream.instructions):
        yield from ((number, "pop", queue) for queue in task.pops())
        yield from ((number, "push", queue) for queue in task.pushes())


def token_pairs(stream):
    """Every push with the pop that it meets: the k-th with the k-th."""
    pushes, pops = defaultdict(list), defaultdict(list)
    for number, task in enumerate(stream.instructions):
        for other in task.pushes():
            pushes[task.queue, other].append((number, "push", other))
        for other in task.pops():
            pops[other, task.queue].append((number, "pop", other))
    for pair, found in pushes.items():
        yield from zip(found, pops[pair], strict=True)


def test_builders_make_streams_without_fault(stream):
    verify(stream)


def test_every_lone_push_or_pop_that_is_missing_is_reported(stream):
    for number, field, queue in token_ends(stream):
        with pytest.raises(UserError) as caught:
            verify(without(stream, number, field, queue))
        assert caught.value.code in ("TW7010", "TW7011", "TW7013", "TW7015", "TW7016")


def test_pairs_that_are_missing_are_races_or_superfluous(stream):
    inputs = fill(stream)
    want = simulate(stream, inputs)["y"]
    accepted = pairs = 0
    for push, pop in token_pairs(stream):
        pairs += 1
        changed = without(without(stream, *push), *pop)
        try:
            verify(changed)
        except ExecutionError:
            continue
        accepted += 1
        for seed in range(3):
            np.testing.assert_array_equal(simulate(changed, inputs, seed)["y"], want)
            np.testing.assert_array_equal(cycles(changed, inputs, seed).outputs["y"], want)
    assert accepted <= pairs // 20


RACE = """
target "vta-sim"
buffer x: in 128
buffer y: out 64
aux fmt=acc base=x x=2 push=store
store fmt=acc base=y sram=1 pop=aux push=alu
aux fmt=acc base=x x=2 push=alu
alu pop=aux,store push=store
finish pop=alu
"""


def test_a_race_names_both_tasks_the_entries_and_the_missing_token():
    with pytest.raises(ExecutionError) as caught:
        verify(parse(RACE))
    error = caught.value
    assert error.code == "TW7010"
    assert "a race on acc[1]:" in error.message
    assert "`1: store fmt=acc sram=1 base=y" in error.message.replace("pop=aux push=alu ", "")
    assert "`2: aux fmt=acc base=x x=2" in error.message.replace("push=alu ", "")
    assert "from store to aux, pushed by 1 or later and popped by 2 or earlier" in error.help


def test_a_race_in_dram_is_found():
    text = """
    target "vta-sim"
    buffer x: in 64
    buffer t: temp 64
    aux fmt=acc base=x push=store
    store fmt=acc base=t pop=aux
    aux fmt=acc base=t sram=1 push=store
    finish pop=aux
    """
    with pytest.raises(ExecutionError, match="a race on byte 0 of t to 63") as caught:
        verify(parse(text))
    assert caught.value.code == "TW7010"
    fixed = text.replace("base=t pop=aux", "base=t pop=aux push=aux")
    verify(parse(fixed.replace("aux fmt=acc base=t", "aux fmt=acc base=t pop=store")))


def test_a_deadlock_names_what_waits():
    text = 'target "vta-sim" load x=0 pop=gemm push=gemm gemm pop=load push=load,store finish '
    with pytest.raises(ExecutionError) as caught:
        verify(parse(text.replace("load x=0", "buffer x: in 16 load x=0") + "pop=gemm"))
    assert caught.value.code == "TW7011"
    assert "0: load" in caught.value.message
    assert "waits for a token from gemm" in caught.value.message
    assert "waits for a token from load" in caught.value.message


def test_a_full_queue_is_a_deadlock_too():
    waiting = "gemm pop=alu\n" * 40
    text = 'target "vta-sim"\n' + waiting + "alu push=gemm\n" * 40 + "finish\n"
    with pytest.raises(ExecutionError, match="the gemm queue is full, so that 32 is not fetched"):
        order(parse(text))


@pytest.mark.parametrize("ahead", [255, 256])
def test_counters_are_bounded_whatever_the_timing(ahead):
    body = "alu push=gemm\n" * ahead + "gemm pop=alu\n" * (ahead - 1)
    text = 'target "vta-sim"\n' + body + "gemm pop=alu push=store\nfinish pop=gemm\n"
    if ahead == 255:
        verify(parse(text))
        return
    with pytest.raises(ExecutionError, match="from alu to gemm can reach 256") as caught:
        verify(parse(text))
    assert caught.value.code == "TW7012"


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("store fmt=out base=y\nfinish", "TW7013", "reads out[0], which nothing has written"),
        (
            "aux fmt=acc base=x sram=2047 x=2 push=store\nfinish pop=aux",
            "TW7014",
            "0: aux writes entry 2048 of acc, which has 2048",
        ),
        (
            "aux fmt=acc base=x offset=64 x=2 push=store\nfinish pop=aux",
            "TW7014",
            "0: aux reads byte 191 of x, which has 128",
        ),
        (
            "gemm ubegin=4 uend=3 push=store\nfinish pop=gemm",
            "TW7014",
            "0: gemm runs micro-operations 4 to 3 of 4096",
        ),
        (
            "gemm uend=1 push=store\nfinish pop=gemm",
            "TW7013",
            "reads uop[0], which nothing has written",
        ),
        (
            "aux fmt=uop base=x push=store\nfinish pop=aux",
            "TW7014",
            "0: aux loads microcode from where there is none",
        ),
        (
            "aux fmt=acc base=x push=gemm,store\nfinish pop=aux",
            "TW7015",
            "1 tokens from aux to gemm are left over",
        ),
        (
            "aux fmt=acc base=x x=40 y=40 y1=20 ystride=0 push=store\nfinish pop=aux",
            "TW7014",
            "0: aux moves 2400 entries, and acc has 2048",
        ),
        (
            "gemm uend=2 n0=8000 n1=8000 push=store\nfinish pop=gemm",
            "TW7017",
            "0: gemm takes 128000000 steps",
        ),
        ("aux fmt=acc base=x\nfinish", "TW7016", "the end of the aux queue"),
        ("store fmt=out base=x\nfinish", "TW7004", "0: store writes x, an input"),
        ("finish\nfinish", "TW7004", "a stream has one finish, at its end"),
        ("load fmt=inp base=7\nfinish", "TW7004", "base register 7, of no buffer"),
        ("load fmt=inp base=x sram=4096\nfinish", "TW7001", "sram = 4096 does not fit its 12 bits"),
    ],
)
def test_faults_are_named(body, code, message):
    text = f'target "vta-sim"\nbuffer x: in 128\nbuffer y: out 64\n{body}\n'
    with pytest.raises(UserError) as caught:
        verify(parse(text))
    assert caught.value.code == code
    assert message in caught.value.message
