"""Child processes with limits, for code that may crash or hang.

    child = Child([sys.executable, "-m", ...], Limits(seconds=20))
    answer = child.ask(b"...")        Failed: it crashed, hung, or took too much memory

Messages are length-prefixed bytes; a child first reports that it is ready. One that fails is
discarded, and the next question starts another. Its output is dropped, and bounded.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

LENGTH = struct.Struct("<Q")
MAX_ANSWER_BYTES = 1 << 30
CHUNK_BYTES = 1 << 20
READY = b"ready\n"  # what a child writes before anything else
START_S = 120.0  # timeout for that
PR_SET_PDEATHSIG = 1  # Linux' prctl: a signal on the parent's death
MEMORY_EXIT = 76  # status of a child that ran out of memory
DEVICE_EXIT = 77  # status of a child whose GPU context a kernel has destroyed


@dataclass(frozen=True)
class Limits:
    """Resource limits of a child."""

    seconds: float = 20.0  # per answer
    memory_bytes: int = 8 << 30  # of address space; 0: unlimited
    output_bytes: int = 1 << 20  # per file, its output included


class Failed(Exception):
    """A child gave no answer, with the reason."""


class Child:
    """A child process, started when first asked."""

    def __init__(
        self,
        command: Sequence[str],
        limits: Limits,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits
        self._command = [*command, str(limits.memory_bytes), str(limits.output_bytes)]
        self._environment = dict(os.environ if environment is None else environment)
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0
        self._is_ready = False

    def ask(self, message: bytes, seconds: float = 0.0) -> bytes:
        """The answer to a message; Failed if none arrives in time."""
        try:
            process = self._running()
            deadline = time.monotonic() + (seconds or self.limits.seconds)
            _write(process.stdin, LENGTH.pack(len(message)) + message, deadline)
            (size,) = LENGTH.unpack(_read(process.stdout, LENGTH.size, deadline))
            if size > MAX_ANSWER_BYTES:
                raise Failed("its answer is too long")
            return _read(process.stdout, size, deadline)
        except TimeoutError:
            self.stop()
            raise Failed(f"took over {seconds or self.limits.seconds:g} s") from None
        except (EOFError, OSError):
            raise Failed(self._epitaph()) from None
        except BaseException:
            self.stop()  # interrupted: its answer must not be mistaken for another's
            raise

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process, if none runs, without waiting."""
        if self.is_running:
            return
        self.stop()
        self.started += 1
        self._is_ready = False
        with uninterrupted():
            self._process = begin_process(self._command, self._environment)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def wait(self) -> None:
        """Start the process, if none runs, and wait until it is ready, so that its imports do not
        count against a question's time."""
        with contextlib.suppress(TimeoutError, EOFError, OSError):  # reported by the next `ask`
            self._running()

    @property
    def is_ready(self) -> bool:
        """Whether the process is ready."""
        return self._is_ready and self.is_running

    def _running(self) -> subprocess.Popen[bytes]:
        self.start()
        assert self._process is not None
        if not self._is_ready:
            _read(self._process.stdout, len(READY), time.monotonic() + START_S)
            self._is_ready = True
        return self._process

    def _epitaph(self) -> str:
        """Why the child ended."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        status = self._process.poll()
        self.stop()
        if status == MEMORY_EXIT:
            limit = self.limits.memory_bytes >> 20
            return f"took over {limit} MB" if limit else "took all the memory there is"
        if status == DEVICE_EXIT:
            return "its kernel reads or writes where it must not"
        if status is not None and status < 0:
            return f"crashed ({signal.Signals(-status).name})"
        return f"ended by itself (status {status})"

    def kill(self) -> None:
        """Kill the process while another thread waits for its answer, which then fails."""
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()

    def stop(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            end_process(process)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C while a process starts, which nobody would end otherwise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        for number in came[:1]:
            signal.raise_signal(number)


def begin_process(
    command: Sequence[str], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    """Start a process with pipes for questions and answers; it ignores Ctrl-C."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and close its pipes."""
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _write(stream: IO[bytes] | None, data: bytes, deadline: float) -> None:
    assert stream is not None
    view = memoryview(data)
    while view:
        _wait(stream, deadline, write=True)
        view = view[os.write(stream.fileno(), view[:CHUNK_BYTES]) :]


def _read(stream: IO[bytes] | None, size: int, deadline: float) -> bytes:
    assert stream is not None
    parts: list[bytes] = []
    while size:
        _wait(stream, deadline)
        part = os.read(stream.fileno(), min(size, CHUNK_BYTES))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _wait(stream: IO[bytes], deadline: float, *, write: bool = False) -> None:
    left = deadline - time.monotonic()
    streams: tuple[list[IO[bytes]], list[IO[bytes]]] = ([], [stream]) if write else ([stream], [])
    if left <= 0 or not any(select.select(*streams, [], left)):
        raise TimeoutError


# --------------------------------------------------------------------------- in the child


def limit_this_process(memory_bytes: int, output_bytes: int) -> None:
    """Limit address space and file sizes of this process, permanently."""
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (output_bytes, output_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing fails instead


def end_with_parent() -> None:
    """Die with the thread that started this process, even while a candidate hangs. Only on
    Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def write_ready(stream: IO[bytes]) -> None:
    """Report readiness: from now on answers have a time limit."""
    stream.write(READY)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes | None:
    """The next question; None at the end of input."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    data = stream.read(size)
    return data if len(data) == size else None


def write_message(stream: IO[bytes], data: bytes) -> None:
    stream.write(LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()
