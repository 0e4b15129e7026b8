"""Children within limits: whatever they do, the one who asks goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.tune.process import Child, Failed, Limits

SERVER = """
import ctypes, os, signal, sys, time
from tilewright.tune.process import MEMORY_EXIT, limit_this_process, read_message
from tilewright.tune.process import end_with_parent, write_message, write_ready
limit_this_process(int(sys.argv[1]), int(sys.argv[2]))
end_with_parent()
write_ready(sys.stdout.buffer)
while (message := read_message(sys.stdin.buffer)) is not None:
    word = message.decode()
    if word == "crash":
        ctypes.string_at(0)
    if word == "hang":
        time.sleep(3600)
    if word == "interrupt":
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(3600)
    if word == "leave":
        os._exit(3)
    if word == "eat":
        try:
            bytearray(100 << 30)
        except MemoryError:
            os._exit(MEMORY_EXIT)
    if word == "write":
        with open(sys.argv[3] if len(sys.argv) > 3 else os.devnull, "wb") as out:
            out.write(b"x" * (8 << 20))
    if word == "long":
        sys.stdout.buffer.write((1 << 40).to_bytes(8, "little"))
        sys.stdout.buffer.flush()
        continue
    write_message(sys.stdout.buffer, message.upper())
"""
LIMITS = Limits(seconds=600.0, memory_bytes=4 << 30, output_bytes=1 << 20)


@pytest.fixture
def child():
    made = Child([sys.executable, "-c", SERVER], LIMITS)
    yield made
    made.stop()


def test_questions_are_answered_by_one_process(child):
    assert child.ask(b"a") == b"A"
    assert child.ask(b"b" * 3_000_000) == b"B" * 3_000_000
    assert child.started == 1


def test_an_answer_that_nobody_waited_for_is_not_that_to_the_next_question(child):
    assert child.ask(b"a") == b"A"
    with pytest.raises(KeyboardInterrupt):
        child.ask(b"interrupt")  # while its answer is waited for
    assert not child.is_running
    assert child.ask(b"b") == b"B"


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (b"crash", "crashed"),
        (b"leave", "ended by itself"),
        (b"eat", "took over 4096 MB"),
        (b"long", "too long"),
    ],
)
def test_a_child_that_fails_says_why_and_another_goes_on(child, word, reason):
    assert child.ask(b"a") == b"A"
    with pytest.raises(Failed, match=reason):
        child.ask(word)
    assert not child.is_running
    assert child.ask(b"b") == b"B"
    assert child.started == 2


def test_a_child_that_hangs_is_ended(child):
    child.ask(b"a")
    with pytest.raises(Failed, match=r"took over 0\.3 s"):
        child.ask(b"hang", 0.3)
    assert child.ask(b"b") == b"B"


def test_a_child_writes_no_more_than_it_may(tmp_path):
    path = tmp_path / "out"
    made = Child([sys.executable, "-c", SERVER], LIMITS)
    made._command.append(str(path))
    with pytest.raises(Failed):
        made.ask(b"write")
    made.stop()
    assert path.stat().st_size <= LIMITS.output_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_child_that_hangs_ends_with_a_parent_that_is_killed(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, SERVER, str(tmp_path / "pid")], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 600.0
    while time.monotonic() < deadline and is_alive(pid):
        time.sleep(0.05)
    assert not is_alive(pid)


def test_an_interruption_waits_until_a_child_can_be_ended(monkeypatch):
    child = Child([sys.executable, "-c", "import time; time.sleep(3600)"], Limits())
    start = subprocess.Popen

    def interrupted(*given, **more):
        made = start(*given, **more)
        signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.start()
    assert child.is_running
    child.stop()


PARENT = """
import sys
from tilewright.tune.process import Child, Limits
child = Child([sys.executable, "-c", sys.argv[1]], Limits(seconds=600.0, memory_bytes=4 << 30))
child.ask(b"a")
print(child._process.pid, flush=True)
child.ask(b"hang", 3600.0)
"""


def is_alive(pid):
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
