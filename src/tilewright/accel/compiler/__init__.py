"""Compile scheduled tensor functions to streams.

    stream = compile_function(sch.function, Target.parse("vta-sim"))

A schedule copies into `vta.inp`, `vta.wgt` and `vta.acc`, computes there and stores from `vta.out`,
each step by `tensorize` (`accel/intrin.py`). `LOWER_ACCEL` allocates entries to buffers; `Folder`
folds loop nests into tasks; `insert_tokens` orders them. Functions run in the interpreter after
every pass, streams in the simulators.
"""

from __future__ import annotations

from tilewright.accel.compiler.assign_scratchpads import assign_scratchpads
from tilewright.accel.compiler.fold import Address, Folder
from tilewright.accel.compiler.tokens import insert_tokens
from tilewright.accel.isa.stream import Buffer, Stream, check_stream
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target, geometry_of
from tilewright.sym import Const
from tilewright.tensor.ir import Function
from tilewright.tensor.passes import (
    TensorPass,
    compact_buffers,
    expand_updates,
    inject_virtual_threads,
    lower_blocks,
    lower_inits,
    pipeline_loops,
    place_allocations,
    plan_double_buffers,
    remove_no_ops,
)
from tilewright.tensor.visit import output_buffers

LOWER_ACCEL: tuple[TensorPass, ...] = (
    lower_inits,
    plan_double_buffers,
    lower_blocks,
    expand_updates,
    place_allocations,
    compact_buffers,
    pipeline_loops,
    inject_virtual_threads,
    assign_scratchpads,
    remove_no_ops,
)


def lower(fn: Function, target: Target) -> Function:
    """Lower a scheduled function to entries of the accelerator's memories."""
    options = {"inject_virtual_threads.nests": True}  # keeps the nest of a task together
    return run_passes(fn, LOWER_ACCEL, PassContext(target=target, options=options))


def compile_function(fn: Function, target: Target) -> Stream:
    """Compile one function to a stream, with a buffer per parameter, by its name."""
    lowered = lower(fn, target)
    written = output_buffers(fn)
    buffers, addresses = [], {}
    for number, param in enumerate(lowered.buffers):
        bits = param.dtype.bits
        for dim in param.shape:
            bits *= int(dim.value) if isinstance(dim, Const) else 0
        role = "out" if fn.buffers[number] in written else "in"
        buffers.append(Buffer(param.name, role, bits // 8))
        addresses[param] = Address(number)
    folder = Folder(geometry_of(target))
    folder.add(lowered, addresses)
    return finish(folder, buffers)


def finish(folder: Folder, buffers: list[Buffer]) -> Stream:
    """The stream of all tasks of a folder, in order; microcode comes after the given buffers."""
    tasks = folder.finished(len(buffers))
    code = [Buffer("uop", "uop", 8 * len(folder.microcode))]
    stream = Stream(folder.geometry, (*buffers, *code), tuple(folder.microcode), tuple(tasks))
    check_stream(stream)
    return insert_tokens(stream)
