"""The journey of a model: import, optimize, lower, schedule, emit, load.

module = compile("model.onnx", target="cpu", threads=2)
outputs = module(x, y)
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.errors import UserError, UserTypeError
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import ACCEL, CPU, CUDA, Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.build import can_run, new_module
from tilewright.codegen.host import emit_main, input_signature
from tilewright.driver.chains import CHAINS, JOINED, chains_key, join_chains
from tilewright.driver.compare import is_close
from tilewright.driver.compiled import CompiledModule, CrossModule, Inside
from tilewright.driver.costs import KernelCosts, Measured, recorded_times
from tilewright.driver.device_module import DeviceModule, answers, on_device_in_turns
from tilewright.driver.foreign_parts import call_foreign_parts
from tilewright.driver.hybrid import HybridModule
from tilewright.driver.inter_op import overlap_kernels
from tilewright.driver.kernels import Job, KernelSetting
from tilewright.driver.libraries import allowed_libraries, linked
from tilewright.driver.lowering import Choices, Program, jobs_of, lower_model
from tilewright.driver.pipelines import PIPELINES, PRECISIONS, precision_for
from tilewright.driver.placement import INTERPRETER, Placement, placement
from tilewright.driver.saved_parts import Foreign
from tilewright.driver.sizes import (
    Dynamic,
    check_size_names,
    ranges_of,
    size_names,
    sizes_to_measure,
    with_sizes,
)
from tilewright.driver.tuning.graph_choices import TimedJob, measure_choices, unmeasured
from tilewright.driver.tuning.inputs import Sizes, placements, random_arrays, size_sets
from tilewright.driver.tuning.records import (
    recorded_choices,
    recorded_winners,
    task_key,
    winning_choices,
)
from tilewright.driver.unfuse import unfuse_foreign
from tilewright.driver.workers import expect_jobs
from tilewright.frontends.door import Opened, open_model
from tilewright.graph import ir
from tilewright.graph.memory import MemoryPlan, plan_memory
from tilewright.graph.passes import FUSED
from tilewright.graph.types import is_tensor, tensor_of
from tilewright.runtime import _native, cuda
from tilewright.runtime.module import Module, Spec
from tilewright.runtime.pool import checked_threads
from tilewright.runtime.stateful import StatefulModule
from tilewright.sym import Const
from tilewright.tune.budget import Budget, Deadline, Late
from tilewright.tune.database import Database, Records, default_path
from tilewright.tune.fleet import Fleet
from tilewright.tune.outcome import Outcome, Snapshot, interrupted
from tilewright.tune.reader import Reader
from tilewright.tune.record import Time, Winner
from tilewright.tune.stats import LEAST_PAIRS, Paired

if TYPE_CHECKING:
    from tilewright.accel.part import Part

_log = logging.getLogger("tilewright")
NAME = "model"
CHOICES_PAIRS = 15  # of runs without and with what was measured, of modules that are built twice
CHOICES_SHARE = 0.15  # of a budget of tuning, for what graph passes choose between;
COMPARED_SHARE = 0.05  # thereof for the model without and with what was measured, at least,
COMPARED_BUILDS = 3  # and what it takes to build it that often, beyond the first time
NAMED = ("target", "args", "kwargs", "dynamic")  # what compile takes beside its options


@dataclass(frozen=True)
class Options:
    """How a model is compiled, beyond its target."""

    threads: int = 0  # 0: as many as cores
    precision: str = "f32"
    without: tuple[str, ...] = ()  # passes switched off
    schedule: bool = True
    packing: bool = True  # weights lie as kernels read them
    in_place: bool = True  # results may take the memory of operands that end
    chains: bool | None = None  # GPUs: kernels that follow each other may be one; None: where
    # tuning finds that faster
    cache: bool = True
    tune: Budget | None = None  # kernels are tuned first, for so long
    database: Database | Reader | str | Path | None = None  # of records; None: the user's, "": none
    sizes: Sizes = field(default_factory=dict)  # of dynamic dimensions, while tuning; else 1,
    # or where `dynamic` tells a range, its ends and its middle
    allow_blas: bool = False  # a library's kernel competes, and may be called
    search: str = "ranked"  # how tuning proposes candidates
    cost_model: str = ""  # that it learns: trees, rank, gaussian, treegru, estimate; "": the best
    # that is installed
    fleet: Fleet | None = None  # machines that tuning measures on; None: this one
    tuning: Callable[[Snapshot], None] = lambda snapshot: None  # hears how tuning goes
    progress: Callable[[str, int, int], None] = lambda stage, count, total: None


def compile(
    model: Any,
    target: str | Target = "cpu",
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    threads: int = 0,
    precision: str = "f32",
    dynamic: Dynamic | bool | None = None,
    **options: Any,
) -> Module:
    """A native module from a path, an ONNX model, a PyTorch model or a graph module.

    `dynamic` tells ranges of the sizes that inputs leave open, or fixes them to a number. A
    PyTorch model is traced with the examples `args` and `kwargs`; there `dynamic` also names the
    axes that stay open, {"x": {0: "batch"}}, or says True for all. What comes of it takes and
    gives tensors in the model's own structure.

    Kernels are compiled with what tuning found before (`database`); `tune=Budget(minutes=5)` tunes
    them first.

    Further options:

    - `without`: names of passes that are switched off;
    - `schedule=False`: plain loops, as operators define them;
    - `packing=False`, `in_place=False`: weights as they come, no result in an operand's memory;
    - `chains=True`: on a GPU, products of one row that follow each other are one kernel; by default
      they are where `tune` finds it faster, or has before;
    - `cache=False`: kernels are neither taken from disk nor kept there;
    - `progress`: is called with a stage, how much of it is done, and of how much;
    - `tune`, `database`, `sizes`, `search`, `cost_model`, `fleet`, `allow_blas`, `tuning`: of
      tuning.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import graph
        >>> program = graph.parse("graph @main(%x: f32[n, 4]) { %y = relu(%x) return %y }")
        >>> model = tw.compile(program, threads=1)
        >>> (y,) = model(np.array([[-1, 2, -3, 4]], np.float32))
        >>> np.asarray(y)
        array([[0., 2., 0., 4.]], dtype=float32)
    """
    chosen = Target.parse(target)
    check_options(options)
    settings = Options(threads=checked_threads(threads), precision=precision, **options)
    if chosen.kind not in (CPU, CUDA, ACCEL):
        raise UserError(
            "TW6002", f"models compile for CPUs, CUDA and accelerators so far, not for {chosen}"
        )
    if precision not in PRECISIONS:
        raise UserError(
            "TW6003", f"unknown precision {precision!r}", help=f"use {', '.join(PRECISIONS)}"
        )
    if chosen.kind != ACCEL and (chosen.kind, precision) not in PIPELINES:
        known = [each for kind, each in PIPELINES if kind == chosen.kind]
        raise UserError(
            "TW6003",
            f"precision {precision!r} is not one that models for {chosen} have",
            help=f"use {', '.join(known)}",
        )
    if settings.tune is not None:  # what is unknown or not installed is told before it is needed
        from tilewright.tune.cost.choose import choose
        from tilewright.tune.search import strategy

        choose(settings.cost_model)
        strategy(settings.search)
    if chosen.kind == CUDA:
        cuda.start_driver()
    with reading_records(settings) as read:
        laps = [time.perf_counter()]
        again = functools.partial(
            compile, target=chosen, threads=threads, precision=precision, **options
        )
        opened = open_model(model, args, kwargs, dynamic, again)
        return compile_opened(opened, chosen, read, laps)


@contextlib.contextmanager
def reading_records(settings: Options) -> Iterator[Options]:
    """Options whose records are opened at most once, where only reading them is asked for."""
    given = settings.database
    if settings.tune is not None or isinstance(given, Database | Reader):
        yield settings
        return
    path = default_path() if given is None else Path(given) if given else None
    if path is None or not path.exists():
        yield replace(settings, database="")
        return
    with Reader(path) as records:
        yield replace(settings, database=records)


def compile_opened(opened: Opened, chosen: Target, settings: Options, laps: list[float]) -> Module:
    """A native module from a model that was read; `laps` has the moment when that began."""
    graph = with_sizes(opened.graph, opened.dynamic)
    check_size_names(settings.sizes, size_names(opened.graph))
    settings = replace(
        settings,
        precision=precision_for(graph, chosen, settings.precision),
        sizes={**sizes_to_measure(opened.dynamic), **settings.sizes},
    )
    laps.append(time.perf_counter())
    host = chosen
    reasons: Mapping[str, str] = {}
    is_here = chosen.kind == CPU and can_run(chosen) and settings.fleet is None
    choices = None
    if settings.tune is not None and is_here:
        choices = choices_tuned(graph, chosen, settings, settings.tune)
        ctx, settings = choices.ctx, choices.settings
    else:
        ctx = pass_context(host, settings)
    if chosen.kind == ACCEL:
        # Most models are for no accelerator: then this process needs nothing of one.
        from tilewright.driver.accelerate import divide, integer_graph

        host = Target.parse(CPU)
        ctx = pass_context(host, settings, options={"decompose_quantized.enabled": False})
        left: dict[str, str] = {}
        graph, kept = divide(integer_graph(graph, chosen, left), chosen)
        reasons = {**left, **kept}
    graph = optimize(graph, host, settings, ctx)
    laps.append(time.perf_counter())
    if chosen.kind == ACCEL:
        module = build_accelerated(graph, chosen, host, settings, reasons)
    else:
        module = build_module(graph, chosen, settings)
    if choices is not None and isinstance(module, CompiledModule):
        module.inside = replace(module.inside, tuning=choices.told(module.tuning))
    laps.append(time.perf_counter())
    spent = [after - before for before, after in itertools.pairwise(laps)]
    stages = dict(zip(("import", "passes", "code"), spent, strict=True))
    module.timings = {"stages": stages, "passes": ctx.timings}
    module.choices = tuple(ctx.choices)
    return opened.wrap(with_states(module, graph))


def with_states(module: Module, graph: ir.Module) -> Module:
    """A module that keeps the states of a graph between calls."""
    if not graph.states:
        return module
    count = len(graph.states)
    begins = [np.asarray(graph.constants[name]) for name in graph.states]
    return StatefulModule(module, begins, module.inputs[-count:], len(graph.made))


def check_options(given: Mapping[str, Any]) -> None:
    """Only what there is; a misspelt name is told the nearest."""
    known = [each.name for each in fields(Options)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *NAMED], 1)
            help = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise UserTypeError("TW6009", f"compile has no option {name!r}", help=help)


def load_graph(model: Any) -> ir.Module:
    """The graph of a model in any form."""
    return open_model(model).graph


def staged_graph(model: Any, stage: str = ir.CANONICAL, precision: str = "f32") -> ir.Module:
    """A model's graph as it is at a stage: as imported, optimized, or fused to kernels."""
    graph = load_graph(model)
    passes = PIPELINES[CPU, precision]
    if stage == ir.IMPORTED:
        return graph
    chosen = [step for step in passes if stage == ir.FUSED or step not in FUSED]
    return run_passes(graph, chosen, pass_context(Target.parse("cpu"), Options()))


