"""The cycle model: small streams whose times can be counted by hand."""

import json

import numpy as np
import pytest

from tilewright.accel.build import build_gemm
from tilewright.accel.bursts import bursts
from tilewright.accel.cycle import cycles
from tilewright.accel.isa import Instruction, parse
from tilewright.accel.isa.table import BY_NAME, IN_FLIGHT, QUEUES, word_bytes
from tilewright.accel.order import order
from tilewright.accel.trace import chrome_trace
from tilewright.base.errors import ExecutionError
from tilewright.base.geometry import Geometry

G = Geometry()
LATENCY = G.latency_cycles


def first_task():
    """When the first task can begin: latency and beats of a word, a cycle to its queue."""
    return LATENCY + word_bytes(G) // G.bus_bytes + 1


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"x": 4}, [8]),  # 64 bytes
        ({"x": 64}, [64, 64]),  # 1024 bytes
        ({"x": 32, "offset": 256}, [32, 32]),  # cut at a multiple of 512
        ({"x": 1, "offset": 4}, [3]),  # not aligned: one beat more
        ({"x": 4, "xstride": 2}, [2, 2, 2, 2]),
        ({"x": 4, "y": 3, "ystride": 4}, [8, 8, 8]),  # a run is at most a row
        ({"x": 4, "y": 2, "ystride": 8}, [8, 8]),
        ({"x": 0}, []),
    ],
)
def test_transfers_are_cut_into_bursts(fields, want):
    assert bursts(Instruction.make("load", **fields), G) == want


def test_a_load_takes_its_latency_and_its_beats():
    stream = parse('target "vta-sim" buffer x: in 1024 load base=x x=64 push=store finish pop=load')
    timing = cycles(stream)
    begin = first_task()
    assert timing.begin[0] == begin
    # asked for a cycle later, 128 beats in a row after the latency, visible 2 cycles after
    assert timing.end[0] == begin + 1 + LATENCY + 127 + BY_NAME["load"].latency_cycles
    assert timing.begin[1] == timing.end[0]
    # an entry in the queue of answers, taken a cycle later, then the latency
    assert timing.total == timing.end[1] == timing.begin[1] + 2 + BY_NAME["finish"].latency_cycles
    assert timing.read_beats == 128 + 2 * word_bytes(G) // 8


def test_requests_in_flight_hide_the_latency_as_far_as_there_may_be():
    text = 'target "vta-sim" buffer x: in 65536 load base=x x=256 xstride=16 push=store finish '
    timing = cycles(parse(text + "pop=load"))
    took = timing.end[0] - timing.begin[0]
    assert 256 // IN_FLIGHT * LATENCY <= took <= 256 // IN_FLIGHT * (LATENCY + 4)


def test_gemm_takes_a_step_a_cycle():
    stream = build_gemm(G, (8, 4, 16), (8, 4, 16), slots=1)
    timing = cycles(stream)
    number = next(at for at, one in enumerate(stream.instructions) if one.op == "gemm")
    assert timing.end[number] - timing.begin[number] == 8 * 4 * 16 + BY_NAME["gemm"].latency_cycles


BANKS = """
target "vta-sim"
gemm uend=1 n0=400 init=1 banks=1 push=store
alu uend=1 src0={place} dst0={place} n0=10 imm=1 banks={banks} push=store
finish pop=alu,gemm
"""


@pytest.mark.parametrize(("place", "waits"), [(511, True), (512, False)])
def test_gemm_and_alu_work_side_by_side_in_different_banks(place, waits):
    timing = cycles(parse(BANKS.format(place=place, banks=1 << place // 512)))
    assert (timing.begin[1] == timing.end[0]) is waits
    assert (timing.begin[1] == timing.begin[0] + 8) is not waits  # as its word comes


ALU = """
target "vta-sim"
alu fn={fn} uend=1 src0={src} aux0={aux} n0=10 {more} push=store
finish pop=alu
"""


@pytest.mark.parametrize(
    ("fn", "src", "aux", "more", "per_step"),
    [
        ("add", 0, 0, "imm=1", 1),
        ("add", 0, 1, "", 2),
        ("add", 0, 512, "", 1),
        ("mac", 0, 1, "", 3),
        ("mac", 512, 1024, "", 1),
        ("mac", 512, 513, "", 2),
        ("mul", 512, 513, "imm=1", 1),
    ],
)
def test_a_step_of_the_alu_takes_a_cycle_for_every_operand_in_a_bank(fn, src, aux, more, per_step):
    timing = cycles(parse(ALU.format(fn=fn, src=src, aux=aux, more=more)))
    assert timing.end[0] - timing.begin[0] == 10 * per_step + BY_NAME["alu"].latency_cycles


def test_an_entry_that_aux_writes_stops_the_owner_of_its_bank_for_a_cycle():
    text = """target "vta-sim" buffer b: in 4096 aux base=b sram={} x=10 push=store
    gemm uend=1 n0=400 banks=1 push=store finish pop=aux,gemm"""
    took = []
    for sram in (512, 0):
        timing = cycles(parse(text.format(sram)))
        took.append(timing.end[1] - timing.begin[1])
    assert took == [400 + 8, 400 + 8 + 10]


def test_times_respect_the_order_whatever_the_memory_does():
    stream = build_gemm(G, (12, 6, 8), (4, 2, 4))
    found = order(stream)
    totals = set()
    for seed in (None, 0, 1, 2):
        timing = cycles(stream, stalls=seed)
        totals.add(timing.total)
        begin, end = np.array(timing.begin), np.array(timing.end)
        for second in range(len(begin)):
            for first in range(len(begin)):
                same = found.queues[first] == found.queues[second]
                if found.before(first, second) and not same:
                    assert end[first] <= begin[second]
        for queue in range(len(QUEUES)):
            own = found.queues == queue
            assert (np.diff(begin[own]) > 0).all()
            assert (np.diff(end[own]) >= 0).all()
    assert len(totals) == 4


def test_times_do_not_change_from_run_to_run():
    stream = build_gemm(G, (12, 6, 8), (4, 2, 4))
    assert cycles(stream) == cycles(stream)


def test_a_stream_that_does_not_end_is_refused():
    with pytest.raises(ExecutionError) as caught:
        cycles(parse('target "vta-sim" finish pop=gemm'))
    assert caught.value.code == "TW7011"


def test_the_trace_has_a_row_for_every_unit():
    stream = build_gemm(G, (4, 2, 2), (2, 1, 2))
    timing = cycles(stream)
    trace = json.loads(json.dumps(chrome_trace(stream, timing)))["traceEvents"]
    rows = {one["tid"]: one["args"]["name"] for one in trace if one["ph"] == "M"}
    assert list(rows.values()) == list(QUEUES)
    spans = [one for one in trace if one["ph"] == "X"]
    assert len(spans) == len(stream.instructions)
    assert max(one["ts"] + one["dur"] for one in spans) == timing.total
