"""A fleet: workers behind commands, tasks on leases, every task recorded once.

    with Fleet.from_commands([["ssh", "board", WORKER], ["bash", "-c", WORKER]]) as fleet:
        job = fleet.submit([{"kind": "measure", ...}, ...])
        for result in job:                    as they come
            result.task, result.value or result.error

A worker holds a task on a lease. When it dies, exceeds the lease, or sends garbage, the task goes
to another worker and the process is restarted; a task that fails repeatedly gets an error as its
result. Answers to expired leases are ignored. Several jobs share the workers round-robin; a job
may require tags of workers.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilewright.base.closing import Closing
from tilewright.base.errors import UserError
from tilewright.tune.fleet.wire import (
    TOKEN_VARIABLE,
    Lines,
    Lost,
    Message,
    check_welcome,
    greeting,
)
from tilewright.tune.process import begin_process, end_process, uninterrupted

LEASE_S = 60.0
CONNECT_S = 60.0
RETRIES = 2  # times a task is retried on another worker
RESTARTS = 20  # per worker, before its machine is given up


@dataclass(frozen=True)
class Result:
    """The result of a task."""

    task: int  # its position in the job
    value: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    worker: str = ""
    attempts: int = 1


@dataclass
class _Task:
    """A task that is queued or leased."""

    job: Job
    at: int
    message: Message
    attempts: int = 0
    avoid: frozenset[str] = frozenset()


class Job:
    """Tasks submitted together, and their results as they arrive."""

    def __init__(self, count: int, needs: frozenset[str]) -> None:
        self.count, self.needs = count, needs
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._done: set[int] = set()
        self._lock = threading.Lock()

    def record(self, result: Result) -> bool:
        """Keep a result, unless the task has one already."""
        with self._lock:
            if result.task in self._done:
                return False
            self._done.add(result.task)
        self._results.put(result)
        return True

    def is_done(self, task: int) -> bool:
        with self._lock:
            return task in self._done

    def __iter__(self) -> Iterator[Result]:
        for _ in range(self.count):
            yield self._results.get()

    def results(self) -> list[Result]:
        """All of them, in the order of the tasks."""
        return sorted(self, key=lambda result: result.task)


class Transport(Protocol):
    """One worker, however it is reached."""

    @property
    def name(self) -> str: ...

    def start(self) -> tuple[tuple[str, ...], int]:
        """Reach it: its tags and cores. Lost where it cannot be; an error where it refuses."""

    def ask(self, message: Message, seconds: float) -> Mapping[str, Any]:
        """The answer to a task, within its lease."""

    def stop(self) -> None:
        """End it, whatever it does."""


class Pipe:
    """A worker behind a command."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "",
        token: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not command or not all(isinstance(word, str) for word in command):
            raise UserError("TW5201", f"{command!r} is no command", help="give a list of words")
        self._command = list(command)
        self._name = name or os.path.basename(command[0])
        self._token = token
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: Lines | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def pid(self) -> int | None:
        """Of the command's process, while there is one."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> tuple[tuple[str, ...], int]:
        self.stop()
        try:
            with uninterrupted():
                process = self._process = begin_process(self._command, self._environment)
        except OSError as error:
            raise Lost(f"{self._command[0]} cannot be run: {error.strerror}") from None
        assert process.stdin is not None
        assert process.stdout is not None
        self._lines = Lines(process.stdout, process.stdin)
        deadline = time.monotonic() + CONNECT_S
        self._lines.send(greeting(self._token), deadline)
        return check_welcome(self._lines.receive(deadline), self.name)

    def ask(self, message: Message, seconds: float) -> Mapping[str, Any]:
        if self._lines is None:
            raise Lost("it is not running")
        deadline = time.monotonic() + seconds
        self._lines.send(message, deadline)
        answer = self._lines.receive(deadline)
        if answer.get("task") != message["task"]:
            raise Lost("it answers what nobody asked")
        return answer

    def stop(self) -> None:
        process, self._process, self._lines = self._process, None, None
        if process is not None:
            end_process(process)


@dataclass
class WorkerState:
    """A worker as the fleet knows it."""

    transport: Transport
    name: str
    tags: frozenset[str] = frozenset()
    cores: int = 0
    is_alive: bool = True
    restarts: int = 0
    done: int = 0
    lost: int = 0
    reason: str = ""  # why it is gone


class Fleet(Closing):
    """Workers, and the tasks they share.

    Examples:
        >>> import sys
        >>> from tilewright.tune import Fleet
        >>> here = [sys.executable, "-m", "tilewright.tune.fleet.worker"]  # or: ssh board ...
        >>> with Fleet.from_commands([here]) as fleet:
        ...     len(fleet.workers)
        1
    """

    def __init__(
        self, transports: Sequence[Transport], *, lease_s: float = LEASE_S, retries: int = RETRIES
    ) -> None:
        if not transports:
            raise UserError("TW5201", "a fleet has no workers", help="give it a command at least")
        if lease_s <= 0:
            raise UserError("TW5201", f"a lease of {lease_s!r} seconds")
        self._lease_s, self._retries = lease_s, retries
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Job, deque[_Task]]] = deque()
        self._is_closed = False
        self._count = 0
        self.workers = [
            WorkerState(transport, f"{transport.name}#{at}")
            for at, transport in enumerate(transports)
        ]
        self._threads: list[threading.Thread] = []
        self._connect()

    @staticmethod
    def from_commands(
        commands: Sequence[Sequence[str]],
        *,
        token: str | None = None,
        lease_s: float = LEASE_S,
        retries: int = RETRIES,
    ) -> Fleet:
        """Workers behind commands, each of which runs `python -m tilewright.tune.fleet.worker`.

        Without a token that of TILEWRIGHT_FLEET_TOKEN is sent, if there is one.
        """
        said = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        pipes = [Pipe(command, token=said) for command in commands]
        return Fleet(pipes, lease_s=lease_s, retries=retries)

    def _connect(self) -> None:
        """Reach every worker at once; one that refuses is an error, as is a fleet without any."""
        refused: list[UserError] = []

        def reach(worker: WorkerState) -> None:
            try:
                tags, worker.cores = worker.transport.start()
                worker.tags = frozenset(tags)
            except Lost as lost:
                worker.is_alive, worker.reason = False, str(lost)
            except UserError as error:
                worker.is_alive, worker.reason = False, error.message
                refused.append(error)

        threads = [threading.Thread(target=reach, args=(each,)) for each in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if refused or not any(worker.is_alive for worker in self.workers):
            self._stop_workers()
            if refused:
                raise refused[0]
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in self.workers)
            raise UserError(
                "TW5203",
                f"no worker of the fleet can be reached ({reasons})",
                help="run one of the commands by hand: it should wait for input",
            )
        for worker in self.workers:
            if worker.is_alive:
                thread = threading.Thread(target=self._work, args=(worker,), daemon=True)
                self._threads.append(thread)
                thread.start()

    # ------------------------------------------------------------------ tasks

    def submit(self, messages: Sequence[Message], *, needs: Sequence[str] = ()) -> Job:
        """Hand in tasks; `needs` are tags that a worker must have."""
        job = Job(len(messages), frozenset(needs))
        with self._changed:
            if self._is_closed:
                raise UserError("TW5203", "the fleet is closed")
            able = [each for each in self.workers if each.is_alive and job.needs <= each.tags]
            if not able:
                known = sorted({tag for each in self.workers for tag in each.tags})
                raise UserError(
                    "TW5204",
                    f"no worker of the fleet has {', '.join(sorted(job.needs)) or 'come back'}",
                    help=f"workers have: {', '.join(known)}",
                )
            tasks = deque(_Task(job, at, message) for at, message in enumerate(messages))
            self._waiting.append((job, tasks))
            self._changed.notify_all()
        return job

    def _take(self, worker: WorkerState) -> _Task | None:
        """The next task for a worker, from each job in turn; None where the fleet is closed."""
        with self._changed:
            while not self._is_closed:
                for _ in range(len(self._waiting)):
                    job, tasks = self._waiting[0]
                    self._waiting.rotate(-1)
                    if not job.needs <= worker.tags:
                        continue
                    for task in list(tasks):
                        if worker.name in task.avoid and self._has_others(worker, task):
                            continue
                        tasks.remove(task)
                        self._waiting = deque(pair for pair in self._waiting if pair[1])
                        return task
                self._changed.wait()
            return None

    def _has_others(self, worker: WorkerState, task: _Task) -> bool:
        """Whether somebody else could take a task that this worker has failed."""
        return any(
            each.is_alive
            and each is not worker
            and task.job.needs <= each.tags
            and each.name not in task.avoid
            for each in self.workers
        )

    def _give_back(self, task: _Task, worker: WorkerState, reason: str) -> None:
        """A lease has ended without an answer: another worker's turn, or an error."""
        task.attempts += 1
        task.avoid = task.avoid | {worker.name}
        with self._changed:
            able = any(each.is_alive and task.job.needs <= each.tags for each in self.workers)
            if task.attempts <= self._retries and able and not self._is_closed:
                waiting = next((some for job, some in self._waiting if job is task.job), None)
                if waiting is None:
                    self._waiting.appendleft((task.job, deque([task])))
                else:
                    waiting.appendleft(task)
                self._changed.notify_all()
                return
        error = f"lost {task.attempts} times, the last on {worker.name}: {reason}"
        task.job.record(Result(task.at, error=error, worker=worker.name, attempts=task.attempts))

    # ------------------------------------------------------------------ workers

    def _work(self, worker: WorkerState) -> None:
        while True:
            task = self._take(worker)
            if task is None:
                return
            with self._changed:
                self._count += 1
                name = str(self._count)
            lease = float(task.message.get("lease_s", self._lease_s))
            try:
                answer = worker.transport.ask({**task.message, "task": name}, lease)
            except Lost as lost:
                worker.lost += 1
                revived = self._revive(worker, str(lost))
                self._give_back(task, worker, str(lost))
                if not revived:
                    self._bury(worker)
                    return
                continue
            worker.done += 1
            task.job.record(_result(task, answer, worker.name))

    def _revive(self, worker: WorkerState, reason: str) -> bool:
        """Start a worker anew; False where it has failed too often or does not come back."""
        worker.restarts += 1
        try:
            if worker.restarts <= RESTARTS and not self._is_closed:
                worker.transport.start()
                return True
        except (Lost, UserError) as error:
            reason = str(error)
        worker.reason = reason
        with self._changed:
            worker.is_alive = False
        return False

    def _bury(self, worker: WorkerState) -> None:
        """A worker is gone: what nobody else can do is answered with an error."""
        worker.transport.stop()
        with self._changed:
            kept: deque[tuple[Job, deque[_Task]]] = deque()
            orphans: list[_Task] = []
            for job, tasks in self._waiting:
                if any(each.is_alive and job.needs <= each.tags for each in self.workers):
                    kept.append((job, tasks))
                else:
                    orphans += tasks
            self._waiting = kept
            self._changed.notify_all()
        for task in orphans:
            error = f"no worker is left for it; {worker.name}: {worker.reason}"
            task.job.record(Result(task.at, error=error, worker=worker.name))

    def close(self) -> None:
        """End all workers; tasks that wait are answered with an error."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            left = [task for _, tasks in self._waiting for task in tasks]
            self._waiting.clear()
            self._changed.notify_all()
        self._stop_workers()
        for thread in self._threads:
            thread.join(CONNECT_S)
        for task in left:
            task.job.record(Result(task.at, error="the fleet was closed"))

    def _stop_workers(self) -> None:
        for worker in self.workers:
            worker.transport.stop()


def _result(task: _Task, answer: Mapping[str, Any], worker: str) -> Result:
    if "error" in answer:
        error = str(answer["error"])
        return Result(task.at, error=error, worker=worker, attempts=task.attempts + 1)
    value = answer.get("value")
    if not isinstance(value, Mapping):
        return Result(task.at, error="an answer without a value", worker=worker)
    return Result(task.at, value, "", worker, task.attempts + 1)