def optimize(
    module: ir.Module, target: Target, options: Options, ctx: PassContext | None = None
) -> ir.Module:
    """The module with every pass of the target's pipeline applied that is not switched off."""
    passes = PIPELINES.get((target.kind, options.precision))
    if passes is None:
        served = [precision for kind, precision in PIPELINES if kind == target.kind]
        raise UserError(
            "TW6003",
            f"no precision {options.precision!r} for {target}",
            help=f"use {', '.join(served)}",
        )
    known = {step.__name__ for step in passes}
    for name in options.without:
        if name not in known:
            raise UserError(
                "TW6004", f"there is no pass {name}", help=f"known: {', '.join(sorted(known))}"
            )
    chosen = [step for step in passes if step.__name__ not in options.without]
    ctx = ctx or pass_context(target, options)
    if ctx.costs is not None:
        ctx.costs.ranges = ranges_of(module)
        # A model whose choices nobody has estimated has kernels that nobody has compiled.
        operators = sum(node.op != "constant" for node in module.main.nodes)
        ctx.costs.missed = functools.partial(expect_jobs, operators)
    return run_passes(module, chosen, ctx)


def pass_context(target: Target, settings: Options, **more: Any) -> PassContext:
    """What passes of a model may know: its target, and what their choices would cost there."""
    return PassContext(target=target, costs=kernel_costs(target, settings), **more)


