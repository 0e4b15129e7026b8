"""A model that calls its kernels through a table, so that any of them can be exchanged.

    model = TableModule(program, target, threads)
    table = model.new_table(); model.install(table, name, installed)
    run, work = model.timed(table, inputs)

Each kernel comes with an adapter of its signature and, for every call site, with the weights packed
as it needs them. Several tables may exist; a run uses one of them, without any cost of switching.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.base.target import Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.adapter import adapter_image, adapter_name
from tilewright.codegen.build import new_module
from tilewright.codegen.entry import signature_of
from tilewright.codegen.host import TABLE, emit_main, input_function
from tilewright.driver.kernel_code import compile_kernel, compile_packer
from tilewright.driver.kernels import Job, Kernel, PackerJob, packing_target
from tilewright.driver.libraries import linked
from tilewright.driver.lowering import SitedProgram, in_place_of
from tilewright.graph.memory import plan_memory
from tilewright.runtime import empty
from tilewright.runtime.module import Module, Spec
from tilewright.runtime.profiler import profile

Array = np.ndarray[Any, Any]
NAME = "model"
EVENTS = 1 << 14  # kernel calls per run that the profiler can tell apart


@dataclass(frozen=True)
class Built:
    """The object code of a candidate: plain data, for any process."""

    kernel: Kernel
    adapter: bytes = field(repr=False)  # empty on a GPU, where there are no call tables
    packer: bytes | None = field(repr=False)

    @staticmethod
    def of(kernel: Kernel, packer: bytes | None, target: Target) -> Built:
        """A compiled kernel, with the code of its packer if it has one."""
        if kernel.device:
            return Built(kernel, b"", packer)
        adapter = adapter_image(kernel.name, kernel.params, len(kernel.scalars), target)
        return Built(kernel, adapter, packer)


def built(job: Job, *, use_cache: bool = False) -> Built:
    """Compile a kernel with all that a table needs."""
    kernel = compile_kernel(job, use_cache=use_cache)
    target = job.setting.target
    if kernel.packer is None:
        return Built.of(kernel, None, target)
    source = kernel.packer.source
    assert source is not None
    packer = PackerJob(kernel.name, kernel.packer.text, source, packing_target(target))
    return Built.of(kernel, compile_packer(packer, use_cache=use_cache), target)


def fits(built: Built, default: Kernel) -> str:
    """Why a kernel cannot replace its job's default; "" if it can."""
    kernel = built.kernel
    if len(kernel.scalars) != len(default.scalars):
        return "it takes other sizes than the default kernel"
    if len(kernel.requires) != len(default.requires):
        return "it requires other sizes than the default kernel"
    if not set(in_place_of(default)) <= set(in_place_of(kernel)):
        return "it cannot write its result in place, as the default kernel does"
    return ""


class Weights:
    """Packs those inputs of a call that a kernel reads as weights."""

    def __init__(self, built: Built, target: Target) -> None:
        self._packer = packer = built.kernel.packer
        self._pack: Any = None
        if packer is not None:
            assert built.packer is not None
            name = packer.signature.name
            machine = llvm.machine_of(packing_target(target))
            code = jit.load([built.packer], (name,), (), machine)
            self._pack = packer.signature.bind(code.addresses[name], code)

    def packed(self, inputs: Mapping[int, Array]) -> list[Array]:
        """The packed weights for a call's inputs."""
        packer = self._packer
        if packer is None:
            return []
        results = packer.signature.params[len(packer.weights) :]
        made = [empty(tuple(map(int, each.shape)), each.dtype).numpy() for each in results]  # type: ignore[arg-type]
        for array in made:
            array[...] = 0  # layouts may have padding that the packer does not write
        given = [np.asarray(inputs[at], order="C") for at in packer.weights]
        self._pack(*given, *made)
        return made


class Installed:
    """A kernel that is loaded in this process."""

    def __init__(self, built: Built, target: Target, threads: int = 1) -> None:
        self.kernel = built.kernel
        self.weights = Weights(built, target)
        machine = llvm.machine_of(target)
        name = adapter_name(built.kernel.name)
        images = [built.kernel.image, built.adapter]
        self._code = jit.load(images, (name,), linked([built.kernel], threads), machine)
        self.address = self._code.addresses[name]


