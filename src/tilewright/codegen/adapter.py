"""Kernels behind one signature, so that a table may hold any of them.

    int32_t NAME_adapter(void *const *args, const int64_t *sizes, void *const *packed)

`args` are the buffers in the order of the kernel's job, inputs and then results; `sizes` its
scalars and sizes; `packed` the weights as packed for this kernel. Kernels of the same job differ in
their parameters; their adapters do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.target import Target
from tilewright.codegen import llvm
from tilewright.codegen.build import new_module
from tilewright.codegen.builder import Value, i64
from tilewright.tensor.constants import Given, Packed


def adapter_name(kernel: str) -> str:
    return f"{kernel}_adapter"


def adapter_image(
    kernel: str, params: Sequence[Given | Packed], scalars: int, target: Target
) -> bytes:
    """The object code of a kernel's adapter. The last `scalars` parameters are scalars."""
    machine = llvm.machine_of(target)
    module = new_module(machine)
    buffers = params[: len(params) - scalars]
    callee = module.declare("i32", f"{kernel}_kernel", ["ptr"] * len(buffers) + ["i64"] * scalars)
    given = (("ptr", "args"), ("ptr", "sizes"), ("ptr", "packed"))
    with module.function("i32", adapter_name(kernel), given) as (b, (args, sizes, packed)):
        values: list[Value] = []
        for param in buffers:
            source = args if isinstance(param, Given) else packed
            values.append(b.load("ptr", b.offset("ptr", source, i64(param.position))))
        values += [b.load("i64", b.offset("i64", sizes, i64(at))) for at in range(scalars)]
        shown = ", ".join(map(str, values))
        b.ret(b.value("i32", f"call i32 {callee}({shown})"))
    return llvm.to_object(llvm.parse(module.text()), machine)