def kernel_costs(target: Target, settings: Options) -> KernelCosts:
    """The table of costs of a target, with times that tuning left behind."""
    setting = KernelSetting(target, settings.threads or _native.threads())
    times = recorded_times(settings.database)
    is_lowered = settings.precision == "bf16"
    return KernelCosts(setting, times, settings.cache, is_lowered=is_lowered)


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


def build_module(module: ir.Module, target: Target, options: Options) -> Module:
    """Native code for an optimized module; the interpreter runs what has none."""
    module = unfuse_foreign(module)
    placed = placement(module, target, open_ends=target.kind != CUDA)
    if target.kind == CUDA:
        check_on_device(module, placed)
        module = replace(module, states=())  # its results come back, and are kept here
    if placed.is_native and all(is_tensor(param.type) for param in module.main.params):
        return build_native(module, target, options, placed)
    module = replace(module, states=())
    main, parts = call_foreign_parts(module, placed)
    inputs, outputs = specs_of(module)
    foreign = Foreign(parts, tuple(inputs), tuple(outputs))
    native = build_native(main, target, options, placed, foreign)
    return HybridModule(native, parts, inputs, outputs)


def build_accelerated(
    module: ir.Module, target: Target, host: Target, options: Options, reasons: Mapping[str, str]
) -> Module:
    """Native code of the host, and streams for the parts that the accelerator runs."""
    from tilewright.driver.accelerate import AcceleratedModule, compile_parts, place

    module = replace(module, states=())
    placed = place(module, host, reasons)
    main, parts, streams = compile_parts(module, placed, target)
    specs = specs_of(module)
    foreign = Foreign(parts, tuple(specs[0]), tuple(specs[1]))
    native = build_native(main, host, options, placed, foreign, tuple(streams))
    return AcceleratedModule(native, parts, specs, streams, placed)


