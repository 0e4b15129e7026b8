"""From a tensor function to a callable: lower, emit, optimize, load.

run = build(fn, target="cpu")
run(a, b, c)            # fills c; sizes come from the arguments
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.builder import ModuleText
from tilewright.codegen.entry import emit_function, signature_of
from tilewright.codegen.machine import Machine
from tilewright.codegen.math import expand_math
from tilewright.runtime.signature import Signature
from tilewright.tensor import ir
from tilewright.tensor.ir import Function
from tilewright.tensor.visit import walk


def emit_module(fn: Function, machine: Machine) -> str:
    """The LLVM IR of a flat function."""
    if fn.stage != ir.FLAT:
        raise UserError("TW3004", f"@{fn.name} is of stage {fn.stage}, expected flat")
    attributes = [
        "nounwind",
        "mustprogress",
        f'"target-cpu"="{machine.cpu}"',
        f'"target-features"="{machine.features}"',
        *machine.function_attributes,
    ]
    module = ModuleText(machine.triple, llvm.data_layout(machine), " ".join(attributes))
    emit_function(module, machine, expand_math(fn), {})
    return module.text()


@dataclass(eq=False)
class CompiledFunction:
    """Native code of one tensor function: call it with arrays, outputs among them."""

    function: Function
    target: Target
    signature: Signature
    image: bytes
    _native: Any

    def __call__(self, *args: Any, threads: int = 0) -> None:
        if threads:
            self._native(*args, threads=threads)
        else:
            self._native(*args)

    @property
    def address(self) -> int:
        """The entry's address: `int32_t (*)(const DLTensor *const *, int32_t)`."""
        address: int = self._native.address
        return address


def build(fn: Function, target: str | Target = "cpu") -> CompiledFunction:
    """Compile a tensor function for this machine and load it."""
    chosen = Target.parse(target)
    machine = llvm.machine_of(chosen)
    module = llvm.parse(emit_module(fn, machine))
    llvm.optimize(module, machine)
    image = llvm.to_object(module, machine)
    externs = tuple(
        dict.fromkeys(stmt.symbol for stmt in walk(fn.body) if isinstance(stmt, ir.ExternCall))
    )
    loaded = jit.load(image, (fn.name,), externs, machine)
    signature = signature_of(fn)
    native = signature.bind(loaded.addresses[fn.name], loaded)
    return CompiledFunction(fn, chosen, signature, image, native)
