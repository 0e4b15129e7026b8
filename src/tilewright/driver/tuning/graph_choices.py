"""Measure the alternatives between which graph passes choose, each as a kernel of its own.

    found = measure_choices(costs, build, Deadline.after(30), records)

All candidates of one choice are measured or none, since measured and estimated costs must not be
mixed. They run alternately, and before each call the L2 is flushed, as other kernels of a model
would. Each time is recorded as a trial at once; if the caller records it as the kernel's time,
later compilations of models with such a kernel use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import Job
from tilewright.driver.tuning.records import task_key
from tilewright.graph import ir
from tilewright.graph.build import store_constant
from tilewright.graph.costs import Candidate
from tilewright.graph.fused_nodes import make_fused_node, small_constants
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.types import TensorType
from tilewright.runtime.module import Module as Compiled
from tilewright.sym import Const
from tilewright.tune.budget import Deadline, Late
from tilewright.tune.database import Records
from tilewright.tune.record import Trial

ROUNDS = 7  # runs per candidate, of which the fastest counts
CHOICE = "choice of the graph"  # the space name of these trials
AHEAD = 8  # candidates that are compiled at once, on all cores, before they are measured
Build = Callable[[Module], Compiled]
Prepare = Callable[[Sequence[Module]], None]


@dataclass(frozen=True)
class TimedJob:
    """A measured candidate, as a kernel."""

    job: Job
    ns: float  # per call
    is_fused: bool  # whether it is a candidate of fusion


def measure_choices(
    costs: KernelCosts,
    build: Build,
    deadline: Deadline,
    records: Records,
    progress: Callable[[int, int], None] = lambda count, total: None,
    prepare: Prepare = lambda modules: None,
) -> list[TimedJob]:
    """Times of candidates, for as many choices as the deadline allows; `build` may raise Late as
    well. `progress` is called with the number of the choice and their count. `prepare` is called
    with modules that `build` will be asked for next, to compile their kernels in parallel.

    Choices between many candidates come first, since there is more to gain; choices of fusion come
    last, since their kernels differ least. What is recorded is not measured again.
    """
    found: dict[str, TimedJob] = {}
    choices = unmeasured(costs)
    ahead: dict[str, Module] = {}  # by the key of the job
    for at, candidates in enumerate(choices, 1):
        jobs = [costs.job(each) for each in candidates]
        if all(job.key in found for job in jobs):
            continue
        times = [_tried_ns(records, job) for job in jobs]
        if not all(times):
            progress(at, len(choices))
            sweep = np.zeros(2 * jobs[0].setting.target.l2_bytes, np.uint8)
            try:
                if not all(job.key in ahead for job in jobs):
                    ahead = _next_modules(costs, choices[at - 1 :], {*found})
                    prepare(list(ahead.values()))
                modules = [ahead[job.key] for job in jobs]
                times = _in_turns(candidates, modules, build, sweep, deadline)
            except Late:
                break
            for each, job, ns in zip(candidates, jobs, times, strict=True):
                records.add(task_key(job), Trial(CHOICE, each.name, ns))
        for each, job, ns in zip(candidates, jobs, times, strict=True):
            found[job.key] = TimedJob(job, ns, each.is_fused)
    return list(found.values())


def _next_modules(
    costs: KernelCosts, choices: Sequence[Sequence[Candidate]], known: set[str]
) -> dict[str, Module]:
    """The candidates of the next choices as models, by the keys of their jobs: those of the first,
    and of more until there are enough to keep all cores busy."""
    found: dict[str, Module] = {}
    for candidates in choices:
        jobs = [costs.job(each) for each in candidates]
        if all(job.key in known for job in jobs):
            continue
        if found and len(found) + len(jobs) > AHEAD:
            break
        for each, job in zip(candidates, jobs, strict=True):
            if job.key not in found:
                found[job.key] = alone_module(each)
    return found


def _tried_ns(records: Records, job: Job) -> float:
    """The time of a candidate from an earlier, interrupted tuning; 0 if there is none."""
    return next((t.ns for t in reversed(records.trials(task_key(job))) if t.space == CHOICE), 0.0)


def unmeasured(costs: KernelCosts) -> list[tuple[Candidate, ...]]:
    """The choices without times of all their candidates which could be measured."""
    times = costs.times

    def is_known(candidates: Sequence[Candidate]) -> bool:
        return times is not None and all(times(costs.job(each)) for each in candidates)

    asked = sorted(costs.asked or (), key=_priority)
    return [each for each in asked if all(map(is_measurable, each)) and not is_known(each)]


def _priority(candidates: Sequence[Candidate]) -> tuple[bool, int]:
    return any(each.is_fused for each in candidates), -len(candidates)


def is_measurable(candidate: Candidate) -> bool:
    """Whether all sizes of a candidate are static and nonzero."""
    shapes = [value.tensor.shape or () for value in candidate.kernel.params]
    is_static = all(isinstance(dim, Const) for shape in shapes for dim in shape)
    return is_static and not candidate.is_empty


def _in_turns(
    candidates: Sequence[Candidate],
    modules: Sequence[Module],
    build: Build,
    sweep: np.ndarray[Any, Any],
    deadline: Deadline,
) -> list[float]:
    built = []
    for each, module in zip(candidates, modules, strict=True):
        deadline.check()
        built.append((build(module), _operands(each)))
    all_times: list[list[float]] = [[] for _ in built]
    for round_number in range(ROUNDS + 1):
        deadline.check()
        for (run, operands), times in zip(built, all_times, strict=True):
            sweep.sum()
            spent = sum(each.total_ns for each in run.profile(*operands).kernels())
            if round_number:  # the first run touches new pages: not counted
                times.append(float(spent))
    return [min(times) for times in all_times]


def alone_module(candidate: Candidate) -> Module:
    """A model of one candidate, with random weights as constants; already fused if the candidate is
    one of fusion."""
    graph = candidate.kernel
    constants: dict[str, np.ndarray[Any, Any]] = {}
    head: list[Node] = []
    given: dict[Value, Value] = {}
    for at, param in enumerate(graph.params):
        if at in candidate.weights:
            node = store_constant(constants, _array(param), "w")
            given[param] = node.output
            head.append(node)
    nodes = tuple(
        replace(node, inputs=tuple(None if v is None else given.get(v, v) for v in node.inputs))
        for node in graph.nodes
    )
    params = tuple(dict.fromkeys(value for value in graph.params if value not in given))
    if candidate.is_fused:
        numbers = small_constants([*head, *nodes], constants)
        nodes = tuple(make_fused_node(nodes, lambda value: value in graph.results, numbers))
    main = replace(graph, name="main", params=params, nodes=(*head, *nodes))
    stage = ir.FUSED if candidate.is_fused else ir.CANONICAL
    return Module({"main": main}, constants, stage=stage)


def _operands(candidate: Candidate) -> list[np.ndarray[Any, Any]]:
    taken = [v for at, v in enumerate(candidate.kernel.params) if at not in candidate.weights]
    return [_array(value) for value in dict.fromkeys(taken)]


def _array(value: Value) -> np.ndarray[Any, Any]:
    """Random normal numbers; ones for integer types, since they are valid divisors and nearly
    always valid indices, and this code runs in the tuner's own process."""
    of = value.type
    assert isinstance(of, TensorType)
    shape = [int(dim.value) for dim in of.shape or () if isinstance(dim, Const)]
    if of.dtype.kind != "float":
        return np.ones(shape).astype(of.dtype.numpy)
    return np.random.default_rng(16).standard_normal(shape).astype(of.dtype.numpy)
