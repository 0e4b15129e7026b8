"""Thread block clusters: co-scheduled blocks along `blockIdx.y`, which can synchronize.

A kernel with cluster barriers has clusters of all its blocks along that axis.
"""

from __future__ import annotations

from tilewright.base.dtype import BOOL
from tilewright.tensor.ir import CLUSTER_AXIS, Call, For, Stmt
from tilewright.tensor.visit import exprs, walk

CLUSTER_BARRIER = Call("barrier.cluster", (), BOOL)


def cluster_loop(kernel: Stmt) -> For | None:
    """The loop over the blocks of a cluster, where a kernel has any."""
    if not any(node is CLUSTER_BARRIER for node in exprs(kernel)):
        return None
    loops = [stmt for stmt in walk(kernel) if isinstance(stmt, For)]
    return next((loop for loop in loops if loop.thread == CLUSTER_AXIS), None)
