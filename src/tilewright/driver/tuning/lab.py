"""The tuner's lab for one model: processes that build and check kernels, and one that runs the
model.

Candidates run only in those processes. One that crashes or hangs is restarted: a checking process
at the cost of the candidate alone, the model's with its incumbents as before.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tilewright.base.errors import CompilerBug
from tilewright.base.host import host_cores
from tilewright.driver.kernels import (
    Job,
    PackerJob,
    packing_target,
    store,
    store_packer,
)
from tilewright.driver.tuning.messages import (
    Adopt,
    Build,
    Check,
    Compare,
    Open,
    Question,
    Race,
    Whole,
)
from tilewright.driver.tuning.records import choices_of
from tilewright.driver.tuning.running import WHOLE, Measured, SizedKernel, Times
from tilewright.driver.tuning.sized_kernels import sized_kernel_of, task_of
from tilewright.driver.tuning.table import Built
from tilewright.tune.lab import Candidate
from tilewright.tune.process import Child, Failed, Limits
from tilewright.tune.record import TaskKey, Winner
from tilewright.tune.stats import Paired

SERVER = (sys.executable, "-m", "tilewright.driver.tuning.server")
SINGLE_PAIRS = 5  # pairs of runs of a single candidate, after a wave of several crashed the model
MODEL_MEMORY_BYTES = 64 << 30
BUILD_S = 120.0  # timeout of building a kernel
GRACE_S = 2.0  # extra time for a candidate that was started in time
MODEL_S = 120.0  # timeout of building the model, and of a race
MAX_BUILT = 256  # compiled candidates that are kept
Choices = tuple[tuple[str, str], ...]  # of a candidate: (block, plan) pairs


def server_environment() -> dict[str, str]:
    """The environment of a server: it finds this package, whatever the working directory."""
    source = str(Path(__file__).parents[3])
    paths = [source, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OPENBLAS_NUM_THREADS": "1",
    }


def with_choices(job: Job, candidate: Candidate) -> Job:
    return replace(job, choices=choices_of(dict(candidate.choices)))


class Checkers:
    """A pool of processes that build and check kernels, one per core."""

    def __init__(self, limits: Limits, count: int = 0, command: Sequence[str] = SERVER) -> None:
        count = count or host_cores()
        self._threads = ThreadPoolExecutor(count, "tilewright-tune")
        self._all = [Child(command, limits, server_environment()) for _ in range(count)]
        self._idle: SimpleQueue[Child] = SimpleQueue()
        for child in self._all:
            self._idle.put(child)

    def start(self) -> None:
        """Start all processes, so that they load the compiler meanwhile."""
        for child in self._all:
            child.start()

    def wait(self) -> None:
        """Wait until all processes have loaded the compiler: candidates' timeouts are short."""
        for child in self._all:
            child.wait()

    @property
    def are_ready(self) -> bool:
        return all(child.is_ready for child in self._all)

    def ask(
        self, questions: Iterable[tuple[Any, Question]], seconds: float
    ) -> Iterator[tuple[Any, Any]]:
        """Answers by the questions' names. Each question is asked as soon as it is there: making
        the next takes place meanwhile. No question is started after `seconds`, and none is waited
        for much longer."""
        deadline = time.monotonic() + seconds
        futures: dict[Future[Any], Any] = {}
        try:
            for name, question in questions:
                futures[self._threads.submit(self._answer, question, deadline)] = name
            left = max(0.0, deadline - time.monotonic())
            for future in as_completed(futures, timeout=left + GRACE_S):
                answer = future.result()
                if answer is not None:
                    yield futures[future], answer
        except TimeoutError:
            for child in self._all:
                child.kill()
        finally:
            for future in futures:
                future.cancel()

    def _answer(self, question: Question, deadline: float) -> Any:
        if time.monotonic() > deadline:
            return None
        child = self._idle.get()
        try:
            allowed = BUILD_S if isinstance(question, Build) else 0.0
            return pickle.loads(child.ask(pickle.dumps(question), allowed))
        except Failed as failure:
            return str(failure)
        finally:
            self._idle.put(child)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._all:
            child.stop()


def model_process(memory_bytes: int = MODEL_MEMORY_BYTES) -> Child:
    """The process that runs the model; it loads the compiler while kernels are built."""
    made = Child(SERVER, Limits(MODEL_S, memory_bytes), server_environment())
    made.start()
    return made


