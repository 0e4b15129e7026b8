"""Kernels that set the conditions of conditional nodes in CUDA graphs.

    choose(then, otherwise, cond)                          run one of two bodies
    begin(body, control, trip, limit, start, at, going)    enter a loop, or skip it
    again(body, control, at, going)                        run the loop's body once more, or leave

Handles of nodes are 64-bit numbers. `control` holds a loop's state: the iteration, the trip limit,
and the condition that the body computed. The driver links the function that sets a handle.
"""

from __future__ import annotations

from tilewright.base.target import Target
from tilewright.codegen import llvm
from tilewright.codegen.builder import FunctionText, ModuleText, Value, i64
from tilewright.codegen.nvptx import machine

CHOOSE, BEGIN, AGAIN = "choose", "begin", "again"
LIMIT_AT, COND_AT, CONTROL_BYTES = 8, 16, 24  # offsets in `control`, after the iteration
SET = "cudaGraphSetConditional"
HANDLE, POINTER, NUMBER = "i64", "ptr", "i64"


LEAST_ARCH = "cuda -arch=sm_80"  # later GPUs take its PTX too


def conditions_ptx() -> str:
    """The PTX of the three kernels."""
    gpu = machine(Target.parse(LEAST_ARCH))
    module = ModuleText(gpu.triple, llvm.data_layout(gpu), "nounwind")
    params = [(HANDLE, "then"), (HANDLE, "otherwise"), (POINTER, "cond")]
    with module.function("void", CHOOSE, params, linkage="ptx_kernel") as (b, values):
        then, otherwise, cond = values
        is_true = _truth(b, cond)
        _set(b, then, is_true)
        _set(b, otherwise, b.op("xor", is_true, Value("i1", "true")))
        b.ret()
    params = [(HANDLE, "body"), (POINTER, "control"), (POINTER, "trip"), (NUMBER, "limit"),
              (POINTER, "start"), (POINTER, "at"), (POINTER, "going")]  # fmt: skip
    with module.function("void", BEGIN, params, linkage="ptx_kernel") as (b, values):
        body, control, trip, limit, start, at, going = values
        told = _or_else(b, trip, limit)
        most = b.select(b.compare("icmp slt", told, limit), told, limit)
        b.store(most, _behind(b, control, LIMIT_AT), align=8)
        _count(b, control, i64(0), at, going)
        starts = b.compare("icmp ne", _or_else(b, start, i64(1), "i8"), i64(0))
        _set(b, body, b.op("and", starts, b.compare("icmp sgt", most, i64(0))))
        b.ret()
    params = [(HANDLE, "body"), (POINTER, "control"), (POINTER, "at"), (POINTER, "going")]
    with module.function("void", AGAIN, params, linkage="ptx_kernel") as (b, values):
        body, control, at, going = values
        count = b.op("add", b.load("i64", control, align=8), i64(1))
        most = b.load("i64", _behind(b, control, LIMIT_AT), align=8)
        goes_on = _truth(b, _behind(b, control, COND_AT))
        _count(b, control, count, at, going)
        _set(b, body, b.op("and", goes_on, b.compare("icmp slt", count, most)))
        b.ret()
    return llvm.to_assembly(llvm.parse(module.text()), gpu)


def _behind(b: FunctionText, pointer: Value, offset: int) -> Value:
    return b.offset("i8", pointer, i64(offset))


def _truth(b: FunctionText, pointer: Value) -> Value:
    return b.compare("icmp ne", b.load("i8", pointer), Value("i8", "0"))


def _or_else(b: FunctionText, pointer: Value, otherwise: Value, type_: str = "i64") -> Value:
    """The number at a pointer, or a default where the pointer is null."""
    with b.branch(b.compare("icmp ne", pointer, Value("ptr", "null"))) as (there, missing):
        with there:
            loaded = b.load(type_, pointer)
            found = loaded if type_ == "i64" else b.convert("zext", loaded, "i64")
        with missing:
            pass
    return b.phi((found, there.end), (otherwise, missing.end))


def _count(b: FunctionText, control: Value, count: Value, at: Value, going: Value) -> None:
    """Store the iteration and the continuation flag for the body."""
    b.store(count, control, align=8)
    b.store(count, at, align=8)
    b.store(Value("i8", "1"), going)


def _set(b: FunctionText, handle: Value, cond: Value) -> None:
    b.call(SET, "void", handle, b.convert("zext", cond, "i32"))
