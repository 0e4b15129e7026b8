"""Hopper's warpgroup matrix multiplication (`wgmma`) as inline assembly.

A buffer of scope `wgmma.sum` is distributed over the 128 threads of a warpgroup, 32 elements each
of every 64 x 64 tile. Thread t, of warp w = t / 32 and lane l = t % 32, holds in register 4 j + 2 h
+ e the element of row 16 w + l / 4 + 8 h and column 8 j + 2 (l % 4) + e.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.codegen.builder import Value, i64
from tilewright.codegen.handlers import Emitting
from tilewright.intrin.wgmma import SUM
from tilewright.sym import Const, Expr
from tilewright.tensor.ir import Address, Alloc, Call, Stmt
from tilewright.tensor.visit import walk

PREFIX = "wgmma."
TILE_ELEMENTS, THREADS = 64 * 64, 128
REGISTERS = TILE_ELEMENTS // THREADS
FENCE = 'call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()'


def uses_wgmma(stmt: Stmt) -> bool:
    """Whether the statement has accumulators in a warpgroup's registers."""
    return any(isinstance(s, Alloc) and s.buffer.memory == SUM for s in walk(stmt))


def emit(e: Emitting, node: Call, is_statement: bool) -> Value:
    """One of zero, dot, store."""
    rules: dict[str, Callable[..., None]] = {"zero": _zero, "dot": _dot, "store": _store}
    rules[node.op.removeprefix(PREFIX)](e, *node.args)
    return Value("void", "")


def _registers(e: Emitting, tile: Expr) -> list[Value]:
    """The addresses of a thread's part of a tile."""
    assert isinstance(tile, Address)
    (index,) = tile.index
    offset = sym.simplify(index)
    if not isinstance(offset, Const) or int(offset.value) % TILE_ELEMENTS:
        raise Unsupported(
            "TW3054",
            f"%{tile.buffer.name}[{offset}] is not the start of a tile known when compiling",
            help="unroll the loops that choose between tiles of 64 by 64",
        )
    first = int(offset.value) // THREADS
    pointer = e.memories[tile.buffer].pointer
    return [e.b.offset("float", pointer, i64(first + at)) for at in range(REGISTERS)]


def _zero(e: Emitting, tile: Expr) -> None:
    for register in _registers(e, tile):
        e.b.store(Value("float", "0.0"), register)


def _dot(e: Emitting, tile: Expr, a: Expr, b: Expr, *steps: Expr) -> None:
    registers = _registers(e, tile)
    before = [e.b.load("float", register) for register in registers]
    descriptors = [
        _descriptor(e, operand, steps[2 * at], steps[2 * at + 1])
        for at, operand in enumerate((a, b))
    ]
    struct = "{ " + ", ".join(["float"] * REGISTERS) + " }"
    sums = ", ".join(f"${at}" for at in range(REGISTERS))
    lines = (
        "wgmma.fence.sync.aligned;",
        f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{sums}}}, "
        f"${2 * REGISTERS}, ${2 * REGISTERS + 1}, 1, 1, 1, 0, 0;",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
    )
    outputs = ",".join(["=f"] * REGISTERS)
    ties = ",".join(str(at) for at in range(REGISTERS))
    constraints = f"{outputs},{ties},l,l,~{{memory}}"
    shown = ", ".join(str(value) for value in (*before, *descriptors))
    after = e.b.value(
        struct, f'call {struct} asm sideeffect "{" ".join(lines)}", "{constraints}"({shown})'
    )
    for at, register in enumerate(registers):
        e.b.store(e.b.value("float", f"extractvalue {after}, {at}"), register)


def _descriptor(e: Emitting, operand: Expr, along: Expr, across: Expr) -> Value:
    """The descriptor of an operand: address, and strides between core matrices along k and across
    it."""
    b = e.b
    shared = b.value("ptr addrspace(3)", f"addrspacecast {e.pointer(operand)} to ptr addrspace(3)")
    address = b.convert("zext", b.value("i32", f"ptrtoint {shared} to i32"), "i64")
    start = b.op("lshr", b.op("and", address, i64(0x3FFFF)), i64(4))
    result = start
    for step, at in ((along, 16), (across, 32)):
        units = b.op("and", b.op("lshr", e.expr(step), i64(4)), i64(0x3FFF))
        result = b.op("or", result, b.op("shl", units, i64(at)))
    return result


def _store(e: Emitting, tile: Expr, memory: Expr, row_stride: Expr) -> None:
    b = e.b
    thread = b.convert("zext", b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32"), "i64")
    thread = b.op("and", thread, i64(THREADS - 1))
    warp, lane = b.op("lshr", thread, i64(5)), b.op("and", thread, i64(31))
    row = b.op("add", b.op("shl", warp, i64(4)), b.op("lshr", lane, i64(2)))
    column = b.op("shl", b.op("and", lane, i64(3)), i64(1))
    base, stride = e.pointer(memory), e.expr(row_stride)
    for at, register in enumerate(_registers(e, tile)):
        j, h, element = at // 4, at // 2 % 2, at % 2
        down = b.op("mul", b.op("add", row, i64(8 * h)), stride)
        index = b.op("add", down, b.op("add", column, i64(8 * j + element)))
        b.store(b.load("float", register), b.offset("float", base, index))
