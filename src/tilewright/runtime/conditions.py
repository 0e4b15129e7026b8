"""Conditional nodes of CUDA graphs: bodies that a preceding kernel enables or repeats.

Both functions add to a stream capture. `decide` enqueues the kernel that sets the nodes' handles;
bodies are captured on separate streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.cuda import Driver, Stream
from tilewright.runtime.cuda_graphs import capture_info, versioned

LEAST_DRIVER = 12040  # CUDA 12.4 introduced both kinds of nodes
Record = Callable[[int], None]


def are_available() -> bool:
    """Whether the driver supports conditional nodes."""
    (version,) = Driver.get().call("cuDriverGetVersion")
    return bool(version >= LEAST_DRIVER)


def add_choice(
    stream: int, bodies: Sequence[Record], decide: Callable[[int, Sequence[int]], None]
) -> None:
    """Add bodies that each run if their handle is set."""
    handles = [_handle(stream) for _ in bodies]
    decide(stream, [int(handle) for handle in handles])
    kind = Driver.get().api.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
    for handle, body in zip(handles, bodies, strict=True):
        _add(stream, handle, kind, body)


def add_loop(
    stream: int,
    body: Callable[[int, int], None],
    decide: Callable[[int, Sequence[int]], None],
) -> None:
    """Add a body that runs while its handle is set; `body` is given the handle."""
    handle = _handle(stream)
    decide(stream, [int(handle)])
    kind = Driver.get().api.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    _add(stream, handle, kind, lambda own: body(own, int(handle)))


def _handle(stream: int) -> Any:
    driver = Driver.get()
    graph, _, _ = capture_info(stream)
    # Without a default the value persists between runs: deciding kernels always set it.
    (handle,) = driver.call("cuGraphConditionalHandleCreate", graph, driver.context, 0, 0)
    return handle


def _add(stream: int, handle: Any, kind: Any, body: Record) -> None:
    """Add a node with a body after what the stream has captured."""
    driver = Driver.get()
    api = driver.api
    graph, last, edges = capture_info(stream)
    params = api.CUgraphNodeParams()
    params.type = api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = kind
    params.conditional.size = 1
    params.conditional.ctx = driver.context
    add = versioned("cuGraphAddNode", 2)
    (node,) = driver.call(add, graph, last, edges, len(last), params)
    replace = api.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    update = versioned("cuStreamUpdateCaptureDependencies", 2)
    driver.call(update, stream, [node], None, 1, replace)
    (inside,) = params.conditional.phGraph_out
    own = Stream()
    mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    driver.call("cuStreamBeginCaptureToGraph", own.handle, inside, None, None, 0, mode)
    try:
        body(own.handle)
    finally:
        driver.call("cuStreamEndCapture", own.handle)
