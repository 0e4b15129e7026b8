"""Target hooks of the core emitter: calls, allocations, function prologues.

A call is found by its whole name, else by its longest prefix that ends in a dot:
`llvm.x86.tilezero` by `llvm.x86.tilezero`, `llvm.x86.`, `llvm.`. An allocation is found by the name
of its memory scope. `targets.py` has the tables of processors, `nvptx.py` that of GPUs. Handlers
write through `Emitting`, the emitter's interface to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.codegen.arith import Arithmetic
from tilewright.codegen.builder import FunctionText, ModuleText, Value
from tilewright.codegen.machine import Machine
from tilewright.codegen.memory import Memory
from tilewright.codegen.tiles import TileRegisters
from tilewright.sym import Expr
from tilewright.tensor.assembly import Assembly
from tilewright.tensor.ir import Alloc, Buffer, Call, Stmt


class Emitting(Protocol):
    """The emitter of one LLVM function, as handlers see it."""

    module: ModuleText
    machine: Machine
    b: FunctionText
    arith: Arithmetic
    name: str
    memories: dict[Buffer, Memory]
    tiles: TileRegisters
    tile_maps: dict[object, Value]  # GPU: tensor maps of the matrices that tiles are copied from
    awaited: tuple[Buffer, ...]  # GPU: memory that earlier kernels may still use
    weights: dict[Buffer, Memory]  # GPU: weights, as read after the grid wait
    tile_bytes: int  # of tiles, in dynamic shared memory so far
    static_bytes: int  # of other buffers in shared memory so far
    reordered: frozenset[Buffer]  # GPU: permuted tiles and accumulators, see `column_order`
    cluster: int  # GPU: blocks per cluster
    assembly: Mapping[str, Assembly]  # what `asm.NAME` stands for
    is_task: bool  # the body of a parallel loop

    def stmt(self, stmt: Stmt) -> None:
        """Write a statement."""

    def expr(self, root: Expr) -> Value:
        """Write an expression; its value, of an index in 64 bits."""

    def index(self, root: Expr) -> Value:
        """The same, where an index may have 32 bits."""

    def pointer(self, node: Expr) -> Value:
        """The address an expression stands for, as a pointer."""

    def allocate(self, stmt: Alloc) -> None:
        """On the stack, or from the runtime."""

    def check(self, code: Value) -> None:
        """Go on only if the code is 0."""


# The call, and whether it is a statement whose value is unused.
CallHandler = Callable[[Emitting, Call, bool], Value]
AllocHandler = Callable[[Emitting, Alloc], None]


def _allocate(e: Emitting, stmt: Alloc) -> None:
    e.allocate(stmt)


@dataclass(frozen=True, eq=False)
class Handlers:
    """What a target adds to the core emitter."""

    calls: Mapping[str, CallHandler]
    allocs: Mapping[str, AllocHandler] = field(default_factory=dict)
    other_alloc: AllocHandler = _allocate  # in memories that `allocs` does not name
    arrange: Callable[[Stmt], Stmt] = lambda body: body  # a body before it is written
    begin: Callable[[Emitting, Stmt], None] = lambda e, body: None  # where a function begins

    def try_call(self, op: str) -> CallHandler | None:
        """What writes calls of a function; None for those of the language itself."""
        found, end = self.calls.get(op), len(op)
        while found is None:
            end = op.rfind(".", 0, end - 1) + 1  # of the next shorter prefix
            if not end:
                return None
            found = self.calls.get(op[:end])
        return found
