"""The fence around llvmlite: host queries, verification, optimization, object code.

Every call into LLVM takes one process-wide lock, so compiling in parallel means several processes;
everything here therefore works from strings and bytes that travel between them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tilewright.base.errors import CompilerBug, Unsupported, UserError
from tilewright.base.target import ACCEL, CPU, WASM, Target
from tilewright.codegen import aarch64, arm, riscv, wasm, x86
from tilewright.codegen.machine import Machine
from tilewright.codegen.probe import check_machine

VERSION = ".".join(str(part) for part in llvm.llvm_version_info)

_FAMILIES = {
    "x86_64": x86.machine,
    "aarch64": aarch64.machine,
    "arm64": aarch64.machine,
    "riscv64": riscv.machine,
    "arm": arm.machine,
    "armv7": arm.machine,
    "armv7a": arm.machine,
    "thumb": arm.machine,
    "wasm32": wasm.machine,
}


@cache
def _start() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # inline assembly, of this architecture alone


@cache
def host_cpu() -> tuple[str, str]:
    """LLVM's name of this processor and the features it finds."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@cache
def machine_of(target: Target) -> Machine:
    """The machine description for a target that has code generation through this emitter."""
    if target.kind == ACCEL:
        raise Unsupported(
            "TW3006",
            f"target {target} has no code generator for single kernels",
            help="`tw.compile` runs models there; `tilewright.accel.compiler.compile_function` "
            "makes the stream of one scheduled function",
        )
    if target.kind not in (CPU, WASM):
        raise UserError(
            "TW3001",
            f"no CPU code generator for target {target}",
            help="use a cpu or wasm32 target here",
        )
    cpu, features = host_cpu() if target.is_host else (target.mcpu, "")
    asked = ",".join(target.attrs)
    features = ",".join(part for part in (features, asked) if part)
    machine = _FAMILIES[target.arch](target, cpu, features)
    check_machine(target, machine)
    return replace(machine, assembles=target.arch == Target.host().arch)


@cache
def target_machine(machine: Machine, opt_level: int = 3) -> Any:
    """LLVM's own target machine, kept: making one costs a millisecond."""
    _start()
    try:
        family = llvm.Target.from_triple(machine.triple)
    except RuntimeError as error:
        raise UserError(
            "TW3002", f"LLVM does not know the triple {machine.triple}: {error}"
        ) from error
    return family.create_target_machine(
        cpu=machine.cpu,
        features=machine.features,
        opt=opt_level,
        reloc=machine.relocation,
        codemodel="default",
        abiname=machine.abi,
    )


@cache
def data_layout(machine: Machine) -> str:
    return str(target_machine(machine).target_data)


def parse(text: str) -> Any:
    """A verified LLVM module. Text that LLVM refuses is our mistake."""
    _start()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompilerBug("TW3901", f"LLVM refuses the code emitted: {error}") from error
    return module


def optimize(module: Any, machine: Machine, *, unrolls: bool = True, slp: bool = False) -> None:
    """Run LLVM's O3 pipeline in place, with or without unrolling loops.

    `slp`: vectors of scalars in a row, too. Kernels for CPUs have none to find, and what is found
    in padded products of a few elements makes LLVM's code generator for x86 abort.
    """
    passes = _pass_builder(machine, unrolls=unrolls, slp=slp)
    passes.getModulePassManager().run(module, passes)


def _pass_builder(machine: Machine, *, unrolls: bool = True, slp: bool = False) -> Any:
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = slp
    options.loop_unrolling = unrolls
    return llvm.create_pass_builder(target_machine(machine), options)


def clean(module: Any, machine: Machine, *, unrolls: bool = True) -> None:
    """Turn memory into registers, and addresses into what instructions take, in place."""
    passes = llvm.create_new_module_pass_manager()
    if unrolls:
        passes.add_loop_unroll_pass()
    passes.add_sroa_pass()
    passes.add_new_gvn_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.run(module, _pass_builder(machine))


def to_object(module: Any, machine: Machine, opt_level: int = 3) -> bytes:
    emitted: bytes = target_machine(machine, opt_level).emit_object(module)
    return emitted


def to_assembly(module: Any, machine: Machine, opt_level: int = 3) -> str:
    emitted: str = target_machine(machine, opt_level).emit_assembly(module)
    return emitted
