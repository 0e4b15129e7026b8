"""Kernels as data: the job that describes one, the compiled result, and the cache of both.

A job holds everything a kernel depends on. So equal jobs (the layers of a transformer, say) are
compiled once, jobs can be compiled in other processes (`driver/kernel_code.py`), and a kernel that
was compiled before is read from the disk cache without loading the code generator.
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
from tilewright.base.intern import CHECKED
from tilewright.base.target import CUDA, Target
from tilewright.codegen import cache, llvm, nvptx
from tilewright.codegen.build import can_run
from tilewright.graph.ir import Graph, Value
from tilewright.graph.printer import Printer
from tilewright.graph.types import TensorType
from tilewright.lower.graph import sizes_of
from tilewright.rules.rule import Choice, Decision, Refusal, why_fell_back
from tilewright.runtime.signature import Signature
from tilewright.sym import Expr, Size, Var, free_vars
from tilewright.tensor.constants import Given, Packed
from tilewright.tensor.ir import Function
from tilewright.tensor.ir import sizes_of as fn_sizes_of
from tilewright.tensor.printer import Printer as TensorPrinter

BLAS = "blas"
RECORDED = "tuned plan"  # the rule named in a refusal when a tuning record no longer fits the rules
COMPILER = ("base", "sym", "tensor", "intrin", "te", "graph", "lower", "rules", "codegen", "driver")
_WORD = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class KernelSetting:
    """The target and options that all kernels of a model share."""

    target: Target
    threads: int
    schedule: bool = True  # False: plain loops, as lowering made them
    packing: bool = True  # False: weights are not packed
    ranges: tuple[tuple[Var, int, int], ...] = ()  # bounds of the model's dynamic sizes
    libraries: tuple[str, ...] = ()  # libraries that kernels may call

    @property
    def key(self) -> str:
        return f"{self.target.key} threads={self.threads} schedule={self.schedule}"


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to be compiled: a graph, or a function that is already lowered."""

    label: str  # for people and symbol names
    source: Graph | Function
    numbers: Mapping[str, np.ndarray[Any, Any]]  # the constants in the graph
    constants: frozenset[int]  # parameters that are weights, by position
    setting: KernelSetting
    choices: Mapping[str, Choice] = field(default_factory=dict)  # given rules and plans, by block
    # whether the choices are from a tuning record: one that no longer fits is ignored
    recorded: bool = False

    @property
    def key(self) -> str:
        """The job as text: equal keys mean equal kernels."""
        if isinstance(self.source, Graph):
            printer = Printer(self.numbers, canonical=True)
            printer.graph(self.source, "graph")
            text = printer.out.text()
        else:
            text = TensorPrinter(canonical=True).function(self.source)
        given = [f"{name}: {each.rule} {each.plan}" for name, each in sorted(self.choices.items())]
        known = [f"{at}: {low}..{high}" for at, _, low, high in self.ranges]
        bounded = f" sizes={known}" if known else ""
        allowed = "".join(f" library={each}" for each in self.setting.libraries)
        decided = f"constants={sorted(self.constants)} {given}{bounded}{allowed}"
        return f"{self.setting.key} {decided}\n{text}"

    @property
    def ranges(self) -> tuple[tuple[int, Size, int, int], ...]:
        """Bounds of the dynamic sizes of its operands, with their positions among all sizes.

        Sizes that are no dimension of an operand are left out: this kernel may be the one that
        checks the bound.
        """
        if not isinstance(self.source, Graph) or not self.setting.ranges:
            return ()
        operand_sizes = free_vars(*[dim for value in self.source.params for dim in _dims(value)])
        places = {
            size: at for at, size in enumerate(sizes_of(self.source)) if size in operand_sizes
        }
        return tuple(
            (places[size], size, low, high)
            for size, low, high in self.setting.ranges
            if isinstance(size, Size) and size in places
        )

    @property
    def name(self) -> str:
        """A symbol that is unique to this job."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:12]
        return f"{_WORD.sub('_', self.label)[:40]}_{digest}"


def within_ranges(fn: Function, job: Job) -> Function:
    """The job's function with the bounds of its sizes as preconditions."""
    known = {*fn_sizes_of(fn), *(param for param in fn.params if isinstance(param, Var))}
    found = [(size, low, high) for _, size, low, high in job.ranges if size in known]
    more = [cond for size, low, high in found for cond in (sym.le(low, size), sym.le(size, high))]
    return replace(fn, requires=(*fn.requires, *more))


