"""Workers behind commands: leases, retries elsewhere, several jobs, handshakes."""

import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import sketch_programs as programs

from tilewright.base.errors import UserError
from tilewright.base.version import VERSION
from tilewright.tune.fleet import Fleet, Pipe
from tilewright.tune.fleet.wire import PROTOCOL, TOKEN_VARIABLE, Lost, decode, objection
from tilewright.tune.sketch import SketchSpace

WORKER = str(Path(__file__).with_name("fleet_worker.py"))
COMMAND = [sys.executable, WORKER]
REAL = [sys.executable, "-m", "tilewright.tune.fleet.worker"]


def numbers(count, kind="double", **more):
    return [{"kind": kind, "number": number, **more} for number in range(count)]


def test_tasks_are_answered_once_each_in_any_order(tmp_path):
    met = numbers(2, "meet", mark=str(tmp_path), workers=2)
    with Fleet.from_commands([COMMAND, COMMAND]) as fleet:
        results = fleet.submit([*met, *numbers(40)[2:]]).results()
    assert [result.task for result in results] == list(range(40))
    assert [result.value["twice"] for result in results] == [2 * n for n in range(40)]
    assert len({result.value["pid"] for result in results}) == 2
    assert all(result.attempts == 1 and not result.error for result in results)


def test_a_command_may_be_anything():
    shell = ["bash", "-c", f"exec {sys.executable} {WORKER} board"]
    with Fleet.from_commands([shell]) as fleet:
        assert "board" in fleet.workers[0].tags
        assert fleet.submit(numbers(3), needs=["board"]).results()[2].value["twice"] == 4


def test_a_task_whose_worker_dies_is_done_elsewhere(tmp_path):
    tasks = numbers(12)
    tasks[5] = {"kind": "die_once", "number": 5, "mark": str(tmp_path / "mark")}
    with Fleet.from_commands([COMMAND, COMMAND]) as fleet:
        results = fleet.submit(tasks).results()
        assert sum(worker.lost for worker in fleet.workers) == 1
    assert [result.value["twice"] for result in results] == [2 * n for n in range(12)]
    assert results[5].attempts == 2


def test_a_lease_ends_and_another_worker_takes_over(tmp_path):
    tasks = numbers(6)
    tasks[0] = {"kind": "hang_once", "number": 0, "mark": str(tmp_path / "m"), "lease_s": 0.5}
    with Fleet.from_commands([COMMAND, COMMAND], retries=20) as fleet:
        results = fleet.submit(tasks).results()
    assert [result.value["twice"] for result in results] == [0, 2, 4, 6, 8, 10]
    assert results[0].attempts >= 2  # a machine that is busy may need another lease


@pytest.mark.parametrize("kind", ["die", "babble"])
def test_a_task_that_fails_everywhere_is_an_error_and_the_rest_goes_on(kind):
    tasks = [*numbers(5), {"kind": kind}, *numbers(5)]
    with Fleet.from_commands([COMMAND, COMMAND], retries=2) as fleet:
        results = fleet.submit(tasks).results()
    assert results[5].error.startswith("lost 3 times")
    assert all(not result.error for result in results if result.task != 5)


def test_workers_killed_in_the_middle_lose_no_task():
    """Two of three are killed while they work; every task has one result."""
    with Fleet.from_commands([COMMAND] * 3) as fleet:
        job = fleet.submit(numbers(30, "wait", seconds=0.05))
        seen = [next(iter(job)).task]
        for worker in fleet.workers[:2]:
            os.kill(worker.transport.pid, signal.SIGKILL)
        seen += [result.task for result in islice(job, 29)]
    assert sorted(seen) == list(range(30))


def test_a_machine_that_does_not_come_back_is_given_up(tmp_path):
    """Its command works once only: others do its tasks."""
    script = tmp_path / "once.sh"
    script.write_text(
        f"if mkdir {tmp_path}/ran; then exec {sys.executable} {WORKER}; else exit 1; fi\n"
    )
    with Fleet.from_commands([["bash", str(script)], COMMAND]) as fleet:
        job = fleet.submit(numbers(30, "wait", seconds=0.05))
        os.kill(fleet.workers[0].transport.pid, signal.SIGKILL)
        results = job.results()
        while fleet.workers[0].is_alive:  # until it is given a task
            results += fleet.submit(numbers(2)).results()
    assert all(not result.error for result in results)


def test_with_no_worker_left_every_task_still_has_an_answer(tmp_path):
    script = tmp_path / "once.sh"
    script.write_text(
        f"if mkdir {tmp_path}/ran; then exec {sys.executable} {WORKER}; else exit 1; fi\n"
    )
    with Fleet.from_commands([["bash", str(script)]]) as fleet:
        job = fleet.submit([*numbers(1), *numbers(7, "hang_once", mark=str(tmp_path / "mark"))])
        first = next(iter(job))
        os.kill(fleet.workers[0].transport.pid, signal.SIGKILL)
        rest = list(islice(job, 7))
        assert not first.error
        assert all(result.error for result in rest)
        with pytest.raises(UserError) as error:
            fleet.submit(numbers(1))
        assert error.value.code == "TW5204"


