"""Kernels that start before those they depend on have ended.

    for b in thread(blockIdx.x) 0..132 { for t in thread(threadIdx.x) 0..128 {
      eval grid.launch()      # what is queued behind may start
      ...                     # places, barriers of its own, weights
      eval grid.wait()        # until everything queued before has ended
      ... } }

Until its wait a kernel reads weights alone and writes nothing that others see: memory that kernels
before it read or write is still in use. Roles wait each by itself. Every thread comes to the wait, since a kernel that ends
without it may end before those it depends on, and what waits for it would not wait for them.
"""

from __future__ import annotations

from tilewright.base.dtype import BOOL
from tilewright.tensor.ir import (
    THREAD,
    Address,
    Alloc,
    Buffer,
    Call,
    Eval,
    For,
    Function,
    If,
    Let,
    Load,
    MaskedLoad,
    Seq,
    Stmt,
)
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import exprs, kernels_of, walk, written_buffers

FEATURE = "dependent-launch"  # of targets
WAIT, LAUNCH = Call("grid.wait", (), BOOL), Call("grid.launch", (), BOOL)
WEIGHTS = "weights"  # attribute: positions of the parameters that nothing writes while models run
EFFECTLESS = (WAIT.op, LAUNCH.op)  # where kernels run one after the other


def weights_of(fn: Function) -> set[Buffer]:
    """The parameters that are known before a model runs."""
    positions = next((found for key, found in fn.attrs if key == WEIGHTS), ())
    assert isinstance(positions, tuple)
    chosen = [fn.params[at] for at in positions if isinstance(at, int)]
    return {param for param in chosen if isinstance(param, Buffer)}


def is_early(stmt: Stmt, weights: set[Buffer]) -> bool:
    """Whether a statement may run before the wait."""
    if any(_is_shown(buffer) for buffer in written_buffers(stmt)):
        return False
    used = (node.buffer for node in exprs(stmt) if isinstance(node, (Load, MaskedLoad, Address)))
    return not any(_is_shown(buffer) and buffer not in weights for buffer in used)


def _is_shown(buffer: Buffer) -> bool:
    return buffer.memory.owner is Owner.DEVICE


def fault_of(fn: Function) -> tuple[Stmt, str] | None:
    """A statement that breaks what is said above, and how."""
    weights = weights_of(fn)
    for kernel in kernels_of(fn.body):
        waits = [s for s in walk(kernel) if isinstance(s, Eval) and s.value is WAIT]
        launches = any(isinstance(s, Eval) and s.value is LAUNCH for s in walk(kernel))
        if not waits:
            if launches:
                return kernel, "lets others start, and does not wait itself"
            continue
        passed, before = _before(kernel)
        if not passed or len(waits) > passed:
            return waits[-1], "stands where not every thread comes by once"
        for stmt in before:
            if not is_early(stmt, weights):
                return stmt, "uses memory, other than weights, that kernels before may still use"
    return None


def _before(stmt: Stmt) -> tuple[int, list[Stmt]]:
    """The waits that threads come by, one each, and all that runs before them; 0 where some thread
    may come by none."""
    before: list[Stmt] = []
    while True:
        if isinstance(stmt, (Alloc, Let)) or (isinstance(stmt, For) and stmt.kind == THREAD):
            stmt = stmt.body
        elif isinstance(stmt, Seq):
            at = next((at for at, each in enumerate(stmt.stmts) if _waits(each)), None)
            if at is None:
                return 0, before
            before += stmt.stmts[:at]
            stmt = stmt.stmts[at]
        elif isinstance(stmt, If) and stmt.otherwise is not None:  # roles wait each by itself
            (one, first), (other, second) = _before(stmt.then), _before(stmt.otherwise)
            return one + other if one and other else 0, [*before, *first, *second]
        else:
            return int(_waits(stmt) and isinstance(stmt, Eval)), before


def _waits(stmt: Stmt) -> bool:
    return any(isinstance(each, Eval) and each.value is WAIT for each in walk(stmt))
