"""Calls outside of the language: LLVM intrinsics, inline assembly, external kernels.

`llvm.NAME` calls the intrinsic of that name with the operands as they are; an `address(...)`
operand is a pointer. As a statement (`eval`) with type bool it returns nothing. `asm.NAME` is
inline assembly described in the function's attributes; `reinterpret` is a bit cast, `lane` extracts
an element of a vector. An `extern` statement calls a kernel with the ABI of our own functions, one
DLTensor per region.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import Unsupported
from tilewright.codegen.builder import NULL, Value, i32, i64
from tilewright.codegen.handlers import CallHandler, Emitting
from tilewright.codegen.types import element_of, memory_type, register_type, vector
from tilewright.runtime.dlpack import code_of
from tilewright.sym import Const, Expr
from tilewright.tensor.ir import Address, Call, ExternCall, Region
from tilewright.tensor.passes.flatten_buffers import strides_of

NO_MEMORY = 11  # TW_ERROR_NO_MEMORY of the runtime

DLTENSOR = "{ ptr, { i32, i32 }, i32, { i8, i8, i16 }, ptr, ptr, i64 }"


REINTERPRET = "reinterpret"  # the same bits as another type of the same size
LANE = "lane"  # one element of a vector, by its number


def operand(e: Emitting, arg: Expr) -> Value:
    """The value of an argument; a pointer, of an address."""
    return e.pointer(arg) if isinstance(arg, Address) else e.expr(arg)


def _result(node: Call, is_statement: bool) -> str:
    return "void" if is_statement and node.dtype.is_bool else register_type(node.dtype)


def _as_bfloat(e: Emitting, arg: Value) -> Value:
    if element_of(arg.type) != "i16":
        return arg
    return e.b.convert("bitcast", arg, vector("bfloat", arg.lanes))


def _reinterpret(e: Emitting, node: Call, is_statement: bool) -> Value:
    return e.b.convert("bitcast", e.expr(node.args[0]), register_type(node.dtype))


def _lane(e: Emitting, node: Call, is_statement: bool) -> Value:
    whole, number = node.args
    assert isinstance(number, Const)
    return e.b.extract(e.expr(whole), int(number.value))


def llvm_intrinsic(e: Emitting, node: Call, is_statement: bool) -> Value:
    """A call of an LLVM intrinsic by its own name."""
    return call_llvm(e, node, [operand(e, arg) for arg in node.args], is_statement)


def call_llvm(e: Emitting, node: Call, args: Sequence[Value], is_statement: bool) -> Value:
    """The same, with its operands given."""
    if "bf16" in node.op:  # our registers hold bf16 as integers
        args = [_as_bfloat(e, arg) for arg in args]
    return e.b.call(node.op, _result(node, is_statement), *args)


def _inline_assembly(e: Emitting, node: Call, is_statement: bool) -> Value:
    args = [operand(e, arg) for arg in node.args]
    result = _result(node, is_statement)
    assembly = e.assembly.get(node.op)
    if assembly is None:
        raise Unsupported(
            "TW3012",
            f"no inline assembly named {node.op}",
            help=f"the function has: {', '.join(sorted(e.assembly)) or 'none'}",
        )
    if not e.machine.assembles:
        raise Unsupported(
            "TW3013",
            f"inline assembly cannot be put into objects for {e.machine.triple} here",
            help="compile on a machine of that architecture",
        )
    effects = " sideeffect" if assembly.has_effects else ""
    shown = ", ".join(str(arg) for arg in args)
    text = (
        f'call {result} asm{effects} "{_escaped(assembly.template)}", '
        f'"{_escaped(assembly.constraints)}"({shown})'
    )
    if result == "void":
        e.b.line(text)
        return Value("void", "")
    return e.b.value(result, text)


CALLS: dict[str, CallHandler] = {
    "llvm.": llvm_intrinsic,
    "asm.": _inline_assembly,
    REINTERPRET: _reinterpret,
    LANE: _lane,
}


def _escaped(text: str) -> str:
    return "".join(c if 32 <= ord(c) < 127 and c not in '"\\' else f"\\{ord(c):02X}" for c in text)


def extern_call(e: Emitting, stmt: ExternCall) -> None:
    """Build one DLTensor per region on the stack and call the kernel."""
    count = len(stmt.regions)
    pointers = e.b.alloca(f"[{count} x ptr]", align=8, hint="tensors")
    for at, region in enumerate(stmt.regions):
        tensor = _tensor(e, region)
        e.b.store(tensor, e.b.member(f"[{count} x ptr]", pointers, at))
    e.check(e.b.call(stmt.symbol, "i32", pointers, i32(count)))


def _tensor(e: Emitting, region: Region) -> Value:
    """A DLTensor that describes a region."""
    b, buffer = e.b, region.buffer
    rank = len(region.ranges)
    tensor = b.alloca(DLTENSOR, align=8, hint=f"{buffer.name}.tensor")
    dims = b.alloca(f"[{max(1, 2 * rank)} x i64]", align=8, hint=f"{buffer.name}.dims")
    offset = i64(0)
    for axis, (r, step) in enumerate(zip(region.ranges, strides_of(buffer), strict=True)):
        stride = e.expr(step)
        offset = b.op("add nsw", offset, b.op("mul nsw", e.expr(r.start), stride))
        b.store(e.expr(r.extent), b.offset("i64", dims, i64(axis)))
        b.store(stride, b.offset("i64", dims, i64(rank + axis)))
    data = b.offset(memory_type(buffer.dtype), e.memories[buffer].pointer, offset)
    code, bits, lanes = code_of(buffer.dtype)
    fields = (
        (data, (0,)),
        (i32(1), (1, 0)),  # the CPU
        (i32(0), (1, 1)),
        (i32(rank), (2,)),
        (Value("i8", str(code)), (3, 0)),
        (Value("i8", str(bits)), (3, 1)),
        (Value("i16", str(lanes)), (3, 2)),
        (dims if rank else NULL, (4,)),
        (b.offset("i64", dims, i64(rank)) if rank else NULL, (5,)),
        (i64(0), (6,)),
    )
    for value, path in fields:
        b.store(value, b.member(DLTENSOR, tensor, *path))
    return tensor
