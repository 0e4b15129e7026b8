"""Compile kernels in several processes, since LLVM holds one lock per process.

Workers are separate programs (`python -m tilewright.driver.worker`) that read jobs from stdin and
write answers to stdout; so scripts need no `if __name__ == "__main__"` guard, as multiprocessing
would. They start when there are more than a few jobs, and end with this process. When several start
at once, one loads the compiler and forks the others.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Any

from tilewright.base.collection import paused_collection
from tilewright.base.errors import CompilerBug, TilewrightError, Unsupported
from tilewright.base.host import host_cores
from tilewright.driver.kernels import Job, Kernel, PackerJob

LENGTH = struct.Struct("<Q")
MAX_AHEAD = 8  # workers started before the number of jobs is known
# Loading the compiler takes as long as compiling this many kernels, or optimizing this many
# operators.
FEW_JOBS = 3
FEW_OPERATORS = 8


def write_message(stream: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


def read_message(stream: IO[bytes]) -> Any:
    """The next message; EOFError if there is none."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (size,) = LENGTH.unpack(head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


class Pipes:
    """The pipes of one worker: jobs go out, and a thread waits for the answers."""

    def __init__(self, jobs: IO[bytes], answers: IO[bytes]) -> None:
        self._jobs, self._answers = jobs, answers

    def ask(self, job: Job | PackerJob, use_cache: bool) -> Any:
        write_message(self._jobs, (job, use_cache))
        return read_message(self._answers)

    @property
    def has_ended(self) -> bool:
        """Whether the worker has exited."""
        poll = select.poll()
        poll.register(self._answers, 0)  # with no events requested, poll reports hang-up only
        return bool(poll.poll(0))

    def stop(self) -> None:
        """Close the pipes; the worker exits after its current job."""
        for pipe in (self._jobs, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()


class Fork(Pipes):
    """A worker that another worker forks after loading the compiler."""

    def __init__(self) -> None:
        theirs, mine = os.pipe()
        answers, answering = os.pipe()
        self.theirs = (theirs, answering)
        super().__init__(os.fdopen(mine, "wb"), os.fdopen(answers, "rb"))


class Worker(Pipes):
    """A worker started by this process, and the workers it forks."""

    def __init__(self, forks: Sequence[Fork] = ()) -> None:
        source = str(Path(__file__).parents[2])
        paths = [source, os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in paths if p),
            "OPENBLAS_NUM_THREADS": "1",  # a process with threads cannot be forked safely
        }
        ends = [end for fork in forks for end in fork.theirs]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tilewright.driver.worker", *map(str, ends)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=ends,
                env=environment,
                start_new_session=True,  # Ctrl-C must reach this process only
            )
        finally:
            for end in ends:
                os.close(end)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        super().__init__(self.process.stdin, self.process.stdout)

    def stop(self) -> None:
        super().stop()
        with contextlib.suppress(OSError):
            self.process.terminate()
            self.process.wait(timeout=5)


def started_workers(count: int) -> list[Pipes]:
    """Start this many workers; one loads the compiler and forks the others."""
    forks = [Fork() for _ in range(count - 1)]
    return [*forks, Worker(forks)]


