"""Time candidate kernels in place, in a whole model that calls its kernels through tables.

    running = Running(module, setting, defaults, sizes)
    running.baseline(9)                     nanoseconds and work of each kernel, all its calls
    running.race({sized: candidate}, 9)      times of the incumbents and of the candidates

Each run has one candidate of every kernel at once: caches are in the state of real use, and timing
a hundred kernels costs as much as timing one. A model with dynamic sizes runs with several sets of
them, each with incumbents of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tilewright.driver.compare import is_close
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import lower_sited
from tilewright.driver.tuning.inputs import Sizes, placements, random_arrays, size_sets
from tilewright.driver.tuning.table import EVENTS, Built, Installed, Run, Table, TableModule
from tilewright.graph.ir import Module as Graphs
from tilewright.graph.types import is_tensor
from tilewright.runtime.module import Module, Spec
from tilewright.sym import Const

Array = np.ndarray[Any, Any]
WHOLE = ""  # the key of the whole model among times
DEFAULT_SIZE = 1  # for dynamic sizes of the model that are not given

TURN_NS, MAX_REPEAT = 2e6, 32  # least time of a measurement: fast models run several times in one

ALL = -1  # every set of sizes
SizedKernel = tuple[str, int]  # a kernel, and the number of a set of sizes, or ALL
Times = Mapping[SizedKernel, tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True)
class Measured:
    """The times of one kernel in place: the sum of all its calls in a run."""

    ns: float
    flops: int
    size_bytes: int
    calls: int = 1


class Running:
    """A model in this process, whose kernels can be exchanged."""

    def __init__(
        self,
        module: Graphs,
        setting: KernelSetting,
        defaults: Mapping[str, Built],
        sizes: Sizes,
        *,
        in_place: bool = True,
    ) -> None:
        self._target, self._threads = setting.target, setting.threads
        kernels = {name: each.kernel for name, each in defaults.items()}
        program = lower_sited(module, setting, kernels)
        main = module.main
        random = np.random.default_rng(16)
        self._sets = [
            placements(random_arrays(main.params, each, random))
            for each in size_sets(main.params, sizes, DEFAULT_SIZE)
        ]
        self._model = TableModule(
            program,
            setting.target,
            setting.threads,
            [_spec(value.name, value.type) for value in main.params],
            [_spec(value.name, value.type) for value in program.module.main.results],
            in_place=in_place,
        )
        self._sites = [site.kernel for site in program.sites]
        self._untuned = self._model.new_table()
        for name, each in defaults.items():
            self._model.install(self._untuned, name, self._installed(each))
        self._incumbents = [self._copy(self._untuned) for _ in self._sets]
        self._expected = [
            [self._outputs(self._untuned, inputs) for inputs in placed] for placed in self._sets
        ]
        self._repeats = [self._repeat(placed[-1]) for placed in self._sets]

    def _installed(self, built: Built) -> Installed:
        return Installed(built, self._target, self._threads)

    def _outputs(self, table: Table, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(each.copy() for each in self._model.run(table, inputs).outputs)

    def _repeat(self, inputs: Sequence[Array]) -> int:
        """Runs per measurement."""
        run, _ = self._model.timed(self._untuned, inputs)
        most = min(MAX_REPEAT, EVENTS // (4 * max(1, len(self._sites))))
        return int(min(most, max(1, TURN_NS / max(run.whole_ns, 1.0))))

    def _copy(self, table: Table) -> Table:
        made = self._model.new_table()
        for site in range(len(self._sites)):
            made.copy(site, table)
        return made

    def baseline(self, runs: int) -> list[dict[str, Measured]]:
        """Times of every untuned kernel, by set of sizes; the whole model under the empty name."""
        return [self._baseline(at, runs) for at in range(len(self._sets))]

    def _baseline(self, at: int, runs: int) -> dict[str, Measured]:
        found: dict[str, list[float]] = {}
        work: dict[str, tuple[int, int]] = {}
        for inputs in self._sets[at]:
            for _ in range(runs):
                run, done = self._model.timed(self._untuned, inputs, self._repeats[at])
                for name, ns in self._by_kernel(run).items():
                    found.setdefault(name, []).append(ns)
                work = {WHOLE: (0, 0)}
                for site, each in done.items():
                    flops, size = work.get(self._sites[site], (0, 0))
                    work[self._sites[site]] = (flops + each.flops, size + each.size_bytes)
        return {
            name: Measured(median(ns), *work[name], max(1, self._sites.count(name)))
            for name, ns in found.items()
        }

    def race(self, wave: Mapping[SizedKernel, Built], pairs: int) -> Times:
        """Times of the incumbents and of the candidates, alternately; empty if the model's outputs
        then differ."""
        kernels = {sized: self._installed(each) for sized, each in wave.items()}
        times: dict[SizedKernel, tuple[list[float], list[float]]] = {
            sized: ([], []) for sized in wave
        }
        for at, (placed, expected) in enumerate(zip(self._sets, self._expected, strict=True)):
            here = {sized: each for sized, each in kernels.items() if sized[1] in (at, ALL)}
            if not here:
                continue
            table = self._copy(self._incumbents[at])
            for (name, _), kernel in here.items():
                self._model.install(table, name, kernel)
            for inputs, want in zip(placed, expected, strict=True):
                if not is_close(self._model.run(table, inputs).outputs, want):
                    return {}
            found = self._in_turns(at, self._incumbents[at], table, pairs)
            for sized in here:
                for side, more in zip(times[sized], found[sized[0]], strict=True):
                    side.extend(more)
        return times

    def compare(self, pairs: int) -> Times:
        """Times of the untuned model and of the incumbents, alternately, for each kernel; the whole
        model under the empty name."""
        return {
            (name, at): pair
            for at, table in enumerate(self._incumbents)
            for name, pair in self._in_turns(at, self._untuned, table, pairs).items()
        }

    def adopt(self, sized: SizedKernel, candidate: Built | None) -> None:
        """Set a kernel's incumbent; None: the untuned kernel."""
        name, at = sized
        made = None if candidate is None else self._installed(candidate)
        for table in self._incumbents if at == ALL else self._incumbents[at : at + 1]:
            if made is not None:
                self._model.install(table, name, made)
                continue
            for site, kernel in enumerate(self._sites):
                if kernel == name:
                    table.copy(site, self._untuned)

    def built(self, untuned: Module, tuned: Module, pairs: int) -> Times:
        """Times of two compiled modules, alternately, by set of sizes; empty if the second one's
        outputs differ."""
        times: dict[SizedKernel, tuple[list[float], list[float]]] = {}
        for at, (placed, expected) in enumerate(zip(self._sets, self._expected, strict=True)):
            for inputs, want in zip(placed, expected, strict=True):
                untuned(*inputs)
                if not is_close(tuple(map(np.asarray, tuned(*inputs))), want):
                    return {}
            sides: tuple[list[float], list[float]] = ([], [])
            for pair in range(pairs):
                inputs = placed[pair // 2 % len(placed)]
                turns = ((0, untuned), (1, tuned)) if pair % 2 == 0 else ((1, tuned), (0, untuned))
                for side, module in turns:
                    sides[side].append(_timed(module, inputs, self._repeats[at]))
            times[WHOLE, at] = sides
        return times

    def _in_turns(
        self, at: int, first: Table, second: Table, pairs: int
    ) -> dict[str, tuple[list[float], list[float]]]:
        """Times of each kernel with both tables, at one set of sizes."""
        names = (WHOLE, *dict.fromkeys(self._sites))
        times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
        for pair in range(pairs):
            inputs = self._sets[at][pair // 2 % len(self._sets[at])]
            tables = ((0, first), (1, second)) if pair % 2 == 0 else ((1, second), (0, first))
            for side, table in tables:
                run, _ = self._model.timed(table, inputs, self._repeats[at])
                found = self._by_kernel(run)
                for name in names:
                    times[name][side].append(found.get(name, 0.0))
        return times

    def _by_kernel(self, run: Run) -> dict[str, float]:
        found: dict[str, float] = {WHOLE: float(run.whole_ns)}
        for site, ns in run.site_ns.items():
            name = self._sites[site]
            found[name] = found.get(name, 0.0) + ns
        return found


def _timed(module: Module, inputs: Sequence[Array], repeat: int) -> float:
    """Mean nanoseconds of a run, after a warm-up run, as in `TableModule.timed`."""
    module(*inputs)
    begin = time.perf_counter_ns()
    for _ in range(repeat):
        module(*inputs)
    return (time.perf_counter_ns() - begin) / repeat


def _spec(name: str, of: Any) -> Spec:
    assert is_tensor(of)
    dims = tuple(int(d.value) if isinstance(d, Const) else str(d) for d in of.shape or ())
    return Spec(name, of.dtype, dims)
