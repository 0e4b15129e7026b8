"""Tune a model: its kernels as tasks, their search spaces, and a lab for the tuner.

    outcome = tune_model(graph, setting, Budget(minutes=5), records)

The model is already optimized: kernels are those that `lower_model` would make.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial

from tilewright.base.errors import UserError
from tilewright.base.target import CPU, CUDA, Target
from tilewright.codegen.build import can_run
from tilewright.driver.kernel_code import function_of, schedule_job
from tilewright.driver.kernels import (
    BLAS,
    Job,
    KernelSetting,
    packing_target,
    try_cached,
    try_cached_packer,
)
from tilewright.driver.libraries import library_space
from tilewright.driver.tuning.fleet_lab import FleetLab, model_message
from tilewright.driver.tuning.inputs import Sizes
from tilewright.driver.tuning.lab import (
    MODEL_MEMORY_BYTES,
    SERVER,
    Checkers,
    ModelLab,
    build_all,
    model_process,
    store_built,
)
from tilewright.driver.tuning.messages import Open
from tilewright.driver.tuning.records import task_key
from tilewright.driver.tuning.roofline import element_of, floor_ns
from tilewright.driver.tuning.running import ALL, WHOLE, Measured, SizedKernel
from tilewright.driver.tuning.sized_kernels import Kernels, task_of
from tilewright.driver.tuning.table import Built
from tilewright.graph.ir import Graph, Module
from tilewright.graph.types import is_tensor
from tilewright.rules import alternatives
from tilewright.rules.library import with_library
from tilewright.runtime import cuda
from tilewright.tensor.ir import Function
from tilewright.tune.budget import Budget
from tilewright.tune.database import Records
from tilewright.tune.fleet import Fleet
from tilewright.tune.joined import JoinedSpace
from tilewright.tune.lab import Candidate, Lab, Task
from tilewright.tune.outcome import Outcome, Snapshot, interrupted
from tilewright.tune.plans import RuleSpace, choice_text
from tilewright.tune.process import Limits
from tilewright.tune.sketch import SKETCH, SketchSpace
from tilewright.tune.space import TuneSpace
from tilewright.tune.tuner import Tuner

MIN_TIME_SHARE = 0.003  # kernels with a smaller share of the model's time are not tuned
SKETCHED_SHARE = 0.25  # sketches are only searched for kernels below this fraction of vector peak,
FEW_PLANS = 256  # or with fewer plans of rules than this
RUNS = 9


@dataclass(frozen=True)
class Settings:
    """How a model is tuned, besides the budget."""

    sizes: Sizes = field(default_factory=dict)  # values of dynamic sizes
    model: str = ""  # cost model; "": the best that is installed
    search: str = "ranked"
    seed: int = 0
    in_place: bool = True
    use_cache: bool = True
    limits: Limits = field(default_factory=Limits)  # per candidate
    command: Sequence[str] = SERVER  # of the checking processes
    only: Callable[[Job], bool] = lambda job: True
    fleet: Fleet | None = None  # workers that build and time; None: this machine
    report: Callable[[Snapshot], None] = lambda snapshot: None


DEFAULTS = Settings()


def tune_model(
    module: Module,
    setting: KernelSetting,
    budget: Budget,
    records: Records,
    settings: Settings = DEFAULTS,
) -> Outcome:
    """Tune the kernels of an optimized model; winners are added to `records`."""
    check_tunable(module, setting, is_here=settings.fleet is None)
    begin = time.monotonic()

    def tell(stage: str) -> None:
        spent = time.monotonic() - begin
        settings.report(Snapshot(spent, budget.seconds, stage, (), 1.0))

    try:
        tell("building the untuned model")
        outcome = _tuned(module, setting, budget, begin, records, settings)
    except KeyboardInterrupt:
        note = "interrupted while the untuned model was built: its kernels until then are kept"
        outcome = interrupted([*records.notes, note])
    return replace(outcome, seconds=time.monotonic() - begin)


def _tuned(
    module: Module,
    setting: KernelSetting,
    budget: Budget,
    begin: float,
    records: Records,
    settings: Settings,
) -> Outcome:
    """Tune within what is left of a budget that began at time `begin`."""
    with laboratory(module, setting, settings) as (kernels, lab, measured):
        tasks = list(_tasks(kernels, measured, setting, settings))
        spent = time.monotonic() - begin
        # Compiling the model with the winners takes time, too.
        left = Budget(max(budget.seconds - spent - lab.build_s, 0.5) / 60.0)

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
        _keep_variants(kernels, tasks, outcome, records)
    return outcome


def _keep_variants(
    kernels: Kernels, tasks: Sequence[Task], outcome: Outcome, records: Records
) -> None:
    """Record kernels that were tuned at several sizes, with the winner of each size as a
    variant."""
    chosen = {name: Candidate.of(name, winner.choices) for name, winner in outcome.winners.items()}
    gains = {name: winner.gain for name, winner in outcome.winners.items()}
    found = kernels.winners(chosen, gains)
    for kernel in dict.fromkeys(task.group for task in tasks if task.group):
        key = task_key(kernels.jobs[kernel])
        if key in found:
            records.keep(key, found[key])
        else:
            records.forget(key)


def check_tunable(module: Module, setting: KernelSetting, *, is_here: bool = True) -> None:
    """Check that the model can be timed here, or on the fleet."""
    if setting.target.kind not in (CPU, CUDA) or (is_here and not runs_here(setting.target)):
        raise UserError(
            "TW5010",
            f"a model for {setting.target} cannot be tuned here: its kernels cannot be timed",
            help="tune it with a fleet of such machines, or on one of them",
        )
    if not all(is_tensor(param.type) for param in module.main.params):
        raise UserError(
            "TW5011",
            "a model whose inputs are no tensors cannot be tuned",
            help="tune a model of the part that computes",
        )


def runs_here(target: Target) -> bool:
    """Whether kernels for a target can be timed on this machine."""
    return cuda.is_available() if target.kind == CUDA else can_run(target)


@contextmanager
def laboratory(
    module: Module, setting: KernelSetting, settings: Settings
) -> Iterator[tuple[Kernels, Lab, Sequence[Mapping[str, Measured]]]]:
    """The kernels of a model, a lab for them, and their untuned times by set of sizes."""
    kernels = Kernels(module, setting, settings.sizes)
    if settings.fleet is not None:
        said = model_message(module, setting, settings.sizes, in_place=settings.in_place)
        far = FleetLab(settings.fleet, said, kernels.jobs)
        yield kernels, far, far.open(setting.target)
        return
    with local_laboratory(module, setting, settings, kernels) as (lab, measured):
        yield kernels, lab, measured


@contextmanager
def local_laboratory(
    module: Module, setting: KernelSetting, settings: Settings, kernels: Kernels
) -> Iterator[tuple[ModelLab, Sequence[Mapping[str, Measured]]]]:
    """A lab on this machine."""
    jobs = kernels.jobs
    on_gpu = setting.target.kind == CUDA
    # CUDA reserves more address space than the machine has memory.
    limits = replace(settings.limits, memory_bytes=0) if on_gpu else settings.limits
    checkers = Checkers(limits, command=settings.command)
    runner = model_process(memory_bytes=0 if on_gpu else MODEL_MEMORY_BYTES)
    try:
        checkers.start()  # inside the try block, so that interrupts stop them
        defaults = {
            name: known
            for name, job in (jobs.items() if settings.use_cache else ())
            if (known := _cached(job)) is not None
        }
        missing = {name: job for name, job in jobs.items() if name not in defaults}
        for name, made in build_all(missing, checkers, 600.0):
            if settings.use_cache:  # the final compilation reuses most of them
                store_built(missing[name], made)
            defaults[name] = made
        opening = Open(module, setting, defaults, settings.sizes, settings.in_place, RUNS)
        lab = ModelLab(
            jobs,
            opening,
            checkers,
            kernels.winners,
            runner,
            use_cache=settings.use_cache,
        )
        measured = lab.open()
        checkers.wait()
        yield lab, measured
    finally:
        checkers.close()
        runner.stop()


def _cached(job: Job) -> Built | None:
    """A cached kernel with all that a table needs."""
    kernel = try_cached(job)
    if kernel is None:
        return None
    target = job.setting.target
    packer = None
    if kernel.packer is not None:
        packer = try_cached_packer(kernel.packer.text, packing_target(target))
        if packer is None:
            return None
    return Built.of(kernel, packer, target)


def _tasks(
    kernels: Kernels,
    measured: Sequence[Mapping[str, Measured]],
    setting: KernelSetting,
    settings: Settings,
) -> Iterator[Task]:
    """The kernels worth tuning, costliest first; all sets of sizes have equal weight. The tasks of
    one kernel share its spaces, which take seconds to find."""
    whole = [each[WHOLE].ns for each in measured]
    weights = [sum(whole) / len(whole) / each for each in whole]
    found: list[Task] = []
    for name, job in kernels.jobs.items():
        if not isinstance(job.source, Graph) or not settings.only(job):
            continue
        sized = kernels.sized_kernels(name)
        spans = {each: cache(partial(spaces_of, job, sketches=each)) for each in (False, True)}
        for _, at in sized:
            sets = range(len(measured)) if at == ALL else [at]
            here = [measured[each][name] for each in sets if name in measured[each]]
            weight = sum(weights[each] for each in sets) / len(sets)
            ns = sum(each.ns for each in here) / len(sets)
            if weight * ns < MIN_TIME_SHARE * sum(whole) / len(whole):
                continue
            element = element_of(job.source)
            floor, without_tiles = (
                sum(
                    floor_ns(
                        each.flops,
                        each.size_bytes,
                        element,
                        setting.target,
                        setting.threads,
                        tiles=tiles,
                    )
                    for each in here
                )
                / len(sets)
                for tiles in (True, False)
            )
            found.append(
                Task(
                    task_of((name, at)),
                    job.label if at == ALL else f"{job.label} at {kernels.sizes_text(at)}",
                    kernels.key((name, at)),
                    spans[without_tiles < SKETCHED_SHARE * ns],
                    ns,
                    floor,
                    weight,
                    name if len(sized) > 1 else "",
                    at,
                    sum(each.flops for each in here) // len(sets),
                    sum(each.size_bytes for each in here) // len(sets),
                    tuple if at == ALL else partial(_decided, kernels, (name, at)),
                )
            )
    yield from sorted(found, key=lambda task: -task.weight * task.baseline_ns)


def _decided(kernels: Kernels, sized: SizedKernel) -> list[tuple[str, str]]:
    """What rules decide for a kernel at a set of sizes: blocks and choices."""
    job = kernels.fixed(sized)
    made = schedule_job(job, function_of(job))
    return [(each.block, choice_text(each.choice)) for each in made.decisions]


def spaces_of(job: Job, *, sketches: bool = True) -> tuple[TuneSpace, ...]:
    """The search spaces of a kernel, by block, costliest block first."""
    fn = function_of(job)
    weights = [fn.params[at].name for at in sorted(job.constants)]
    setting = job.setting
    offered = alternatives(fn, setting.target, threads=setting.threads, constants=weights)
    ranked: list[TuneSpace] = sorted(
        (RuleSpace(offers) for offers in offered),
        key=lambda space: -float(space.estimate(space.default())[0]),
    )
    if setting.target.kind == CPU and ranked and (sketches or ranked[0].size < FEW_PLANS):
        ranked[0] = with_sketches(ranked[0], fn, setting, weights)
    ranked = [space for space in ranked if space.size > 1]
    if BLAS in setting.libraries and with_library(fn) is not None:
        ranked.append(library_space())
    return tuple(ranked)


def with_sketches(
    space: TuneSpace, fn: Function, setting: KernelSetting, weights: Sequence[str]
) -> TuneSpace:
    """The joint space of a kernel's rule plans and sketches. A sketch schedules the whole kernel,
    and overrides choices for other blocks."""
    try:
        sketches = SketchSpace(
            fn, setting.target, threads=setting.threads, constants=weights, with_rules=False
        )
        sketches.default()
    except UserError:
        return space  # no sketch applies
    return JoinedSpace(space.name, {"": space, SKETCH: sketches})
