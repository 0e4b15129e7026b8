"""CUDA graphs: work that is captured once and launched as a whole.

graph = Graph(branched(launches, waits))
graph.launch(stream)
ChangeableGraph(launches, waits).change(3, launch)      another grid, other arguments
Timeline(launches).run()             milliseconds of each launch, in place
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilewright.runtime.cuda import NO_TIMING, Driver, NodeParams, Stream

BRANCHES = 8  # parallel branches, at most
_IN_GRAPH = 1  # CU_EVENT_RECORD_EXTERNAL: recorded on each execution of the graph
_of_thread = threading.local()


class Graph:
    """A CUDA graph, captured once. It keeps its kernels and memory alive."""

    def __init__(self, record: Callable[[int], None], stream: Stream | None = None) -> None:
        """Capture what `record` queues on the stream it is given."""
        self.driver = driver = Driver.get()
        self._record, self._stream = record, stream or Stream()
        mode = driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        driver.call("cuStreamBeginCapture", self._stream.handle, mode)
        try:
            record(self._stream.handle)
        except BaseException:
            driver.drop("cuStreamEndCapture", self._stream.handle)
            raise
        (graph,) = driver.call("cuStreamEndCapture", self._stream.handle)
        (self._executable,) = driver.call("cuGraphInstantiate", graph, 0)
        self._captured(graph)

    def _captured(self, graph: Any) -> None:
        self.driver.call("cuGraphDestroy", graph)

    def launch(self, stream: int = 0) -> None:
        self.driver.call("cuGraphLaunch", self._executable, stream)

    def __del__(self) -> None:
        if hasattr(self, "_executable"):
            self.driver.drop("cuGraphExecDestroy", self._executable)


class ChangeableGraph(Graph):
    """A graph of kernels whose grids and arguments can be replaced, without another capture. What
    is queued already is not affected."""

    def __init__(self, launches: Sequence[Kernel], waits: Sequence[Sequence[int]]) -> None:
        self._nodes: list[Any] = []
        self._params: dict[int, NodeParams] = {}  # of those that have changed
        super().__init__(branched(launches, waits, self._nodes))

    def _captured(self, graph: Any) -> None:
        self._graph = graph  # with the nodes

    def change(self, at: int, launch: Kernel) -> None:
        """Replace the kernel's launch of this number by another of the same kernel."""
        if at not in self._params:
            self._params[at] = launch.node()
        params, node = self._params[at], self._nodes[at]
        launch.write(params)
        self.driver.call("cuGraphExecKernelNodeSetParams", self._executable, node, params.params)

    def __del__(self) -> None:
        super().__del__()
        if hasattr(self, "_graph"):
            self.driver.drop("cuGraphDestroy", self._graph)


class Startable(Protocol):
    """Work that is queued on a stream."""

    @property
    def is_kernel(self) -> bool: ...

    @property
    def starts_early(self) -> bool:
        """Whether it may use programmatic dependent launch."""
        ...

    def start(self, stream: int, is_early: bool = False) -> None: ...


class Kernel(Startable, Protocol):
    """A launch of a kernel."""

    def node(self) -> NodeParams:
        """The parameters of a graph's node."""
        ...

    def write(self, params: NodeParams) -> None: ...


