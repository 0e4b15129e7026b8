"""What a saved model holds besides its kernels and its main.

    NAME                 int32_t (const DLTensor *const *args, int32_t n_args): inputs, then outputs
    NAME_constants       the addresses of the weights
    NAME_foreign         who runs its parts on an accelerator, where there are such
    tilewright_manifest  what loading must know, as JSON

Weights lie in a section of their own that is mapped from the file and never written: they take
memory only as they are read, and once for all processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.target import Target
from tilewright.codegen import llvm
from tilewright.codegen.artifact import constants_name, foreign_name, set_foreign_name
from tilewright.codegen.build import new_module
from tilewright.codegen.builder import ModuleText, Value, symbol
from tilewright.codegen.entry import emit_signature
from tilewright.runtime.library import MANIFEST
from tilewright.runtime.signature import Signature

ENTRY = "{ ptr, ptr, ptr, ptr, i32, ptr }"
PROGRAM = "{ ptr, ptr, ptr, ptr, i64, ptr }"  # tw_accel_program in runtime/native/accel/parts.h
SECTION = ".tw_weights"
ALIGN = 64
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Accelerator:
    """What the library's own driver needs to run a model's parts."""

    backend: str
    numbers: tuple[int, ...]  # as runtime/native/accel/parts.c reads them
    timeout_cycles: int
    kernels: tuple[str, ...]  # functions that a simulator calls; other backends need none


def entry_object(
    signature: Signature,
    n_inputs: int,
    main: str,
    places: Iterable[int],
    text: str,
    target: Target,
    *,
    foreign: bool = False,
    accelerator: Accelerator | None = None,
) -> bytes:
    """The object with a model's entry, its table of constants and its manifest.

    `places` tells where in the block of weights each constant starts; a model with `foreign` parts
    also has a function that takes who runs them, unless its `accelerator` does.
    """
    machine = llvm.machine_of(target)
    module = new_module(machine)
    runner = "null" if accelerator is None else _emit_runner(module, signature.name, accelerator)
    entry = _emit_entry(module, signature, n_inputs, main, list(places), runner)
    if foreign:
        name = set_foreign_name(signature.name)
        with module.function("i32", name, (("ptr", "foreign"),)) as (b, (given,)):
            b.ret(b.call("tw_set_foreign", "i32", entry, given))
    module.global_lines.append(f"@{MANIFEST} = constant {module.string(text)}")
    return llvm.to_object(llvm.parse(module.text()), machine)


def _emit_entry(
    module: ModuleText,
    signature: Signature,
    n_inputs: int,
    main: str,
    places: list[int],
    runner: str,
) -> Value:
    name = signature.name
    module.declare("i32", main, ["ptr", "ptr", "i32"])
    module.global_lines += [
        f"@{name}_weights = external hidden constant i8",
        f"@{constants_name(name)} = constant [{max(1, len(places))} x ptr] {_table(name, places)}",
        f"@{name}.instance = internal global ptr null",
    ]
    fields = ", ".join(
        (
            str(emit_signature(module, signature)),
            f"ptr @{main}",
            f"ptr @{constants_name(name)}",
            f"ptr @{name}.instance",
            f"i32 {n_inputs}",
            f"ptr {runner}",
        )
    )
    entry = module.constant(f"{name}.entry", ENTRY, f"{{ {fields} }}")
    params = (("ptr", "args"), ("i32", "n_args"))
    with module.function("i32", name, params) as (b, (args, n_args)):
        b.ret(b.call("tw_run_model", "i32", entry, args, n_args))
    return entry


def _emit_runner(module: ModuleText, name: str, accelerator: Accelerator) -> str:
    """The callbacks that run parts on an accelerator: their symbol."""
    run = module.declare("i32", "tw_accel_run_part", ["ptr", "i32", "ptr", "i32", "ptr", "ptr"])
    fetch = module.declare("i32", "tw_accel_fetch_part", ["ptr", "i32", "ptr", "i32"])
    body = ", ".join(f"i64 {number}" for number in accelerator.numbers)
    numbers = module.constant(f"{name}.parts", f"[{len(accelerator.numbers)} x i64]", f"[{body}]")
    waiting = f"@{name}.waiting"
    module.global_lines.append(f"{waiting} = internal global ptr null")
    fields = (
        str(numbers),
        f"ptr @{name}_weights",
        str(module.string(accelerator.backend)),
        f"ptr {waiting}",
        f"i64 {accelerator.timeout_cycles}",
        str(_emit_kernels(module, name, accelerator.kernels)),
    )
    program = module.constant(f"{name}.program", PROGRAM, f"{{ {', '.join(fields)} }}")
    runner = f"@{foreign_name(name)}"
    callbacks = f"ptr {run}, ptr {fetch}, {program}"
    module.global_lines.append(f"{runner} = constant {{ ptr, ptr, ptr }} {{ {callbacks} }}")
    return runner


def _emit_kernels(module: ModuleText, name: str, kernels: tuple[str, ...]) -> Value | str:
    """The table of a simulator's kernels: tw_accel_kernels."""
    if not kernels:
        return "ptr null"
    found = ", ".join(f"ptr {module.declare('i32', one, ['ptr', 'i32'])}" for one in kernels)
    return module.constant(f"{name}.kernels", f"[{len(kernels)} x ptr]", f"[{found}]")


def _table(name: str, places: list[int]) -> str:
    if not places:
        return "zeroinitializer"
    addresses = [f"ptr getelementptr (i8, ptr @{name}_weights, i64 {place})" for place in places]
    return f"[{', '.join(addresses)}]"


# --------------------------------------------------------------------------- weights


def places_of(weights: Iterable[Array]) -> Iterator[int]:
    """Where each array starts, one after the other."""
    place = 0
    for weight in weights:
        yield place
        place += -(-weight.nbytes // ALIGN) * ALIGN


def write_weights(folder: Path, name: str, weights: Iterable[Array], target: Target) -> Path:
    """An assembly file that includes the weights, which are written beside it."""
    data = folder / f"{name}.weights"
    with data.open("wb") as file:
        for weight in weights:
            file.write(np.ascontiguousarray(weight).reshape(-1).view(np.uint8).data)
            file.write(bytes(-weight.nbytes % ALIGN))
        if file.tell() == 0:
            file.write(bytes(ALIGN))  # the symbol needs a place
    source = folder / f"{name}_weights.S"
    source.write_text(_assembly(f"{name}_weights", data, target))
    return source


def _assembly(label: str, data: Path, target: Target) -> str:
    path = str(data).replace("\\", "\\\\").replace('"', '\\"')
    if "darwin" in target.triple or "macos" in target.triple:
        start = [".section __DATA,__const", f".globl _{label}", f".private_extern _{label}"]
        return "\n".join([*start, ".p2align 6", f"_{label}:", f'.incbin "{path}"', ""])
    lines = [
        f'.section {SECTION},"a",%progbits',
        f".globl {label}",
        f".hidden {label}",
        f".balign {ALIGN}",
        f"{label}:",
        f'.incbin "{path}"',
        '.section .note.GNU-stack,"",%progbits',
        "",
    ]
    return "\n".join(lines)


def c_name(text: str) -> str:
    """An identifier for C out of any text."""
    name = symbol(text).translate(str.maketrans(".$-", "___"))
    return name if name and not name[0].isdigit() else f"model_{name}"
