"""Programmatic dependent launch: kernels that start before those they depend on end.

    for b in thread(blockIdx.x) 0..132 { for t in thread(threadIdx.x) 0..128 {
      eval grid.launch()      # the next kernel may start
      ...                     # address computation, barrier setup, loads of weights
      eval grid.wait()        # until all preceding kernels have ended
      ... } }

Before its wait a kernel reads only weights and writes nothing that others see, since preceding
kernels may still use that memory. Every thread executes the wait: a kernel that ends without it may
end before those it depends on, and its dependents would not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.sym import Expr
from tilewright.tensor.ir import (
    THREAD,
    Address,
    Alloc,
    Buffer,
    Call,
    Eval,
    For,
    Function,
    Let,
    Load,
    MaskedLoad,
    Seq,
    Stmt,
)
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import exprs, kernels_of, walk, written_buffers

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
    if any(_is_global(buffer) for buffer in written_buffers(stmt)):
        return False
    return not _reads_others(exprs(stmt), weights)


def is_early_value(let: Stmt, weights: set[Buffer]) -> bool:
    """Whether the value of a name, whatever is done under it, may be computed before the wait."""
    return not _reads_others(sym.walk(*let.exprs()), weights)


def _reads_others(nodes: Iterable[Expr], weights: set[Buffer]) -> bool:
    used = (node.buffer for node in nodes if isinstance(node, (Load, MaskedLoad, Address)))
    return any(_is_global(buffer) and buffer not in weights for buffer in used)


def _is_global(buffer: Buffer) -> bool:
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
        before, found = _before(kernel)
        if found is None or len(waits) > 1:
            return waits[-1], "stands where not every thread comes by once"
        for stmt in before:
            # The body of a name goes on to the wait.
            check = is_early_value if isinstance(stmt, Let) else is_early
            if not check(stmt, weights):
                return stmt, "uses memory, other than weights, that kernels before may still use"
    return None


def _before(stmt: Stmt) -> tuple[list[Stmt], Stmt | None]:
    """The statements that all threads run before the wait, names around it too, and the wait."""
    before: list[Stmt] = []
    while True:
        if isinstance(stmt, Let):
            before.append(stmt)
        if isinstance(stmt, (Alloc, Let)) or (isinstance(stmt, For) and stmt.kind == THREAD):
            stmt = stmt.body
        elif isinstance(stmt, Seq):
            for at, each in enumerate(stmt.stmts):
                if any(isinstance(s, Eval) and s.value is WAIT for s in walk(each)):
                    before += stmt.stmts[:at]
                    stmt = each
                    break
            else:
                return before, None
        else:
            is_wait = isinstance(stmt, Eval) and stmt.value is WAIT
            return before, stmt if is_wait else None
