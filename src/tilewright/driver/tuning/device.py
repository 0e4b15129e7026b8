"""Time candidates in place in a model on a GPU: what `running.py` is for processors.

    running = DeviceRunning(module, setting, defaults, sizes)
    running.race({sized: candidate}, 9)      times of the incumbents and of the candidates

Kernels differ in number and arguments of their launches, so there is no call table: each version of
the model has launches of its own, and shares weights and kernels with earlier versions. Kernels are
timed within one CUDA graph of all launches with events between them, so that caches are in the
state in which preceding kernels left them and the host plays no part. The whole model is timed as
it would run, as a graph in which independent launches are concurrent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.driver.compare import is_close
from tilewright.driver.device_control import decides_beforehand
from tilewright.driver.device_launch import CudaGpu, Gpu, in_order
from tilewright.driver.device_module import DeviceModule, fetched
from tilewright.driver.device_walk import Loaded
from tilewright.driver.kernels import Job, KernelSetting
from tilewright.driver.lowering import Program, lower_with, planned_calls
from tilewright.driver.tuning.check import spec_of
from tilewright.driver.tuning.inputs import Sizes, random_arrays, size_sets
from tilewright.driver.tuning.running import (
    ALL,
    DEFAULT_SIZE,
    TURN_NS,
    WHOLE,
    Measured,
    SizedKernel,
    Times,
)
from tilewright.driver.tuning.table import Built, Weights
from tilewright.graph import ir
from tilewright.graph.build import constant_type
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.ir import Module as Graphs
from tilewright.graph.memory import plan_memory
from tilewright.lower.graph import sizes_of
from tilewright.runtime.module import Module
from tilewright.tensor.constants import Given

Array = np.ndarray[Any, Any]
MAX_REPEAT = 8  # runs per timing
NS_PER_MS = 1e6


class DeviceBench:
    """Runs single kernels of one job on a GPU."""

    def __init__(self, job: Job, gpu: Gpu | None = None) -> None:
        assert isinstance(job.source, Graph)
        self._graph, self._target, self._gpu = job.source, job.setting.target, gpu or CudaGpu()

    def run(self, candidate: Built, inputs: list[Array], results: list[Array]) -> None:
        graph, target = self._graph, self._target
        program = _single_kernel_program(
            graph, candidate, Weights(candidate, target).packed(dict(enumerate(inputs)))
        )
        module = DeviceModule(
            program,
            plan_memory(program.module.main, in_place=False),
            target,
            [spec_of(value) for value in graph.params],
            [spec_of(value) for value in graph.results],
            self._gpu,
        )
        device_results = []
        for value, array in zip(graph.results, results, strict=True):
            device_results.append(module.empty(array.shape, value.tensor.dtype))
            self._gpu.copy_in(device_results[-1].address, array, 0)
        module(*inputs, out=device_results)
        for array, device_result in zip(results, device_results, strict=True):
            self._gpu.copy_out(array, device_result.address, 0)


def _single_kernel_program(graph: Graph, candidate: Built, packed: Sequence[Array]) -> Program:
    """A model that calls one kernel: its operands are inputs, packed weights are constants."""
    kernel = candidate.kernel
    params = tuple(Value(value.name, value.type) for value in graph.params)
    results = tuple(Value(value.name, value.type) for value in graph.results)
    constants = {f"packed{at}": array for at, array in enumerate(packed)}
    packed_values = [Value(name, constant_type(array)) for name, array in constants.items()]
    arguments = [
        params[each.position] if isinstance(each, Given) else packed_values[each.position]
        for each in kernel.params
        if not isinstance(each, Given) or each.position < len(params)
    ]
    attributes = ir.attributes(
        function=kernel.name,
        sizes=tuple(sizes_of(graph)),
        label=kernel.name,
        flops=kernel.flops,
        in_place=(),
    )
    nodes = [
        *(Node("constant", (), (each,), ir.attributes(data=each.name)) for each in packed_values),
        Node("kernel", tuple(arguments), results, attributes),
    ]
    main = Graph("main", params, tuple(nodes), results)
    module = Graphs({"main": main}, constants, stage=ir.LOWERED)
    return Program(module, {kernel.name: kernel})


class Version:
    """The launches of a module for some inputs: run one by one with events between them, or as a
    graph."""

    def __init__(self, module: DeviceModule, inputs: Sequence[Array], gpu: Gpu) -> None:
        self._gpu, self._walk = gpu, module.walk(*inputs)
        self._timer = gpu.timer()
        # lazy loading at the first launch must not happen during capture
        for launch in self.launches:
            launch.start(0)
        gpu.wait(0)

    @property
    def launches(self) -> Sequence[Any]:
        return self._walk.launches

    @cached_property
    def _timeline(self) -> Any:
        return self._gpu.timeline(self.launches)

    @cached_property
    def _graph(self) -> Any:
        return self._gpu.graph(*in_order(self.launches))

    def kernels_ns(self, repeat: int) -> dict[str, float]:
        """Total time of the launches of each label, medians over some runs."""
        runs = [self._timeline.run() for _ in range(repeat)]
        found: dict[str, float] = {}
        for launch, times in zip(self.launches, zip(*runs, strict=True), strict=True):
            found[launch.label] = found.get(launch.label, 0.0) + NS_PER_MS * median(times)
        return found

    def whole_ns(self, repeat: int) -> float:
        """Mean time of a run in a sequence of runs, after a warm-up run."""
        self._graph.launch(0)
        self._timer.start(0)
        for _ in range(repeat):
            self._graph.launch(0)
        return float(NS_PER_MS * self._timer.stop(0) / repeat)

    def outputs(self) -> tuple[Array, ...]:
        """The results of one run."""
        self._graph.launch(0)
        return tuple(fetched((each for _, each in sorted(self._walk.made.items())), self._gpu))


class DeviceRunning:
    """A model on this process's GPU, whose kernels can be exchanged."""

    def __init__(
        self,
        module: Graphs,
        setting: KernelSetting,
        defaults: Mapping[str, Built],
        sizes: Sizes,
        *,
        in_place: bool = True,
        gpu: Gpu | None = None,
    ) -> None:
        self._module, self._setting, self._in_place = module, setting, in_place
        self._gpu = gpu or CudaGpu()
        self._sites = [call.kernel for call in planned_calls(module, setting)[0]]
        self._defaults, self._chosen = dict(defaults), dict(defaults)
        self._packed: Mapping[str, Array] = {}
        self._ready: Loaded | None = None
        params, random = module.main.params, np.random.default_rng(16)
        self._inputs = [
            random_arrays(params, each, random) for each in size_sets(params, sizes, DEFAULT_SIZE)
        ]
        self._untuned = self._versions(self._defaults, keep=True)
        self._incumbents = self._untuned
        self._expected = [each.outputs() for each in self._untuned]
        self._repeats = [
            int(min(MAX_REPEAT, max(1, TURN_NS / max(each.whole_ns(1), 1.0))))
            for each in self._untuned
        ]

    def _versions(self, kernels: Mapping[str, Built], *, keep: bool = False) -> list[Version]:
        """The model with these kernels, for each set of sizes."""
        made = self.module(kernels, keep=keep)
        return [Version(made, inputs, self._gpu) for inputs in self._inputs]

    def module(self, kernels: Mapping[str, Built], *, keep: bool = False) -> DeviceModule:
        """The model with these kernels. With `keep`, later modules share its loaded weights and
        code."""
        packers = {
            each.kernel.packer.text: each.packer
            for each in kernels.values()
            if each.kernel.packer is not None and each.packer is not None
        }
        by_name = {name: each.kernel for name, each in kernels.items()}
        program = lower_with(self._module, self._setting, by_name, packers, self._packed)
        has_bodies = any(node.bodies for node in program.module.main.nodes)
        if has_bodies or not decides_beforehand(program):
            raise UserError(
                "TW5011",
                "a model on a GPU whose launches depend on values cannot be tuned",
                help="tune a model of the part whose sizes are known before it runs",
            )
        program = replace(program, module=_with_sites(program.module))
        ready = Loaded(program, self._gpu, self._ready)
        if keep:
            self._ready, self._packed = ready, program.module.constants
        main = program.module.main
        return DeviceModule(
            program,
            plan_memory(main, in_place=self._in_place),
            self._setting.target,
            [spec_of(value) for value in main.params],
            [spec_of(value) for value in main.results],
            self._gpu,
            ready,
        )

    def _by_kernel(self, version: Version, repeat: int) -> dict[str, float]:
        """Nanoseconds of all calls of each kernel, and of the whole model under the empty name."""
        found: dict[str, float] = {WHOLE: version.whole_ns(repeat)}
        for label, ns in version.kernels_ns(repeat).items():
            name = self._name(label)
            found[name] = found.get(name, 0.0) + ns
        return found

    def _name(self, label: str) -> str:
        """The kernel of a launch; copies of results have none."""
        return self._sites[int(label)] if label.isdigit() else label

    def baseline(self, runs: int) -> list[dict[str, Measured]]:
        """Times of every untuned kernel, by set of sizes; the whole model under the empty name."""
        found = []
        for version, repeat in zip(self._untuned, self._repeats, strict=True):
            times: dict[str, list[float]] = {}
            for _ in range(runs):
                for name, ns in self._by_kernel(version, repeat).items():
                    times.setdefault(name, []).append(ns)
            work: dict[str, tuple[int, int]] = {}
            for launch in version.launches:
                flops, size = work.get(self._name(launch.label), (0, 0))
                moved = sum(span.stop - span.start for span in launch.spans)
                work[self._name(launch.label)] = (flops + launch.flops, size + moved)
            found.append(
                {
                    name: Measured(
                        median(ns), *work.get(name, (0, 0)), max(1, self._sites.count(name))
                    )
                    for name, ns in times.items()
                }
            )
        return found

    def race(self, wave: Mapping[SizedKernel, Built], pairs: int) -> Times:
        """Times of the incumbents and of the candidates, alternately; empty if the model's outputs
        then differ."""
        candidates = self._versions({**self._chosen, **{name: b for (name, _), b in wave.items()}})
        for version, want in zip(candidates, self._expected, strict=True):
            if not is_close(version.outputs(), want):
                return {}
        found = self._in_turns(self._incumbents, candidates, pairs)
        times: dict[SizedKernel, tuple[list[float], list[float]]] = {}
        for name, _ in wave:
            sides: tuple[list[float], list[float]] = ([], [])
            for here in found:
                for side, more in zip(sides, here.get(name, ((), ())), strict=True):
                    side.extend(more)
            times[name, ALL] = sides
        return times

    def compare(self, pairs: int) -> Times:
        """Times of the untuned model and of the incumbents, alternately, for each kernel; the whole
        model under the empty name."""
        return {
            (name, at): pair
            for at, found in enumerate(self._in_turns(self._untuned, self._incumbents, pairs))
            for name, pair in found.items()
        }

    def adopt(self, sized: SizedKernel, candidate: Built | None) -> None:
        """Set a kernel's incumbent; None: the untuned kernel."""
        name, _ = sized
        self._chosen[name] = self._defaults[name] if candidate is None else candidate
        self._incumbents = self._versions(self._chosen, keep=True)

    def built(self, untuned: Module, tuned: Module, pairs: int) -> Times:
        """Times of two compiled modules, alternately, by set of sizes; empty if the second one's
        outputs differ."""
        assert isinstance(untuned, DeviceModule)
        assert isinstance(tuned, DeviceModule)
        times: dict[SizedKernel, tuple[list[float], list[float]]] = {}
        for at, (inputs, want) in enumerate(zip(self._inputs, self._expected, strict=True)):
            versions = [Version(each, inputs, self._gpu) for each in (untuned, tuned)]
            if not is_close(versions[1].outputs(), want):
                return {}
            sides: tuple[list[float], list[float]] = ([], [])
            for pair in range(pairs):
                for side in (0, 1) if pair % 2 == 0 else (1, 0):
                    sides[side].append(versions[side].whole_ns(self._repeats[at]))
            times[WHOLE, at] = sides
        return times

    def _in_turns(
        self, first: Sequence[Version], second: Sequence[Version], pairs: int
    ) -> list[dict[str, tuple[list[float], list[float]]]]:
        """Times of each kernel in both versions, by set of sizes."""
        found = []
        for at, repeat in enumerate(self._repeats):
            times: dict[str, tuple[list[float], list[float]]] = {}
            for pair in range(pairs):
                versions = ((0, first[at]), (1, second[at]))
                for side, version in versions if pair % 2 == 0 else versions[::-1]:
                    for name, ns in self._by_kernel(version, repeat).items():
                        times.setdefault(name, ([], []))[side].append(ns)
            found.append(times)
        return found


def _with_sites(module: Graphs) -> Graphs:
    """The model with each kernel call labelled by its number."""
    nodes, at = [], 0
    for node in module.main.nodes:
        if node.op == "kernel":
            node = replace(
                node, attributes=ir.attributes(**{**dict(node.attributes), "label": str(at)})
            )
            at += 1
        nodes.append(node)
    return replace(module, graphs={"main": replace(module.main, nodes=tuple(nodes))})
