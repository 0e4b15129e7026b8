"""Which measured choices of graph passes are kept: those with which the whole model is faster.

Candidates are timed apart (`graph_choices.py`); then the model is built without and with what was
found, and both run in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.build import build_module
from tilewright.driver.costs import KernelCosts, Measured
from tilewright.driver.optimize import kernel_costs, optimize, pass_context
from tilewright.driver.options import Options, writing_records
from tilewright.driver.tuning.graph_choices import TimedJob, measure_choices, unmeasured
from tilewright.driver.tuning.inputs import placements, random_arrays, size_sets
from tilewright.driver.tuning.records import (
    task_key,
)
from tilewright.graph import ir
from tilewright.graph.passes import FUSED
from tilewright.graph.types import is_tensor
from tilewright.runtime.module import Module
from tilewright.tune.budget import Budget, Deadline, Late
from tilewright.tune.outcome import Outcome, Snapshot, interrupted
from tilewright.tune.record import Time
from tilewright.tune.stats import LEAST_PAIRS, Paired

CHOICES_PAIRS = 15  # of runs without and with what was measured, of modules that are built twice
CHOICES_SHARE = 0.15  # of a budget of tuning, for what graph passes choose between;
COMPARED_SHARE = 0.05  # thereof for the model without and with what was measured, at least,
COMPARED_BUILDS = 3  # and what it takes to build it that often, beyond the first time


@dataclass(frozen=True)
class ChoicesTuned:
    """What measuring the choices of graph passes came to, before kernels are tuned."""

    ctx: PassContext  # that tells passes the times which are kept
    settings: Options  # with what is left of the budget
    seconds: float
    gain: float = 1.0  # of the whole model
    least_gain: float = 1.0
    is_interrupted: bool = False  # then kernels are not tuned

    def told(self, outcome: Outcome | None) -> Outcome | None:
        """What tuning came to in all."""
        if self.is_interrupted:
            note = "interrupted while choices of the graph were measured: times until then are kept"
            outcome = interrupted([note])
        if outcome is None:
            return None
        return replace(
            outcome,
            gain=self.gain * outcome.gain,
            least_gain=self.least_gain * outcome.least_gain,
            graph_gain=self.gain,
            seconds=self.seconds + outcome.seconds,
        )


def choices_tuned(
    module: ir.Module, target: Target, settings: Options, budget: Budget
) -> ChoicesTuned:
    """Measure what passes choose between; who tells them, and what is left of the budget."""
    begin = time.monotonic()
    kept: list[TimedJob] = []
    gain = Paired((), ())

    def tell(stage: str) -> None:
        spent = time.monotonic() - begin
        settings.tuning(Snapshot(spent, budget.seconds, stage, (), 1.0))

    is_interrupted = False
    try:
        kept, gain = helping_choices(module, target, settings, budget, tell)
    except Late:
        pass
    except KeyboardInterrupt:
        is_interrupted = True
    if kept:
        with writing_records(settings) as records:
            for each in kept:
                records.time(task_key(each.job), Time(each.ns))
    costs = kernel_costs(target, settings)
    costs.times = with_times(kept, costs.times)
    spent = time.monotonic() - begin
    left = Budget(max(budget.seconds - spent, 1.0) / 60.0)

    def listen(snapshot: Snapshot) -> None:
        """Kernels are tuned after this, within the same budget."""
        seconds = spent + snapshot.seconds
        settings.tuning(replace(snapshot, seconds=seconds, budget_s=budget.seconds))

    return ChoicesTuned(
        PassContext(target=target, costs=costs),
        replace(settings, tune=None if is_interrupted else left, tuning=listen),
        spent,
        gain.gain,
        gain.least_gain or 1.0,
        is_interrupted,
    )


def helping_choices(
    module: ir.Module,
    target: Target,
    settings: Options,
    budget: Budget,
    tell: Callable[[str], None],
) -> tuple[list[TimedJob], Paired]:
    """Times of candidates with which the model is faster, or the same, and the gain: all that were
    measured, or those that do not tell about fusion; none where there is no time to compare.

    The whole model is built first: it is needed anyway, and tells what there is time for.
    """
    deadline = Deadline.after(CHOICES_SHARE * budget.seconds)
    tell("finding choices of the graph")
    costs = kernel_costs(target, settings)
    costs.asked = []
    optimize(module, target, settings, PassContext(target=target, costs=costs))
    if not unmeasured(costs):
        return [], Paired((), ())
    deadline.check()
    tell("building the model as it is")
    begin = time.monotonic()
    build_until(deadline, optimize(module, target, settings), target, settings)
    builds_s = COMPARED_BUILDS * (time.monotonic() - begin)
    measuring = Deadline(deadline.at - max(COMPARED_SHARE * budget.seconds, builds_s))
    context = PassContext(target=target)

    def build(candidate: ir.Module) -> Module:
        steps = FUSED if candidate.stage == ir.CANONICAL else ()
        return build_until(measuring, run_passes(candidate, steps, context), target, settings)

    def measured_some(count: int, total: int) -> None:
        tell(f"measuring choices of the graph, {count} of {total}")

    with writing_records(settings) as records:
        found = measure_choices(costs, build, measuring, records, measured_some)
    others = [each for each in found if not each.is_fused]
    for timed in (found, others) if len(others) < len(found) else (found,):
        measured = kernel_costs(target, settings)
        measured.times = with_times(timed, measured.times)
        tell("comparing choices of the graph")
        helps = choices_gain(module, target, settings, measured, deadline) if timed else None
        if helps is not None:
            return timed, helps
    return [], Paired((), ())


def build_until(deadline: Deadline, module: ir.Module, target: Target, settings: Options) -> Module:
    """A module that is only timed; Late as soon as a kernel is ready after the deadline."""
    plain = replace(
        settings, tune=None, database="", progress=lambda stage, count, total: deadline.check()
    )
    return build_module(replace(module, states=()), target, plain)


def with_times(timed: Sequence[TimedJob], recorded: Measured | None) -> Measured | None:
    """Times that were measured now, or else before."""
    if not timed:
        return recorded
    found = {each.job.key: each.ns for each in timed}
    return lambda job: found.get(job.key) or (recorded and recorded(job))


def choices_gain(
    module: ir.Module, target: Target, settings: Options, costs: KernelCosts, deadline: Deadline
) -> Paired | None:
    """The model without and with measured costs, in turns; nothing where that is the same model,
    None where it is not surely faster, or slower at any size or where its memory lies elsewhere."""
    params = module.main.params
    if not all(is_tensor(param.type) for param in params):
        return None
    before = optimize(module, target, settings, pass_context(target, settings))
    after = optimize(module, target, settings, PassContext(target=target, costs=costs))
    if before == after:
        return Paired((), ())
    random = np.random.default_rng(16)
    inputs = [
        placed
        for sizes in size_sets(params, settings.sizes, 1)
        for placed in placements(random_arrays(params, sizes, random))
    ]
    pairs: list[Paired] = []
    for order in ((0, 1), (1, 0)):  # the first that is built has the lower addresses
        built = {at: build_until(deadline, (before, after)[at], target, settings) for at in order}
        for placed in inputs:
            rest_s = deadline.left / (2 * len(inputs) - len(pairs))
            pairs.append(in_turns(built[0], built[1], placed, Deadline.after(rest_s)))
    whole = sum(pairs, Paired((), ()))
    return whole if whole.is_win and all(pair.gain >= 1.0 for pair in pairs) else None


def in_turns(first: Module, second: Module, inputs: Sequence[Any], deadline: Deadline) -> Paired:
    """Times of two modules that compute the same, in turns; a run that nobody times goes before
    each, so that caches and threads are as the module itself leaves them. Fewer pairs where there
    is less time; Late where these can tell nothing."""
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(CHOICES_PAIRS):
        if deadline.left < 0.0:
            break
        sides = ((0, first), (1, second))
        for side, run in sides if pair % 2 else sides[::-1]:
            run(*inputs)
            begin = time.perf_counter()
            run(*inputs)
            times[side].append(time.perf_counter() - begin)
    if len(times[0]) < LEAST_PAIRS:
        raise Late
    return Paired(tuple(times[0]), tuple(times[1]))
