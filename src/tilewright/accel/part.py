"""A part of a model on the accelerator: one stream for all its layers.

    part = compile_part(graph, constants, target)
    outputs = part.run(x, y)          # by the simulator of the target
    print(part.report())              # cycles, bytes, share of peak of every layer

Intermediate tensors stay packed in the accelerator's memory; weights are packed once, here. The
host packs inputs and unpacks outputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tilewright.accel.compiler import finish, lower
from tilewright.accel.compiler.fold import Address, Folder
from tilewright.accel.compiler.tokens import insert_tokens
from tilewright.accel.cycle import Timing
from tilewright.accel.device import Runner, time_on
from tilewright.accel.isa.stream import Buffer, Stream
from tilewright.accel.isa.table import dram_bytes
from tilewright.accel.layers import Kernel, Result, Source, kernel_of
from tilewright.accel.operators import Blend, Conv, Operator, function_of
from tilewright.accel.rounds import round_of
from tilewright.accel.rules import Problems, predicted_cycles, problems_of, schedule
from tilewright.base.errors import ScheduleError
from tilewright.base.geometry import Geometry
from tilewright.base.target import Target, geometry_of
from tilewright.graph.ir import Graph, Node, Value
from tilewright.tensor.ir import Function

Array = np.ndarray[Any, Any]
ALIGNMENT = 64  # of every tensor in memory
INPUTS, OUTPUTS = "x", "y"  # buffers of all inputs and all outputs
ROLES = {"weights": "in", "temp": "temp", INPUTS: "in", OUTPUTS: "out"}  # of buffers, in order
STORE, TEMP, GIVEN, RESULTS = range(len(ROLES))  # base registers
KEPT_RUNNERS = 4  # cached, for a dynamic leading size


@dataclass(frozen=True)
class Scheduled:
    """A scheduled operator, with its rule, plan and predicted cost."""

    fn: Function
    rule: str
    plan: str
    predicted: float  # cycles


@cache
def scheduled(operator: Operator, target: Target) -> Scheduled:
    """An operator scheduled by default, cached by shape."""
    sch, log = schedule(function_of(operator, geometry_of(target)), target)
    decision = log.decisions[0]
    made = lower(sch.function, target)
    return Scheduled(made, decision.rule, decision.plan, sum(decision.terms.values()))


@cache
def predicted(operator: Operator, target: Target) -> float:
    """Predicted cycles of an operator's default plan, without scheduling it."""
    return predicted_cycles(_problems(operator, geometry_of(target).array), target)


@cache
def _problems(operator: Operator, array: Geometry) -> Problems:
    """What rules match in an operator, cached for all designs with the same array."""
    target = Target.parse(f"vta-sim {array.options}")
    return problems_of(function_of(operator, array), target)


@dataclass(frozen=True)
class Layer:
    """A node's tasks in the stream, and what they do."""

    name: str
    op: str
    fused: tuple[str, ...]  # nodes fused into it
    plan: str
    macs: int
    tasks: tuple[int, int]
    bytes_moved: int
    predicted: float


