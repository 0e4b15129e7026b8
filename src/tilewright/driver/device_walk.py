"""Walk the nodes of a model and turn them into launches on a GPU.

Where sizes are static for a call, launches are only collected, to be run again and again; `if` and
`loop` with conditions on the GPU are single launches that contain those of their bodies. Where
sizes are data-dependent, launches are started during the walk, and the host reads the values it
needs.
"""

from __future__ import annotations

import ctypes
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.base.errors import UserError
from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.base.target import CPU, Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.conditions import COND_AT, CONTROL_BYTES
from tilewright.codegen.launches import box_of, launches, matrix_of, number
from tilewright.codegen.nvptx import DeviceCode
from tilewright.driver.device_control import Choice, Loop, turns_of
from tilewright.driver.device_launch import Copied, Gpu, Scratch, Span, Started
from tilewright.driver.kernels import Kernel
from tilewright.driver.lowering import Program
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.memory import MemoryPlan, size_bytes, spans
from tilewright.graph.ops.control import trip_of
from tilewright.graph.visit import walk
from tilewright.runtime import _native
from tilewright.sym import Size, Var
from tilewright.tensor.ir import Buffer
from tilewright.tensor.scopes import ARRIVALS

LOADERS = 8  # threads that have the driver assemble PTX concurrently


class HostKernels:
    """Kernels that run on the host, as C functions: they compute sizes and conditions on sizes."""

    def __init__(self, program: Program) -> None:
        kernels = [kernel for kernel in program.kernels.values() if not kernel.device]
        self.addresses: dict[str, int] = {}
        if kernels:
            symbols = tuple(f"{kernel.name}_kernel" for kernel in kernels)
            machine = llvm.machine_of(Target.parse(CPU))
            self.loaded = jit.load([kernel.image for kernel in kernels], symbols, (), machine)
            found = self.loaded.addresses
            self.addresses = {each.name: found[f"{each.name}_kernel"] for each in kernels}


class Loaded:
    """Weights on the GPU and kernels in the driver. What `other` has loaded already is shared."""

    def __init__(self, program: Program, gpu: Gpu, other: Loaded | None = None) -> None:
        self.codes: dict[str, DeviceCode] = {}
        self.host_kernels = HostKernels(program)
        self.host = self.host_kernels.addresses
        on_gpu = [kernel for kernel in program.kernels.values() if kernel.device]
        self.codes = {kernel.name: pickle.loads(kernel.image) for kernel in on_gpu}
        loaded_modules = {} if other is None else other.modules
        self.modules: dict[str, Any] = {
            each.name: loaded_modules[each.name] for each in on_gpu if each.name in loaded_modules
        }
        new = [kernel for kernel in on_gpu if kernel.name not in loaded_modules]
        with ThreadPoolExecutor(LOADERS) as pool:  # the driver releases the GIL while it assembles
            loaded = pool.map(lambda kernel: gpu.load(self.codes[kernel.name], kernel), new)
            self.modules |= {kernel.name: made for kernel, made in zip(new, loaded, strict=True)}
        loaded_weights = {} if other is None else other.weights
        self.weights: dict[str, Any] = {}
        read = {node["data"] for node in walk(program.module.main) if node.op == "constant"}
        for name, array in program.module.constants.items():
            if name not in read:  # the initial value of a state
                continue
            if name in loaded_weights:
                self.weights[name] = loaded_weights[name]
                continue
            compact = np.ascontiguousarray(array)
            self.weights[name] = gpu.allocate(compact.nbytes, 0)
            gpu.copy_in(self.weights[name].address, compact, 0)
        gpu.wait(0)  # calls may use any stream


class Owner(Protocol):
    """What a walk needs of the module whose nodes it walks."""

    program: Program
    target: Target
    plan: MemoryPlan
    _gpu: Gpu
    _scratch: dict[int, Scratch]  # by stream
    _counts: dict[tuple[int, Value, Buffer], Any]  # arrival counters, by stream, node and buffer

    def _new(self, at: int, sizes: Mapping[Var, int], stream: int) -> Any: ...


