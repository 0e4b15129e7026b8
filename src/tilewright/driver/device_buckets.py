"""One CUDA graph for many sizes: calls of a bucket launch the same kernels with other numbers.

A bucket has all calls whose sizes round up to the same ones, and for which the walk over the nodes
takes the same decisions: the same variants, no empty grids. One walk with traced sizes and
addresses (`sym/traced.py`) tells every grid and argument as a function of them. A call evaluates
that function, replaces in the bucket's graph what differs from the call before, and launches it.
Nothing is walked or captured again.

Values lie in the arena where a call of the largest sizes would have them, and launches wait for
each other as that call's would: what is smaller lies inside, so it is in nobody's way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tilewright.codegen.launches import number
from tilewright.driver.device_launch import Scratch, Span, Started, by_urgency, waits_of
from tilewright.driver.device_walk import Loaded, Owner, Walk
from tilewright.driver.kernels import Kernel
from tilewright.graph.ir import Graph, Node
from tilewright.graph.memory import spans
from tilewright.runtime import _native
from tilewright.sym import Var
from tilewright.sym.traced import Tape, Traced
from tilewright.tensor.ir import Buffer

MAX_BUCKETS = 32  # graphs, least recently used ones dropped
MAX_MAPS = 1024  # tensor maps of a bucket, likewise
MAX_SEEN = 256  # calls that are remembered, to tell those that recur
OFTEN = 4  # so often a call recurs before it gets a graph of its own
BASE_SHIFT = 50  # of addresses that stand for memory: far apart


class Unsuited(Exception):
    """A call that no other call can share a graph with."""


class _Map(NamedTuple):
    """A tensor map to be made, with traced numbers."""

    address: Any
    shape: tuple[Any, ...]
    dtype: Any
    box: tuple[int, ...]
    corners: tuple[int, ...]


class _Input(NamedTuple):
    """A traced input or output of a call."""

    address: Any
    shape: tuple[Any, ...]
    size_bytes: Any


@dataclass(eq=False)
class _Tracing(Walk):
    """A walk with traced sizes and addresses. Memory is only counted."""

    tape: Tape = field(default_factory=Tape)
    largest: Mapping[Var, int] = field(default_factory=dict)  # sizes of the bucket
    asked: list[Any] = field(default_factory=list)  # bytes of each block of memory
    sized: list[Any] = field(default_factory=list)  # of the kernels' buffers

    def _take_arena(self) -> None:
        plan = self.owner.plan
        offsets, total = plan.offsets, plan.arena_bytes
        if offsets is None:
            sizes = tuple(int(number(slot.size_bytes, self.largest)) for slot in plan.slots)
            offsets, total = _native.plan_arena(sizes, tuple(spans(plan.slots)))
            for slot, size in zip(plan.slots, sizes, strict=True):
                self.require_at_most(number(slot.size_bytes, self.sizes), size)
        if not plan.slots:
            return
        arena = self._allocate(total or 0)
        for slot, offset in zip(plan.slots, offsets or (), strict=True):
            self.places[slot.value] = self.planned[slot.value] = arena + offset

    def _allocate(self, size_bytes: int) -> Any:
        self.asked.append(size_bytes)
        return self.tape.argument(len(self.tape.arguments) << BASE_SHIFT)

    def require_at_most(self, size: Any, most: int) -> None:
        if not size <= most:
            raise Unsuited

    def _size_of(self, buffer: Buffer, values: Mapping[Var, int]) -> Any:
        self.sized.append(super()._size_of(buffer, values))
        return self.sized[-1]

    def _tensor_map(self, *described: Any) -> Any:
        return _Map(*described)

    def run_node(self, node: Node) -> None:
        if not _is_of_host(node, self.owner.program.kernels):  # they run at every call
            super().run_node(node)

    def _start(self, launch: Any) -> None:
        if not isinstance(launch, Started):
            raise Unsuited  # of a copy, or of a decision
        super()._start(launch)


class Bucket:
    """A graph, and its numbers as functions of sizes and addresses."""

    def __init__(
        self,
        owner: Owner,
        ready: Loaded,
        sizes: Mapping[Var, int],
        given: Sequence[Any],
        results: Sequence[Any],
        stream: int,
    ) -> None:
        tape, self.gpu = Tape(), owner._gpu
        largest = {size: rounded(value) for size, value in sizes.items()}
        traced: Any = {size: tape.argument(value) for size, value in sizes.items()}

        def port(array: Any) -> _Input:
            place = tape.argument(len(tape.arguments) << BASE_SHIFT)
            return _Input(place, tuple(array.shape), array.size_bytes)

        inputs, outputs = [port(array) for array in given], [port(array) for array in results]
        fixed = len(tape.arguments)
        walk = _Tracing(
            owner, ready, traced, inputs, outputs, stream, False, tape=tape, largest=largest
        )
        walk.results()
        at_most = [*largest.values(), *(int(each) for each in tape.arguments[len(sizes) :])]
        most = tape.values(at_most)

        def largest_of(traced_number: Any) -> int:
            if isinstance(traced_number, Traced):
                return most[traced_number.at]
            return int(traced_number)

        self.blocks = [largest_of(size) for size in walk.asked]  # bytes
        for size in (*walk.asked, *walk.sized):
            walk.require_at_most(size, largest_of(size))
        assert len(tape.arguments) == fixed + len(self.blocks)
        used = [
            [
                Span(largest_of(span.start), largest_of(span.stop), span.is_written)
                for span in launch.spans
            ]
            for launch in walk.launches
        ]
        for launch, largest_spans in zip(walk.launches, used, strict=True):
            for span, other in zip(launch.spans, largest_spans, strict=True):
                if int(span.start) != other.start:
                    raise Unsuited  # it moves with the sizes
        moved = [float(sum(span.stop - span.start for span in each)) for each in used]
        order, self.waits = by_urgency(moved, waits_of(used))
        self.launches = [replace(walk.launches[at], spans=()) for at in order]
        self.numbers = tape.compiled([_row(launch) for launch in self.launches])
        self.now: list[tuple[int, ...]] = []  # the numbers of the graph
        self.maps: OrderedDict[tuple[Any, ...], Any] = OrderedDict()  # tensor maps of late calls
        self.graph: Any = None

    def run(
        self,
        scratch: Scratch,
        sizes: Sequence[int],
        addresses: Sequence[int],
        stream: int,
    ) -> bool:
        """Run a call, unless it is not one of the bucket's."""
        blocks = [scratch.take(at, size).address for at, size in enumerate(self.blocks)]
        try:
            wanted = self.numbers(*sizes, *addresses, *blocks)
        except ZeroDivisionError:  # ahead of the condition that would say so
            return False
        if wanted is None:
            return False
        if self.graph is None:
            made = [self._launch(at, row) for at, row in enumerate(wanted)]
            self.graph, self.now = self.gpu.changeable(made, self.waits), wanted
        else:
            for at, (row, before) in enumerate(zip(wanted, self.now, strict=True)):
                if row != before:
                    self.graph.change(at, self._launch(at, row))
                    self.now[at] = row
        self.graph.launch(stream)
        return True

    def _launch(self, at: int, row: tuple[int, ...]) -> Started:
        """A launch with its numbers, which `_row` lays out."""
        launch, left = self.launches[at], iter(row)
        grid, block = ((next(left), next(left), next(left)) for _ in range(2))
        arguments = []
        for each in launch.arguments:
            if isinstance(each, _Map):
                place, shape = next(left), tuple(next(left) for _ in each.shape)
                key = (place, shape, each.dtype, each.box, each.corners)
                if key not in self.maps:
                    self.maps[key] = self.gpu.tensor_map(*key)
                    if len(self.maps) > MAX_MAPS:
                        self.maps.popitem(last=False)
                self.maps.move_to_end(key)
                arguments.append(self.maps[key])
            else:
                arguments.append(next(left))
        how = launch.starts_early
        kernel = launch.kernel
        return Started(launch.module, kernel, grid, block, tuple(arguments), starts_early=how)