def check_on_device(module: ir.Module, placed: Placement) -> None:
    """Every node of a model has code for a GPU."""
    ops = dict.fromkeys(node.op for _, node, device, _ in placed.rows() if device == INTERPRETER)
    if ops or not all(is_tensor(param.type) for param in module.main.params):
        what = ", ".join(ops) or "inputs that are no tensors"
        raise UserError(
            "TW6008",
            f"the model does not run on a GPU alone: {what}",
            help="compile it for a CPU, or export it without them",
        )


def build_native(
    module: ir.Module,
    target: Target,
    options: Options,
    placed: Placement,
    foreign: Foreign | None = None,
    streams: tuple[Part, ...] = (),
) -> Module:
    """One native function for a module whose every node has code, or calls a foreign part."""
    threads = options.threads or _native.threads()
    setting = KernelSetting(
        target,
        threads,
        options.schedule,
        options.packing,
        ranges_of(module),
        allowed_libraries(target, allow_blas=options.allow_blas),
    )
    outcome, choose = tuned_or_recorded(module, setting, options, foreign is not None)
    program = lower_model(
        module,
        setting,
        use_cache=options.cache,
        progress=lambda count, total: options.progress("kernels", count, total),
        choose=choose,
    )
    if target.kind == CUDA:
        return build_device(program, target, options, outcome)
    program = overlap_kernels(program, setting)
    count = len(program.module.states)
    plan = plan_memory(program.module.main, in_place=options.in_place, states=count)
    image = emit_host(program, plan, target)
    main = f"{NAME}_main"
    inside = Inside(program, plan, image, main, target, placed, foreign, outcome, streams)
    return load_module(inside, options)


def build_device(
    program: Program, target: Target, options: Options, outcome: Outcome | None
) -> DeviceModule:
    """A model on a GPU; chains of its kernels are one where that is asked for, or was found to be
    faster, now or by a tuner before."""

    def made(program: Program) -> DeviceModule:
        plan = plan_memory(program.module.main, in_place=options.in_place)
        return DeviceModule(program, plan, target, *specs_of(program.module), tuning=outcome)

    is_open = options.chains is None and options.fleet is None
    is_measured = is_open and options.tune is not None
    key = chains_key(program, target, options.threads or _native.threads())
    is_recorded = is_open and not is_measured and key in recorded_winners([key], options.database)
    if not options.schedule or not (options.chains or is_measured or is_recorded):
        return made(program)
    joined = join_chains(program, target, use_cache=options.cache)
    if not is_measured or joined is program:
        return made(joined)
    apart, chained = made(program), made(joined)
    gain = chains_gain(apart, chained, options.sizes)
    with writing_records(options) as records:
        if gain > 1.0:
            records.keep(key, Winner({CHAINS: JOINED}, gain, CHAINS))
        else:
            records.forget(key)
    return chained if gain > 1.0 else apart


def chains_gain(apart: DeviceModule, chained: DeviceModule, sizes: Sizes) -> float:
    """How much faster a model on the GPU surely is with its chains as one kernel each, at the worst
    of its sizes; 0 where it gives other answers."""
    params, random = apart.program.module.main.params, np.random.default_rng(16)
    gains = []
    for each in size_sets(params, sizes, 1):
        inputs = random_arrays(params, each, random)
        if not is_close(answers(chained, inputs), answers(apart, inputs)):
            return 0.0
        gains.append(on_device_in_turns(apart, chained, inputs).least_gain)
    return min(gains)