@dataclass
class Part:
    target: Target
    stream: Stream
    inputs: list[tuple[int, Source, int, int]]  # parameter, layout, offset in INPUTS, filling
    outputs: list[tuple[Result, int]]  # layout, offset in OUTPUTS
    stored: dict[str, Array]
    layers: list[Layer]
    shapes: list[tuple[int, ...]]  # of the graph's parameters
    round: int = 0  # images or rows per round, with a dynamic leading size; else 0
    runners: dict[int, Runner] = field(default_factory=dict, repr=False)  # by number of rounds
    last: tuple[int, Timing | None] = field(default=(1, None), repr=False)  # rounds, timing

    def run(self, *given: Array) -> list[Array]:
        """Run the part on the graph's parameters; constants among them are ignored."""
        count = len(given[self.inputs[0][0]]) if self.round else None
        rounds = max(1, -(-count // self.round)) if count is not None else 1
        ran = self.of_rounds(rounds).run({INPUTS: self.packed(*given, rounds=rounds)[INPUTS]})
        is_timed = ran.end[-1] >= 0 and self.target.text.split()[0] != "vta-sim"
        if is_timed or self.last[0] != rounds:
            self.last = rounds, ran if is_timed else None
        return [one[:count] for one in self.unpacked(ran.outputs, rounds)]

    def of_rounds(self, rounds: int) -> Runner:
        """The runner of a stream of `rounds` rounds, cached."""
        found = self.runners.get(rounds)
        if found is None:
            if len(self.runners) >= KEPT_RUNNERS:
                self.runners.pop(next(iter(self.runners)), None)  # another thread may have done so
            made = insert_tokens(self.stream, rounds, self.per_round) if self.round else self.stream
            found = self.runners[rounds] = Runner(self.target.text, made, self.stored)
        return found

    @property
    def per_round(self) -> frozenset[str]:
        """Buffers with a separate part for each round."""
        return frozenset((INPUTS, OUTPUTS) if self.round else ())

    def packed(self, *given: Array, rounds: int = 1) -> dict[str, Array]:
        """The stream's inputs: the graph's parameters, packed, and weights."""
        (size,) = [one.size_bytes for one in self.stream.buffers if one.name == INPUTS]
        memory, g = np.zeros((rounds, size), np.int8), self.stream.geometry
        for at, layout, offset, fill in self.inputs:
            array = np.asarray(given[at])
            if self.round:
                fills = rounds * self.round - len(array)
                array = np.pad(array, [(0, fills), *[(0, 0)] * (array.ndim - 1)])
            for row, part in zip(memory, np.split(array, rounds), strict=True):
                packed = layout.pack(part, fill, g).reshape(-1)
                row[offset : offset + packed.size] = packed
        return {**self.stored, INPUTS: memory}

    def unpacked(self, outputs: Mapping[str, Array], rounds: int = 1) -> list[Array]:
        """The results of a run, over all rounds, including the padding of the last."""
        memory, g = outputs[OUTPUTS].view(np.int8).reshape(rounds, -1), self.stream.geometry
        results = []
        for layout, at in self.outputs:
            found = memory[:, at : at + layout.size_bytes(g)]
            results.append(np.concatenate([layout.unpack(row, g) for row in found]))
        return results

    def timing(self) -> Timing:
        """The start and end of every task, for the number of rounds of the last call."""
        rounds, timing = self.last
        if timing is None:
            timing = time_on("timing", self.of_rounds(rounds).stream)
            self.last = rounds, timing
        return timing

    def report(self) -> list[dict[str, Any]]:
        """A row per layer, over all rounds: cycles until it ends, bytes, share of peak."""
        timing, tasks = self.timing(), len(self.stream.instructions) - 1  # of one round
        rounds, peak = len(timing.end) // tasks, self.stream.geometry.macs_per_cycle
        cycles, done = [0] * len(self.layers), 0
        for first in range(0, rounds * tasks, tasks):
            for at, layer in enumerate(self.layers):
                begin, behind = (first + task for task in layer.tasks)
                end = max(timing.end[begin:behind], default=0)
                cycles[at] += max(0, end - done)
                done = max(done, end)
        return [
            {name: getattr(layer, name) for name in ("name", "op", "fused", "plan")}
            | {"cycles": max(1, took), "bytes": layer.bytes_moved * rounds}
            | {"share": layer.macs * rounds / max(1, took) / peak}
            for layer, took in zip(self.layers, cycles, strict=True)
        ]


def compile_part(graph: Graph, constants: Mapping[Value, Array], target: Target) -> Part:
    """The stream of a graph whose nodes are all int8 layers."""
    return _Compiler(graph, constants, target).compiled()


def predict_part(graph: Graph, kernels: Mapping[Node, Kernel], target: Target) -> float:
    """Predicted cycles of such a graph by its layers' plans, without compiling it."""
    layers = fuse_sums(graph, kernels, target)
    found = [predicted(one.operator, target) for layer in layers for one in layer.all]
    if math.inf in found:
        raise ScheduleError("TW7043", "a layer does not fit the accelerator", help="see `inspect`")
    return sum(found)


def kernels_of(
    graph: Graph, constants: Mapping[Value, Array], geometry: Geometry
) -> dict[Node, Kernel]:
    """Every layer as a kernel: the same for all designs with the same array."""
    outside = set(graph.params)
    return {
        node: kernel_of(node, constants, geometry, outside)
        for node in graph.nodes
        if node.op not in ("constant", "sizes")
    }


def fuse_sums(graph: Graph, kernels: Mapping[Node, Kernel], target: Target) -> list[Kernel]:
    """Layers in order, with residual sums fused into the layer before where that is faster."""
    uses = Counter([*(v for node in kernels for v in node.inputs), *graph.results])
    makers = {node.output: node for node in kernels}
    found = dict(kernels)
    for node, kernel in kernels.items():
        if not isinstance(kernel.operator, Blend):
            continue
        made = [makers[v] for v, _ in kernel.inputs.values() if v in makers and uses[v] == 1]
        for before in sorted(made, key=lambda one: -found[one].macs):
            operator = found[before].operator
            if not isinstance(operator, Conv) or operator.residual is not None:
                continue  # already ends in a sum
            joined = found[before].fuse_sum(kernel)
            apart = predicted(operator, target) + predicted(kernel.operator, target)
            if predicted(joined.operator, target) < apart:
                found[node] = joined
                del found[before]
                break
    return list(found.values())


class _Compiler:
    def __init__(self, graph: Graph, constants: Mapping[Value, Array], target: Target) -> None:
        self.geometry = geometry_of(target)
        self.graph, self.round = round_of(graph, self.geometry)
        self.constants, self.target = constants, target
        self.folder = Folder(self.geometry)
        self.sizes = [0] * len(ROLES)
        self.addresses: dict[tuple[Value, Source | Result], Address] = {}
        self.inputs: list[tuple[int, Source, int, int]] = []
        self.weights: list[tuple[int, Array]] = []  # with offsets
        self.layers: list[Layer] = []

    def _room(self, base: int, size: int) -> Address:
        """Reserve bytes behind a base register."""
        at = -(-self.sizes[base] // ALIGNMENT) * ALIGNMENT
        self.sizes[base] = at + size
        return Address(base, at)

    def compiled(self) -> Part:
        counts = []
        kernels = kernels_of(self.graph, self.constants, self.geometry)
        for kernel in fuse_sums(self.graph, kernels, self.target):
            first = len(self.folder.tasks)
            made = self._kernel(kernel)
            counts.append((kernel, made, first, len(self.folder.tasks)))
        for base in (GIVEN, RESULTS):  # keeps the next round's part aligned
            self._room(base, 0)
        buffers = [
            Buffer(name, role, max(1, size))
            for (name, role), size in zip(ROLES.items(), self.sizes, strict=True)
        ]
        stream = finish(self.folder, buffers)
        marks = self.folder.loads_before
        for kernel, plans, first, last in counts:
            self.layers.append(self._layer(kernel, plans, stream, marks(first), marks(last)))
        stored = np.zeros(max(1, self.sizes[STORE]), np.uint8)
        for at, array in self.weights:
            stored[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
        layouts = {kernel.node.output: kernel.output for kernel, _, _, _ in counts}
        outputs = [
            (layouts[value], self.addresses[value, layouts[value]].offset)
            for value in self.graph.results
        ]
        shapes = [value.tensor.static_shape or () for value in self.graph.params]
        return Part(
            self.target, stream, self.inputs, outputs, {"weights": stored}, self.layers, shapes,
            self.round,
        )  # fmt: skip

    def _kernel(self, kernel: Kernel) -> list[Scheduled]:
        value = kernel.node.output
        size = kernel.output.size_bytes(self.geometry)
        address = self._room(RESULTS if value in self.graph.results else TEMP, size)
        self.addresses[value, kernel.output] = address
        return [self._operator(one, address) for one in kernel.all]

    def _operator(self, kernel: Kernel, result: Address) -> Scheduled:
        made = scheduled(kernel.operator, self.target)
        by_name = {buffer.name: buffer for buffer in made.fn.buffers}
        addresses = {}
        for name, (value, layout) in kernel.inputs.items():
            if name in by_name:
                addresses[by_name[name]] = self._input(kernel, value, layout)
        for name, array in kernel.stored.items():
            if name in by_name:
                address = addresses[by_name[name]] = self._room(STORE, array.nbytes)
                self.weights.append((address.offset, array))
        addresses[by_name["y"]] = result
        self.folder.add(made.fn, addresses)
        return made

    def _input(self, kernel: Kernel, value: Value, layout: Source) -> Address:
        found = self.addresses.get((value, layout))
        if found is None:  # a parameter of the graph in this layout
            found = self._room(GIVEN, layout.size_bytes(self.geometry))
            fill = kernel.operator.pad if isinstance(kernel.operator, Conv) else 0
            at = self.graph.params.index(value)
            self.inputs.append((at, layout, found.offset, fill))
            self.addresses[value, layout] = found
        return found

    def _layer(
        self, kernel: Kernel, made: list[Scheduled], stream: Stream, first: int, last: int
    ) -> Layer:
        moved = 0
        for task in stream.instructions[first:last]:
            if task.opcode.formats:
                entries = task["x"] * task["y"] * task["z"]
                moved += entries * dram_bytes(task.format, self.geometry)
        name, *fused = [node.output.name for node in (kernel.node, *kernel.fused)]
        plan = "; ".join(dict.fromkeys(f"{one.rule} {one.plan}" for one in made))
        cost, op = sum(one.predicted for one in made), kernel.node.op
        return Layer(name, op, tuple(fused), plan, kernel.macs, (first, last), moved, cost)
