"""From an optimized graph to a native module: place, lower, schedule, plan memory, emit, load.

module = build_module(optimize(graph, target, options), target, options)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.errors import UserError
from tilewright.base.target import CUDA, Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.build import can_run, new_module
from tilewright.codegen.host import emit_main, input_signature
from tilewright.driver.chains import CHAINS, JOINED, chains_key, join_chains
from tilewright.driver.compare import is_close
from tilewright.driver.compiled import CompiledModule, CrossModule, Inside
from tilewright.driver.device_module import DeviceModule, answers, on_device_in_turns
from tilewright.driver.foreign_parts import call_foreign_parts
from tilewright.driver.hybrid import HybridModule
from tilewright.driver.inter_op import overlap_kernels
from tilewright.driver.kernels import Job, KernelSetting
from tilewright.driver.libraries import allowed_libraries, linked
from tilewright.driver.lowering import Choices, Program, jobs_of, lower_model
from tilewright.driver.options import Options, writing_records
from tilewright.driver.placement import INTERPRETER, Placement, placement
from tilewright.driver.saved_parts import Foreign
from tilewright.driver.sizes import ranges_of
from tilewright.driver.tuning.inputs import Sizes, random_arrays, size_sets
from tilewright.driver.tuning.records import (
    recorded_choices,
    recorded_winners,
    task_key,
    winning_choices,
)
from tilewright.driver.unfuse import unfuse_foreign
from tilewright.graph import ir
from tilewright.graph.memory import MemoryPlan, plan_memory
from tilewright.graph.types import is_tensor, tensor_of
from tilewright.runtime import _native
from tilewright.runtime.module import Module, Spec
from tilewright.sym import Const
from tilewright.tune.budget import Budget
from tilewright.tune.outcome import Outcome
from tilewright.tune.record import Winner

if TYPE_CHECKING:
    from tilewright.accel.part import Part

NAME = "model"  # prefix of symbols in native code


def build_module(module: ir.Module, target: Target, options: Options) -> Module:
    """Native code for an optimized module; nodes without native code run in the interpreter."""
    module = unfuse_foreign(module)
    placed = placement(module, target, open_ends=target.kind != CUDA)
    if target.kind == CUDA:
        check_on_device(module, placed)
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
    """Native code of the host, and instruction streams for the parts on the accelerator."""
    from tilewright.driver.accelerate import AcceleratedModule, compile_parts, place

    module = replace(module, states=())
    placed = place(module, host, reasons)
    main, parts, streams = compile_parts(module, placed, target)
    specs = specs_of(module)
    foreign = Foreign(parts, tuple(specs[0]), tuple(specs[1]))
    native = build_native(main, host, options, placed, foreign, tuple(streams))
    return AcceleratedModule(native, parts, specs, streams, placed)


def check_on_device(module: ir.Module, placed: Placement) -> None:
    """Check that every node of a model has code for a GPU."""
    ops = dict.fromkeys(node.op for _, node, device, _ in placed.rows() if device == INTERPRETER)
    if ops or not all(is_tensor(param.type) for param in module.main.params):
        what = ", ".join(ops) or "inputs that are no tensors"
        raise UserError(
            "TW6008",
            f"the model does not run on a GPU alone: {what}",
            help="compile it for a CPU, or export it without them",
        )


def kernel_setting(module: ir.Module, target: Target, options: Options) -> KernelSetting:
    """How the kernels of a module are compiled."""
    return KernelSetting(
        target,
        options.threads or _native.threads(),
        options.schedule,
        options.packing,
        ranges_of(module),
        allowed_libraries(target, allow_blas=options.allow_blas),
    )


def build_native(
    module: ir.Module,
    target: Target,
    options: Options,
    placed: Placement,
    foreign: Foreign | None = None,
    streams: tuple[Part, ...] = (),
) -> Module:
    """One native function for a module whose nodes all have code or call a foreign part."""
    setting = kernel_setting(module, target, options)
    outcome, choose = tuned_or_recorded(module, setting, options, foreign is not None)
    program = lower_model(
        module,
        setting,
        use_cache=options.cache,
        progress=lambda count, total: options.progress("kernels", count, total),
        choose=choose,
    )
    if target.kind == CUDA:
        return build_device(program, target, options, placed, outcome)
    program = overlap_kernels(program, setting)
    count = len(program.module.states)
    plan = plan_memory(program.module.main, in_place=options.in_place, states=count)
    image = emit_host(program, plan, target)
    main = f"{NAME}_main"
    inside = Inside(program, plan, image, main, target, placed, foreign, outcome, streams)
    return load_module(inside, options)


def build_device(
    program: Program,
    target: Target,
    options: Options,
    placed: Placement,
    outcome: Outcome | None,
) -> DeviceModule:
    """A model on a GPU. Chains of GEMV kernels are joined if `chains=True`, or if measurement, now
    or in an earlier tuning session, found that faster."""

    def device_module(program: Program) -> DeviceModule:
        main, count = program.module.main, len(program.module.states)
        plan = plan_memory(main, in_place=options.in_place, states=count)
        made = DeviceModule(program, plan, target, *specs_of(program.module), tuning=outcome)
        made.inside = Inside(program, plan, b"", "", target, placed, tuning=outcome)
        return made

    is_undecided = options.chains is None and options.fleet is None
    is_measured = is_undecided and options.tune is not None
    key = chains_key(program, target, options.threads or _native.threads())
    is_recorded = (
        is_undecided and not is_measured and key in recorded_winners([key], options.database)
    )
    if not options.schedule or not (options.chains or is_measured or is_recorded):
        return device_module(program)
    joined = join_chains(program, target, use_cache=options.cache)
    if not is_measured or joined is program:
        return device_module(joined)
    separate, chained = device_module(program), device_module(joined)
    gain = chains_gain(separate, chained, options.sizes)
    with writing_records(options) as records:
        if gain > 1.0:
            records.keep(key, Winner({CHAINS: JOINED}, gain, CHAINS))
        else:
            records.forget(key)
    return chained if gain > 1.0 else separate


def chains_gain(apart: DeviceModule, chained: DeviceModule, sizes: Sizes) -> float:
    """The speedup, at a low confidence bound, from joining chains: the minimum over all sizes; 0 if
    the answers differ."""
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
    """What tuning found, if it was asked for, and a function that chooses plans for kernels."""
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
    """Tune a module's kernels; returns the outcome and a function that chooses their plans."""
    # Imported here: most models are compiled without tuning, and need no code generator now.
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
        plain = replace(module, states=())  # trial calls must be repeatable
        outcome = tune_model(plain, setting, budget, records, settings)
        keys = [task_key(job) for job in jobs_of(module, setting).values()]
        winners = records.winners(keys)
    return outcome, lambda jobs: winning_choices(jobs, lambda keys: winners)


def emit_host(program: Program, plan: MemoryPlan, target: Target) -> bytes:
    """The object code of the model's main function."""
    machine = llvm.machine_of(target)
    text = new_module(machine)
    places = {name: at for at, name in enumerate(program.module.constants)}
    emit_main(text, machine, program.module, plan, NAME, program.kernels, places)
    return llvm.to_object(llvm.parse(text.text()), machine)


class Loaded:
    """Code and weights that live as long as the module that uses them."""

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
    """A module that runs in this process, or one that can only be saved, for another machine."""
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
    """Specs of a model's inputs (states included) and outputs, by their names in the model."""
    graph = module.main
    names = module.result_names[: len(module.made)]
    inputs = [spec_of(value, value.name) for value in graph.params]
    return inputs, [spec_of(*pair) for pair in zip(module.made, names, strict=True)]


def spec_of(value: ir.Value, name: str) -> Spec:
    """The spec of an input or output."""
    of = tensor_of(value.type)
    if of is None:
        return Spec(name, None, (), str(value.type))
    dims = tuple(int(d.value) if isinstance(d, Const) else str(d) for d in of.shape or ())
    is_plain = of is value.type and of.shape is not None
    return Spec(name, of.dtype, dims, "" if is_plain else str(value.type))
