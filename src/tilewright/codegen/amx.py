"""AMX on top of x86: instructions on tile registers, and buffers in them."""

from __future__ import annotations

from tilewright.codegen import tiles
from tilewright.codegen.builder import Value
from tilewright.codegen.handlers import Emitting
from tilewright.codegen.hardware import call_llvm, operand
from tilewright.codegen.tile_loads import load_late
from tilewright.sym import Expr
from tilewright.tensor.ir import Address, Alloc, Call, Stmt


def instruction(e: Emitting, node: Call, is_statement: bool) -> Value:
    """An LLVM intrinsic whose operands may be tiles."""
    return call_llvm(e, node, [_operand(e, arg) for arg in node.args], is_statement)


def _operand(e: Emitting, arg: Expr) -> Value:
    if isinstance(arg, Address) and tiles.is_tile(arg.buffer):
        return e.tiles.number(arg.buffer, arg.index)
    return operand(e, arg)


def allocate(e: Emitting, stmt: Alloc) -> None:
    """Allocate tile registers to a buffer while its body runs."""
    e.tiles.take(stmt.buffer)
    e.stmt(stmt.body)
    e.tiles.free(stmt.buffer)


def arrange(body: Stmt) -> Stmt:
    """Sink loads of tiles as late as possible."""
    return load_late(body) if tiles.uses_tiles(body) else body


def begin(e: Emitting, body: Stmt) -> None:
    """Configure the tiles that a function uses; before the first, the system must grant them."""
    if not tiles.uses_tiles(body):
        return
    if not e.is_task:
        e.check(e.b.call("tw_request_tiles", "i32"))
    tiles.configure(e.module, e.b, body)