class ModelLab:
    """The lab for one model on this machine."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        opening: Open,
        checkers: Checkers,
        winners: Callable[[Mapping[str, Candidate]], Mapping[TaskKey, Winner]],
        runner: Child,
        *,
        use_cache: bool = True,
    ) -> None:
        """`winners` converts winning candidates to records; `runner` is the process that runs the
        model."""
        self._jobs, self._opening, self._checkers = jobs, opening, checkers
        self._winners, self._use_cache = winners, use_cache
        self._built: dict[Candidate, Built] = {}
        self._incumbents: dict[str, Built] = {}
        # all kernels that were incumbents at some time
        self._won: dict[tuple[str, Choices], Built] = {}
        self._model = runner
        self.build_s = 0.0

    def open(self) -> Sequence[Mapping[str, Measured]]:
        """Build the model; returns times of the untuned kernels, by set of sizes."""
        self._model.wait()
        begin = time.monotonic()
        try:
            found = self._ask(self._opening)
        except Failed as failure:
            raise CompilerBug("TW5090", f"the model cannot run with a table: {failure}") from None
        if isinstance(found, str):
            raise CompilerBug("TW5090", f"the model cannot run with a table: {found}")
        self.build_s = time.monotonic() - begin
        for name, candidate in self._incumbents.items():
            self._ask(Adopt(sized_kernel_of(name), candidate))
        measured: Sequence[Mapping[str, Measured]] = found
        return measured

    def _ask(self, question: Question, seconds: float = 0.0) -> Any:
        return pickle.loads(self._model.ask(pickle.dumps(question), seconds))

    # ------------------------------------------------------------------ the tuner's interface

    def check(
        self, candidates: Iterable[Candidate], seconds: float
    ) -> Iterator[tuple[Candidate, str]]:
        known: list[Candidate] = []
        for candidate, answer in self._checkers.ask(self._questions(candidates, known), seconds):
            if isinstance(answer, Built):
                self._built[candidate] = answer
                while len(self._built) > MAX_BUILT:
                    del self._built[next(iter(self._built))]
            yield candidate, "" if isinstance(answer, Built) else str(answer)
        yield from ((each, "") for each in known)

    def _questions(
        self, candidates: Iterable[Candidate], known: list[Candidate]
    ) -> Iterator[tuple[Candidate, Question]]:
        """What to ask about candidates; those that were checked before are added to `known`."""
        sizes, defaults = self._opening.sizes, self._opening.defaults
        for each in candidates:
            kernel, _ = sized_kernel_of(each.task)
            if each in self._built or (kernel, each.choices) in self._won:
                known.append(each)
            else:
                yield each, Check(with_choices(self._jobs[kernel], each), defaults[kernel], sizes)

    def _kernel(self, candidate: Candidate) -> Built:
        """The code of a checked candidate, possibly checked for other sizes."""
        kernel, _ = sized_kernel_of(candidate.task)
        if not candidate.choices:
            return self._opening.defaults[kernel]
        return self._built.get(candidate) or self._won[kernel, candidate.choices]

    def race(self, wave: Mapping[str, Candidate], pairs: int) -> Mapping[str, Paired]:
        kernels = {sized_kernel_of(task): self._kernel(each) for task, each in wave.items()}
        found = self._try_race(kernels, pairs)
        if found is not None:
            return found
        alone: dict[str, Paired] = {}
        for sized, kernel in kernels.items() if len(kernels) > 1 else ():
            alone |= self._try_race({sized: kernel}, SINGLE_PAIRS) or {}
        return alone

    def _try_race(
        self, kernels: Mapping[SizedKernel, Built], pairs: int
    ) -> dict[str, Paired] | None:
        """Times, or None if the model crashed or computed something else."""
        if not self._model.is_running:
            self.open()
        try:
            times = self._ask(Race(kernels, pairs))
        except Failed:
            return None
        if isinstance(times, str) or not times:
            return None
        return {task_of(sized): pair for sized, pair in _paired(times).items()}

    def adopt(self, candidate: Candidate) -> None:
        kernel = self._kernel(candidate) if candidate.choices else None
        self._incumbents.pop(candidate.task, None)
        sized = sized_kernel_of(candidate.task)
        if kernel is not None:
            self._incumbents[candidate.task] = kernel
            self._won[sized[0], candidate.choices] = kernel
            if self._use_cache:
                store_built(with_choices(self._jobs[sized[0]], candidate), kernel)
        if self._model.is_running:  # otherwise `open` sends the incumbents
            self._ask(Adopt(sized, kernel))

    def compare(self, pairs: int) -> tuple[Sequence[Paired], Mapping[str, Paired]]:
        if not self._model.is_running:
            self.open()
        found = _paired(self._ask(Compare(pairs)))
        wholes = [pair for (name, _), pair in found.items() if name == WHOLE]
        by_task: dict[str, Paired] = {}
        for (name, at), pair in found.items():
            by_task[task_of((name, at))] = pair
            by_task[name] = by_task[name] + pair if name in by_task else pair
        return wholes, by_task

    def whole(
        self, chosen: Mapping[str, Candidate], pairs: int, seconds: float
    ) -> Sequence[Paired]:
        if not self._model.is_running:
            self.open()
        question = Whole(self._winners(chosen), self._use_cache, pairs, seconds)
        try:
            times = self._ask(question, seconds + 2 * self.build_s + GRACE_S)
        except Failed:
            return ()
        return () if isinstance(times, str) else list(_paired(times).values())


def _paired(times: Times) -> dict[SizedKernel, Paired]:
    return {sized: Paired(tuple(first), tuple(second)) for sized, (first, second) in times.items()}


def store_built(job: Job, made: Built) -> None:
    """Cache a kernel's code, so that compiling the tuned model does not build it again."""
    kernel, packer = made.kernel, made.kernel.packer
    if packer is not None:
        assert packer.source is not None
        assert made.packer is not None
        target = packing_target(job.setting.target)
        store_packer(PackerJob(kernel.name, packer.text, packer.source, target), made.packer)
    store(job, kernel)


def build_all(
    jobs: Mapping[str, Job], checkers: Checkers, seconds: float
) -> Iterator[tuple[str, Built]]:
    """Kernels for call tables by name, as they are finished."""
    for name, answer in checkers.ask([(name, Build(job)) for name, job in jobs.items()], seconds):
        if not isinstance(answer, Built):
            raise CompilerBug("TW5090", f"the kernel {name} does not compile: {answer}")
        yield name, answer
