"""Jobs in worker processes with limits on time and memory: a crash costs one job.

    for job, outcome in run_jobs("module", "function", jobs, workers=2, seconds=20): ...

The function, of a module beside this file, takes a job and gives plain data. An outcome is that, or
a `Lost`: what became of a worker that died or took too long. Time is that of the processor, so that
a busy machine loses no jobs; ten times as much may pass on the clock. A process for each job, where
`most` is 1, need not load everything anew: `preload` names modules that are loaded once.

    outcome = in_child(function, argument)     one call that may crash, from inside of a job
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).parent)


@dataclass(frozen=True)
class Lost:
    """A job whose worker did not answer."""

    why: str  # "crash (SIGSEGV)", "time limit"


@dataclass
class Worker:
    process: Any
    connection: Connection
    at: int  # among the workers
    job: Any = None
    begin: float = 0.0
    used: float = 0.0  # processor time when the job began
    done: int = 0  # jobs

    def is_late(self, seconds: float) -> bool:
        passed = time.monotonic() - self.begin
        return passed > seconds and (
            passed > 10 * seconds or processor_seconds(self.process.pid) - self.used > seconds
        )


def processor_seconds(pid: int) -> float:
    """What a process and those it waited for have used; 0 where nobody tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _serve(
    connection: Connection,
    module: str,
    function: str,
    memory_bytes: int,
    core: int | None,
    is_single: bool,
) -> None:
    sys.path.insert(0, FOLDER)
    if core is not None:
        os.sched_setaffinity(0, {core})
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run = getattr(importlib.import_module(module), function)
    gc.freeze()  # what was imported lives as long as the worker
    if is_single:
        gc.disable()  # memory is freed soon enough: with the process
    connection.send(None)  # ready
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(run(job))


def run_jobs(
    module: str,
    function: str,
    jobs: Iterable[Any],
    *,
    workers: int = 2,
    seconds: float = 30.0,
    memory_bytes: int = 0,
    most: int = 0,
    pinned: bool = False,
    preload: Sequence[str] = (),
) -> Iterator[tuple[Any, Any]]:
    """Every job with its outcome, in the order they end. After `most` jobs a worker is replaced.

    A pinned worker has one core, and so compiles all by itself. With modules to preload, workers
    are forked from a process that has loaded them and done nothing else.
    """
    context = _forking(preload) if preload else multiprocessing.get_context("spawn")
    cores = sorted(os.sched_getaffinity(0)) if pinned else []

    def started(at: int) -> Worker:
        ours, theirs = context.Pipe()
        core = cores[at % len(cores)] if cores else None
        arguments = (theirs, module, function, memory_bytes, core, most == 1)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours, at)

    left = iter(jobs)
    pool = [started(at) for at in range(workers)]
    starting, idle, busy = list(pool), list[Worker](), list[Worker]()
    try:
        while True:
            while idle and (job := next(left, None)) is not None:
                worker = idle.pop()
                worker.job, worker.begin = job, time.monotonic()
                worker.used = processor_seconds(worker.process.pid)
                worker.connection.send(job)
                busy.append(worker)
            if not busy and (idle or not starting):
                return
            ready = set(wait([w.connection for w in (*starting, *busy)], timeout=0.2))
            for worker in [each for each in starting if each.connection in ready]:
                worker.connection.recv()  # it has loaded the module
                starting.remove(worker)
                idle.append(worker)
            for worker in list(busy):
                if worker.connection not in ready and not worker.is_late(seconds):
                    continue
                busy.remove(worker)
                outcome = _answer(worker) if worker.connection in ready else Lost("time limit")
                worker.done += 1
                if isinstance(outcome, Lost) or worker.done == most:
                    _stop(worker)
                    pool.remove(worker)
                    pool.append(started(worker.at))
                    starting.append(pool[-1])
                else:
                    idle.append(worker)
                yield worker.job, outcome
    finally:
        for worker in pool:
            _stop(worker)


def _forking(preload: Sequence[str]) -> BaseContext:
    """Where processes begin with modules loaded. The first call says for all which these are."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload])
    kept = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # or it would look in its own
    try:
        ensure_running()
    finally:
        if kept is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = kept
    return context


def _answer(worker: Worker) -> Any:
    try:
        return worker.connection.recv()
    except (EOFError, OSError):
        worker.process.join(5)
        return Lost(_death(worker.process.exitcode))


def _death(code: int | None) -> str:
    name = signal.Signals(-code).name if code is not None and code < 0 else f"exit {code}"
    return f"crash ({name})"


def in_child(function: Callable[..., Any], *arguments: Any, seconds: int = 600) -> Any:
    """What a function gives in a process forked for this call, or a `Lost` if that dies."""
    answer, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(seconds)  # whoever waits for it may be gone
            with open(end, "wb") as out:
                pickle.dump(function(*arguments), out)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(end)
    with open(answer, "rb") as given:
        data = given.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Lost(_death(code)) if code else pickle.loads(data)


def _stop(worker: Worker) -> None:
    worker.connection.close()
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join(5)
