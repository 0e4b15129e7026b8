"""Partial sums exchanged through global memory between blocks (stream-K).

    stream.keep(sums, place, n)   store a warpgroup's accumulators, as its threads hold them
    stream.signal(signals)        release what the warps have stored
    stream.wait(signals)          acquire it, and reset the signal
    stream.sum(sums, place, n)    add what another block has stored

Threads read what threads of their own index stored, so warps signal to warps, without barriers of
whole blocks. Sixteen bytes of all threads are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.codegen.builder import Value, i32
from tilewright.codegen.handlers import Emitting
from tilewright.codegen.hopper import THREADS, known_number, narrow, sum_kind, sum_registers
from tilewright.sym import Expr
from tilewright.tensor.ir import Address, Call

GLOBAL = "ptr addrspace(1)"
PIECE = 4  # contiguous elements per thread
PIECE_BYTES = 16


def emit(e: Emitting, node: Call, is_statement: bool) -> Value:
    RULES[node.op](e, *node.args)
    return Value("void", "")


def _pointer(e: Emitting, place: Expr) -> Value:
    """Of an element of four bytes in memory."""
    assert isinstance(place, Address)
    (index,) = place.index
    base = e.b.value(GLOBAL, f"addrspacecast {e.memories[place.buffer].pointer} to {GLOBAL}")
    return e.b.value(GLOBAL, f"getelementptr i32, {base}, {narrow(e, index)}")


def _thread(e: Emitting) -> Value:
    return e.b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")


def _own(e: Emitting, place: Expr) -> Value:
    """Where a thread's numbers begin."""
    return e.b.value(GLOBAL, f"getelementptr [{PIECE} x i32], {_pointer(e, place)}, {_thread(e)}")


def _piece(e: Emitting, first: Value, at: int) -> Value:
    return e.b.value(GLOBAL, f"getelementptr [{PIECE} x i32], {first}, i32 {at * THREADS}")


def _keep(e: Emitting, tile: Expr, place: Expr, n: Expr) -> None:
    kind, registers = sum_kind(tile), sum_registers(e, tile, known_number(n))
    first = _own(e, place)
    for piece in range(len(registers) // PIECE):
        vector = Value(f"<{PIECE} x {kind}>", "undef")
        for at in range(PIECE):
            value = e.b.load(kind, registers[PIECE * piece + at])
            vector = e.b.value(vector.type, f"insertelement {vector}, {value}, i32 {at}")
        e.b.store(vector, _piece(e, first, piece), align=PIECE_BYTES)


def _sum(e: Emitting, tile: Expr, place: Expr, n: Expr) -> None:
    """Volatile loads: other blocks have written what they read."""
    kind, registers = sum_kind(tile), sum_registers(e, tile, known_number(n))
    first = _own(e, place)
    mark, letter = ("f32", "f") if kind == "float" else ("b32", "r")
    made = "{ " + ", ".join([kind] * PIECE) + " }"
    outputs = ",".join([f"={letter}"] * PIECE)
    names = ", ".join(f"${at}" for at in range(PIECE))
    load = f"ld.global.v{PIECE}.{mark} {{{names}}}, [${PIECE}];"
    found = [
        e.b.value(
            made,
            f'call {made} asm sideeffect "{load}", "{outputs},l,~{{memory}}"'
            f"({_piece(e, first, piece)})",
        )
        for piece in range(len(registers) // PIECE)
    ]
    add = "fadd" if kind == "float" else "add"
    for piece, got in enumerate(found):
        for at in range(PIECE):
            register = registers[PIECE * piece + at]
            value = e.b.value(kind, f"extractvalue {got}, {at}")
            e.b.store(e.b.op(add, e.b.load(kind, register), value), register)


def _of_warp(e: Emitting, signals: Expr) -> tuple[Value, Value]:
    """The signal of a thread's warp, and whether it is the first of the warp."""
    thread = _thread(e)
    warp = e.b.op("lshr", thread, i32(5))
    at = e.b.value(GLOBAL, f"getelementptr i32, {_pointer(e, signals)}, {warp}")
    first = e.b.compare("icmp eq", e.b.op("and", thread, i32(31)), i32(0))
    return at, first


def _signal(e: Emitting, signals: Expr) -> None:
    """The first thread of a warp releases what all of them have written."""
    at, first = _of_warp(e, signals)
    e.b.call("llvm.nvvm.bar.warp.sync", "void", i32(-1))
    with e.b.when(first):
        e.b.line(
            f'call void asm sideeffect "st.release.gpu.global.u32 [$0], 1;", "l,~{{memory}}"({at})'
        )


def _wait(e: Emitting, signals: Expr) -> None:
    at, first = _of_warp(e, signals)
    seen = 'asm sideeffect "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l,~{memory}"'

    def is_missing() -> Value:
        return e.b.compare("icmp eq", e.b.value("i32", f"call i32 {seen}({at})"), i32(0))

    with e.b.repeat(is_missing):
        pass
    e.b.call("llvm.nvvm.bar.warp.sync", "void", i32(-1))
    with e.b.when(first):
        e.b.line(
            f'call void asm sideeffect "st.relaxed.gpu.global.u32 [$0], 0;", "l,~{{memory}}"({at})'
        )


RULES: dict[str, Callable[..., None]] = {
    "stream.keep": _keep,
    "stream.signal": _signal,
    "stream.wait": _wait,
    "stream.sum": _sum,
}