def tuned_or_recorded(
    module: ir.Module, setting: KernelSetting, options: Options, is_hybrid: bool
) -> tuple[Outcome | None, Callable[[Mapping[str, Job]], Choices]]:
    """What tuning found now, if it was asked for, and who tells the choices of kernels."""
    if not setting.schedule:
        return None, lambda jobs: {}
    if options.tune is None:
        return None, lambda jobs: recorded_choices(jobs, options.database)
    if is_hybrid:
        raise UserError(
            "TW5011",
            "a model with parts that an accelerator or the interpreter runs cannot be tuned",
            help="tune it for a CPU; `model.fallbacks` names what the interpreter runs",
        )
    return tuned(module, setting, options, options.tune)


def tuned(
    module: ir.Module, setting: KernelSetting, options: Options, budget: Budget
) -> tuple[Outcome, Callable[[Mapping[str, Job]], Choices]]:
    """Tune the kernels of a module; what it came to, and who tells their choices."""
    # Most models are compiled without tuning: then this process needs no code generator.
    from tilewright.driver.tuning.tuning import Settings, tune_model

    settings = Settings(
        sizes=options.sizes,
        in_place=options.in_place,
        use_cache=options.cache,
        search=options.search,
        model=options.cost_model,
        report=options.tuning,
        fleet=options.fleet,
    )
    with writing_records(options) as records:
        plain = replace(module, states=())  # runs of trial calls are to be alike
        outcome = tune_model(plain, setting, budget, records, settings)
        keys = [task_key(job) for job in jobs_of(module, setting).values()]
        winners = records.winners(keys)
    return outcome, lambda jobs: winning_choices(jobs, lambda keys: winners)


@contextlib.contextmanager
def writing_records(options: Options) -> Iterator[Records]:
    """The records that tuning adds to; whose database it is closes it."""
    given = options.database
    assert not isinstance(given, Reader)  # of compilations that do not tune
    if isinstance(given, Database):
        records = Records(given)
    else:
        records = Records.open(default_path() if given is None else given or None)
    try:
        yield records
    finally:
        records.close(keep=isinstance(given, Database))


def emit_host(program: Program, plan: MemoryPlan, target: Target) -> bytes:
    """The object code of the model's main."""
    machine = llvm.machine_of(target)
    text = new_module(machine)
    places = {name: at for at, name in enumerate(program.module.constants)}
    emit_main(text, machine, program.module, plan, NAME, program.kernels, places)
    return llvm.to_object(llvm.parse(text.text()), machine)


class Loaded:
    """Code and weights in memory, while a module uses them."""

    def __init__(self, program: Program, image: bytes, target: Target, threads: int) -> None:
        kernels = program.kernels.values()
        images = [image, *(kernel.image for kernel in kernels)]
        externs = linked(kernels, threads)
        self.code = jit.load(images, (f"{NAME}_main",), externs, llvm.machine_of(target))
        self.weights = [np.asarray(w, order="C") for w in program.module.constants.values()]
        self.table = (ctypes.c_void_p * max(1, len(self.weights)))(
            *(weight.ctypes.data for weight in self.weights)
        )


def load_module(inside: Inside, options: Options) -> Module:
    """The module in this process, or what can be saved for another machine."""
    program, target = inside.program, inside.target
    inputs, outputs = specs_of(program.module)
    if not can_run(target):
        return CrossModule(inside, inputs, outputs, options.threads)
    loaded = Loaded(program, inside.image, target, options.threads or _native.threads())
    module = CompiledModule(
        loaded.code.addresses[inside.main],
        input_signature(program.module, NAME),
        inputs,
        outputs,
        ctypes.addressof(loaded.table),
        loaded,
        options.threads,
    )
    module.inside = inside
    return module


def specs_of(module: ir.Module) -> tuple[list[Spec], list[Spec]]:
    """The inputs and outputs of a model, by the names that users gave them; states are inputs."""
    graph = module.main
    names = module.result_names[: len(module.made)]
    inputs = [spec_of(value, value.name) for value in graph.params]
    return inputs, [spec_of(*pair) for pair in zip(module.made, names, strict=True)]


def spec_of(value: ir.Value, name: str) -> Spec:
    """What users see of an input or output."""
    of = tensor_of(value.type)
    if of is None:
        return Spec(name, None, (), str(value.type))
    dims = tuple(int(d.value) if isinstance(d, Const) else str(d) for d in of.shape or ())
    is_plain = of is value.type and of.shape is not None
    return Spec(name, of.dtype, dims, "" if is_plain else str(value.type))
