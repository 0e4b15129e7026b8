"""Compile one kernel, from the graph it computes to object code, in any process.

kernel = compile_kernel(Job(...))
image = compile_packer(PackerJob(...))
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import replace

from tilewright import sym
from tilewright.base.errors import Unsupported, UserError
from tilewright.base.passes import PassContext
from tilewright.base.target import CUDA, Target
from tilewright.codegen import llvm
from tilewright.codegen.build import lower_for, new_module
from tilewright.codegen.effort import optimized
from tilewright.codegen.entry import emit_function, emit_kernel, signature_of
from tilewright.codegen.nvptx import device_code
from tilewright.driver.kernels import (
    BLAS,
    RECORDED,
    Job,
    Kernel,
    Packer,
    PackerJob,
    store,
    store_packer,
    try_cached,
    within_ranges,
)
from tilewright.driver.libraries import LIBRARY, is_library
from tilewright.graph.ir import Graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import Scheduled, schedule
from tilewright.rules.library import with_library
from tilewright.rules.rule import PLAIN, Choice, Decision, Refusal
from tilewright.sym import Expr, Var
from tilewright.tensor.constants import Packed, Split, split_constant_blocks
from tilewright.tensor.dependent_launch import WEIGHTS
from tilewright.tensor.flops import flops_of
from tilewright.tensor.in_place import in_place_pairs
from tilewright.tensor.ir import (
    PARALLEL,
    Block,
    ExternCall,
    For,
    Function,
    TensorCall,
    annotated,
)
from tilewright.tensor.passes import lower
from tilewright.tensor.printer import canonical_text
from tilewright.tensor.visit import walk
from tilewright.tune.sketch import SKETCH, sketched


def compile_kernel(job: Job, *, use_cache: bool = True) -> Kernel:
    """The kernel of a job, from the cache or compiled."""
    kernel = try_cached(job) if use_cache else None
    if kernel is None or kernel.packer is not None:  # the cached packer may have been evicted
        kernel = _compiled(job)
        if use_cache:
            store(job, kernel)
    return kernel


def compile_packer(job: PackerJob, *, use_cache: bool = True) -> bytes:
    """The object code of a packer."""
    image = _image(job.source, job.target, is_packer=True)
    if use_cache:
        store_packer(job, image)
    return image


def function_of(job: Job) -> Function:
    """The tensor function that a kernel computes, before scheduling."""
    if isinstance(job.source, Graph):
        known: dict[Var, Expr] = {
            size: sym.const(low) for _, size, low, high in job.ranges if low == high
        }
        return within_ranges(lower_graph(job.source, job.name, job.numbers, known), job)
    return replace(job.source, name=job.name)


def _weights(job: Job, fn: Function) -> tuple[str, ...]:
    """Names of the parameters that are constants."""
    return tuple(fn.params[at].name for at in sorted(job.constants))


def schedule_job(job: Job, fn: Function) -> Scheduled:
    """The job's function scheduled by rules, or as its choices say, with all decisions."""
    setting, weights = job.setting, _weights(job, fn)

    def scheduled(choices: Mapping[str, Choice]) -> Scheduled:
        for block, choice in choices.items():
            if choice.rule == SKETCH:
                return _sketched(job, fn, weights, block, choice.plan)
        if LIBRARY in choices:
            return _in_library(job, fn, weights, choices)
        return schedule(
            fn, setting.target, threads=setting.threads, constants=weights, choices=choices
        )

    try:
        return scheduled(job.choices)
    except UserError as error:
        if not job.recorded:
            raise
        refusal = Refusal(next(iter(job.choices)), RECORDED, error.message)
        default_schedule = scheduled({})
        return replace(default_schedule, refusals=(*default_schedule.refusals, refusal))


def _in_library(
    job: Job, fn: Function, weights: tuple[str, ...], choices: Mapping[str, Choice]
) -> Scheduled:
    """The function with its GEMM computed by BLAS, and the rest scheduled by rules."""
    rest = {name: each for name, each in choices.items() if name != LIBRARY}
    chosen = choices[LIBRARY]
    found = with_library(fn) if is_library(chosen.plan) else None
    if found is None or BLAS not in job.setting.libraries:
        raise UserError(
            "TW2704",
            f"{chosen.rule} {chosen.plan} is given for a kernel without a GEMM that BLAS may take",
            help="BLAS takes plain f32 matrices, where allow_blas says so",
        )
    rest.pop(found.block, None)
    setting = job.setting
    made = schedule(
        found.function, setting.target, threads=setting.threads, constants=weights, choices=rest
    )
    decision = Decision(found.block, LIBRARY, chosen.plan, 0.0, {})
    return replace(made, decisions=(decision, *made.decisions))


