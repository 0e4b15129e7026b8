"""A process that builds and checks kernels, or runs a model with them, at the request of `lab.py`.

Messages are pickles. A kernel that crashes takes down this process only, which has limits on memory
and output.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.base.errors import TilewrightError
from tilewright.base.target import CUDA
from tilewright.driver.build import build_native
from tilewright.driver.kernels import BLAS, Job
from tilewright.driver.options import Options
from tilewright.driver.placement import placement
from tilewright.driver.tuning.check import Checker
from tilewright.driver.tuning.device import DeviceBench, DeviceRunning
from tilewright.driver.tuning.inputs import Sizes
from tilewright.driver.tuning.messages import (
    Adopt,
    Answer,
    Build,
    Check,
    Compare,
    Open,
    Question,
    Race,
    Whole,
)
from tilewright.driver.tuning.running import Running, SizedKernel, Times
from tilewright.driver.tuning.table import Built, built
from tilewright.runtime import cuda
from tilewright.runtime.module import Module
from tilewright.tune.budget import Deadline
from tilewright.tune.database import Database
from tilewright.tune.process import (
    DEVICE_EXIT,
    MEMORY_EXIT,
    end_with_parent,
    limit_this_process,
    read_message,
    write_message,
    write_ready,
)
from tilewright.tune.record import TaskKey, Winner
from tilewright.tune.stats import LEAST_PAIRS

UNTUNED, TUNED, MAX_BUILDS = "untuned", "tuned", 4
MAX_KEPT_BYTES = 1 << 30  # of weights of compared modules that stay allocated
MAX_CHECKED_BYTES = 1 << 30  # of references' inputs and results that are kept, most recent last


class Server:
    """Answers questions one by one."""

    def __init__(self) -> None:
        self._checkers: dict[str, Checker] = {}
        self._running: Running | DeviceRunning | None = None
        self._opened: Open | None = None

    def answer(self, question: Question) -> Answer:
        match question:
            case Build(job):
                return built(job)
            case Check(job, default, sizes):
                return self._checked(job, default, sizes)
            case Open(module, setting, defaults, sizes, in_place, runs):
                self._opened = question
                made = DeviceRunning if setting.target.kind == CUDA else Running
                self._running = made(module, setting, defaults, sizes, in_place=in_place)
                self._running.baseline(2)  # warm-up of memory, caches and threads
                return self._running.baseline(runs)
            case Race(wave, pairs):
                assert self._running is not None
                return self._running.race(wave, pairs)
            case Compare(pairs):
                assert self._running is not None
                return self._running.compare(pairs)
            case Adopt(sized, candidate):
                assert self._running is not None
                self._running.adopt(sized, candidate)
                return ""
            case Whole(winners, use_cache, pairs, seconds):
                return self._whole(winners, use_cache, pairs, Deadline.after(seconds))

    def _whole(
        self,
        winners: Mapping[TaskKey, Winner],
        use_cache: bool,
        pairs: int,
        deadline: Deadline,
    ) -> Times:
        """Times of the compiled models, alternately, over several builds in both orders, since the
        addresses of a module's memory may matter more than a choice. Each build counts as further
        sets of sizes. Models that take longer to build than to compare are built twice, or once if
        time runs out."""
        assert self._running is not None
        found: dict[SizedKernel, tuple[Sequence[float], Sequence[float]]] = {}
        # small modules stay allocated, so that the next get other addresses
        live: list[Module] = []
        weights = self._opened.module.constants.values() if self._opened is not None else ()
        is_small = 2 * MAX_BUILDS * sum(each.nbytes for each in weights) <= MAX_KEPT_BYTES
        pairs_per_build = max(LEAST_PAIRS, -(-pairs // MAX_BUILDS))
        for count in range(1, MAX_BUILDS + 1):
            begin = time.monotonic()
            order = (UNTUNED, TUNED) if count % 2 else (TUNED, UNTUNED)
            made = {of: self._compiled(winners if of == TUNED else {}, use_cache) for of in order}
            built_s = time.monotonic() - begin
            times = self._running.built(made[UNTUNED], made[TUNED], pairs_per_build)
            if not times:
                return {}
            found |= {(name, at + len(found)): pair for (name, at), pair in times.items()}
            live += made.values() if is_small else ()
            spent_s = time.monotonic() - begin
            if deadline.left < spent_s or (count > 1 and 2 * built_s > spent_s):
                break
        return found

    def _compiled(self, winners: Mapping[TaskKey, Winner], use_cache: bool) -> Module:
        """The model as `tw.compile` builds it with these records."""
        assert self._opened is not None
        setting = self._opened.setting
        with Database() as database:
            for key, winner in winners.items():
                database.keep(key, winner)
            options = Options(
                threads=setting.threads,
                packing=setting.packing,
                in_place=self._opened.in_place,
                allow_blas=BLAS in setting.libraries,
                cache=use_cache,
                database=database,
            )
            module = self._opened.module
            return build_native(module, setting.target, options, placement(module, setting.target))

    def checker(self, job: Job, default: Built, sizes: Sizes) -> Checker:
        bench = DeviceBench(job) if job.setting.target.kind == CUDA else None
        return Checker(job, default, sizes, bench)

    def _checked(self, job: Job, default: Built, sizes: Sizes) -> Answer:
        name = default.kernel.name
        checker = self._checkers.pop(name, None)
        if checker is None:
            checker = self.checker(replace(job, choices={}), default, sizes)
        self._checkers[name] = checker  # most recently used last
        candidate = built(job)
        fault = checker.fault(candidate)
        kept = [*self._checkers]
        while len(kept) > 1 and self._checked_bytes > MAX_CHECKED_BYTES:
            del self._checkers[kept.pop(0)]
        return fault or candidate

    @property
    def _checked_bytes(self) -> int:
        return sum(each.size_bytes for each in self._checkers.values())


def serve(server: Server) -> None:
    """Answer until stdin closes, within the limits given on the command line."""
    memory_bytes, output_bytes = map(int, sys.argv[1:3])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints must not corrupt the answers
    limit_this_process(memory_bytes, output_bytes)
    end_with_parent()
    write_ready(answers)
    while True:
        message = read_message(sys.stdin.buffer)
        if message is None:
            return
        try:
            answer: Answer = server.answer(pickle.loads(message))
        except MemoryError:
            os._exit(MEMORY_EXIT)
        except TilewrightError as error:
            if cuda.is_lost():
                os._exit(DEVICE_EXIT)
            answer = f"refused: error[{error.code}]: {error.message}"
        except Exception as error:
            answer = f"failed: {type(error).__name__}: {error}"
        write_message(answers, pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))


if __name__ == "__main__":
    serve(Server())
