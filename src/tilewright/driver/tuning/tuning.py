"""From a model to records: its kernels as tasks, their spaces, and a lab for the tuner.

    outcome = tune_model(graph, setting, Budget(minutes=5), records)

The model is optimized already: what is tuned are its kernels, as `lower_model` makes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from tilewright.base.errors import UserError
from tilewright.base.target import CPU
from tilewright.codegen.adapter import adapter_image
from tilewright.codegen.build import can_run
from tilewright.driver.kernel_code import function_of
from tilewright.driver.kernels import (
    Job,
    KernelSetting,
    packing_target,
    try_cached,
    try_cached_packer,
)
from tilewright.driver.lowering import jobs_of
from tilewright.driver.tuning.inputs import Sizes
from tilewright.driver.tuning.lab import SERVER, Checkers, ModelLab, build_all
from tilewright.driver.tuning.messages import Open
from tilewright.driver.tuning.records import task_key
from tilewright.driver.tuning.roofline import element_of, floor_ns
from tilewright.driver.tuning.running import WHOLE, Measured
from tilewright.driver.tuning.table import Built
from tilewright.graph.ir import Graph, Module
from tilewright.graph.types import is_tensor
from tilewright.lower.graph import sizes_of
from tilewright.rules import alternatives
from tilewright.rules.cpu.fallback import FALLBACK_NAME
from tilewright.rules.cpu.reduction import REDUCTION
from tilewright.tune.budget import Budget
from tilewright.tune.database import Records
from tilewright.tune.lab import Task
from tilewright.tune.process import Limits
from tilewright.tune.record import Time
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.space import RuleSpace, TuneSpace
from tilewright.tune.tuner import Outcome, Snapshot, Tuner

LEAST_SHARE = 0.003  # of the model's time: what takes less is left alone
RUNS = 9
GENERAL = (FALLBACK_NAME, REDUCTION.name)  # rules that take what no other knows: sketches may too


@dataclass(frozen=True)
class Settings:
    """How a model is tuned, beyond its budget."""

    sizes: Sizes = field(default_factory=dict)  # of dynamic dimensions
    model: str = ""  # cost model; "": the best that is installed
    search: str = "ranked"
    seed: int = 0
    in_place: bool = True
    use_cache: bool = True
    limits: Limits = field(default_factory=Limits)  # of a candidate
    command: Sequence[str] = SERVER  # that checks candidates
    only: Callable[[Job], bool] = lambda job: True
    report: Callable[[Snapshot], None] = lambda snapshot: None


def tune_model(
    module: Module,
    setting: KernelSetting,
    budget: Budget,
    records: Records,
    settings: Settings = Settings(),  # noqa: B008
) -> Outcome:
    """Tune the kernels of an optimized model; what wins is in `records` then."""
    check_tunable(module, setting)
    begin = time.monotonic()

    def tell(stage: str) -> None:
        spent = time.monotonic() - begin
        settings.report(Snapshot(spent, budget.seconds, stage, (), 1.0))

    tell("building the untuned model")
    with laboratory(module, setting, settings) as (jobs, lab, measured):
        tasks = list(_tasks(jobs, measured, setting, settings))
        spent = time.monotonic() - begin
        left = Budget(max(budget.seconds - spent, 0.5) / 60.0)

        def listen(snapshot: Snapshot) -> None:
            whole = replace(snapshot, seconds=spent + snapshot.seconds, budget_s=budget.seconds)
            settings.report(whole)

        tuner = Tuner(
            tasks,
            lab,
            records,
            left,
            model=settings.model,
            search=settings.search,
            seed=settings.seed,
            report=listen,
        )
        outcome = tuner.run()
        _keep_times(jobs, measured, outcome, records)
    return replace(outcome, seconds=time.monotonic() - begin)


def _keep_times(
    jobs: Mapping[str, Job], measured: Mapping[str, Measured], outcome: Outcome, records: Records
) -> None:
    """What every kernel takes now: choices of graphs go by it."""
    best = {each.name: each.best_ns for each in outcome.tasks}
    for name, job in jobs.items():
        if name in measured and isinstance(job.source, Graph) and not sizes_of(job.source):
            each = measured[name]
            records.time(task_key(job), Time(best.get(name, each.ns) / each.calls))


def check_tunable(module: Module, setting: KernelSetting) -> None:
    """A model is tuned where it runs."""
    if not can_run(setting.target) or setting.target.kind != "cpu":
        raise UserError(
            "TW5010",
            f"a model for {setting.target} cannot be tuned here: its kernels cannot be timed",
            help="tune it on the machine that it is for, and copy the records there",
        )
    if not all(is_tensor(param.type) for param in module.main.params):
        raise UserError(
            "TW5011",
            "a model whose inputs are no tensors cannot be tuned",
            help="tune a model of the part that computes",
        )


@contextmanager
def laboratory(
    module: Module, setting: KernelSetting, settings: Settings
) -> Iterator[tuple[Mapping[str, Job], ModelLab, Mapping[str, Measured]]]:
    """The kernels of a model, a lab for them, and what they take untuned."""
    jobs = jobs_of(module, setting)
    checkers = Checkers(settings.limits, command=settings.command)
    lab: ModelLab | None = None
    try:
        defaults = {
            name: made
            for name, job in (jobs.items() if settings.use_cache else ())
            if (made := _cached(job)) is not None
        }
        missing = {name: job for name, job in jobs.items() if name not in defaults}
        defaults |= build_all(missing, checkers, 600.0)
        opening = Open(module, setting, defaults, settings.sizes, settings.in_place, RUNS)
        lab = ModelLab(jobs, opening, checkers)
        yield jobs, lab, lab.open()
    finally:
        checkers.close()
        if lab is not None:
            lab.close()


def _cached(job: Job) -> Built | None:
    """A kernel that was compiled before, with all that a table needs."""
    kernel = try_cached(job)
    if kernel is None:
        return None
    target = job.setting.target
    packer = None
    if kernel.packer is not None:
        packer = try_cached_packer(kernel.packer.text, packing_target(target))
        if packer is None:
            return None
    adapter = adapter_image(kernel.name, kernel.params, len(kernel.scalars), target)
    return Built(kernel, adapter, packer)


def _tasks(
    jobs: Mapping[str, Job],
    measured: Mapping[str, Measured],
    setting: KernelSetting,
    settings: Settings,
) -> Iterator[Task]:
    """Kernels that take a share of the time, the costliest first."""
    whole = measured[WHOLE].ns
    for name, job in sorted(jobs.items(), key=lambda each: -_ns(measured, each[0])):
        if _ns(measured, name) < LEAST_SHARE * whole:
            break
        if not isinstance(job.source, Graph) or not settings.only(job):
            continue
        found = measured[name]
        element = element_of(job.source)
        floor = floor_ns(found.flops, found.size_bytes, element, setting.target, setting.threads)
        yield Task(name, job.label, task_key(job), partial(spaces_of, job), found.ns, floor)


def spaces_of(job: Job) -> tuple[TuneSpace, ...]:
    """What can be decided about a kernel, by block; the costliest block first."""
    fn = function_of(job)
    weights = [fn.params[at].name for at in sorted(job.constants)]
    setting = job.setting
    offered = alternatives(fn, setting.target, threads=setting.threads, constants=weights)
    spaces = [RuleSpace(offers) for offers in offered]
    open_ones = [space for space in spaces if space.size > 1]
    ranked: list[TuneSpace] = []
    ranked += sorted(open_ones, key=lambda space: -float(space.estimate(space.default())[0]))
    if setting.target.kind == CPU and any(each[0].rule.name in GENERAL for each in offered):
        ranked.append(SketchSpace(fn, setting.target, threads=setting.threads, constants=weights))
    return tuple(ranked)


def _ns(measured: Mapping[str, Measured], name: str) -> float:
    return measured[name].ns if name in measured else 0.0