def _sketched(
    job: Job, fn: Function, weights: tuple[str, ...], block: str, choice: str
) -> Scheduled:
    """The function scheduled entirely by a sketch."""
    setting = job.setting
    made = sketched(fn, choice, setting.target, threads=setting.threads, constants=weights)
    decision = Decision(block, SKETCH, choice, made.estimate_ns, {})
    return Scheduled(made.schedule, (decision,), ())


def _compiled(job: Job) -> Kernel:
    fn = function_of(job)
    if not job.setting.schedule:
        return _kernel(job, fn, fn)
    made = schedule_job(job, fn)
    try:
        kernel = _kernel(job, fn, made.schedule.function)
        tuned = bool(job.choices) and not any(each.rule == RECORDED for each in made.refusals)
        return replace(kernel, decisions=made.decisions, refusals=made.refusals, tuned=tuned)
    except Unsupported as error:  # the target lacks something that the schedule needs
        lost = [
            Refusal(each.block, PLAIN, f"instead of {each.rule}: {error.message}")
            for each in made.decisions
        ]
        if job.setting.target.kind == CUDA:
            made = _modest(job, fn)
            kernel = _kernel(job, fn, made.schedule.function)
            return replace(kernel, decisions=made.decisions, refusals=(*made.refusals, *lost))
        # Plain loops need nothing special.
        return replace(_kernel(job, fn, fn), refusals=(*made.refusals, *lost))


def _modest(job: Job, fn: Function) -> Scheduled:
    """The function scheduled only by rules that apply to any block."""
    from tilewright.rules.gpu import MODEST  # imported here: needed by few jobs, on GPUs only

    setting, only = job.setting, MODEST
    known = _weights(job, fn)
    return schedule(fn, setting.target, threads=setting.threads, constants=known, only=only)


def _kernel(job: Job, fn: Function, scheduled: Function) -> Kernel:
    """The kernel of a scheduled function."""
    work = flops_of(fn)
    split = split_constant_blocks(scheduled)
    on_device = job.setting.target.kind == CUDA
    pairs = () if on_device else in_place_pairs(split.kernel)
    if on_device:
        image = _device_image(_with_weights(split, job.constants), job.setting.target)
    else:
        image = _image(
            split.kernel,
            job.setting.target,
            is_packer=False,
            is_scheduled=scheduled is not fn,
            in_place=pairs,
        )
    return Kernel(
        job.name,
        image,
        split.params,
        tuple(param for param in split.kernel.params if isinstance(param, Var)),
        split.kernel.requires,
        sym.simplify(work),
        pairs,
        _packer(split),
        str(split.kernel),
        device=on_device,
        externs=_externs(split.kernel),
        shared=frozenset(
            each.name
            for loop in walk(split.kernel.body)
            if isinstance(loop, For) and loop.kind == PARALLEL
            for each in walk(loop)
            if isinstance(each, Block)
        ),
    )


def _externs(fn: Function) -> tuple[str, ...]:
    """The library symbols that a function calls."""
    calls = (stmt.symbol for stmt in walk(fn.body) if isinstance(stmt, ExternCall))
    return tuple(dict.fromkeys(calls))


def _packer(split: Split) -> Packer | None:
    """The packer, named by a digest of its code so that kernels share equal packers."""
    if split.packer is None:
        return None
    text = canonical_text(replace(split.packer, name="pack"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    source = replace(split.packer, name=f"pack_{digest}")
    return Packer(text, signature_of(source), split.weights, source)


def _with_weights(split: Split, constants: frozenset[int]) -> Function:
    """The kernel annotated with the parameters that are weights."""
    found = tuple(
        [
            at
            for at, param in enumerate(split.params)
            if isinstance(param, Packed) or param.position in constants
        ]
    )
    return replace(split.kernel, attrs=annotated(split.kernel.attrs, WEIGHTS, found))


def _device_image(fn: Function, target: Target) -> bytes:
    """The PTX of a function and its launch steps, pickled."""
    device = lower(fn, "gpu", PassContext(target=target))
    return pickle.dumps(device_code(device, target))


def _image(
    fn: Function,
    target: Target,
    *,
    is_packer: bool,
    is_scheduled: bool = True,
    in_place: tuple[tuple[int, int], ...] = (),
) -> bytes:
    """The object code of a function: a packer has an entry that checks arguments, a kernel has
    none."""
    machine = llvm.machine_of(target)
    flat = lower_for(fn, target)
    assert not any(isinstance(stmt, TensorCall) for stmt in walk(flat.body))
    module = new_module(machine)
    if is_packer:
        emit_function(module, machine, flat)
    else:
        emit_kernel(module, machine, flat, in_place=in_place)
    made = optimized(module.text(), flat, machine, runs_once=is_packer, is_scheduled=is_scheduled)
    return llvm.to_object(made, machine)
