"""Collect a report's data: the model compiled, run, profiled and inspected."""

from __future__ import annotations

import datetime
import hashlib
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.base.target import Target
from tilewright.base.version import VERSION
from tilewright.codegen import llvm
from tilewright.driver.build import build_module
from tilewright.driver.compiled import origins
from tilewright.driver.foreign_parts import call_foreign_parts
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import PlannedCall, planned_calls
from tilewright.driver.optimize import load_graph, optimize, pass_context
from tilewright.driver.options import Options
from tilewright.driver.placement import placement
from tilewright.driver.stages import Stages, kernel_stages
from tilewright.driver.tuning.records import recorded_choices
from tilewright.driver.unfuse import unfuse_foreign
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.memory import MemoryPlan, plan_memory
from tilewright.graph.types import is_tensor, tensor_of
from tilewright.lower.native import CONTROL
from tilewright.report.memory import Slot, slots_of
from tilewright.runtime.module import Module as Compiled
from tilewright.runtime.pool import threads as default_threads
from tilewright.runtime.profiler import Event, profile

Progress = Callable[[str, int, int], None]
RUNS = 25
SECONDS = 2.0


@dataclass(frozen=True)
class PassChange:
    """The effect of one pass."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    more: Mapping[str, int]  # change in the number of each operator
    fewer: Mapping[str, int]
    changed: bool


@dataclass(frozen=True)
class Box:
    """A node of the fused graph, with details that clicks show."""

    label: str
    kind: str  # kernel, view, control, fallback, input, output
    kernels: tuple[str, ...]  # by name
    nodes: tuple[str, ...]  # in the user's model
    ops: tuple[str, ...]
    outputs: tuple[str, ...]  # types
    nanoseconds: float  # minimum over runs
    flops: float
    size_bytes: float


@dataclass(frozen=True)
class Report:
    """A model, compiled and measured."""

    provenance: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fallbacks: tuple[str, ...]
    run_ns: tuple[float, ...]  # of whole calls
    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int, str], ...]  # source box, destination box, type
    stages: Mapping[str, Stages] = field(repr=False)  # by kernel
    passes: tuple[PassChange, ...] = ()
    compile_s: Mapping[str, float] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    arena_bytes: int = 0
    peak_gflops: float = 0.0
    peak_gbytes: float = 0.0


def collect(
    model: Any,
    inputs: Callable[[Compiled], Sequence[Any]],
    *,
    name: str = "",
    target: str = "cpu",
    threads: int = 0,
    precision: str = "f32",
    without: Sequence[str] = (),
    kernels: int | None = None,
    progress: Progress = lambda stage, count, total: None,
) -> Report:
    """Compile a model, run it on the result of `inputs`, and collect its data.

    `kernels` is the number of kernels to show at every stage, costliest first; all by default.
    """
    machine = Target.parse(target)
    options = Options(threads=threads, precision=precision, without=tuple(without))
    changes: list[PassChange] = []
    last = [time.perf_counter()]

    def observe(step: str, before: Module, after: Module) -> None:
        now = time.perf_counter()
        changes.append(_change(step, before, after, now - last[0]))
        last[0] = time.perf_counter()

    begun = time.perf_counter()
    graph = load_graph(model)
    imported = last[0] = time.perf_counter()
    fused = optimize(graph, machine, options, pass_context(machine, options, observers=(observe,)))
    fused = unfuse_foreign(fused)
    optimized = time.perf_counter()
    module = build_module(fused, machine, options)
    built = time.perf_counter()
    arrays = inputs(module)
    count = threads or default_threads()
    events, whole = _measured(module, arrays, progress)
    setting = KernelSetting(machine, count, options.schedule, options.packing)
    fused = _with_foreign_calls(fused, machine)
    calls, jobs = planned_calls(fused, setting, lambda jobs: recorded_choices(jobs, None))
    boxes, edges = _boxes(fused, calls, _by_call(calls, events))
    shown = _costliest(boxes)[:kernels]
    stages: dict[str, Stages] = {}
    for kernel in shown:
        stages[kernel] = kernel_stages(jobs[kernel])
        progress("kernels", len(stages), len(shown))
    plan = _plan(module)
    slots, arena = ((), 0) if plan is None else slots_of(plan, module, arrays)
    return Report(
        provenance=_provenance(model, name, machine, count, precision, without),
        inputs=tuple(map(str, module.inputs)),
        outputs=tuple(map(str, module.outputs)),
        fallbacks=tuple(module.fallbacks),
        run_ns=tuple(whole),
        boxes=boxes,
        edges=edges,
        stages=stages,
        passes=tuple(changes),
        compile_s={
            "import": imported - begun,
            "graph passes": optimized - imported,
            "kernels and host program": built - optimized,
        },
        slots=slots,
        arena_bytes=arena,
        peak_gflops=peak_gflops(machine, count),
        peak_gbytes=peak_gbytes(machine, count),
    )


def peak_gflops(target: Target, threads: int) -> float:
    """Peak f32 arithmetic, by the machine model."""
    machine = target.machine
    return 2 * machine.fma_per_cycle * target.lanes(32) * machine.frequency_ghz * threads


def peak_gbytes(target: Target, threads: int) -> float:
    """Memory bandwidth, by the machine model."""
    return target.machine.memory_bytes_per_cycle * target.machine.frequency_ghz * threads


def _provenance(
    model: Any, name: str, target: Target, threads: int, precision: str, without: Sequence[str]
) -> dict[str, str]:
    facts = {
        "model": name or (Path(model).name if isinstance(model, (str, Path)) else "a graph"),
        "target": str(target),
        "processor": f"{target.machine.name} ({target.machine.source})",
        "threads": str(threads),
        "precision": precision,
        "without": ", ".join(without) or "nothing",
        "tilewright": VERSION,
        "LLVM": llvm.VERSION,
        "Python": platform.python_version(),
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    if isinstance(model, (str, Path)) and Path(model).is_file():
        facts["SHA-256"] = hashlib.sha256(Path(model).read_bytes()).hexdigest()
    return facts


# --------------------------------------------------------------------------- passes


def _change(name: str, before: Module, after: Module, seconds: float) -> PassChange:
    old, new = _ops(before), _ops(after)
    return PassChange(
        name,
        seconds,
        old.total(),
        new.total(),
        dict(sorted((new - old).items())),
        dict(sorted((old - new).items())),
        after is not before,
    )


def _ops(module: Module) -> Counter[str]:
    """Count the operators of the main graph and its subgraphs, without constants."""
    found: Counter[str] = Counter()
    stack = [module.main]
    while stack:
        graph = stack.pop()
        for node in graph.nodes:
            if node.op != "constant":
                found[node.op] += 1
            stack.extend(node.bodies)
    return found


# --------------------------------------------------------------------------- measuring


def _measured(
    module: Compiled, arrays: Sequence[Any], progress: Progress
) -> tuple[list[tuple[Event, ...]], list[float]]:
    """Events of several runs, and times of as many whole calls without the profiler."""
    module(*arrays)
    runs: list[tuple[Event, ...]] = []
    whole: list[float] = []
    begun = time.perf_counter()
    while len(runs) < RUNS and (len(runs) < 3 or time.perf_counter() - begun < SECONDS):
        start = time.perf_counter_ns()
        module(*arrays)
        whole.append(float(time.perf_counter_ns() - start))
        with profile() as record:
            module(*arrays)
        runs.append(tuple(sorted(record.events, key=lambda event: event.begin_ns)))
        progress("measuring", len(runs), RUNS)
    return runs, whole


def _by_call(
    calls: Sequence[PlannedCall], runs: Sequence[tuple[Event, ...]]
) -> dict[int, tuple[float, float, float]]:
    """Time, operations and bytes of each planned call: the k-th of a label is its k-th event.

    In loops and branches the number of events differs: then the label's total is divided among its
    calls.
    """
    found: dict[int, tuple[float, float, float]] = {}
    places: dict[str, list[int]] = {}
    for at, call in enumerate(calls):
        places.setdefault(call.label, []).append(at)
    for label, bearers in places.items():
        times = [[e for e in events if e.kernel == label] for events in runs]
        if all(len(events) == len(bearers) for events in times):
            for k, place in enumerate(bearers):
                same = [events[k] for events in times]
                best = min(same, key=lambda event: event.duration_ns)
                found[place] = (float(best.duration_ns), float(best.flops), float(best.size_bytes))
        elif any(times):
            least = min(times, key=lambda events: sum(e.duration_ns for e in events))
            share = len(bearers)
            shared = (
                sum(e.duration_ns for e in least) / share,
                sum(e.flops for e in least) / share,
                sum(e.size_bytes for e in least) / share,
            )
            found |= dict.fromkeys(bearers, shared)
    return found


def _plan(module: Compiled) -> MemoryPlan | None:
    inside = getattr(module, "inside", None)
    if inside is None:
        return None
    lowered = inside.program.module
    return plan_memory(lowered.main, states=len(lowered.states))


# --------------------------------------------------------------------------- the graph


def _with_foreign_calls(module: Module, target: Target) -> Module:
    """The graph as the host program runs it: what the interpreter does is called by it."""
    placed = placement(module, target)
    if placed.is_native and all(is_tensor(param.type) for param in module.main.params):
        return module
    return call_foreign_parts(module, placed)[0]


def _boxes(
    module: Module,
    calls: Sequence[PlannedCall],
    measured: Mapping[int, tuple[float, float, float]],
) -> tuple[tuple[Box, ...], tuple[tuple[int, int, str], ...]]:
    """The nodes of the fused graph in order, and who hands what to whom."""
    by_node: dict[Node, list[int]] = {}
    for at, call in enumerate(calls):
        by_node.setdefault(call.node, []).append(at)
    boxes: list[Box] = []
    edges: dict[tuple[int, int, str], None] = {}
    source: dict[Value, int] = {}
    for param in module.main.params:
        source[param] = len(boxes)
        boxes.append(_plain(param.name, "input", (str(param.type),)))
    for node in module.main.nodes:
        if node.op == "constant":
            continue
        at = len(boxes)
        for value in node.inputs:
            if value is not None and value in source:
                edges[source[value], at, str(value.type)] = None
        boxes.append(_box(node, by_node.get(node, ()), calls, measured))
        for value in node.outputs:
            source[value] = at
    for name, value in zip(module.result_names, module.main.results, strict=True):
        if value in source:
            edges[source[value], len(boxes), str(value.type)] = None
        boxes.append(_plain(name, "output", (str(value.type),)))
    return tuple(boxes), tuple(edges)


def _costliest(boxes: Sequence[Box]) -> list[str]:
    """The kernels by the time that they take in all."""
    spent: Counter[str] = Counter()
    for box in boxes:
        for kernel in box.kernels:
            spent[kernel] += round(box.nanoseconds / len(box.kernels))
    return [kernel for kernel, _ in spent.most_common()]


def _plain(label: str, kind: str, types: tuple[str, ...]) -> Box:
    return Box(label, kind, (), (), (), types, 0.0, 0.0, 0.0)


def _box(
    node: Node,
    places: Sequence[int],
    calls: Sequence[PlannedCall],
    measured: Mapping[int, tuple[float, float, float]],
) -> Box:
    inner = _inner_ops(node)
    numbers = [measured.get(place, (0.0, 0.0, 0.0)) for place in places]
    total = [sum(column) for column in zip(*numbers, strict=True)] or [0.0, 0.0, 0.0]
    if node.op == "foreign":
        kind = "fallback"
    elif node.op in CONTROL:
        kind = "control"
    else:
        kind = "kernel" if places else "view"
    return Box(
        " ".join(dict.fromkeys(inner)) or node.op,
        kind,
        tuple(dict.fromkeys(calls[place].kernel for place in places)),
        tuple(dict.fromkeys(origins(node.loc))),
        tuple(inner),
        tuple(str(value.type) for value in node.outputs if tensor_of(value.type) is not None),
        *total,
    )


def _inner_ops(node: Node) -> list[str]:
    if node.op == "fused":
        return [each.op for each in node.bodies[0].nodes if each.op != "constant"]
    return [node.op]