def assign_flops(
    launches: Sequence[Started], flops: int, early_flops_per_byte: int
) -> list[Started]:
    """The launches of a node with its flops assigned, and marked where they may start early.

    Launches that multiply do the arithmetic; if there are none, the one that moves most bytes does.
    Others are prologues (packing) or epilogues (reducing partial sums).
    """
    if not launches:
        return []
    heaviest = max(launches, key=lambda launch: launch.moved_bytes).kernel
    flops = int(flops)
    compute = {id(each.kernel) for each in launches if each.kernel.multiplies} or {id(heaviest)}
    share = flops // sum(id(launch.kernel) in compute for launch in launches)
    marked = []
    for launch in launches:
        work = share if id(launch.kernel) in compute else 0
        # Kernels with bulk copies are persistent, one block per multiprocessor, so they may always
        # start.
        is_memory_bound = (
            bool(launch.kernel.maps) or work <= early_flops_per_byte * launch.moved_bytes
        )
        early = launch.kernel.can_start_early and is_memory_bound and not launch.kernel.is_together
        marked.append(replace(launch, flops=work, starts_early=early))
    return marked


class _Row(NamedTuple):
    """A copy of the value that one iteration produced."""

    memory: Any
    size_bytes: int
    shape: list[int]


@dataclass(eq=False)
class Walk:
    """One walk over the nodes of a model."""

    owner: Owner
    ready: Loaded
    sizes: dict[Var, int]
    given: Sequence[Any]
    outputs: Sequence[Any] | None
    stream: int
    starts: bool  # launch during the walk; else launches are only collected
    launches: list[Started] = field(default_factory=list)
    memory: list[Any] = field(default_factory=list)
    places: dict[Value, int] = field(default_factory=dict)
    planned: dict[Value, int] = field(default_factory=dict)  # addresses in the arena
    on_host: dict[Value, np.ndarray[Any, Any]] = field(default_factory=dict)
    made: dict[int, Any] = field(default_factory=dict)
    # allocations with host values that bodies read
    numbers: list[Any] = field(default_factory=list)

    @cached_property
    def _early_flops_per_byte(self) -> int:
        return multiprocessor_of(self.owner.target).early_flops_per_byte

    def results(self) -> tuple[Any, ...]:
        graph = self.owner.program.module.main
        for param, array in zip(graph.params, self.given, strict=True):
            self.places[param] = array.address
        self._take_arena()
        self._nodes(graph)
        module = self.owner.program.module
        made = tuple(self._result(graph, at) for at in range(len(module.made)))
        self._replace_states(graph.params[len(module.given) :], graph.results[len(module.made) :])
        return made

    def _nodes(self, graph: Graph) -> None:
        for node in graph.nodes:
            self.run_node(node)

    def run_node(self, node: Node) -> None:
        _NODES[node.op](self, node)

    # ------------------------------------------------------------------ memory

    def _take_arena(self) -> None:
        plan = self.owner.plan
        offsets, total = plan.offsets, plan.arena_bytes
        if offsets is None:
            sizes = tuple(number(slot.size_bytes, self.sizes) for slot in plan.slots)
            offsets, total = _native.plan_arena(sizes, tuple(spans(plan.slots)))
        if not plan.slots:
            return
        arena = self._allocate(total or 0)
        for slot, offset in zip(plan.slots, offsets or (), strict=True):
            self.places[slot.value] = self.planned[slot.value] = arena + offset

    def _allocate(self, size_bytes: int) -> int:
        owner, stream = self.owner, self.stream
        if stream not in owner._scratch:
            owner._scratch[stream] = Scratch(owner._gpu, stream)
        self.memory.append(owner._scratch[stream].take(len(self.memory), size_bytes))
        address: int = self.memory[-1].address
        return address

    def _counters(self, node: Node, buffer: Buffer, size_bytes: int) -> int:
        """The address of the arrival counters of a node's kernel, shared by all calls on the
        stream."""
        counts, key = self.owner._counts, (self.stream, node.outputs[0], buffer)
        if key not in counts:
            counts[key] = self.owner._gpu.zeroed(size_bytes, self.stream)
        address: int = counts[key].address
        return address

    def address(self, value: Value) -> int:
        """The address of a value; allocates memory if it has none yet."""
        root = self.owner.plan.root(value)
        if root in self.places:
            return self.places[root]
        at = self.owner.plan.outputs.get(root)
        if at is not None:
            self.places[root] = self._out(at).address
        else:
            self.places[root] = self._allocate(number(size_bytes(root.tensor), self.sizes))
        return self.places[root]

    def _out(self, at: int) -> Any:
        """The memory of a result; that of a new state is the old one's."""
        module = self.owner.program.module
        if at >= len(module.made):
            return self.given[len(module.given) + at - len(module.made)]
        if at not in self.made:
            self.made[at] = self.outputs[at] if self.outputs else self._made(at)
        return self.made[at]

    def _made(self, at: int) -> Any:
        return self.owner._new(at, self.sizes, self.stream)

    def _result(self, graph: Graph, at: int) -> Any:
        """The array of a result; an input, weight or repeated result is copied into it."""
        value = graph.results[at]
        out = self._out(at)
        source = self.address(value)
        if source != out.address:
            self._start(Copied(self.owner._gpu, out.address, source, out.size_bytes))
        return out

    # ------------------------------------------------------------------ nodes

    def _start(self, launch: Any) -> None:
        self.launches.append(launch)
        if self.starts:
            launch.start(self.stream)

    def constant(self, node: Node) -> None:
        self.places[node.output] = self.ready.weights[node["data"]].address

    def view(self, node: Node) -> None:
        if node.op == "require":
            cond, _ = node.inputs
            assert cond is not None
            if not self.host_value(cond).any():
                raise UserError("TW4012", node["message"])

    def kernel(self, node: Node) -> None:
        numbers = [number(expr, self.sizes) for expr in node["sizes"]]
        name, positions = _fitting_variant(node, numbers)
        kernel = self.owner.program.kernels[name]
        scalars = dict(zip(kernel.scalars, numbers, strict=True))
        for cond in kernel.requires:
            if not number(cond, scalars):
                raise UserError("TW4012", f"{node['label'] or kernel.name} requires {cond}")
        operands = [value for value in node.inputs if value is not None]
        inputs = [operands[at] for at in positions]
        if not kernel.device:
            self._host_kernel(node, kernel, inputs, numbers)
            return
        code, module = self.ready.codes[kernel.name], self.ready.modules[kernel.name]
        addresses = [self.address(value) for value in (*inputs, *node.outputs)]
        places = dict(zip(code.buffers, addresses, strict=True))
        bound = dict(zip(code.scalars, numbers, strict=True))

        def workspace(buffer: Buffer, size: int) -> None:
            counts = buffer.memory == ARRIVALS
            places[buffer] = self._counters(node, buffer, size) if counts else self._allocate(size)

        found: list[Started] = []
        for device, values in launches(code.steps, bound, workspace):
            grid = tuple(number(dim, values) for dim in device.grid)
            block = tuple(number(dim, values) for dim in device.block)
            pointers = [places[buffer] for buffer in device.buffers]
            maps = [
                self._tensor_map(
                    places[made.buffer],
                    matrix_of(made, values),
                    made.buffer.dtype,
                    box_of(made),
                    made.corners,
                )
                for made in device.maps
            ]
            arguments = (*pointers, *(values[var] for var in device.scalars), *maps)
            label = node["label"] or kernel.name
            touched = tuple(
                Span(at, at + self._size_of(buffer, values), buffer in device.written)
                for buffer, at in zip(device.buffers, pointers, strict=True)
            )
            touched += tuple(
                Span(at, at + self._size_of(made.buffer, values), False)
                for made in device.maps
                for at in [places[made.buffer]]
            )
            found.append(
                Started(module, device, grid, block, arguments, label, 0, touched)  # type: ignore[arg-type]  # three axes each
            )
        flops = number(sym.as_expr(node["flops"]), scalars)
        for launch in assign_flops(found, flops, self._early_flops_per_byte):
            self._start(launch)

    def _tensor_map(self, *described: Any) -> Any:
        return self.owner._gpu.tensor_map(*described)

    def _size_of(self, buffer: Buffer, values: Mapping[Var, int]) -> int:
        """The bytes of a kernel's buffer."""
        return buffer.dtype.size_bytes * math.prod(number(dim, values) for dim in buffer.shape)

    def _host_kernel(
        self, node: Node, kernel: Kernel, inputs: list[Value], numbers: list[int]
    ) -> None:
        """Run a kernel that computes sizes on the host, on copies of its inputs."""
        arrays = [self.host_value(value) for value in inputs]
        for value in node.outputs:
            shape = [number(dim, self.sizes) for dim in value.tensor.shape or ()]
            self.on_host[value] = np.zeros(shape, value.tensor.dtype.numpy)
            arrays.append(self.on_host[value])
        kinds = [ctypes.c_void_p] * len(arrays) + [ctypes.c_int64] * len(numbers)
        run = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(self.ready.host[kernel.name])
        code = run(*(array.ctypes.data for array in arrays), *numbers)
        if code:
            raise UserError("TW4012", f"{node['label'] or kernel.name} refuses its inputs")

    def host_value(self, value: Value) -> np.ndarray[Any, Any]:
        """The elements of a value, in host memory."""
        root = self.owner.plan.root(value)
        if root not in self.on_host:
            of = root.tensor
            made = np.empty([number(dim, self.sizes) for dim in of.shape or ()], of.dtype.numpy)
            self.owner._gpu.copy_out(made, self.address(root), self.stream)
            self.on_host[root] = made
        return self.on_host[root]

    def define_sizes(self, node: Node) -> None:
        (source,) = node.inputs
        assert source is not None
        values = self.host_value(source).reshape(-1)
        for size, value in zip(node["sizes"], values, strict=True):
            if not 0 <= value <= MAX_SIZE:
                raise UserError("TW4012", f"{node['label']}: the size {size.name} would be {value}")
            self.sizes[size] = int(value)

    # ------------------------------------------------------------------ control flow

    # While collecting, `if` and `loop` become launches that contain their bodies, and the GPU
    # decides. Otherwise the host reads conditions, and launches of bodies go to the stream like all
    # others.

    def branch(self, node: Node) -> None:
        cond = node.inputs[0]
        assert cond is not None
        if self.starts:
            self._run_branch(node, node.bodies[0 if self.host_value(cond).reshape(-1)[0] else 1])
            return
        bodies = tuple(self._collect_apart(self._run_branch, node, body) for body in node.bodies)
        self._start(Choice(self.owner._gpu, self.address(cond), bodies))

    def _run_branch(self, node: Node, body: Graph) -> None:
        self._enter(body)
        self._nodes(body)
        for value, result in zip(node.outputs, body.results, strict=True):
            self._assign(value, result)

    def _collect_apart(self, run: Callable[..., None], *args: Any) -> tuple[Any, ...]:
        """The launches of `collect`, kept apart from the walk's own."""
        outer, self.launches = self.launches, []
        run(*args)
        found, self.launches = self.launches, outer
        return tuple(found)

    def loop(self, node: Node) -> None:
        (body,), carried = node.bodies, int(node["carried"])
        trip, begins = (*node.inputs[:2], None, None)[:2]
        states = body.params[2 : 2 + carried]
        for param, value in zip(states, node.inputs[2 : 2 + carried], strict=True):
            assert value is not None
            self._assign(param, value)
        static_trips, limit = trip_of(node), MAX_SIZE
        if static_trips is not None:
            limit, trip = number(static_trips, self.sizes), None
        if not self.starts and turns_of(node) is None:
            iteration = self._collect_apart(
                self._iteration, body, states, control := self._allocate(CONTROL_BYTES)
            )
            trip_address, begins_address = (
                0 if value is None else self.address(value) for value in (trip, begins)
            )
            at, going = (self.address(param) for param in body.params[:2])
            gpu = self.owner._gpu
            self._start(
                Loop(gpu, limit, trip_address, begins_address, at, going, control, (iteration,))
            )
            self._finish_loop(node, states, [], 0)
            return
        if trip is not None:
            limit = int(self.host_value(trip).reshape(-1)[0])
        going = begins is None or bool(self.host_value(begins).reshape(-1)[0])
        rows: list[list[_Row]] = [[] for _ in node.outputs[carried:]]
        count = 0
        while going and count < limit:
            self._enter(body)
            self._set_scalar(body.params[0], count)
            self._set_scalar(body.params[1], 1)
            self._nodes(body)
            going = not self.starts or bool(self.host_value(body.results[0]).reshape(-1)[0])
            # before states are overwritten: results may be states
            self._collect_rows(rows, body.results[1 + carried :])
            self._update_states(states, body.results[1 : 1 + carried])
            count += 1
        self._finish_loop(node, states, rows, count)

    def _iteration(self, body: Graph, states: Sequence[Value], control: int) -> None:
        """One iteration; its condition is copied to where the loop reads it."""
        self._enter(body)
        self._nodes(body)
        self._move(control + COND_AT, self.address(body.results[0]), BOOL.size_bytes)
        self._update_states(states, body.results[1 : 1 + len(states)])

    def scan(self, node: Node) -> None:
        (body,), states, inputs = node.bodies, int(node["states"]), int(node["inputs"])
        state_params, elements = body.params[:states], body.params[states : states + inputs]
        sources = node.inputs[states : states + inputs]
        for param, value in zip(state_params, node.inputs[:states], strict=True):
            assert value is not None
            self._assign(param, value)
        first = sources[0]
        assert first is not None
        count = number((first.tensor.shape or ())[0], self.sizes)
        rows: list[list[_Row]] = [[] for _ in node.outputs[states:]]
        for at in range(count):
            self._enter(body)
            for param, source in zip(elements, sources, strict=True):
                assert source is not None
                self._bind(param, [number(d, self.sizes) for d in (source.tensor.shape or ())[1:]])
                size = number(size_bytes(param.tensor), self.sizes)
                self.places[param] = self.address(source) + at * size
            self._nodes(body)
            self._collect_rows(rows, body.results[states:])
            self._update_states(state_params, body.results[:states])
        self._finish_loop(node, state_params, rows, count)

    def _enter(self, body: Graph) -> None:
        """Forget the values that the previous run of a body computed."""
        for value in (*body.params, *(each for node in walk(body) for each in node.outputs)):
            self.on_host.pop(value, None)
            if value in self.planned:
                self.places[value] = self.planned[value]
            elif value not in body.params:
                self.places.pop(value, None)

    def _bind(self, value: Value, dims: Sequence[int]) -> None:
        """Define the dynamic sizes of a value's type from its actual shape."""
        for dim, extent in zip(value.tensor.shape or (), dims, strict=True):
            if isinstance(dim, Size):
                self.sizes[dim] = extent

    def _shape(self, value: Value) -> list[int]:
        return [number(dim, self.sizes) for dim in value.tensor.shape or ()]

    def _assign(self, to: Value, source: Value) -> None:
        """Copy `source` to `to`; `source` keeps its memory."""
        self._bind(to, self._shape(source))
        size = number(size_bytes(source.tensor), self.sizes)
        self._drop_place(to)
        self.on_host.pop(to, None)
        self._move(self.address(to), self.address(source), size)

    def _drop_place(self, value: Value) -> None:
        """Forget the address of a value whose size may have changed."""
        if self.starts and self.owner.plan.root(value) not in self.planned:
            self.places.pop(value, None)

    def _move(self, to: int, source: int, size: int) -> None:
        if to != source and size:
            self._start(Copied(self.owner._gpu, to, source, size))

    def _set_scalar(self, param: Value, number_: int) -> None:
        """Write a host scalar to a value on the GPU; collected launches read it from memory of its
        own, which every call finds unchanged."""
        made = np.full(self._shape(param), number_, param.tensor.dtype.numpy)
        if self.starts:
            self.owner._gpu.copy_in(self.address(param), made, self.stream)
        else:
            self.numbers.append(self.owner._gpu.holding(made, self.stream))
            self.places[param] = self.numbers[-1].address
        self.on_host[param] = made

    def _copy_of(self, value: Value) -> _Row:
        """A copy of a value in newly allocated memory."""
        size = number(size_bytes(value.tensor), self.sizes)
        memory = self.owner._gpu.allocate(size, self.stream)
        if not self.starts:
            self.numbers.append(memory)
        self._move(memory.address, self.address(value), size)
        return _Row(memory, size, self._shape(value))

    def _update_states(self, states: Sequence[Value], results: Sequence[Value]) -> None:
        """Assign an iteration's results to the states. If a result shares memory with a state, all
        are copied before any is overwritten."""
        places = {self.address(state) for state in states}
        if all(self.address(result) not in places for result in results):
            for param, result in zip(states, results, strict=True):
                self._assign(param, result)
            return
        saved = [self._copy_of(result) for result in results]
        for param, row in zip(states, saved, strict=True):
            self._bind(param, row.shape)
            self._drop_place(param)
            self._move(self.address(param), row.memory.address, row.size_bytes)

    def _replace_states(self, states: Sequence[Value], results: Sequence[Value]) -> None:
        """Copy new states that were not computed in the memory of the old. Those that lie in the
        memory of other states are copied away before any is overwritten."""
        pairs = [
            (self.places[state], result) for state, result in zip(states, results, strict=True)
        ]
        left = [(to, result) for to, result in pairs if self.address(result) != to]
        replaced = {to for to, _ in left}
        saved = {
            to: self._copy_of(result) for to, result in left if self.address(result) in replaced
        }
        for to, result in left:
            source = saved[to].memory.address if to in saved else self.address(result)
            self._move(to, source, number(size_bytes(result.tensor), self.sizes))

    def _collect_rows(self, rows: list[list[_Row]], results: Sequence[Value]) -> None:
        for kept, result in zip(rows, results, strict=True):
            kept.append(self._copy_of(result))

    def _finish_loop(
        self, node: Node, states: Sequence[Value], rows: list[list[_Row]], count: int
    ) -> None:
        """Set the outputs of a loop: final states, then the rows of all iterations,
        concatenated."""
        for value, param in zip(node.outputs, states, strict=False):
            self._assign(value, param)
        for value, kept in zip(node.outputs[len(states) :], rows, strict=True):
            dims = value.tensor.shape or ()
            one = kept[0].shape if kept else [0 if isinstance(d, Size) else 1 for d in dims[1:]]
            self._bind(value, [count, *one])
            to = self.address(value)
            for row in kept:
                if row.shape != one:
                    told = f"{row.shape}, and was {one} before"
                    raise UserError(
                        "TW4012",
                        f"{value.name}: iterations give rows of different shapes: one is {told}",
                    )
                self._move(to, row.memory.address, row.size_bytes)
                to += row.size_bytes


MAX_SIZE = 1 << 40  # largest size or trip count
_NODES: dict[str, Callable[[Walk, Node], None]] = {
    "constant": Walk.constant,
    "kernel": Walk.kernel,
    "sizes": Walk.define_sizes,
    "reshape": Walk.view,
    "require": Walk.view,
    "if": Walk.branch,
    "loop": Walk.loop,
    "scan": Walk.scan,
}


def _fitting_variant(node: Node, numbers: Sequence[int]) -> tuple[str, Sequence[int]]:
    """The first kernel variant whose size limit fits, and the inputs it takes."""
    given = range(sum(value is not None for value in node.inputs))
    own, *others = node.get("takes") or (given,)
    for name, (size, most), taken in zip(
        node.get("variants", ()), node.get("limits", ()), others, strict=True
    ):
        if numbers[size] <= most:
            return name, taken
    return node["function"], own
