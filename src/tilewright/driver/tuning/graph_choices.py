"""Times of what graph passes choose between: each candidate as a kernel, with its default plans.

    found = measure_choices(costs, build, Deadline.after(30), records)

Candidates of one choice are measured together or not at all, since prices are compared within one
kind only. They run in turns, and other data passes through L2 before every call, as other kernels
of a model would. Every time is a trial on record as soon as it is known; who keeps it as the
kernel's time lets the next model with such a kernel know it.
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

ROUNDS = 7  # of a choice: the fastest of each candidate counts, others were interrupted
CHOICE = "choice of the graph"  # what trials of candidates are about
Build = Callable[[Module], Compiled]


@dataclass(frozen=True)
class TimedJob:
    """A candidate that was measured, as a kernel."""

    job: Job
    ns: float  # of a call
    is_fused: bool  # a candidate of fusion


def measure_choices(
    costs: KernelCosts,
    build: Build,
    deadline: Deadline,
    records: Records,
    progress: Callable[[int, int], None] = lambda count, total: None,
) -> list[TimedJob]:
    """Times of candidates, of as many choices as time allows; `build` may be late, too. `progress`
    hears which choice is begun, and of how many.

    Choices between many come first, since there is more to gain; then what is fused, where kernels
    differ least. What was measured before is not again.
    """
    found: dict[str, TimedJob] = {}
    waiting = unmeasured(costs)
    for at, candidates in enumerate(waiting, 1):
        jobs = [costs.job(each) for each in candidates]
        if all(job.key in found for job in jobs):
            continue
        times = [_tried_ns(records, job) for job in jobs]
        if not all(times):
            progress(at, len(waiting))
            sweep = np.zeros(2 * jobs[0].setting.target.l2_bytes, np.uint8)
            try:
                times = _in_turns(candidates, build, sweep, deadline)
            except Late:
                break
            for each, job, ns in zip(candidates, jobs, times, strict=True):
                records.add(task_key(job), Trial(CHOICE, each.name, ns))
        for each, job, ns in zip(candidates, jobs, times, strict=True):
            found[job.key] = TimedJob(job, ns, each.is_fused)
    return list(found.values())


def _tried_ns(records: Records, job: Job) -> float:
    """What a candidate took when a tuner that was ended measured it; 0 where none has."""
    return next((t.ns for t in reversed(records.trials(task_key(job))) if t.space == CHOICE), 0.0)


def unmeasured(costs: KernelCosts) -> list[tuple[Candidate, ...]]:
    """What was compared without times of all candidates, though these can be measured."""
    times = costs.times

    def is_known(candidates: Sequence[Candidate]) -> bool:
        return times is not None and all(times(costs.job(each)) for each in candidates)

    asked = sorted(costs.asked or (), key=_turn)
    return [each for each in asked if all(map(is_measurable, each)) and not is_known(each)]


def _turn(candidates: Sequence[Candidate]) -> tuple[bool, int]:
    return any(each.is_fused for each in candidates), -len(candidates)


def is_measurable(candidate: Candidate) -> bool:
    """Whether all sizes of a candidate are known, and none is 0: others have no time."""
    shapes = [value.tensor.shape or () for value in candidate.kernel.params]
    is_static = all(isinstance(dim, Const) for shape in shapes for dim in shape)
    return is_static and not candidate.is_empty


def _in_turns(
    candidates: Sequence[Candidate], build: Build, sweep: np.ndarray[Any, Any], deadline: Deadline
) -> list[float]:
    built = []
    for each in candidates:
        deadline.check()
        built.append((build(alone_module(each)), _operands(each)))
    taken: list[list[float]] = [[] for _ in built]
    for turn in range(ROUNDS + 1):
        deadline.check()
        for (run, operands), times in zip(built, taken, strict=True):
            sweep.sum()
            spent = sum(each.total_ns for each in run.profile(*operands).kernels())
            if turn:  # the first run meets pages that nobody has touched
                times.append(float(spent))
    return [min(times) for times in taken]


def alone_module(candidate: Candidate) -> Module:
    """A model of a candidate alone, its weights some constants; of kernels where it is one."""
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
    """Normal numbers; ones of other types, which are valid as divisors and nearly all indices: what
    is run here has no process of its own."""
    of = value.type
    assert isinstance(of, TensorType)
    shape = [int(dim.value) for dim in of.shape or () if isinstance(dim, Const)]
    if of.dtype.kind != "float":
        return np.ones(shape).astype(of.dtype.numpy)
    return np.random.default_rng(16).standard_normal(shape).astype(of.dtype.numpy)
