"""The driver and the simulators in C: equal to the reference; errors; a device that goes on."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tilewright.accel.build import Conv, build_conv, build_gemm
from tilewright.accel.build.random import random_stream
from tilewright.accel.compare import damage, differences, outcome, random_inputs
from tilewright.accel.cycle import cycles
from tilewright.accel.device import (
    FIELDS_IN_C,
    backend_of,
    describe,
    load,
    open_device,
    run_on,
    time_on,
)
from tilewright.accel.isa import parse
from tilewright.accel.isa.encode import decode, encode
from tilewright.accel.isa.table import ALU_FUNCTIONS, MEMORIES, OPCODES, word_bytes
from tilewright.accel.simulate import simulate
from tilewright.accel.verify import verify
from tilewright.base.errors import ExecutionError, TilewrightError, UserError
from tilewright.base.geometry import Geometry
from tilewright.runtime.accel import Accelerator
from tilewright.runtime.sources import FOLDER

SMALL = {"inp_bytes": 256, "wgt_bytes": 1024, "acc_bytes": 1024, "uop_bytes": 512}
GEOMETRIES = [
    Geometry(1, 4, 4, **SMALL),
    Geometry(1, 4, 4, **SMALL, bus_bits=128),
    Geometry(1, 8, 16, inp_bytes=512, wgt_bytes=8192, acc_bytes=4096, uop_bytes=512, bus_bits=128),
    Geometry(1, 16, 16, inp_bytes=1024, wgt_bytes=16384, acc_bytes=4096, uop_bytes=512),
    Geometry(2, 16, 16, inp_bytes=2048, wgt_bytes=16384, acc_bytes=8192, uop_bytes=512),
    Geometry(1, 4, 4, **SMALL, taps=2),
    Geometry(1, 8, 16, inp_bytes=512, wgt_bytes=8192, acc_bytes=4096, uop_bytes=512, taps=4),
]
TINY = GEOMETRIES[0]


@pytest.mark.parametrize("seed", range(15))
def test_random_streams_are_legal_and_the_same_on_all_simulators(seed):
    stream = random_stream(GEOMETRIES[seed % len(GEOMETRIES)], seed)
    verify(stream)
    inputs, stalls = random_inputs(stream, seed), None if seed % 2 else seed
    want = cycles(stream, inputs, stalls)
    got = run_on("cycle", stream, inputs, stalls)
    assert (got.begin, got.end, got.total) == (want.begin, want.end, want.total)
    counters = (want.gemm_steps, want.read_beats, want.write_beats)
    assert (got.gemm_steps, got.read_beats, got.write_beats) == counters
    memory = simulate(stream, inputs)["y"]
    for outputs in (want.outputs, got.outputs, run_on("functional", stream, inputs).outputs):
        np.testing.assert_array_equal(outputs["y"], memory)
    assert time_on("timing", stream, stalls).end == want.end


def test_layers_take_as_long_in_both_cycle_models():
    stream = build_conv(Geometry(), Conv(4, 14, 14, 4), rows=7, outputs=2, channels=2)
    want = cycles(stream)
    got = time_on("timing", stream)
    assert (got.begin, got.end) == (want.begin, want.end)


def test_the_order_of_fields_memories_and_functions_is_that_of_the_header():
    header = (FOLDER / "accel/accel.h").read_text()
    fields = re.findall(r"\bF_\w+", re.search(r"enum tw_accel_field \{(.*?)\}", header, re.S)[1])
    names = [name.removeprefix("F_").lower() for name in fields[:-1]]
    assert [re.sub(r"^n_(\d)$", r"n\1", name) for name in names] == list(FIELDS_IN_C)
    assert {field.name for one in OPCODES for field in one.fields} == set(FIELDS_IN_C)
    functions = re.search(r"enum \{ (TW_ADD.*?), TW_FUNCTIONS \}", header)[1]
    assert functions.replace("TW_", "").lower().split(", ") == list(ALU_FUNCTIONS)
    memories = re.search(r"enum \{ (TW_INP.*?) \}", header)[1]
    assert memories.replace("TW_", "").lower().split(", ") == list(MEMORIES)


def make(text, **inputs):
    stream = parse(f'target "vta-sim {TINY.options}" {text}')
    return stream, {name: np.zeros(size, np.uint8) for name, size in inputs.items()}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("buffer x: in 64 load base=x x=17 push=store finish pop=load", "TW7014"),
        ("buffer x: in 64 load base=x sram=63 x=2 push=store finish pop=load", "TW7014"),
        ("buffer x: in 64 load base=x offset=2 push=store finish pop=load", "TW7014"),
        ("gemm ubegin=3 uend=2 push=store finish pop=gemm", "TW7014"),
        ("gemm uend=1 push=store finish pop=gemm", "TW7013"),
        ("buffer y: out 64 store base=y finish", "TW7013"),
        ("finish pop=gemm", "TW7031"),
        ("gemm uend=64 n0=64 n1=64 n2=64 n3=64 push=store finish pop=gemm", "TW7031"),
    ],
)
@pytest.mark.parametrize("backend", ["functional", "cycle"])
def test_what_goes_wrong_is_a_typed_error(text, code, backend):
    stream, inputs = make(text, **({"x": 64} if " x: in" in text else {}))
    with pytest.raises(ExecutionError) as caught:
        run_on(backend, stream, inputs)
    assert caught.value.code == code


@pytest.mark.parametrize("backend", ["functional", "cycle"])
def test_more_steps_than_a_number_holds(backend):
    loops = "n0=8191 n1=8191 n2=8191 n3=8191"
    text = f'target "vta-sim" gemm uend=2100 {loops} push=store finish pop=gemm'
    with pytest.raises(ExecutionError) as caught:
        run_on(backend, parse(text), {})
    assert caught.value.code == "TW7031"


def test_tokens_overflow():
    text = "".join("load base=x push=gemm " for _ in range(256))
    stream, inputs = make(f"buffer x: in 64 {text} finish", x=64)
    with pytest.raises(ExecutionError) as caught:
        run_on("functional", stream, inputs)
    assert caught.value.code == "TW7012"


def test_unflushed_memory_is_not_seen_and_results_are_not_until_invalidated():
    stream = build_gemm(TINY, (1, 1, 1), (1, 1, 1))
    device = open_device(TINY, "functional")
    loaded = load(device, stream)
    loaded.start()
    with pytest.raises(ExecutionError) as caught:
        device.wait()
    assert caught.value.code == "TW7013"
    assert device.error()[0] != 0
    for buffer in loaded.buffers:
        buffer.flush()
    loaded.start()
    device.wait()
    y = loaded.buffers[3]
    before = y.host.copy()
    assert not before.any()
    y.invalidate()
    assert device.error()[0] == 0


def test_a_device_that_answers_no_more_is_a_time_out():
    stream = build_gemm(TINY, (3, 2, 2), (2, 1, 1))
    device = open_device(TINY, "cycle")
    device.reset(stalls=-2 - 3)  # three answers
    load(device, stream, random_inputs(stream, 0)).start()
    with pytest.raises(ExecutionError) as caught:
        device.wait(timeout_cycles=10_000)
    assert caught.value.code == "TW7031"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda d: d.wait(), "no stream was submitted"),
        (lambda d: d.submit(b"", 0, [], 0), "a stream of 0 tasks"),
        (lambda d: d.allocate(-1), "no buffer of -1 bytes"),
        (lambda d: replace(d.allocate(8), size_bytes=9).flush(), "bytes 0 to 9 of a buffer of 8"),
        (lambda d: replace(d.allocate(8), number=77).free(), "there is no buffer 77"),
    ],
)
def test_the_driver_refuses_what_makes_no_sense(use, message):
    with pytest.raises(UserError, match=message) as caught:
        use(open_device(TINY, "functional"))
    assert caught.value.code == "TW7033"


def test_a_library_that_is_none_is_refused():
    with pytest.raises(UserError) as caught:
        Accelerator(describe(TINY), "/there/is/no/such.so")
    assert caught.value.code == "TW7033"
    with pytest.raises(UserError) as caught:
        Accelerator(describe(TINY)[4:], "functional")
    assert caught.value.code == "TW7033"


def test_targets_have_backends(monkeypatch):
    assert backend_of("vta-sim") == "functional"
    assert backend_of("vta-cycle -bus=128") == "cycle"
    monkeypatch.setenv("TILEWRIGHT_ACCELERATOR", "/some/driver.so")
    assert backend_of("vta") == "/some/driver.so"
    monkeypatch.delenv("TILEWRIGHT_ACCELERATOR")
    with pytest.raises(UserError) as caught:
        backend_of("vta")
    assert caught.value.code == "TW7036"


TYPES = {"TW7003": "TW7030", "TW7001": "TW7030", "TW7004": "TW7030", "TW7011": "TW7031",
         "TW7017": "TW7031"}  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_damaged_streams_end_in_one_error_or_one_memory(seed):
    """The reference's verdict, in the driver's words; races and what is left over have none."""
    random = np.random.default_rng(seed)
    stream = build_gemm(TINY, (3, 2, 2), (2, 1, 1))
    words = b"".join(encode(one, TINY) for one in stream.instructions)
    words = damage(words, stream, random)
    inputs = random_inputs(stream, seed)
    found = [outcome(one, stream, inputs, words, 100_000) for one in ("functional", "cycle")]
    size = word_bytes(TINY)
    try:
        from_words = [words[at : at + size] for at in range(0, len(words), size)]
        tasks = tuple(decode(one, TINY) for one in from_words)
        changed = replace(stream, instructions=tasks)
        verify(changed)
        want = simulate(changed, inputs)["y"].tobytes()
        assert all(one.error == "" and one.outputs["y"] == want for one in found)
    except TilewrightError as error:
        code = TYPES.get(error.code, error.code)
        if code not in ("TW7010", "TW7012", "TW7015", "TW7016"):
            assert [one.error for one in found] == [code, code]


def test_differences_are_told():
    stream = build_gemm(TINY, (3, 2, 2), (2, 1, 1))
    inputs = random_inputs(stream, 0)
    assert differences(stream, inputs, ["cycle", "cycle"], stalls=1) == []
    told = differences(stream, inputs, ["cycle", "timing"])
    assert any("bytes of y" in one for one in told)
    assert differences(stream, inputs, ["cycle", "functional"]) == []  # which knows no time


def test_other_times_are_told(monkeypatch):
    stream = build_gemm(TINY, (3, 2, 2), (2, 1, 1))
    found = run_on("cycle", stream, random_inputs(stream, 0))
    later = replace(found, end=(*found.end[:-1], found.end[-1] + 1), read_beats=7)
    runs = iter([found, later])
    monkeypatch.setattr("tilewright.accel.compare.run_on", lambda *_: next(runs))
    told = differences(stream, {}, ["cycle", "other"])
    assert [one.split()[1] for one in told] == [f"{len(found.end) - 1}:", "counters"]


LONG = """buffer x: in 128 buffer code: uop 16 uop uop dst=1 aux=3
    aux fmt=acc base=x x=6 aux fmt=uop base=code x=2 push=alu
    alu pop=aux push=store fn=requant uend=2 n0=100 n1=10
    {} finish pop=alu{}"""


@pytest.mark.parametrize("backend", ["functional", "cycle"])
def test_a_task_that_takes_longer_than_the_time_out_is_one(backend):
    """Steps with other parameters than the step before take more than a cycle each."""
    stream, inputs = make(LONG.format("", ""), x=128)
    run_on(backend, stream, inputs, timeout_cycles=8100)
    with pytest.raises(ExecutionError) as caught:
        run_on(backend, stream, inputs, timeout_cycles=7900)
    assert caught.value.code == "TW7031"


@pytest.mark.parametrize("backend", ["functional", "cycle"])
def test_a_long_task_passes_while_others_go_on(backend):
    """The watchdog of the RTL waits for anything to happen, and so do simulators."""
    loads = "load fmt=inp base=x x=16 xstride=2 " * 39
    last = "load push=store fmt=inp base=x x=16 xstride=2"
    stream, inputs = make(LONG.format(loads + last, ",load"), x=128)
    run_on(backend, stream, inputs, timeout_cycles=6000)
    with pytest.raises(ExecutionError) as caught:
        run_on(backend, stream, inputs, timeout_cycles=1500)
    assert caught.value.code == "TW7031"
