"""Calibration finds the numbers of a machine from times alone; here from made-up ones."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tilewright import interpret
from tilewright.base import host
from tilewright.base.errors import UserError
from tilewright.base.known_machines import machine_of
from tilewright.base.target import Target
from tilewright.driver import calibrate as module
from tilewright.driver import probes

TARGET = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
KNOWN = replace(machine_of("x86_64", "cascadelake"), cores=4)
REAL = KNOWN.with_numbers(
    {
        "frequency-ghz": 3.25,
        "fma-per-cycle": 1,
        "fma-latency-cycles": 5,
        "loads-per-cycle": 1,
        "l1d-bytes-per-cycle": 64.0,
        "l2-bytes-per-cycle": 21.5,
        "l3-bytes-per-cycle": 6.5,
        "memory-bytes-per-cycle": 3.5,
        "scattered-bytes-per-cycle": 2.25,
        "thread-wake-ns": 1250.0,
        "kernel-call-ns": 321.0,
    }
)
CALL_S, REGION_SHARE = 2e-6, 0.9  # of a call from outside; of a kernel's cost that is its region


class MadeUp:
    """Tells how long a machine of given numbers would take, besides some constant overhead."""

    def __init__(self, machine):
        self.machine = machine

    def kernel(self, fn, args, threads):
        machine, rounds = self.machine, args[-2].size
        if fn.name == "adds":
            cycles = 2 * probes.CHAIN_STEPS * rounds
        elif fn.name == "multiply_adds":
            cycles = rounds * args[-1].size / 16 / machine.fma_per_cycle
        elif fn.name == "accumulate":
            cycles = rounds * args[0].size / 16 * machine.fma_latency_cycles
        else:
            cycles = rounds * args[0].nbytes / threads / self.rate(fn, args[0].nbytes // threads)
        seconds = CALL_S + cycles * machine.cycle_ns * 1e-9
        if fn.name == "adds" and threads > 1:
            region = machine.thread_wake_ns if rounds else REGION_SHARE * machine.kernel_call_ns
            seconds += region * 1e-9
        return [seconds * 1.5, seconds, seconds]  # the first is disturbed

    def rate(self, fn, size_bytes):
        machine = self.machine
        if fn.name == "scattered_reads":
            return machine.scattered_bytes_per_cycle
        for level in (machine.l1d, machine.l2, machine.l3):
            if size_bytes <= level.size_bytes // 2:
                return level.bytes_per_cycle
        return machine.memory_bytes_per_cycle

    def model(self, graph, inputs):
        each = (1 - REGION_SHARE) * self.machine.kernel_call_ns * 1e-9
        return [CALL_S + each * len(graph.main.nodes)]


def measured(machine=REAL, known=KNOWN, **changes):
    watch = MadeUp(machine)
    for name, method in changes.items():
        setattr(watch, name, method)
    return module.calibrate(watch, target=TARGET, machine=known)


def test_every_number_of_a_machine_is_found_from_times():
    found = {each.name: each for each in measured()}
    assert set(found) == {probe.name for probe in module.PROBES}
    for name, each in found.items():
        assert each.value == pytest.approx(REAL.numbers()[name], rel=1e-3), name
        assert type(each.value) is type(KNOWN.numbers()[name])
        assert not each.refused
        assert each.known == KNOWN.numbers()[name]


def test_what_is_far_from_what_is_known_is_refused():
    found = {each.name: each for each in measured(REAL.with_numbers({"l2-bytes-per-cycle": 999.0}))}
    assert "10 times off" in found["l2-bytes-per-cycle"].refused
    assert not found["l3-bytes-per-cycle"].refused


@pytest.mark.parametrize("seconds", [1e-3, math.inf])
def test_times_that_tell_nothing_are_refused(seconds):
    found = measured(kernel=lambda fn, args, threads: [seconds])
    others = [each for each in found if each.name != "kernel-call-ns"]
    assert {each.refused for each in others} == {"too noisy to tell"}


def test_levels_and_threads_that_are_not_there_are_not_measured():
    small = replace(machine_of("aarch64", "cortex-a53"), cores=1)
    names = {each.name for each in measured(small, small)}
    assert "l3-bytes-per-cycle" not in names
    assert "thread-wake-ns" not in names
    assert "memory-bytes-per-cycle" in names


def test_what_is_kept_is_what_the_host_is_taken_for(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    found = measured(REAL.with_numbers({"l2-bytes-per-cycle": 999.0}))
    path = module.keep(found)
    assert path == host.measured_file()
    kept = json.loads(path.read_text())
    assert "l2-bytes-per-cycle" not in kept
    assert kept["thread-wake-ns"] == pytest.approx(1250.0)
    try:
        assert host.host_machine().source == "measured"
        assert host.host_machine().frequency_ghz == pytest.approx(3.25)
        assert module.forget()
        assert not module.forget()
        assert host.host_machine().source != "measured"
    finally:
        host.host_machine.cache_clear()


def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot keep what was measured"):
        module.keep(measured())


def test_progress_names_every_probe():
    seen = []
    module.calibrate(
        MadeUp(REAL), target=TARGET, machine=KNOWN, progress=lambda *step: seen.append(step)
    )
    assert [stage for stage, _, _ in seen] == [*(probe.name for probe in module.PROBES), "done"]
    assert seen[-1][1:] == (len(module.PROBES), len(module.PROBES))


# --------------------------------------------------------------------------- programs


def test_reads_add_up_all_they_read():
    a = np.arange(2 * 3 * 64, dtype=np.int32).reshape(2, 3, 64)
    c = np.zeros((2, probes.SUMS * 4), np.int32)
    interpret(probes.reads(4), a, np.zeros(2, np.uint8), c)
    assert np.array_equal(c.sum(1), 2 * a.sum((1, 2)))


@pytest.mark.parametrize("lines", [64, 1024])
def test_scattered_reads_meet_every_line_once(lines):
    a = np.arange(2 * lines * 16, dtype=np.int32).reshape(2, lines, 16)
    c = np.zeros((2, 16), np.int32)
    interpret(probes.scattered_reads(4, lines, 64), a, np.zeros(1, np.uint8), c)
    assert np.array_equal(c, a.sum(1))


def test_chains_compute_what_they_say():
    x, y = 12345, 987654321
    c = np.zeros(2, np.int64)
    interpret(probes.adds(), np.array([x, y], np.int64), np.zeros(2, np.uint8), c)
    expected = x
    for _ in range(2 * probes.CHAIN_STEPS):
        expected = (expected + x) ^ y
    assert list(c) == [expected, expected]
    a = np.full((3, probes.CHAIN_STEPS * 4), 0.5, np.float32)
    out = np.zeros(4, np.float32)
    y = np.full(4, 0.25, np.float32)
    interpret(probes.accumulate(4), a, y, np.zeros(2, np.uint8), out)
    assert np.allclose(out, 0.25 + 2 * 3 * probes.CHAIN_STEPS * 0.125)
    sums = np.zeros(8, np.float32)
    interpret(probes.multiply_adds(4, 2), np.full(4, 0.5, np.float32), np.zeros(3, np.uint8), sums)
    assert np.allclose(sums, 0.5 * 1.5**3)
