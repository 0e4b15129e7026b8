"""Thread block clusters: shared barriers, and accumulators exchanged through distributed shared
memory.

    barrier.cluster()                       barrier of all threads of all blocks
    mbarrier.arrive.cluster(barrier, n, 1)  each thread arrives at the barrier of each block, with
                                            release semantics
    mbarrier.arrive.cluster(barrier, n, 0)  each warp arrives once, after reading a tile
    mbarrier.wait.cluster(barrier, phase)   wait, acquiring earlier writes of other blocks
    cluster.keep(sums, place, width, n)     store a warpgroup's accumulators where other blocks read
    cluster.sum(sums, place, ..)            add what all blocks stored for some columns

A warpgroup's tile is stored as its threads hold it: sixteen bytes of each thread, which cover eight
columns of all rows, then those of the next eight. So a thread reads what threads of its own index
have stored, without bank conflicts.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import sym
from tilewright.codegen.builder import Value, i32
from tilewright.codegen.handlers import Emitting
from tilewright.codegen.hopper import (
    SHARED,
    THREADS,
    known_number,
    narrow,
    shared_pointer,
    sum_kind,
    sum_registers,
    wait_for,
)
from tilewright.intrin.hopper import M
from tilewright.sym import Expr
from tilewright.tensor.ir import Address, Call

COLUMNS, PIECE = 8, 4  # columns that 16 bytes of all threads cover; elements in 16 bytes


def emit(e: Emitting, node: Call, is_statement: bool) -> Value:
    RULES[node.op](e, *node.args)
    return Value("void", "")


def _cluster_barrier(e: Emitting) -> None:
    """The aligned barrier needs converged warps."""
    e.b.call("llvm.nvvm.barrier.cluster.arrive", "void")
    e.b.call("llvm.nvvm.barrier.cluster.wait", "void")


def _arrive(e: Emitting, barrier: Expr, blocks: Expr, tells: Expr) -> None:
    """Every thread releases its own writes: one lane could do so for its warp after a warp barrier,
    but racecheck does not follow that. Arrivals without data need no release."""
    own, count = _number(e, shared_pointer(e, barrier)), known_number(blocks)
    if known_number(tells):
        for rank in range(count):
            _arrive_at(e, _in_block(e, own, i32(rank)), ".release.cluster")
        return
    thread = e.b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    lane = e.b.op("and", thread, i32(31))
    with e.b.when(e.b.compare("icmp ult", lane, i32(count))):
        _arrive_at(e, _in_block(e, own, lane), "")


def _arrive_at(e: Emitting, address: Value, order: str) -> None:
    arrive = f"mbarrier.arrive{order}.shared::cluster.b64 _, [$0];"
    e.b.line(f'call void asm sideeffect "{arrive}", "r,~{{memory}}"({address})')


def _wait(e: Emitting, barrier: Expr, phase: Expr) -> None:
    wait_for(e, barrier, phase, "cluster")


def _number(e: Emitting, pointer: Value) -> Value:
    """An address in shared memory as a number."""
    return e.b.value("i32", f"ptrtoint {pointer} to i32")


def _in_block(e: Emitting, address: Value, rank: Value) -> Value:
    """The same address in the shared memory of another block of the cluster."""
    asked = 'asm "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r"'
    return e.b.value("i32", f"call i32 {asked}({address}, {rank})")


def _place(e: Emitting, place: Expr, width: Expr) -> Value:
    """The address of a thread's part of the columns from an element on, in the block's own
    memory."""
    assert isinstance(place, Address)
    (index,), wide = place.index, known_number(width)
    (size,) = (known_number(dim) for dim in place.buffer.shape)
    own = sym.floormod(index, size // e.cluster)
    group, column = sym.floordiv(own, M * wide), sym.floormod(own, wide)
    pieces = sym.add(sym.mul(group, wide // COLUMNS), sym.floordiv(column, COLUMNS))
    first = sym.mul(pieces, THREADS)
    thread = e.b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    at = e.b.op("add", narrow(e, sym.simplify(first)), thread)
    base = e.b.value(SHARED, f"addrspacecast {e.memories[place.buffer].pointer} to {SHARED}")
    return e.b.value(SHARED, f"getelementptr [{PIECE} x i32], {base}, {at}")


def _keep(e: Emitting, tile: Expr, place: Expr, width: Expr, n: Expr) -> None:
    kind = sum_kind(tile)
    registers = sum_registers(e, tile, known_number(n))
    first = _place(e, place, width)
    for piece in range(len(registers) // PIECE):
        vector = Value(f"<{PIECE} x {kind}>", "undef")
        for at in range(PIECE):
            value = e.b.load(kind, registers[PIECE * piece + at])
            vector = e.b.value(vector.type, f"insertelement {vector}, {value}, i32 {at}")
        there = e.b.value(SHARED, f"getelementptr [{PIECE} x i32], {first}, i32 {piece * THREADS}")
        e.b.line(f"store {vector}, {there}, align 16")


def _sum(
    e: Emitting, tile: Expr, place: Expr, apart: Expr, width: Expr, parts: Expr, n: Expr
) -> None:
    """Load all parts before adding any."""
    kind = sum_kind(tile)
    registers = sum_registers(e, tile, known_number(n))
    own = _number(e, _place(e, place, width))
    mark, letter = ("f32", "f") if kind == "float" else ("b32", "r")
    made = "{ " + ", ".join([kind] * PIECE) + " }"
    outputs = ",".join([f"={letter}"] * PIECE)
    names = ", ".join(f"${at}" for at in range(PIECE))
    found: list[list[Value]] = []
    for rank in range(known_number(parts)):
        first = _in_block(e, own, i32(rank))
        for piece in range(len(registers) // PIECE):
            there = e.b.op("add", first, i32(piece * THREADS * 16))
            load = f"ld.shared::cluster.v{PIECE}.{mark} {{{names}}}, [${PIECE}];"
            got = e.b.value(
                made, f'call {made} asm sideeffect "{load}", "{outputs},r,~{{memory}}"({there})'
            )
            found.append([e.b.value(kind, f"extractvalue {got}, {at}") for at in range(PIECE)])
    add, pieces = "fadd" if kind == "float" else "add", len(registers) // PIECE
    for number, values in enumerate(found):
        for at, value in enumerate(values):
            register = registers[number % pieces * PIECE + at]
            e.b.store(e.b.op(add, e.b.load(kind, register), value), register)


RULES: dict[str, Callable[..., None]] = {
    "barrier.cluster": _cluster_barrier,
    "mbarrier.arrive.cluster": _arrive,
    "mbarrier.wait.cluster": _wait,
    "cluster.keep": _keep,
    "cluster.sum": _sum,
}