def branched(
    launches: Sequence[Startable],
    waits: Sequence[Sequence[int]],
    nodes: list[Any] | None = None,
) -> Callable[[int], None]:
    """A function that captures launches on parallel branches: each starts when its dependences
    have ended, or early, where it depends only on the last one of its own branch. The nodes of
    the graph are appended to `nodes`."""

    def record(stream: int) -> None:
        driver = Driver.get()
        side = [stream, *(each.handle for each in _side_streams())]
        events = [driver.call("cuEventCreate", NO_TIMING)[0] for _ in range(len(launches) + 1)]
        driver.call("cuEventRecord", events[-1], stream)
        tails: list[int | None] = [None] * len(side)
        at: list[int] = []
        for number, (launch, before) in enumerate(zip(launches, waits, strict=True)):
            own = _branch(tails, before)
            if tails[own] is None and own:  # the branch joins the capture
                driver.call("cuStreamWaitEvent", side[own], events[-1], 0)
            others = _last_on_others(at, before, own)
            for other in others:
                driver.call("cuStreamWaitEvent", side[own], events[other], 0)
            tail = tails[own]
            follows = tail is not None and launches[tail].is_kernel and not others
            launch.start(side[own], is_early=follows and launch.starts_early)
            if nodes is not None:
                nodes.append(_last_node(side[own]))
            driver.call("cuEventRecord", events[number], side[own])
            tails[own] = number
            at.append(own)
        for own, tail in enumerate(tails):
            if own and tail is not None:
                driver.call("cuStreamWaitEvent", stream, events[tail], 0)
        for event in events:
            driver.call("cuEventDestroy", event)

    return record


def _last_node(stream: int) -> Any:
    """What a stream has captured last."""
    _, (node, *_), _ = capture_info(stream)
    return node


def capture_info(stream: int) -> tuple[Any, Any, Any]:
    """The graph being captured, the stream's last nodes, and the data of their edges."""
    _, _, graph, last, edges, _ = Driver.get().call(versioned("cuStreamGetCaptureInfo", 3), stream)
    return graph, last, edges


def versioned(name: str, version: int) -> str:
    """A driver function with edge data: bindings before CUDA 13 have it with a version suffix."""
    numbered = f"{name}_v{version}"
    return numbered if hasattr(Driver.get().api, numbered) else name


def _side_streams() -> list[Stream]:
    """Streams that a thread captures branches on."""
    found: list[Stream] | None = getattr(_of_thread, "streams", None)
    if found is None:
        found = _of_thread.streams = [Stream() for _ in range(BRANCHES - 1)]
    return found


def _branch(tails: Sequence[int | None], before: Sequence[int]) -> int:
    """The branch of a launch: that of the last one it waits for, else an empty one, else the one
    idle for longest."""
    behind = [own for own, tail in enumerate(tails) if tail is not None and tail in before]
    if behind:
        return max(behind, key=lambda own: tails[own] or 0)
    free = [own for own, tail in enumerate(tails) if tail is None]
    return free[0] if free else min(range(len(tails)), key=lambda own: tails[own] or 0)


def _last_on_others(at: Sequence[int], before: Sequence[int], own: int) -> list[int]:
    """Of a launch's dependences, the last on each other branch, which implies the earlier ones."""
    last: dict[int, int] = {}
    for number in before:
        if at[number] != own:
            last[at[number]] = max(last.get(at[number], -1), number)
    return list(last.values())


class Timeline:
    """Launches as one graph with events between them: times each in place, without the host."""

    def __init__(self, launches: Sequence[Startable]) -> None:
        self.driver = driver = Driver.get()
        self._events = [driver.call("cuEventCreate", 0)[0] for _ in range(len(launches) + 1)]

        def record(stream: int) -> None:
            self._mark(0, stream)
            for at, launch in enumerate(launches, 1):
                launch.start(stream)
                self._mark(at, stream)

        self._graph = Graph(record)

    def _mark(self, at: int, stream: int) -> None:
        self.driver.call("cuEventRecordWithFlags", self._events[at], stream, _IN_GRAPH)

    def run(self) -> list[float]:
        """Milliseconds of each launch."""
        self._graph.launch()
        self.driver.call("cuEventSynchronize", self._events[-1])
        return [
            float(self.driver.call("cuEventElapsedTime", begin, end)[0])
            for begin, end in itertools.pairwise(self._events)
        ]

    def __del__(self) -> None:
        for event in getattr(self, "_events", ()):
            self.driver.drop("cuEventDestroy", event)