def _row(launch: Started) -> list[Any]:
    """The numbers of a launch."""
    found = [*launch.grid, *launch.block]
    for each in launch.arguments:
        found += [each.address, *each.shape] if isinstance(each, _Map) else [each]
    return found


def rounded(size: int) -> int:
    """The largest size of a bucket: 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    top = 1 << max(0, size - 1).bit_length()
    return size if size < 1 else top * 3 // 4 if size <= top * 3 // 4 else top


class Buckets:
    """The buckets of a module."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[int, ...], list[Bucket]] = OrderedDict()
        self._seen: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._unsuited: set[tuple[int, ...]] = set()
        self._checks: list[Node] | None = None

    def run(
        self,
        owner: Owner,
        ready: Loaded,
        sizes: dict[Var, int],
        given: Sequence[Any],
        results: Sequence[Any],
        stream: int,
    ) -> bool:
        """Run a call that has no graph of its own; false if it has to be walked, as the first call
        of a bucket and calls that recur have."""
        key = (stream, *map(rounded, sizes.values()))
        is_suited = key not in self._unsuited and owner._gpu.has_conditions()
        if not is_suited or _overlap(given, results):
            return False
        addresses = [array.address for array in (*given, *results)]
        call = (stream, *sizes.values(), *addresses)
        if self._recurs(call):
            return False
        known = self._buckets.get(key)
        if known is None:
            self._buckets[key] = []
            return False
        self._buckets.move_to_end(key)
        self._check(owner, ready, sizes, given, results, stream)
        scratch = owner._scratch.setdefault(stream, Scratch(owner._gpu, stream))
        numbers = list(sizes.values())
        if any(bucket.run(scratch, numbers, addresses, stream) for bucket in known):
            return True
        try:
            known.append(Bucket(owner, ready, sizes, given, results, stream))
        except Unsuited:
            self._unsuited.add(key)
            return False
        while sum(map(len, self._buckets.values())) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return known[-1].run(scratch, numbers, addresses, stream)

    def _recurs(self, call: tuple[int, ...]) -> bool:
        self._seen[call] = count = self._seen.get(call, 0) + 1
        self._seen.move_to_end(call)
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        return count > OFTEN

    def _check(
        self,
        owner: Owner,
        ready: Loaded,
        sizes: dict[Var, int],
        given: Sequence[Any],
        results: Sequence[Any],
        stream: int,
    ) -> None:
        """Let the host check the sizes, as a walk does."""
        graph = owner.program.module.main
        if self._checks is None:
            self._checks = list(_checks_of(graph, owner.program.kernels))
        if self._checks:
            walk = Walk(owner, ready, dict(sizes), given, results, stream, False)
            for node in self._checks:
                walk.run_node(node)


def _checks_of(graph: Graph, kernels: Mapping[str, Kernel]) -> list[Node]:
    """The nodes by which the host checks sizes."""
    return [node for node in graph.nodes if _is_of_host(node, kernels)]


def _is_of_host(node: Node, kernels: Mapping[str, Kernel]) -> bool:
    return node.op == "require" or (node.op == "kernel" and not kernels[node["function"]].device)


def _overlap(given: Sequence[Any], results: Sequence[Any]) -> bool:
    """Whether a result shares memory with something else of the call."""
    ranges = sorted(
        (array.address, array.address + array.size_bytes, is_result)
        for arrays, is_result in ((given, False), (results, True))
        for array in arrays
        if array.size_bytes
    )
    end, result_end = 0, 0
    for start, stop, is_result in ranges:
        if start < (end if is_result else result_end):
            return True
        end = max(end, stop)
        result_end = max(result_end, stop) if is_result else result_end
    return False
