"""The RTL by Verilator: the same memory and the same times as the cycle model, the same traps."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from tilewright.accel import synthesis, verilate
from tilewright.accel.build import Conv, build_conv, build_gemm
from tilewright.accel.build.random import random_stream
from tilewright.accel.compare import damage, differences, outcome, random_inputs
from tilewright.accel.device import describe, load, run_on
from tilewright.accel.isa import parse
from tilewright.accel.isa.encode import decode, encode
from tilewright.accel.verify import verify
from tilewright.base.errors import ExecutionError, TilewrightError
from tilewright.base.geometry import Geometry
from tilewright.runtime.accel import BACK_PRESSURE, BUS_ERROR, Accelerator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.rtl,
    pytest.mark.skipif(bool(verilate.missing()), reason=verilate.missing() or "it is there"),
]
SMALL = {"inp_bytes": 256, "wgt_bytes": 1024, "acc_bytes": 1024, "uop_bytes": 512}
TINY = Geometry(1, 4, 4, **SMALL)
TIMEOUT = 20_000


@pytest.fixture(scope="module")
def library():
    return str(verilate.simulator(TINY))


@pytest.mark.parametrize(("bus", "taps"), [(64, 1), (128, 1), (64, 4)])
@pytest.mark.parametrize("blocks", [(1, 4, 4), (1, 8, 16), (1, 16, 16), (2, 16, 16)])
def test_verilator_finds_nothing_to_warn_of(blocks, bus, taps):
    assert verilate.lint(Geometry(*blocks, bus_bits=bus, taps=taps)) == ""


def test_nothing_depends_on_what_registers_and_memories_begin_with(library):
    """Every machine that is opened begins with other random bits."""
    stream = random_stream(TINY, 7)
    inputs = random_inputs(stream, 7)
    assert differences(stream, inputs, ["cycle", *[library] * 20], 7, TIMEOUT) == []


def test_a_machine_outlives_one_that_was_opened_and_ran_after_it(library):
    """What the runtime of the simulation keeps per thread is that of the machine at hand."""
    stream = random_stream(TINY, 3)
    inputs = random_inputs(stream, 3)
    for _ in range(20):
        first = Accelerator(describe(TINY), library)
        run_on(library, stream, inputs, timeout_cycles=TIMEOUT)  # a second one, closed at the end
        del first
        gc.collect()


@pytest.mark.parametrize("seed", range(20))
def test_random_streams_run_as_in_the_cycle_model(library, seed):
    stream = random_stream(TINY, 1000 + seed)
    stalls = None if seed % 2 else seed
    inputs = random_inputs(stream, seed)
    assert differences(stream, inputs, ["cycle", library], stalls, TIMEOUT) == []


LEAST, MOST = -(2**31), 2**31 - 1
EXTREMES = [[LEAST, MOST, 0, -1], [1, -1000, 511 << 20, -512 << 20]]


def _is_alike(library, rows, work, results):
    """Entries of `acc`, what is done with them, and what is stored."""
    x = np.array(rows, np.int32)
    stream = parse(f"""target "vta-sim {TINY.options}"
        buffer x: in {x.nbytes} buffer y: out 1024 buffer code: uop 8 uop
        aux fmt=uop base=code x=1 aux fmt=acc base=x x={len(rows)} push=alu
        alu pop=aux push=store uend=1 {work}
        store pop=alu base=y {results}
        finish""")
    inputs = {"x": x.reshape(-1).view(np.uint8)}
    models = ["cycle", "functional", library]
    return differences(stream, inputs, models, None, TIMEOUT) == []


def test_extremes_are_requantized_as_in_the_simulators(library):
    """Every end of shifts and limits; 2**62 and the half of 2**63 wrap around."""
    rows = [*EXTREMES]
    for multiplier in (LEAST, MOST, 3):
        for shift in (0, 5, 31, 52, 62, 63):
            rows += [[0] * 4, [multiplier] * 4, [shift, min(shift + 1, 63), shift, shift]]
    loops = "aux0=2 n0=18 dst_0=2 aux_0=3 n1=2 dst_1=1 src_1=1"
    limits = "fn=requant zero=-3 low=-100 high=99"
    assert _is_alike(library, rows, f"{loops} {limits}", "x=36")
    assert _is_alike(library, rows, f"{loops} fn=requant low=50 high=20", "x=36")


def test_extremes_are_shifted_as_in_the_simulators(library):
    amounts = [[-40, -32, -31, -1], [0, 1, 31, 32], [33, LEAST, MOST, -16], [-2, 5, -17, 30]]
    loops = "dst0=16 aux0=2 n0=2 dst_0=4 src_0=1 n1=4 dst_1=1 aux_1=1"
    store = "fmt=acc sram=16 x=8"
    assert _is_alike(library, EXTREMES + amounts, f"{loops} fn=shift", store)


@pytest.mark.parametrize("slots", [1, 2])
def test_layers_run_as_in_the_cycle_model(library, slots):
    gemm = build_gemm(TINY, (5, 3, 4), (2, 2, 2), slots)
    conv = build_conv(TINY, Conv(2, 6, 6, 2, stride=2, zero_point=-7), 1, 1, 1, slots)
    for stream in (gemm, conv):
        inputs = random_inputs(stream, slots)
        assert differences(stream, inputs, ["cycle", library], None, TIMEOUT) == []


@pytest.mark.parametrize("seed", range(40))
def test_damaged_streams_end_as_in_the_functional_simulator(library, seed):
    random = np.random.default_rng(seed)
    stream = build_gemm(TINY, (3, 2, 2), (2, 1, 1))
    words = b"".join(encode(one, TINY) for one in stream.instructions)
    words = damage(words, stream, random)
    inputs = random_inputs(stream, seed)
    want = outcome("functional", stream, inputs, words, TIMEOUT)
    got = outcome(library, stream, inputs, words, TIMEOUT)
    if want.error in ("", "TW7013") and _has_no_verdict(stream, words):
        return  # a race, or what nothing has written: it ended, that is all
    assert got == want


def _has_no_verdict(stream, words):
    size = len(encode(stream.instructions[0], TINY))
    try:
        tasks = [decode(words[at : at + size], TINY) for at in range(0, len(words), size)]
        verify(replace(stream, instructions=tuple(tasks)))
    except TilewrightError:
        return True
    return False


@pytest.mark.parametrize(("sram", "banks"), [(60, "fmt=out"), (14, "fmt=acc banks=1")])
def test_a_store_that_leaves_its_memory_or_banks_in_its_last_burst_is_refused(library, sram, banks):
    stream = parse(f"""target "vta-sim {TINY.options}"
        buffer x: in 1024 buffer y: out 128 buffer code: uop 8 uop
        aux fmt=uop base=code x=1 aux fmt=acc base=x x=64 push=alu
        alu pop=aux push=store uend=1 n0=61 dst_0=1 src_0=1 fn=requant
        store pop=alu {banks} sram={sram} base=y x=5
        finish""")
    for backend in ("functional", "cycle", library):
        with pytest.raises(ExecutionError) as caught:
            run_on(backend, stream, random_inputs(stream, 0))
        assert caught.value.code == "TW7014"


def test_a_store_of_nothing_leaves_the_banks_of_others_alone(library):
    nothing = "store fmt=acc sram=33 base=y x=0 banks=0 " * 16
    stream = parse(f"""target "vta-sim {TINY.options}"
        buffer x: in 1024 buffer y: out 256 buffer code: uop 8 uop
        aux fmt=uop base=code x=1 aux fmt=acc base=x x=64 push=alu,store
        alu pop=aux push=store uend=1 aux0=32 src0=16 n0=16 dst_0=1 src_0=1 aux_0=1 banks=7
        store pop=aux fmt=acc sram=33 base=y x=0 banks=0 {nothing}
        store pop=alu fmt=acc base=y x=16 banks=1
        finish""")
    verify(stream)
    assert differences(stream, random_inputs(stream, 0), ["cycle", library], None, TIMEOUT) == []


def test_a_stream_has_not_ended_while_a_task_waits(library):
    """Nothing orders the `finish` behind it."""
    stream = parse(f"""target "vta-sim {TINY.options}"
        buffer code: uop 8 uop
        aux pop=load fmt=uop base=code x=1
        finish""")
    for backend in ("functional", "cycle", library):
        with pytest.raises(ExecutionError) as caught:
            run_on(backend, stream, {}, timeout_cycles=TIMEOUT)
        assert caught.value.code == "TW7031"


@pytest.mark.parametrize("seed", range(8))
def test_handshakes_that_wait_change_times_alone(library, seed):
    stream = random_stream(TINY, 2000 + seed)
    inputs = random_inputs(stream, seed)
    stalls = BACK_PRESSURE + seed
    assert differences(stream, inputs, ["functional", library], stalls, TIMEOUT) == []
    plain, held = (run_on(library, stream, None, one) for one in (seed, stalls))
    assert held.total > plain.total


def test_an_error_on_the_bus_is_a_trap_whichever_request_it_answers(library):
    """And the device works afterwards."""
    stream = build_gemm(TINY, (3, 2, 2), (2, 1, 1))
    inputs = random_inputs(stream, 0)
    want = run_on("functional", stream, inputs).outputs
    device = Accelerator(describe(TINY), library)
    loaded = load(device, stream, inputs)
    transfers = sum(one.op in ("load", "aux", "store") for one in stream.instructions)
    for request in range(transfers):  # at least: instructions are fetched, too
        device.reset(BUS_ERROR + request)
        loaded.start()
        with pytest.raises(ExecutionError) as caught:
            device.wait(TIMEOUT)
        assert caught.value.code == "TW7032"
        device.reset()
        loaded.start()
        device.wait(TIMEOUT)
        got = loaded.outputs()
        assert all(np.array_equal(got[name], array) for name, array in want.items())
    device.reset(BUS_ERROR + 99_999)  # there are not so many
    loaded.start()
    device.wait(TIMEOUT)


def test_memory_that_answers_no_more_is_a_time_out(library):
    stream = build_gemm(TINY, (3, 2, 2), (2, 1, 1))
    words = b"".join(encode(one, TINY) for one in stream.instructions)
    inputs = random_inputs(stream, 0)
    got = outcome(library, stream, inputs, words, TIMEOUT, stalls=-2 - 4)
    assert got.error == "TW7031"


@pytest.mark.skipif(bool(synthesis.missing()), reason=synthesis.missing() or "it is there")
def test_yosys_reads_the_modules():
    cells = synthesis.count_cells(TINY, "proc")
    assert cells["$mul"] + cells["$macc"] > 0