class Table:
    """The addresses of a kernel and its packed weights for each call site."""

    def __init__(self, sites: int) -> None:
        self.memory = (ctypes.c_void_p * (2 * max(1, sites)))()
        self._owners: dict[int, tuple[Installed, list[Array], Any]] = {}

    def set(self, site: int, kernel: Installed, packed: list[Array]) -> None:
        pointers = (ctypes.c_void_p * max(1, len(packed)))(*(each.ctypes.data for each in packed))
        self._owners[site] = (kernel, packed, pointers)
        self.memory[2 * site] = kernel.address
        self.memory[2 * site + 1] = ctypes.addressof(pointers)

    def copy(self, site: int, other: Table) -> None:
        """Copy a site's entry from another table."""
        kernel, packed, pointers = other._owners[site]
        self._owners[site] = (kernel, packed, pointers)
        self.memory[2 * site] = kernel.address
        self.memory[2 * site + 1] = ctypes.addressof(pointers)


@dataclass(frozen=True)
class Run:
    """One run of a model: its total time, and the time of each site's calls."""

    outputs: tuple[Array, ...]
    whole_ns: float
    site_ns: Mapping[int, float]


@dataclass(frozen=True)
class Work:
    """The work of a site in one run."""

    flops: int
    size_bytes: int


class TableModule:
    """A model in this process that runs with any of several tables."""

    def __init__(
        self,
        program: SitedProgram,
        target: Target,
        threads: int,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        *,
        in_place: bool = True,
    ) -> None:
        self.program, self.target = program, target
        model = program.module
        plan = plan_memory(model.main, in_place=in_place)
        machine = llvm.machine_of(target)
        text = new_module(machine)
        places = {name: at for at, name in enumerate((*model.constants, TABLE))}
        emit_main(text, machine, model, plan, NAME, program.kernels, places)
        image = llvm.to_object(llvm.parse(text.text()), machine)
        code = jit.load([image], (f"{NAME}_main",), (), machine)
        self._weights = [np.asarray(each, order="C") for each in model.constants.values()]
        addresses = [each.ctypes.data for each in self._weights]
        self._constants = (ctypes.c_void_p * (len(addresses) + 1))(*addresses, 0)
        self._module = Module(
            code.addresses[f"{NAME}_main"],
            signature_of(input_function(model.main, NAME)),
            inputs,
            outputs,
            ctypes.addressof(self._constants),
            code,
            threads,
        )

    def new_table(self) -> Table:
        return Table(len(self.program.sites))

    def install(self, table: Table, name: str, kernel: Installed) -> None:
        """Make all call sites of a job call a kernel."""
        constants = self.program.module.constants
        packed: dict[tuple[str, ...], list[Array]] = {}
        for at, site in enumerate(self.program.sites):
            if site.kernel != name:
                continue
            weights = tuple(site.weights.values())
            if weights not in packed:
                given = {position: constants[each] for position, each in site.weights.items()}
                packed[weights] = kernel.weights.packed(given)
            table.set(at, kernel, packed[weights])

    def run(self, table: Table, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> Run:
        """One run, timed as a whole."""
        self._constants[len(self._weights)] = ctypes.addressof(table.memory)
        begin = time.perf_counter_ns()
        outputs = self._module(*inputs, out=out)
        spent = time.perf_counter_ns() - begin
        return Run(tuple(map(np.asarray, outputs)), spent, {})

    def timed(
        self, table: Table, inputs: Sequence[Array], repeat: int = 1
    ) -> tuple[Run, Mapping[int, Work]]:
        """The mean time of some runs, in total and per site, after a warm-up run that wakes the
        threads and fills the caches."""
        self.run(table, inputs)
        whole_ns = 0.0
        with profile(EVENTS) as record:
            for _ in range(repeat):
                run = self.run(table, inputs)
                whole_ns += run.whole_ns
        times: dict[int, float] = {}
        work: dict[int, Work] = {}
        for event in record.events:
            site = int(event.kernel)
            times[site] = times.get(site, 0.0) + event.duration_ns / repeat
            known = work.get(site, Work(0, 0))
            work[site] = Work(known.flops + event.flops, known.size_bytes + event.size_bytes)
        done = {
            at: Work(each.flops // repeat, each.size_bytes // repeat) for at, each in work.items()
        }
        return Run(run.outputs, whole_ns / repeat, times), done
