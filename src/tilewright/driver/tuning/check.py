"""Check that a candidate kernel computes what its job says, in isolation and on random inputs.

    checker = Checker(job, built(job), sizes)
    checker.fault(built(candidate))      "" if the candidate is right

The reference is the same function without a schedule. Results are filled with garbage before a run,
so that elements the kernel fails to write are found, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.loc import UNKNOWN
from tilewright.driver.kernels import Job
from tilewright.driver.lowering import Site, SitedProgram, host_setting, sited_node
from tilewright.driver.tuning.inputs import Sizes, random_arrays, shape_of, size_sets
from tilewright.driver.tuning.table import Built, Installed, TableModule, built, fits
from tilewright.graph import ir
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.lower.graph import sizes_of
from tilewright.runtime.array import empty
from tilewright.runtime.module import Spec
from tilewright.sym import Const, Var, evaluate
from tilewright.tune.measure import wrong

Array = np.ndarray[Any, Any]
INPUTS = 3  # input sets, used in rotation
DEFAULT_SIZE = 7  # for dynamic sizes that are not given: a prime, so that tiles have tails
# kernels with more flops are compared with the default kernel: plain loops would be too slow
PLAIN_FLOPS = 4e9


class Bench(Protocol):
    """Runs kernels of one job."""

    def run(self, candidate: Built, inputs: list[Array], results: list[Array]) -> None:
        """Run a kernel; elements of `results` that it does not write keep their values."""


class HostBench:
    """Runs kernels on this processor, as a model of one kernel."""

    def __init__(self, job: Job, default: Built) -> None:
        assert isinstance(job.source, Graph)
        self._setting, graph = job.setting, job.source
        self._module = TableModule(
            _single_kernel_program(graph, default),
            job.setting.target,
            job.setting.threads,
            [spec_of(value) for value in graph.params],
            [spec_of(value) for value in graph.results],
        )

    def run(self, candidate: Built, inputs: list[Array], results: list[Array]) -> None:
        kernel = Installed(candidate, self._setting.target, self._setting.threads)
        table = self._module.new_table()
        table.set(0, kernel, kernel.weights.packed(dict(enumerate(inputs))))
        self._module.run(table, inputs, out=results)


class Checker:
    """Checks candidates of one job against a reference, on a few input sets."""

    def __init__(self, job: Job, default: Built, sizes: Sizes, bench: Bench | None = None) -> None:
        """`bench` runs candidates, if not on this processor."""
        assert isinstance(job.source, Graph)
        self.job, self.default, graph = job, default, job.source
        self._sizes = size_sets(graph.params, sizes, DEFAULT_SIZE)
        flops = max(float(evaluate(self.default.kernel.flops, each)) for each in self._sizes)
        self._bench = bench or HostBench(job, default)
        self._random = np.random.default_rng(int.from_bytes(job.name[-6:].encode(), "little"))
        self._reference = default
        self._reference_bench = self._bench
        if flops <= PLAIN_FLOPS:
            plain = _plain(job)
            self._reference = built(plain)
            self._reference_bench = HostBench(plain, self._reference)
        shapes = [shape_of(value, self._sizes[0]) for value in graph.results]
        elements = sum(int(np.prod(shape)) for shape in shapes)
        self._reduction = max(1, int(flops / 2 / max(1, elements)))
        self._sets: list[tuple[list[Array], list[Array]]] = []
        self._count = max(INPUTS, len(self._sizes))
        self._turn = 0

    def fault(self, candidate: Built) -> str:
        """What is wrong with a candidate; "" if nothing is."""
        reason = fits(candidate, self.default.kernel)
        if reason:
            return reason
        inputs, expected = self._inputs()
        for got, want in zip(self.results(candidate, inputs), expected, strict=True):
            reason = wrong(got, want, self._reduction)
            if reason:
                return f"another answer: {reason}"
        return ""

    @property
    def size_bytes(self) -> int:
        """The memory of inputs and expected results."""
        return sum(each.nbytes for pair in self._sets for arrays in pair for each in arrays)

    def _inputs(self) -> tuple[list[Array], list[Array]]:
        self._turn += 1
        if len(self._sets) < self._count:
            assert isinstance(self.job.source, Graph)
            sizes = self._sizes[len(self._sets) % len(self._sizes)]
            inputs = random_arrays(self.job.source.params, sizes, self._random)
            expected = self._results(self._reference_bench, self._reference, inputs)
            self._sets.append((inputs, expected))
        return self._sets[self._turn % len(self._sets)]

    def results(self, candidate: Built, inputs: list[Array]) -> list[Array]:
        """A kernel's results for some inputs."""
        return self._results(self._bench, candidate, inputs)

    def _results(self, bench: Bench, candidate: Built, inputs: list[Array]) -> list[Array]:
        results = [np.asarray(empty(shape, dtype)) for shape, dtype in self._types(inputs)]
        for array in results:
            array.reshape(-1).view(np.uint8)[...] = 0xFF
        bench.run(candidate, inputs, results)
        return results

    def _types(self, inputs: list[Array]) -> list[tuple[tuple[int, ...], DType]]:
        """Shapes and dtypes of the results for some inputs."""
        assert isinstance(self.job.source, Graph)
        graph = self.job.source
        sizes = {
            dim: extent
            for value, array in zip(graph.params, inputs, strict=True)
            for dim, extent in zip(value.tensor.shape or (), array.shape, strict=True)
            if isinstance(dim, Var)
        }
        return [(shape_of(value, sizes), value.tensor.dtype) for value in graph.results]


def _plain(job: Job) -> Job:
    """The job without schedule or packing, on this processor."""
    setting = replace(host_setting(job.setting), schedule=False)
    return replace(job, setting=setting, constants=frozenset(), choices={})


def _single_kernel_program(graph: Graph, default: Built) -> SitedProgram:
    """A model that calls one kernel; all operands are inputs."""
    params = tuple(Value(value.name, value.type) for value in graph.params)
    results = tuple(Value(value.name, value.type) for value in graph.results)
    attributes = ir.attributes(
        function=default.kernel.name, sizes=tuple(sizes_of(graph)), label="0"
    )
    call = Node("kernel", params, results, attributes, (), UNKNOWN)
    node = sited_node(call, default.kernel, 0)
    main = Graph("main", params, (node,), results)
    module = Module({"main": main}, stage=ir.LOWERED)
    kernel = default.kernel
    return SitedProgram(module, (Site(kernel.name, {}),), {kernel.name: kernel})


def spec_of(value: Value) -> Spec:
    shape = value.tensor.shape or ()
    dims = tuple(int(dim.value) if isinstance(dim, Const) else str(dim) for dim in shape)
    return Spec(value.name, value.tensor.dtype, dims)
