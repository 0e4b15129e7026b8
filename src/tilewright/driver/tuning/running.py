"""A whole model with its kernels in tables: candidates are timed in place, in turns.

    running = Running(module, setting, defaults, sizes)
    running.baseline(9)                     nanoseconds and work of each kernel, all its calls
    running.race({name: candidate}, 9)      the incumbents' times and the candidates'

Every run has one candidate of every kernel at once: caches are as they are in real use, and timing
a hundred kernels costs as much as timing one. A model with dynamic sizes takes its turns at several
of them, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tilewright.driver.compare import is_close
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import lower_sited
from tilewright.driver.tuning.inputs import Sizes, random_arrays, size_sets
from tilewright.driver.tuning.table import EVENTS, Built, Installed, Run, Table, TableModule
from tilewright.graph.ir import Module
from tilewright.graph.types import is_tensor
from tilewright.runtime.module import Spec
from tilewright.sym import Const

Array = np.ndarray[Any, Any]
WHOLE = ""  # the name of the whole model among times
DEFAULT_SIZE = 1  # of a dynamic dimension of the model that nobody gave

PAGE_BYTES = 4096
TURN_NS, MOST_REPEAT = 2e6, 32  # of a turn: quick models run several times in one

Times = Mapping[str, tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True)
class Measured:
    """One kernel in place: all of its calls in a run."""

    ns: float
    flops: int
    size_bytes: int
    calls: int = 1


class Running:
    """A model in this process, and the kernels it runs with."""

    def __init__(
        self,
        module: Module,
        setting: KernelSetting,
        defaults: Mapping[str, Built],
        sizes: Sizes,
        *,
        in_place: bool = True,
    ) -> None:
        self._target = setting.target
        kernels = {name: each.kernel for name, each in defaults.items()}
        program = lower_sited(module, setting, kernels)
        main = module.main
        random = np.random.default_rng(16)
        self._sets = [
            placed
            for each in size_sets(main.params, sizes, DEFAULT_SIZE)
            for placed in placements(random_arrays(main.params, each, random))
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
            self._model.install(self._untuned, name, Installed(each, self._target))
        self._incumbent = self._copy(self._untuned)
        self._expected = [
            tuple(each.copy() for each in self._model.run(self._untuned, inputs).outputs)
            for inputs in self._sets
        ]
        run, _ = self._model.timed(self._untuned, self._sets[-1])
        calls = max(1, len(self._sites))
        most = min(MOST_REPEAT, EVENTS // (4 * calls))
        self._repeat = int(min(most, max(1, TURN_NS / max(run.whole_ns, 1.0))))

    def _copy(self, table: Table) -> Table:
        made = self._model.new_table()
        for site in range(len(self._sites)):
            made.copy(site, table)
        return made

    def baseline(self, runs: int) -> dict[str, Measured]:
        """Every kernel, without tuning, in the mean of all sizes; the whole model under the empty
        name."""
        found: dict[str, Measured] = {}
        for inputs in self._sets:
            for name, each in self._baseline(inputs, runs).items():
                known, count = found.get(name, Measured(0.0, 0, 0)), len(self._sets)
                found[name] = Measured(
                    known.ns + each.ns / count,
                    known.flops + each.flops // count,
                    known.size_bytes + each.size_bytes // count,
                    max(1, self._sites.count(name)),
                )
        return found

    def _baseline(self, inputs: Sequence[Array], runs: int) -> dict[str, Measured]:
        found: dict[str, list[float]] = {}
        work: dict[str, tuple[int, int]] = {}
        for _ in range(runs):
            run, done = self._model.timed(self._untuned, inputs, self._repeat)
            for name, ns in self._by_kernel(run).items():
                found.setdefault(name, []).append(ns)
            work = {WHOLE: (0, 0)}
            for site, each in done.items():
                flops, size = work.get(self._sites[site], (0, 0))
                work[self._sites[site]] = (flops + each.flops, size + each.size_bytes)
        return {name: Measured(median(ns), *work[name]) for name, ns in found.items()}

    def race(self, wave: Mapping[str, Built], pairs: int) -> Times:
        """The incumbents and one candidate of some kernels, in turns; nothing where the model
        then gives another answer."""
        table = self._copy(self._incumbent)
        for name, each in wave.items():
            self._model.install(table, name, Installed(each, self._target))
        for inputs, expected in zip(self._sets, self._expected, strict=True):
            if not is_close(self._model.run(table, inputs).outputs, expected):
                return {}
        return self._in_turns(self._incumbent, table, pairs, (*wave,))

    def compare(self, pairs: int) -> Times:
        """The model without tuning and with the incumbents, in turns; all kernels, and all of it
        under the empty name."""
        names = (WHOLE, *dict.fromkeys(self._sites))
        return self._in_turns(self._untuned, self._incumbent, pairs, names)

    def adopt(self, name: str, candidate: Built | None) -> None:
        """What a kernel runs with from now on; None: without tuning."""
        if candidate is not None:
            self._model.install(self._incumbent, name, Installed(candidate, self._target))
            return
        for site, kernel in enumerate(self._sites):
            if kernel == name:
                self._incumbent.copy(site, self._untuned)

    def _in_turns(self, first: Table, second: Table, pairs: int, names: Sequence[str]) -> Times:
        times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
        for pair in range(pairs):
            inputs = self._sets[pair // 2 % len(self._sets)]
            tables = ((0, first), (1, second)) if pair % 2 == 0 else ((1, second), (0, first))
            for side, table in tables:
                run, _ = self._model.timed(table, inputs, self._repeat)
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


def placements(arrays: Sequence[Array]) -> list[list[Array]]:
    """Arrays at several places of their pages: the beginning, where NumPy puts them, halfway.

    Addresses that are a multiple of a page apart compete for the same places in a cache. A plan
    that wins with inputs at one place alone has won by chance.
    """
    return [list(arrays), [each.copy() for each in arrays], [_halfway(each) for each in arrays]]


def _halfway(array: Array) -> Array:
    memory = np.empty(array.nbytes + 2 * PAGE_BYTES, np.uint8)
    start = (PAGE_BYTES // 2 + 64 - memory.ctypes.data) % PAGE_BYTES
    made = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def _spec(name: str, of: Any) -> Spec:
    assert is_tensor(of)
    dims = tuple(int(d.value) if isinstance(d, Const) else str(d) for d in of.shape or ())
    return Spec(name, of.dtype, dims)
