"""The two ways of Hopper to shared memory: loads and stores of threads, and asynchronous
instructions.

`wgmma` and bulk copies reach shared memory through a proxy of their own. It shows what threads have
stored there, or copied there by `cp.async`, once those threads have executed a fence:

    S[t] = A[t]; eval fence.async(); eval barrier.shared(); eval wgmma.dot(C, S, B)

Barriers (`mbarrier`) are initialized by one thread, which has a fence for them, `mbarrier.fence`.
"""

from __future__ import annotations

from tilewright.base.dtype import BOOL
from tilewright.tensor.ir import Address, Buffer, Call, Stmt, Store
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import exprs, walk

FENCE = Call("fence.async", (), BOOL)
INIT, INIT_FENCE = "mbarrier.init", "mbarrier.fence"
CLEAR = "tile.clear"
BY_THREADS = (CLEAR, "cp.async.tile", "cp.async.run")  # calls that write where their address is
PRODUCTS, COPIES = "wgmma.", "tma."  # prefixes of the asynchronous
STORES = ("wgmma.store", "wgmma.round")  # of accumulators, by threads


def crossing(kernel: Stmt) -> set[Buffer]:
    """The shared buffers that threads write and asynchronous instructions use."""
    written = {stmt.buffer for stmt in walk(kernel) if isinstance(stmt, Store)}
    used: set[Buffer] = set()
    for node in exprs(kernel):
        if not isinstance(node, Call) or not node.op.startswith((*BY_THREADS, PRODUCTS, COPIES)):
            continue
        places = {each.buffer for each in node.args if isinstance(each, Address)}
        by_threads = node.op in BY_THREADS or node.op in STORES
        (written if by_threads else used).update(places)
    return {buffer for buffer in written & used if buffer.memory.owner is Owner.BLOCK}
