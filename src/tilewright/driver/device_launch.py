"""Launches of a model on a GPU: kernels and copies, their dependencies, and recorded calls.

`Gpu` is the interface of a GPU that a module needs. `Recorded` holds the launches of one set of
sizes and addresses; from the second run on they are one CUDA graph, in which launches that share no
memory may run concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilewright.base.dtype import DType
from tilewright.codegen.conditions import AGAIN, BEGIN, CHOOSE, conditions_ptx
from tilewright.codegen.launches import Kernel as DeviceKernel
from tilewright.codegen.nvptx import DeviceCode
from tilewright.driver.kernels import Kernel
from tilewright.runtime import conditions, cuda, cuda_graphs


class Gpu(Protocol):
    """The interface of a GPU. `CudaGpu` implements it; tests have one in host memory."""

    def allocate(self, size_bytes: int, stream: int) -> Any: ...
    def zeroed(self, size_bytes: int, stream: int) -> Any: ...
    def holding(self, array: np.ndarray[Any, Any], stream: int) -> Any: ...
    def copy_in(self, address: int, source: np.ndarray[Any, Any], stream: int) -> None: ...
    def copy_out(self, target: np.ndarray[Any, Any], address: int, stream: int) -> None: ...
    def copy(self, to: int, source: int, size_bytes: int, stream: int) -> None: ...
    def load(self, code: DeviceCode, kernel: Kernel) -> Any: ...
    def graph(
        self, launches: Sequence[cuda_graphs.Startable], waits: Sequence[Sequence[int]]
    ) -> Any: ...
    def changeable(
        self, launches: Sequence[cuda_graphs.Kernel], waits: Sequence[Sequence[int]]
    ) -> Any: ...
    def record(
        self, launches: Sequence[cuda_graphs.Startable], waits: Sequence[Sequence[int]], stream: int
    ) -> None: ...
    def is_capturing(self, stream: int) -> bool: ...
    def beside_capture(self) -> AbstractContextManager[Gpu]: ...
    def follow(self, stream: int, before: int) -> None: ...
    def has_conditions(self) -> bool: ...
    def record_choice(self, choice: Any, stream: int) -> None: ...
    def record_loop(self, loop: Any, stream: int) -> None: ...
    def timer(self) -> Any: ...
    def timeline(self, launches: Sequence[cuda_graphs.Startable]) -> Any: ...
    def wait(self, stream: int) -> None: ...
    def tensor_map(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: DType,
        box: tuple[int, ...],
        corners: tuple[int, ...],
    ) -> Any: ...


class CudaGpu:
    """The GPU of this machine."""

    _condition_kernels: cuda.Module | None = None  # kernels that set conditions

    def has_conditions(self) -> bool:
        return conditions.are_available()

    def record_choice(self, choice: Any, stream: int) -> None:
        def decide(body_stream: int, handles: Sequence[int]) -> None:
            self._decide(CHOOSE, body_stream, *handles, choice.cond)

        bodies = [partial(start_all, body) for body in choice.bodies]
        conditions.add_choice(stream, bodies, decide)

    def record_loop(self, loop: Any, stream: int) -> None:
        def begin(own: int, handles: Sequence[int]) -> None:
            addresses = (loop.control, loop.trip, loop.limit, loop.begins, loop.at, loop.going)
            self._decide(BEGIN, own, *handles, *addresses)

        def turn(own: int, handle: int) -> None:
            start_all(loop.bodies[0], own)
            self._decide(AGAIN, own, handle, loop.control, loop.at, loop.going)

        conditions.add_loop(stream, turn, begin)

    def _decide(self, name: str, stream: int, *arguments: int) -> None:
        if self._condition_kernels is None:
            self._condition_kernels = cuda.Module(conditions_ptx())
        self._condition_kernels.launch(name, (1, 1, 1), (1, 1, 1), arguments, stream=stream)

    def allocate(self, size_bytes: int, stream: int) -> Any:
        return cuda.Memory(size_bytes, stream)

    def zeroed(self, size_bytes: int, stream: int) -> Any:
        return self.holding(np.zeros(size_bytes, np.uint8), stream)

    def holding(self, array: np.ndarray[Any, Any], stream: int) -> Any:
        made = cuda.Memory(array.nbytes, stream)
        cuda.copy_in(made.address, array, stream)
        return made

    def copy_in(self, address: int, source: np.ndarray[Any, Any], stream: int) -> None:
        cuda.copy_in(address, source, stream)

    def copy_out(self, target: np.ndarray[Any, Any], address: int, stream: int) -> None:
        cuda.copy_out(target, address, stream)

    def copy(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        cuda.copy(to, source, size_bytes, stream)

    def load(self, code: DeviceCode, kernel: Kernel) -> Any:
        return cuda.Module(code.ptx)

    def graph(
        self, launches: Sequence[cuda_graphs.Startable], waits: Sequence[Sequence[int]]
    ) -> Any:
        return cuda_graphs.Graph(cuda_graphs.branched(launches, waits))

    def changeable(
        self, launches: Sequence[cuda_graphs.Kernel], waits: Sequence[Sequence[int]]
    ) -> Any:
        return cuda_graphs.ChangeableGraph(launches, waits)

    def record(
        self, launches: Sequence[cuda_graphs.Startable], waits: Sequence[Sequence[int]], stream: int
    ) -> None:
        """Make launches a part of what a caller captures."""
        cuda_graphs.branched(launches, waits)(stream)

    def is_capturing(self, stream: int) -> bool:
        return cuda.is_capturing(stream)

    @contextmanager
    def beside_capture(self) -> Iterator[Gpu]:
        with cuda.beside_capture():
            yield _BesideCapture()

    def follow(self, stream: int, before: int) -> None:
        cuda.follow(stream, before)

    def timer(self) -> Any:
        return cuda.Timer()

    def timeline(self, launches: Sequence[cuda_graphs.Startable]) -> Any:
        return cuda_graphs.Timeline(launches)

    def wait(self, stream: int) -> None:
        cuda.wait(stream)

    def tensor_map(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: DType,
        box: tuple[int, ...],
        corners: tuple[int, ...],
    ) -> Any:
        return cuda.TensorMap(address, shape, dtype, box, corners)


class _BesideCapture(CudaGpu):
    """The GPU while a caller captures a stream: memory is new, for the graph may run while work
    that was queued earlier does, and filled by no part of the graph."""

    def allocate(self, size_bytes: int, stream: int) -> Any:
        return cuda.Memory(size_bytes, stream, is_new=True)

    def holding(self, array: np.ndarray[Any, Any], stream: int) -> Any:
        made = self.allocate(array.nbytes, stream)
        cuda.copy_in_beside(made.address, array)
        return made


def start_all(launches: Sequence[Any], stream: int) -> None:
    """Start launches in order."""
    for launch in launches:
        launch.start(stream)


class Span(NamedTuple):
    """A range of memory that a launch reads or writes."""

    start: int
    stop: int
    is_written: bool


def waits_of(used: Sequence[Sequence[Span]]) -> list[list[int]]:
    """For each launch, the earlier launches it depends on: both use a range, and one writes it.

    Transitive dependencies are left out.
    """
    found: list[list[int]] = []
    ancestors: list[set[int]] = []  # for each launch, all its transitive dependencies
    for at, ranges in enumerate(used):
        before: list[int] = []
        reached: set[int] = set()
        for other in reversed(range(at)):
            if other not in reached and _conflict(ranges, used[other]):
                before.append(other)
                reached |= ancestors[other] | {other}
        found.append(before[::-1])
        ancestors.append(reached)
    return found


def by_urgency(
    work: Sequence[float], waits: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """List scheduling: an order of launches in which, of those that are ready, the one with the
    longest path of work behind it comes first; and for each launch in that order its dependencies.

    A launch that comes first gets its place in the queue first, and may start before its
    predecessor has ended.
    """
    remaining = list(work)  # work on the longest path from a launch to the end, itself included
    users: list[list[int]] = [[] for _ in work]
    for at in reversed(range(len(work))):
        for other in waits[at]:
            users[other].append(at)
            remaining[other] = max(remaining[other], work[other] + remaining[at])
    pending = [len(before) for before in waits]
    ready = [at for at, count in enumerate(pending) if not count]
    order: list[int] = []
    while ready:
        chosen = max(ready, key=lambda at: (remaining[at], -at))
        ready.remove(chosen)
        order.append(chosen)
        for user in users[chosen]:
            pending[user] -= 1
            if not pending[user]:
                ready.append(user)
    position = {at: number for number, at in enumerate(order)}
    return order, [sorted(position[other] for other in waits[at]) for at in order]


def _conflict(one: Sequence[Span], other: Sequence[Span]) -> bool:
    return any(
        (a.is_written or b.is_written) and a.start < b.stop and b.start < a.stop
        for a in one
        for b in other
    )


class Scratch:
    """Memory for the calls of one stream, which reuse it since they run one after the other."""

    def __init__(self, gpu: Gpu, stream: int) -> None:
        self.gpu, self.stream = gpu, stream
        self.blocks: list[Any] = []

    def take(self, at: int, size_bytes: int) -> Any:
        """The block with this number, of at least so many bytes. A block that is replaced by a
        larger one lives on in the launches that were recorded with it."""
        if at < len(self.blocks) and self.blocks[at][1] >= size_bytes:
            return self.blocks[at][0]
        made = self.gpu.allocate(size_bytes, self.stream)
        self.blocks[at : at + 1] = [(made, size_bytes)]
        return made


@dataclass(frozen=True, slots=True)
class Started:
    """A kernel launch with all its arguments."""

    module: Any
    kernel: DeviceKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]  # scalars and tensor maps
    label: str = ""
    flops: int = 0
    spans: tuple[Span, ...] = ()  # memory it reads and writes
    # programmatic dependent launch: may start before its dependencies end
    starts_early: bool = False
    is_kernel: bool = True

    @property
    def moved_bytes(self) -> int:
        return int(sum(span.stop - span.start for span in self.spans))

    def start(self, stream: int, is_early: bool = False) -> None:
        self.module.launch(
            self.kernel.name,
            self.grid,
            self.block,
            self.arguments,
            shared_bytes=self.kernel.shared_bytes,
            stream=stream,
            is_early=is_early,
            is_together=self.kernel.is_together,
        )

    def node(self) -> cuda.NodeParams:
        """The parameters of its node in a graph."""
        shared = self.kernel.shared_bytes
        function = self.module.kernel(self.kernel.name, shared)
        return cuda.NodeParams(function, len(self.arguments), shared)

    def write(self, params: cuda.NodeParams) -> None:
        params.write(self.grid, self.block, self.arguments)


@dataclass(eq=False)
class Recorded:
    """The launches of a call, for one set of sizes and addresses."""

    launches: list[Started]
    memory: list[Any]  # allocations used by the launches besides inputs and outputs
    graph: Any = None

    def run(self, gpu: Gpu, stream: int, graph_of: Callable[[Gpu, Sequence[Any]], Any]) -> None:
        """Start the launches one by one the first time, then as a graph."""
        if self.graph is None:
            self.start(stream)
            self.graph = False
            return
        if self.graph is False:
            self.graph = graph_of(gpu, self.launches)
        self.graph.launch(stream)

    def start(self, stream: int) -> None:
        for launch in self.launches:
            launch.start(stream)


def in_order(launches: Sequence[Any]) -> tuple[list[Any], list[list[int]]]:
    """The launches of a call in the order of a graph, and the dependencies of each."""
    moved = [float(sum(span.stop - span.start for span in launch.spans)) for launch in launches]
    order, waits = by_urgency(moved, waits_of([launch.spans for launch in launches]))
    return [launches[at] for at in order], waits


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy within GPU memory."""

    gpu: Any
    to: int
    source: int
    size_bytes: int
    label: str = "copy"
    flops: int = 0
    starts_early: bool = False
    is_kernel: bool = False

    @property
    def spans(self) -> tuple[Span, ...]:
        return (
            Span(self.source, self.source + self.size_bytes, False),
            Span(self.to, self.to + self.size_bytes, True),
        )

    def start(self, stream: int, is_early: bool = False) -> None:
        self.gpu.copy(self.to, self.source, self.size_bytes, stream)