def _dims(value: Value) -> tuple[Expr, ...]:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()


@dataclass(frozen=True, slots=True)
class Packer:
    """Rearranges weights into the layout that a kernel reads, once; kernels share packers."""

    text: str = field(repr=False)  # equal text means an equal packer
    signature: Signature
    weights: tuple[int, ...]  # positions of the job's parameters that it reads
    # None: compiled before, from the cache
    source: Function | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class PackerJob:
    """A packer to be compiled."""

    label: str
    text: str
    source: Function
    target: Target


@dataclass(frozen=True, slots=True)
class Kernel:
    """Object code, how to call it, and how it was scheduled."""

    name: str
    image: bytes = field(repr=False)
    params: tuple[Given | Packed, ...]  # the source of each pointer argument
    scalars: tuple[Var, ...]
    requires: tuple[Expr, ...]  # preconditions on the scalars
    flops: Expr
    in_place: tuple[tuple[int, int], ...]  # pairs of pointers that may alias
    packer: Packer | None
    text: str = field(repr=False)  # the scheduled function
    decisions: tuple[Decision, ...] = ()  # the rules and plans that were applied
    refusals: tuple[Refusal, ...] = ()  # the rules that could not be applied, and why
    device: bool = False  # the image is a pickled DeviceCode, not an object
    tuned: bool = False  # whether tuning chose the plans
    externs: tuple[str, ...] = ()  # symbols of libraries that it calls
    shared: frozenset[str] = frozenset()  # blocks that run on several threads

    def predicted_ns(self, *, is_shared: bool) -> float:
        """The predicted time of the blocks that run on several threads, or of those that run on
        one."""
        found = [d for d in self.decisions if self._is_shared(d.block) is is_shared]
        return sum(decision.predicted_ns for decision in found)

    def _is_shared(self, block: str) -> bool:
        """Whether a block, or one split off from it, runs on several threads."""
        return any(name == block or name.startswith(f"{block}_") for name in self.shared)

    @property
    def fell_back(self) -> str:
        """Why the kernel has only a generic schedule; "" if a rule of its own applied."""
        return why_fell_back(self.decisions, self.refusals)


def try_cached(job: Job) -> Kernel | None:
    """The cached kernel of a job, if there is one."""
    stored = cache.try_read(cache_key(job.setting.target, job.key))
    if stored is None:
        return None
    kernel: Kernel = pickle.loads(stored)
    return kernel


def store(job: Job, kernel: Kernel) -> None:
    """Cache a kernel; its packer has an entry of its own."""
    if kernel.packer is not None:
        kernel = replace(kernel, packer=replace(kernel.packer, source=None))
    cache.write(cache_key(job.setting.target, job.key), pickle.dumps(kernel))


def try_cached_packer(text: str, target: Target) -> bytes | None:
    """The cached object code of a packer, if there is any."""
    return cache.try_read(cache_key(target, f"packer\n{text}"))


def store_packer(job: PackerJob, image: bytes) -> None:
    cache.write(cache_key(job.target, f"packer\n{job.text}"), image)


def packing_target(target: Target) -> Target:
    """The target of packers: they run at compile time, on this machine."""
    return target if can_run(target) else Target.host()


def cache_key(target: Target, key: str) -> str:
    """The cache key of code for a target, made by this version of the compiler."""
    machine = nvptx.machine(target) if target.kind == CUDA else llvm.machine_of(target)
    # nodes pickle differently with checks enabled
    made_by = f"{cache.fingerprint(COMPILER)}\n{CHECKED}"
    return f"{made_by}\n{llvm.VERSION}\n{target.key}\n{machine!r}\n{key}"
