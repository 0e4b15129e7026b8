"""Keep measured choices of graph passes only if the whole model gets faster with them.

Candidates are timed in isolation (`graph_choices.py`); then the model is built without and with
these times, and both are run alternately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.build import build_module, kernel_setting
from tilewright.driver.costs import KernelCosts, Measured
from tilewright.driver.kernels import Job, try_cached
from tilewright.driver.lowering import planned_calls
from tilewright.driver.optimize import kernel_costs, optimize, pass_context
from tilewright.driver.options import Options, writing_records
from tilewright.driver.packing import MissingPackers
from tilewright.driver.tuning.graph_choices import TimedJob, measure_choices, unmeasured
from tilewright.driver.tuning.inputs import placements, random_arrays, size_sets
from tilewright.driver.tuning.records import (
    task_key,
)
from tilewright.driver.workers import compile_all
from tilewright.graph import ir
from tilewright.graph.passes import FUSED
from tilewright.graph.types import is_tensor
from tilewright.runtime.module import Module
from tilewright.tune.budget import Budget, Deadline, Late
from tilewright.tune.outcome import Outcome, Snapshot, interrupted
from tilewright.tune.record import Time
from tilewright.tune.stats import LEAST_PAIRS, Paired

CHOICES_PAIRS = 15  # pairs of runs, per pair of modules
CHOICES_SHARE = 0.08  # share of the tuning budget for choices of graph passes
COMPARED_SHARE = 0.03  # at least this share thereof for comparing whole models
COMPARED_BUILDS = 3  # and as much as building the model this many times takes


@dataclass(frozen=True)
class ChoicesTuned:
    """The result of measuring choices of graph passes, before kernels are tuned."""

    ctx: PassContext  # makes passes use the times that are kept
    settings: Options  # with the rest of the budget
    seconds: float
    gain: float = 1.0  # speedup of the whole model
    least_gain: float = 1.0
    is_interrupted: bool = False  # if so, kernels are not tuned

    def told(self, outcome: Outcome | None) -> Outcome | None:
        """The outcome of kernel tuning combined with this one."""
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
    """Measure choices of graph passes; returns the context for passes and the rest of the
    budget."""
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
        """Report kernel tuning as a part of the whole budget."""
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
    """Times of candidates that make the model faster (or leave it the same), and the speedup.

    Tries all measured times first, then those of other choices than fusion; returns none if there
    is no time to compare. The whole model is built first: it is needed anyway, and shows what the
    remaining time suffices for.
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

    def fused(candidate: ir.Module) -> ir.Module:
        steps = FUSED if candidate.stage == ir.CANONICAL else ()
        return run_passes(candidate, steps, context)

    def build(candidate: ir.Module) -> Module:
        return build_until(measuring, fused(candidate), target, settings)

    def prepare(candidates: Sequence[ir.Module]) -> None:
        if settings.cache:
            compile_ahead([fused(each) for each in candidates], measuring, target, settings)

    def measured_some(count: int, total: int) -> None:
        tell(f"measuring choices of the graph, {count} of {total}")

    with writing_records(settings) as records:
        found = measure_choices(costs, build, measuring, records, measured_some, prepare)
    others = [each for each in found if not each.is_fused]
    for timed in (found, others) if len(others) < len(found) else (found,):
        measured = kernel_costs(target, settings)
        measured.times = with_times(timed, measured.times)
        tell("comparing choices of the graph")
        helps = choices_gain(module, target, settings, measured, deadline) if timed else None
        if helps is not None:
            return timed, helps
    return [], Paired((), ())


def compile_ahead(
    modules: Sequence[ir.Module], deadline: Deadline, target: Target, settings: Options
) -> None:
    """Compile the kernels of some modules in parallel, into the cache; raises Late after the
    deadline."""
    jobs: dict[str, Job] = {}
    for module in modules:
        _, more = planned_calls(module, kernel_setting(module, target, settings))
        jobs |= {job.key: job for job in more.values()}
    missing = [job for job in jobs.values() if try_cached(job) is None]
    compile_all(missing, MissingPackers((), target).of, done=lambda count, total: deadline.check())


def build_until(deadline: Deadline, module: ir.Module, target: Target, settings: Options) -> Module:
    """A module for timing only; raises Late once a kernel is finished after the deadline."""
    plain = replace(
        settings, tune=None, database="", progress=lambda stage, count, total: deadline.check()
    )
    return build_module(replace(module, states=()), target, plain)


def with_times(timed: Sequence[TimedJob], recorded: Measured | None) -> Measured | None:
    """A cost function from new times, with recorded ones for all other kernels."""
    if not timed:
        return recorded
    found = {each.job.key: each.ns for each in timed}
    return lambda job: found.get(job.key) or (recorded and recorded(job))


def choices_gain(
    module: ir.Module, target: Target, settings: Options, costs: KernelCosts, deadline: Deadline
) -> Paired | None:
    """Times of the model without and with measured costs, alternately. Empty if both are the same
    model; None if the second is not significantly faster overall, or slower for any sizes or memory
    placement."""
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
    # addresses differ by the order of building, so both orders are measured
    for order in ((0, 1), (1, 0)):
        built = {at: build_until(deadline, (before, after)[at], target, settings) for at in order}
        for placed in inputs:
            rest_s = deadline.left / (2 * len(inputs) - len(pairs))
            pairs.append(in_turns(built[0], built[1], placed, Deadline.after(rest_s)))
    whole = sum(pairs, Paired((), ()))
    return whole if whole.is_win and all(pair.gain >= 1.0 for pair in pairs) else None


def in_turns(first: Module, second: Module, inputs: Sequence[Any], deadline: Deadline) -> Paired:
    """Times of two equivalent modules, alternately, each run after an untimed one, so that caches
    and threads are in the state that module leaves. Fewer pairs if the deadline is near; raises
    Late if they would be too few to tell."""
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