class Workers:
    """A pool of one worker process per core, each with one job at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="tilewright-compile")
        self._mine = threading.local()
        self._all: list[Pipes] = []
        self._spare: list[Pipes] = []  # started, but not yet bound to a thread

    def start(self) -> None:
        """Start workers early: they load the compiler while there are no jobs."""
        self._spare = started_workers(min(self._count, MAX_AHEAD))
        self._all += self._spare

    def submit(self, job: Job | PackerJob, use_cache: bool) -> Future[Any]:
        return self._threads.submit(self._run, job, use_cache)

    def _worker(self) -> Pipes:
        """The worker bound to this thread."""
        worker: Pipes | None = getattr(self._mine, "worker", None)
        if worker is None or worker.has_ended:
            worker = self._take_spare() or Worker()
            if worker not in self._all:
                self._all.append(worker)
            self._mine.worker = worker
        return worker

    def _take_spare(self) -> Pipes | None:
        """A started worker that has no thread yet."""
        with contextlib.suppress(IndexError):
            while (worker := self._spare.pop()).has_ended:
                pass
            return worker
        return None

    def _run(self, job: Job | PackerJob, use_cache: bool) -> Any:
        worker = self._worker()
        try:
            answer = worker.ask(job, use_cache)
        except (EOFError, OSError) as error:
            worker.stop()
            self._mine.worker = None
            raise CompilerBug(
                "TW6001", f"the compiler crashed on the kernel {job.label}"
            ) from error
        if isinstance(answer, TilewrightError):
            raise answer
        if isinstance(answer, str):
            raise CompilerBug("TW6001", f"compiling the kernel {job.label} failed: {answer}")
        return answer

    def stop(self) -> None:
        for worker in self._all:
            worker.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)


_workers: Workers | None = None
_lock = threading.Lock()


def workers() -> Workers:
    """The worker pool of this process."""
    global _workers
    with _lock:
        if _workers is None:
            _workers = _new_pool()
        return _workers


def _new_pool() -> Workers:
    made = Workers(host_cores())
    atexit.register(made.stop)
    return made


def expect_jobs(operators: int) -> None:
    """Start the pool early, since kernels that are not cached will have to be compiled.

    Not for models with few operators: their number of jobs is soon known.
    """
    global _workers
    with _lock:
        is_large = operators > FEW_OPERATORS
        if _workers is None and is_large and host_cores() > 1 and sys.executable:
            _workers = _new_pool()
            _workers.start()


def compile_all(
    jobs: Sequence[Job],
    packer_of: Callable[[Kernel], PackerJob | None],
    *,
    use_cache: bool = True,
    done: Callable[[int, int], None] = lambda count, total: None,
) -> tuple[list[Kernel | Unsupported], dict[str, bytes]]:
    """The kernels of all jobs, in order, or the reason why there is no code for one; and packers by
    their texts.

    `packer_of` returns the packer job of a kernel unless it was requested before; packers are
    compiled as soon as workers are free. `done` is called with the number of finished kernels.
    """
    few = FEW_JOBS if _workers is None else 1
    is_alone = len(jobs) <= few or host_cores() == 1 or not sys.executable
    submit = _run_here if is_alone else workers().submit
    kernels: dict[int, Kernel | Unsupported] = {}
    packers: dict[str, Future[bytes]] = {}
    places = {submit(job, use_cache): at for at, job in enumerate(jobs)}
    try:
        for future in as_completed(places):
            outcome = kernels[places[future]] = _outcome(future)
            done(len(kernels), len(jobs))
            packer = packer_of(outcome) if isinstance(outcome, Kernel) else None
            if packer is not None:
                packers[packer.text] = submit(packer, use_cache)
        images = {text: future.result() for text, future in packers.items()}
    finally:
        for future in (*places, *packers.values()):
            future.cancel()
    return [kernels[at] for at in range(len(jobs))], images


def _run_here(job: Job | PackerJob, use_cache: bool) -> Future[Any]:
    """Compile in this process; a crash of the code generator ends it."""
    future: Future[Any] = Future()
    try:
        future.set_result(_compile_here(job, use_cache))
    except TilewrightError as error:
        future.set_exception(error)
    except Exception as error:
        what = f"compiling the kernel {job.label} failed: {type(error).__name__}: {error}"
        bug = CompilerBug("TW6001", what)
        bug.__cause__ = error
        future.set_exception(bug)
    return future


def _compile_here(job: Job | PackerJob, use_cache: bool) -> Kernel | bytes:
    # Imported here: kernels usually come from the cache or from workers.
    from tilewright.driver.kernel_code import compile_kernel, compile_packer

    with paused_collection():
        if isinstance(job, Job):
            return compile_kernel(job, use_cache=use_cache)
        return compile_packer(job, use_cache=use_cache)


def _outcome(future: Future[Any]) -> Kernel | Unsupported:
    try:
        kernel: Kernel = future.result()
    except Unsupported as error:
        return error
    return kernel