def test_jobs_share_a_mixed_pool():
    with Fleet.from_commands([[*COMMAND, "arm"], [*COMMAND, "x86"]]) as fleet:
        first = fleet.submit(numbers(10, "wait", seconds=0.02), needs=["arm"])
        second = fleet.submit(numbers(10, "wait", seconds=0.02), needs=["x86"])
        third = fleet.submit(numbers(4))
        assert {result.worker for result in first.results()} == {fleet.workers[0].name}
        assert {result.worker for result in second.results()} == {fleet.workers[1].name}
        assert len(third.results()) == 4


def test_a_job_that_nobody_can_do_is_refused():
    with (
        Fleet.from_commands([[*COMMAND, "arm"]]) as fleet,
        pytest.raises(UserError, match="no worker of the fleet has riscv") as error,
    ):
        fleet.submit(numbers(1), needs=["riscv"])
    assert error.value.code == "TW5204"


def test_a_fleet_that_cannot_be_reached_is_one_error():
    with pytest.raises(UserError, match="no worker of the fleet can be reached") as error:
        Fleet.from_commands([["/no/such/program"], ["false"]])
    assert error.value.code == "TW5203"


def test_one_unreachable_machine_does_not_stop_the_others():
    with Fleet.from_commands([["/no/such/program"], COMMAND]) as fleet:
        assert [worker.is_alive for worker in fleet.workers] == [False, True]
        assert len(fleet.submit(numbers(4)).results()) == 4


@pytest.mark.parametrize("commands", [[], [[]], [["a", 3]]])
def test_what_is_no_command_is_refused(commands):
    with pytest.raises(UserError) as error:
        Fleet.from_commands(commands)
    assert error.value.code == "TW5201"


# --------------------------------------------------------------------------- handshake


def test_a_worker_asks_for_its_token(monkeypatch):
    asking = ["env", f"{TOKEN_VARIABLE}=secret", *COMMAND]
    for token, reason in (("", "no token"), ("wrong", "not the one asked for")):
        with pytest.raises(UserError, match=reason) as error:
            Fleet.from_commands([asking], token=token)
        assert error.value.code == "TW5202"
    with Fleet.from_commands([asking], token="secret") as fleet:
        assert fleet.submit(numbers(1)).results()[0].value["twice"] == 0
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with Fleet.from_commands([COMMAND]) as fleet:  # both ends have it from their environment
        assert len(fleet.submit(numbers(2)).results()) == 2


def test_another_version_is_refused():
    other = f"print('{json.dumps({'hello': PROTOCOL, 'version': '9.9'})}', flush=True); input()"
    with pytest.raises(UserError, match=r"version '9.9', this one is") as error:
        Fleet.from_commands([[sys.executable, "-c", other]])
    assert error.value.code == "TW5202"


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ({"hello": PROTOCOL, "version": VERSION}, ""),
        ({"hello": 99, "version": VERSION}, "protocol 99"),
        ({"hello": PROTOCOL, "version": "0.0"}, "version '0.0'"),
        ({}, "protocol None"),
    ],
)
def test_what_a_worker_objects_to(message, wanted):
    assert objection(message).startswith(wanted)


@pytest.mark.parametrize("line", [b"what?", b"[1]", b"\xff\xfe", b""])
def test_what_is_no_message_is_not_read(line):
    with pytest.raises(Lost, match="not a message"):
        decode(line)


# --------------------------------------------------------------------------- kernels


@pytest.fixture(scope="module")
def real():
    """A worker that measures: it loads the compiler."""
    with Fleet.from_commands([REAL]) as fleet:
        yield fleet


def measure(fn, trace, **more):
    return {
        "kind": "measure",
        "function": str(fn),
        "target": "cpu",
        "threads": 2,
        "trace": str(trace),
        "pairs": 2,
        **more,
    }


def test_points_of_a_sketch_are_built_checked_and_timed_by_a_worker(real):
    fn = programs.gemm(32, 48, 40)
    space = SketchSpace(fn, threads=2)
    points = space.sample(3, np.random.default_rng(0))
    traces = [space.schedule(space.choice(points, row)).trace for row in range(len(points))]
    plain = space.schedule("rules").trace
    results = real.submit([measure(fn, each, against=str(plain)) for each in traces]).results()
    for result in results:
        assert not result.error
        assert all(ns > 0 for ns in (*result.value["ns"], *result.value["against"]))


def test_what_cannot_be_built_or_is_no_task_is_an_error_of_its_own(real):
    fn = programs.gemm(8, 8, 8)
    bad = [
        measure(fn, "b0 = get_block(name='missing')"),
        measure(fn, "import os"),
        measure("func @f(", ""),
        {"kind": "measure"},
        {"kind": "unknown"},
        {"kind": "echo", "say": "hello"},
    ]
    results = real.submit(bad).results()
    assert "refused: error[TW21" in results[0].error
    assert "refused: error[TW2190]" in results[1].error
    assert results[2].error.startswith("refused: error[TW")
    assert "a bad task: KeyError" in results[3].error
    assert "no task of kind 'unknown'" in results[4].error
    assert results[5].value["said"] == "hello"


def test_a_worker_ends_with_its_input():
    process = subprocess.Popen(REAL, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.communicate(b"", timeout=600)
    assert process.returncode == 0


def test_a_pipe_that_was_not_started_is_lost():
    with pytest.raises(Lost, match="not running"):
        Pipe(COMMAND).ask({"task": "1"}, 1.0)
