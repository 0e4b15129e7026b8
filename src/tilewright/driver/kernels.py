"""What a kernel is made from, what is made of it, and those that were made before.

A job holds all that a kernel depends on, so equal jobs (the layers of a transformer, say) are one,
kernels are compiled in several processes at once (`driver/kernel_code.py`), and a kernel that was
compiled before is read from the cache on disk, without the parts of the compiler that make one.
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
RECORDED = "tuned plan"  # of a record that does not fit the rules any more
COMPILER = ("base", "sym", "tensor", "intrin", "te", "graph", "lower", "rules", "codegen", "driver")
_WORD = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class KernelSetting:
    """What all kernels of a model are compiled for."""

    target: Target
    threads: int
    schedule: bool = True  # False: loops as lowering made them
    packing: bool = True  # False: weights are read as they are
    ranges: tuple[tuple[Var, int, int], ...] = ()  # sizes of the model: least and greatest
    libraries: tuple[str, ...] = ()  # that kernels may call

    @property
    def key(self) -> str:
        return f"{self.target.key} threads={self.threads} schedule={self.schedule}"


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to be: a graph, or a function that is lowered already."""

    label: str  # what people call it
    source: Graph | Function
    numbers: Mapping[str, np.ndarray[Any, Any]]  # the constants in the graph
    constants: frozenset[int]  # parameters that are weights, by position
    setting: KernelSetting
    choices: Mapping[str, Choice] = field(default_factory=dict)  # rules and plans that are given
    recorded: bool = False  # by tuning of before: what does not fit any more is left out

    @property
    def key(self) -> str:
        """Equal text means an equal kernel."""
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
        """Sizes of its operands that are known to be in a range, by where they come among all.

        A kernel that has none as an operand's size may be what checks the range.
        """
        if not isinstance(self.source, Graph) or not self.setting.ranges:
            return ()
        taken = free_vars(*[dim for value in self.source.params for dim in _dims(value)])
        places = {size: at for at, size in enumerate(sizes_of(self.source)) if size in taken}
        return tuple(
            (places[size], size, low, high)
            for size, low, high in self.setting.ranges
            if isinstance(size, Size) and size in places
        )

    @property
    def name(self) -> str:
        """A symbol that no other kernel has."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:12]
        return f"{_WORD.sub('_', self.label)[:40]}_{digest}"


def within_ranges(fn: Function, job: Job) -> Function:
    """The function of a job with what is known of its sizes, as conditions to rely on."""
    known = {*fn_sizes_of(fn), *(param for param in fn.params if isinstance(param, Var))}
    found = [(size, low, high) for _, size, low, high in job.ranges if size in known]
    more = [cond for size, low, high in found for cond in (sym.le(low, size), sym.le(size, high))]
    return replace(fn, requires=(*fn.requires, *more))


def _dims(value: Value) -> tuple[Expr, ...]:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()


@dataclass(frozen=True, slots=True)
class Packer:
    """What turns weights into the form a kernel reads, once. Kernels share it: see PackerJob."""

    text: str = field(repr=False)  # equal text means an equal packer
    signature: Signature
    weights: tuple[int, ...]  # the job's parameters that it takes
    source: Function | None = field(default=None, repr=False)  # None: it was compiled before


@dataclass(frozen=True, slots=True)
class PackerJob:
    """A packer to be."""

    label: str
    text: str
    source: Function
    target: Target


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
    decisions: tuple[Decision, ...] = ()  # by which rules, with which plans
    refusals: tuple[Refusal, ...] = ()  # what rules would have done, and why they could not
    device: bool = False  # the image is a pickled DeviceCode, not an object
    tuned: bool = False  # with choices that tuning found
    externs: tuple[str, ...] = ()  # symbols of libraries that it calls
    shared: frozenset[str] = frozenset()  # blocks whose work threads share out

    def predicted_ns(self, *, is_shared: bool) -> float:
        """How long the blocks take that threads share out, or those that one does alone."""
        found = [d for d in self.decisions if self._is_shared(d.block) is is_shared]
        return sum(decision.predicted_ns for decision in found)

    def _is_shared(self, block: str) -> bool:
        """Whether threads share out a block, or one that was taken out of it."""
        return any(name == block or name.startswith(f"{block}_") for name in self.shared)

    @property
    def fell_back(self) -> str:
        """Why no rule of its own schedules the kernel; "" where one does."""
        return why_fell_back(self.decisions, self.refusals)


def try_cached(job: Job) -> Kernel | None:
    """The kernel, if it was compiled before."""
    stored = cache.try_read(cache_key(job.setting.target, job.key))
    if stored is None:
        return None
    kernel: Kernel = pickle.loads(stored)
    return kernel


def store(job: Job, kernel: Kernel) -> None:
    """Keep a kernel for the next time; its packer has an entry of its own."""
    if kernel.packer is not None:
        kernel = replace(kernel, packer=replace(kernel.packer, source=None))
    cache.write(cache_key(job.setting.target, job.key), pickle.dumps(kernel))


def try_cached_packer(text: str, target: Target) -> bytes | None:
    """The object code of a packer, if it was compiled before."""
    return cache.try_read(cache_key(target, f"packer\n{text}"))


def store_packer(job: PackerJob, image: bytes) -> None:
    cache.write(cache_key(job.target, f"packer\n{job.text}"), image)


def packing_target(target: Target) -> Target:
    """Where weights are packed: here, whatever machine the kernels are for."""
    return target if can_run(target) else Target.host()


def cache_key(target: Target, key: str) -> str:
    """What code for a target is kept under, by this compiler."""
    machine = nvptx.machine(target) if target.kind == CUDA else llvm.machine_of(target)
    made_by = f"{cache.fingerprint(COMPILER)}\n{CHECKED}"  # checked nodes pickle otherwise
    return f"{made_by}\n{llvm.VERSION}\n{target.key}\n{machine!r}\n{key}"
