"""Measure one function in this process: built from text, checked against the unscheduled program,
timed.

    bench = Kernel(function_text, "cpu", threads=2)
    bench.measure(trace_text, pairs=5)        {"ns": [...], "against": [...]}

Input is the text of a function and of a trace; output is numbers. Every candidate is checked on
fresh inputs, with garbage in its outputs, against the function as written, before it is timed
interleaved with the incumbent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright.intrin  # noqa: F401  # programs may name the intrinsics of hardware
from tilewright.base.errors import TilewrightError, UserError
from tilewright.base.target import CPU, Target
from tilewright.codegen.build import CompiledFunction, build
from tilewright.sym import Const, Var, evaluate
from tilewright.tensor.ir import Buffer, Function, sizes_of
from tilewright.tensor.parser import parse
from tilewright.tensor.schedule import Schedule, Trace
from tilewright.tensor.visit import blocks, written_buffers
from tilewright.tune.measure import wrong

Array = np.ndarray[Any, Any]
DEFAULT_SIZE = 64  # of a dynamic dimension without a given size
LEAST_SECONDS = 0.002  # per timing: shorter runs are repeated
MAX_KEPT = 4  # cached programs


class Kernel:
    """One function, its inputs and reference results."""

    def __init__(
        self, text: str, target: str, threads: int, sizes: dict[str, int] | None = None
    ) -> None:
        self.function = parse(text)
        self.target = Target.parse(target)
        self.threads = threads
        if self.target.kind != CPU:
            raise UserError("TW5205", f"functions for {target} are not measured by workers")
        self._sizes: dict[Var, int] = {
            size: (sizes or {}).get(size.name, DEFAULT_SIZE) for size in sizes_of(self.function)
        }
        self._random = np.random.default_rng(16)
        written = written_buffers(self.function.body)
        self._is_output = [buffer in written for buffer in self.function.buffers]
        self._args = [self._array(buffer) for buffer in self.function.buffers]
        self._want = self._answers()
        self._reduction = _reduction(self.function)
        self._kept: dict[str, CompiledFunction] = {}

    def _array(self, buffer: Buffer) -> Array:
        shape = [int(evaluate(dim, self._sizes)) for dim in buffer.shape]
        kind = np.dtype(buffer.dtype.numpy)
        if kind.kind in "iu":
            info = np.iinfo(kind)
            low, high = (0, info.max) if kind.kind == "u" else (-8, 8)
            return self._random.integers(low, high, shape, kind, endpoint=True)
        if kind.kind == "b":
            return self._random.integers(0, 2, shape).astype(bool)
        return self._random.uniform(0.05, 1.0, shape).astype(kind)

    def _answers(self) -> list[Array]:
        """Reference results, by the unscheduled program."""
        run = self._compiled(self.function)
        args = [each.copy() for each in self._args]
        run(*args, threads=1)
        return [each for each, out in zip(args, self._is_output, strict=True) if out]

    def measure(
        self, trace: str, against: str = "", *, pairs: int = 5, seconds: float = 1.0
    ) -> dict[str, Any]:
        """Times in nanoseconds of a trace, interleaved with another; or what is wrong with it."""
        try:
            candidate = self._built(trace)
            fault = self._fault(candidate)
            if fault:
                return {"error": f"another answer: {fault}"}
            other = None if not against else self._built(against)
        except TilewrightError as error:
            return {"error": f"refused: error[{error.code}]: {error.message}"}
        with _alone():
            return self._in_turns(candidate, other, pairs, seconds)

    def _in_turns(
        self,
        candidate: CompiledFunction,
        other: CompiledFunction | None,
        pairs: int,
        seconds: float,
    ) -> dict[str, Any]:
        first: list[float] = []
        second: list[float] = []
        self._time(candidate)  # warm
        end = time.perf_counter() + seconds
        for pair in range(pairs):
            if other is None:
                first.append(self._time(candidate))
            elif pair % 2:
                second.append(self._time(other))
                first.append(self._time(candidate))
            else:
                first.append(self._time(candidate))
                second.append(self._time(other))
            if time.perf_counter() > end and pair >= 1:
                break
        return {"ns": first, "against": second}

    def _built(self, trace: str) -> CompiledFunction:
        run = self._kept.pop(trace, None)
        if run is None:
            sch = Schedule(self.function)
            Trace.parse(trace).apply(sch)
            run = self._compiled(sch.function)
        self._kept[trace] = run  # the newest last
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return run

    def _compiled(self, fn: Function) -> CompiledFunction:
        run = build(fn, self.target, use_cache=False)
        assert isinstance(run, CompiledFunction)  # of the kinds of target there are
        return run

    def _fault(self, run: CompiledFunction) -> str:
        args = [
            _rubbish(each) if out else each
            for each, out in zip(self._args, self._is_output, strict=True)
        ]
        run(*args, threads=self.threads)
        got = [each for each, out in zip(args, self._is_output, strict=True) if out]
        return _differences(got, self._want, self._reduction)

    def _time(self, run: CompiledFunction) -> float:
        """Nanoseconds of a run, averaged over enough runs to time."""
        count, spent = 0, 0.0
        begin = time.perf_counter()
        while spent < LEAST_SECONDS:
            run(*self._args, threads=self.threads)
            count += 1
            spent = time.perf_counter() - begin
        return spent / count * 1e9


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One timing at a time per machine, however many workers build there."""
    path = Path(tempfile.gettempdir()) / f"tilewright-timing-{os.getuid()}.lock"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back, as does the end of the process


def _rubbish(array: Array) -> Array:
    made = np.empty_like(array)
    made.reshape(-1).view(np.uint8)[...] = 0xFF
    return made


def _differences(got: Sequence[Array], want: Sequence[Array], reduction: int) -> str:
    for mine, right in zip(got, want, strict=True):
        reason = wrong(mine, right, reduction)
        if reason:
            return reason
    return ""


def _reduction(fn: Function) -> int:
    """The longest reduction, which determines the tolerance."""
    longest = 1
    for block in blocks(fn.body):
        total = 1
        for it in block.iters:
            if it.kind == "reduce":
                total *= int(it.extent.value) if isinstance(it.extent, Const) else DEFAULT_SIZE
        longest = max(longest, total)
    return longest
