"""The tunable units of a model: its kernels, each for all sizes at once or per set of sizes.

A task is named after its kernel; a task for one set of sizes has a suffix `@number`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.base.target import CUDA
from tilewright.driver.kernels import Job, KernelSetting
from tilewright.driver.lowering import planned_calls
from tilewright.driver.tuning.inputs import Sizes, size_sets
from tilewright.driver.tuning.records import task_key
from tilewright.driver.tuning.running import ALL, DEFAULT_SIZE, SizedKernel
from tilewright.graph.ir import Graph, Module
from tilewright.graph.visit import Edit
from tilewright.lower.graph import sizes_of
from tilewright.sym import Expr, Var, const, evaluate, free_vars
from tilewright.tune.lab import Candidate
from tilewright.tune.record import TaskKey, Winner
from tilewright.tune.variants import split, winner_of

AT = "@"


def sized_kernel_of(task: str) -> SizedKernel:
    """The kernel and set of sizes of a task."""
    kernel, _, at = task.partition(AT)
    return kernel, int(at) if at else ALL


def task_of(sized: SizedKernel) -> str:
    kernel, at = sized
    return kernel if at == ALL else f"{kernel}{AT}{at}"


class Kernels:
    """The kernels of a model, and the sets of sizes at which each is tuned separately."""

    def __init__(self, module: Module, setting: KernelSetting, sizes: Sizes) -> None:
        calls, self.jobs = planned_calls(module, setting)
        self.sets = size_sets(module.main.params, sizes, DEFAULT_SIZE)
        self._given = {
            name: [call.sizes for call in calls if call.kernel == name] for name in self.jobs
        }
        self._pivots = {name: self._pivot(name) for name in self.jobs}

    def _pivot(self, name: str) -> tuple[int, list[int]] | None:
        """The position of the kernel's size that separates the sets, and its limits; None if no
        size does."""
        if self.jobs[name].setting.target.kind == CUDA:
            return None  # on a GPU the host program calls one kernel for all sizes
        given = self._given[name]
        known = {size for each in self.sets for size in each}
        if len(self.sets) < 2 or any(set(free_vars(*each)) - known for each in given):
            return None
        for at in range(len(given[0])):
            values = [[int(evaluate(each[at], sizes)) for each in given] for sizes in self.sets]
            limits = split(values)
            if limits is not None:
                return at, limits
        return None

    def sized_kernels(self, name: str) -> list[SizedKernel]:
        """What is tuned of a kernel: all sizes at once, or each set separately."""
        if self._pivots[name] is None:
            return [(name, ALL)]
        return [(name, at) for at in range(len(self.sets))]

    def fixed(self, sized: SizedKernel) -> Job:
        """A kernel's job with its sizes fixed to those of its first call in a set."""
        name, at = sized
        job = self.jobs[name]
        assert isinstance(job.source, Graph)
        given = [const(int(evaluate(each, self.sets[at]))) for each in self._given[name][0]]
        sizes: dict[Var, Expr] = dict(zip(sizes_of(job.source), given, strict=True))
        return replace(job, source=Edit(sizes=sizes).body(job.source))

    def key(self, sized: SizedKernel) -> TaskKey:
        """The database key of a kernel, or of a kernel at some sizes."""
        name, at = sized
        key = task_key(self.jobs[name])
        if at == ALL:
            return key
        return replace(key, text=f"{key.text}\nat {self.sizes_text(at)}")

    def sizes_text(self, at: int) -> str:
        """A set of sizes as text."""
        return " ".join(f"{size.name}={value}" for size, value in self.sets[at].items())

    def winners(
        self, chosen: Mapping[str, Candidate], gains: Mapping[str, float] | None = None
    ) -> dict[TaskKey, Winner]:
        """The records of kernels, from the candidates that won."""
        found = {}
        gains = gains or {}
        for kernel in dict.fromkeys(sized_kernel_of(task)[0] for task in chosen):
            job, pivot = self.jobs[kernel], self._pivots[kernel]
            tasks = [task_of(sized) for sized in self.sized_kernels(kernel)]
            choices = [dict(chosen[each].choices) if each in chosen else {} for each in tasks]
            size, limits = pivot or (0, [])
            faster = [gains.get(each, 1.0) for each in tasks]
            found[task_key(job)] = winner_of(choices, faster, size, limits, job.label)
        return found
