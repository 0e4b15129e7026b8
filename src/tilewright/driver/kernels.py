"""One kernel: from the graph it computes to object code, in any process.

    kernel = compile_kernel(Job(...))

A job holds all that a kernel depends on, so equal jobs (the layers of a transformer, say) are one,
kernels are compiled in several processes at once, and a kernel that was compiled before is read
from the cache on disk.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.target import Target
from tilewright.codegen import cache, llvm
from tilewright.codegen.build import can_run, lower_for, new_module
from tilewright.codegen.entry import emit_function, emit_kernel, signature_of
from tilewright.graph.ir import Graph
from tilewright.graph.printer import Printer
from tilewright.lower.graph import lower_graph
from tilewright.rules import default_schedule
from tilewright.rules.constants import Given, Packed, split_constant_blocks
from tilewright.runtime.signature import Signature
from tilewright.sym import Expr, Var
from tilewright.tensor.in_place import in_place_pairs
from tilewright.tensor.ir import Function, TensorCall
from tilewright.tensor.printer import Printer as TensorPrinter
from tilewright.tensor.visit import walk
from tilewright.tensor.work import flops_of

COMPILER = ("base", "sym", "tensor", "intrin", "te", "graph", "lower", "rules", "codegen", "driver")
_WORD = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class KernelSetting:
    """What all kernels of a model are compiled for."""

    target: Target
    threads: int
    schedule: bool = True  # False: loops as lowering made them

    @property
    def key(self) -> str:
        return f"{self.target} threads={self.threads} schedule={self.schedule}"


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to be: a graph, or a function that is lowered already."""

    label: str  # what people call it
    source: Graph | Function
    numbers: Mapping[str, np.ndarray[Any, Any]]  # the constants in the graph
    constants: frozenset[int]  # parameters that are weights, by position
    setting: KernelSetting

    @property
    def key(self) -> str:
        """Equal text means an equal kernel."""
        if isinstance(self.source, Graph):
            printer = Printer(self.numbers, canonical=True)
            printer.graph(self.source, "graph")
            text = printer.out.text()
        else:
            text = TensorPrinter(canonical=True).function(self.source)
        return f"{self.setting.key} constants={sorted(self.constants)}\n{text}"

    @property
    def name(self) -> str:
        """A symbol that no other kernel has."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:12]
        return f"{_WORD.sub('_', self.label)[:40]}_{digest}"


@dataclass(frozen=True, slots=True)
class Packer:
    """What turns weights into the form a kernel reads, once."""

    image: bytes
    signature: Signature
    weights: tuple[int, ...]  # the job's parameters that it takes


@dataclass(frozen=True, slots=True)
class Kernel:
    """Object code, and how to call it."""

    name: str
    image: bytes = field(repr=False)
    params: tuple[Given | Packed, ...]  # where each pointer it takes comes from
    scalars: tuple[Var, ...]
    requires: tuple[Expr, ...]  # over the scalars
    flops: Expr
    in_place: tuple[tuple[int, int], ...]  # pointers that may be the same memory
    packer: Packer | None
    text: str = field(repr=False)  # the scheduled function


def compile_kernel(job: Job, *, use_cache: bool = True) -> Kernel:
    """The kernel of a job, compiled or from the cache."""
    key = (
        f"{cache.fingerprint(COMPILER)}\n{llvm.VERSION}\n{llvm.machine_of(job.setting.target)!r}\n"
    )
    key += job.key
    stored = cache.try_read(key) if use_cache else None
    if stored is not None:
        kernel: Kernel = pickle.loads(stored)
        return kernel
    kernel = _compiled(job)
    if use_cache:
        cache.write(key, pickle.dumps(kernel))
    return kernel


def try_cached(job: Job) -> Kernel | None:
    """The kernel, if it was compiled before."""
    key = (
        f"{cache.fingerprint(COMPILER)}\n{llvm.VERSION}\n{llvm.machine_of(job.setting.target)!r}\n"
    )
    stored = cache.try_read(key + job.key)
    if stored is None:
        return None
    kernel: Kernel = pickle.loads(stored)
    return kernel


def _cache_key(job: Job) -> str:
    machine = llvm.machine_of(job.setting.target)
    return f"{cache.fingerprint(COMPILER)}\n{llvm.VERSION}\n{machine!r}\n{job.key}"


def packing_target(target: Target) -> Target:
    """Where weights are packed: here, whatever machine the kernels are for."""
    return target if can_run(target) else Target.host()


def _compiled(job: Job) -> Kernel:
    fn = job.source
    if isinstance(fn, Graph):
        fn = lower_graph(fn, job.name, job.numbers)
    else:
        fn = replace(fn, name=job.name)
    target = job.setting.target
    work = flops_of(fn)
    weights = tuple(fn.params[at].name for at in sorted(job.constants))
    scheduled = fn
    if job.setting.schedule:
        scheduled = default_schedule(
            fn, target, threads=job.setting.threads, constants=weights
        ).function
    split = split_constant_blocks(scheduled)
    packer = None
    if split.packer is not None:
        signature = signature_of(split.packer)
        image = _image(split.packer, packing_target(target), entry=True)
        packer = Packer(image, signature, split.weights)
    pairs = in_place_pairs(split.kernel)
    return Kernel(
        job.name,
        _image(split.kernel, target, entry=False, in_place=pairs),
        split.params,
        tuple(param for param in split.kernel.params if isinstance(param, Var)),
        split.kernel.requires,
        sym.simplify(work),
        pairs,
        packer,
        str(split.kernel),
    )


def _image(
    fn: Function, target: Target, *, entry: bool, in_place: tuple[tuple[int, int], ...] = ()
) -> bytes:
    """The object code of one function: with an entry that checks arguments, or bare."""
    machine = llvm.machine_of(target)
    flat = lower_for(fn, target)
    assert not any(isinstance(stmt, TensorCall) for stmt in walk(flat.body))
    module = new_module(machine)
    if entry:
        emit_function(module, machine, flat)
    else:
        emit_kernel(module, machine, flat, in_place=in_place)
    parsed = llvm.parse(module.text())
    llvm.optimize(parsed, machine)
    return llvm.to_object(parsed, machine)
