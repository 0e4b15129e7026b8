"""A model whose kernels run on a GPU: weights and arena there, launches queued from here.

    module = DeviceModule(program, plan, target, inputs, outputs)
    outputs = module(x)            arrays on the GPU stay there; NumPy arrays are copied

The nodes are walked once for each set of sizes and addresses; what they launch is kept, and from
the second such call on it is one CUDA graph. Models whose sizes depend on values are walked anew at
every call, since what they launch depends on what they computed.
"""

from __future__ import annotations

import ctypes
import math
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilewright import sym
from tilewright.base.dtype import DType, from_numpy
from tilewright.base.errors import UserError, UserTypeError
from tilewright.base.target import CPU, Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.cuda import check_dtype, check_on_device, check_writable
from tilewright.codegen.launches import Kernel as DeviceKernel
from tilewright.codegen.launches import launches, matrix_of, number
from tilewright.codegen.nvptx import DeviceCode
from tilewright.driver import device_save
from tilewright.driver.kernels import Kernel
from tilewright.driver.lowering import Program
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.memory import MemoryPlan, size_bytes, spans
from tilewright.runtime import _native, cuda
from tilewright.runtime import module as runtime
from tilewright.runtime.array import Array
from tilewright.runtime.dlpack import code_of
from tilewright.runtime.module import Spec
from tilewright.runtime.profiler import Event, Record
from tilewright.sym import Size, Var
from tilewright.tensor.ir import Buffer

KEPT = 16  # sets of sizes and addresses whose launches are remembered
LOADERS = 8  # kernels that the driver assembles at a time


class Gpu(Protocol):
    """What a module asks of a GPU; `runtime.cuda` is one, tests have one in host memory."""

    def allocate(self, size_bytes: int, stream: int) -> Any: ...
    def copy_in(self, address: int, source: np.ndarray[Any, Any], stream: int) -> None: ...
    def copy_out(self, target: np.ndarray[Any, Any], address: int, stream: int) -> None: ...
    def copy(self, to: int, source: int, size_bytes: int, stream: int) -> None: ...
    def load(self, code: DeviceCode, kernel: Kernel) -> Any: ...
    def graph(
        self, starts: Sequence[Callable[[int], None]], waits: Sequence[Sequence[int]]
    ) -> Any: ...
    def is_capturing(self, stream: int) -> bool: ...
    def timer(self) -> Any: ...
    def wait(self, stream: int) -> None: ...
    def tensor_map(
        self, address: int, shape: tuple[int, int], dtype: DType, box: tuple[int, int]
    ) -> Any: ...


class CudaGpu:
    """The GPU of this machine."""

    def allocate(self, size_bytes: int, stream: int) -> Any:
        return cuda.Memory(size_bytes, stream)

    def copy_in(self, address: int, source: np.ndarray[Any, Any], stream: int) -> None:
        cuda.copy_in(address, source, stream)

    def copy_out(self, target: np.ndarray[Any, Any], address: int, stream: int) -> None:
        cuda.copy_out(target, address, stream)

    def copy(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        cuda.copy(to, source, size_bytes, stream)

    def load(self, code: DeviceCode, kernel: Kernel) -> Any:
        return cuda.Module(code.ptx)

    def graph(self, starts: Sequence[Callable[[int], None]], waits: Sequence[Sequence[int]]) -> Any:
        return cuda.Graph(cuda.branched(starts, waits))

    def is_capturing(self, stream: int) -> bool:
        return cuda.is_capturing(stream)

    def timer(self) -> Any:
        return cuda.Timer()

    def wait(self, stream: int) -> None:
        cuda.wait(stream)

    def tensor_map(
        self, address: int, shape: tuple[int, int], dtype: DType, box: tuple[int, int]
    ) -> Any:
        return cuda.TensorMap(address, shape, dtype, box)


class Span(NamedTuple):
    """Memory that a launch uses."""

    start: int
    stop: int
    is_written: bool


def waits_of(used: Sequence[Sequence[Span]]) -> list[list[int]]:
    """For each launch those before it that it must wait for: one of both writes what both use.

    What those wait for in turn is left out.
    """
    found: list[list[int]] = []
    behind: list[set[int]] = []  # all that must have ended before a launch begins
    for at, own in enumerate(used):
        before: list[int] = []
        reached: set[int] = set()
        for other in reversed(range(at)):
            if other not in reached and _conflict(own, used[other]):
                before.append(other)
                reached |= behind[other] | {other}
        found.append(before[::-1])
        behind.append(reached)
    return found


def _conflict(one: Sequence[Span], other: Sequence[Span]) -> bool:
    return any(
        (a.is_written or b.is_written) and a.start < b.stop and b.start < a.stop
        for a in one
        for b in other
    )


class Scratch:
    """Memory of a stream's calls: one after the other they use the same."""

    def __init__(self, gpu: Gpu, stream: int) -> None:
        self.gpu, self.stream = gpu, stream
        self.blocks: list[Any] = []

    def take(self, at: int, size_bytes: int) -> Any:
        """The memory of this number, of at least so many bytes; what is outgrown stays with the
        launches that were recorded with it."""
        if at < len(self.blocks) and self.blocks[at][1] >= size_bytes:
            return self.blocks[at][0]
        made = self.gpu.allocate(size_bytes, self.stream)
        self.blocks[at : at + 1] = [(made, size_bytes)]
        return made


@dataclass(frozen=True, slots=True)
class Started:
    """One launch, all of it known."""

    module: Any
    kernel: DeviceKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]  # numbers, and tensor maps
    label: str = ""
    flops: int = 0
    spans: tuple[Span, ...] = ()  # what it reads and writes

    def start(self, stream: int) -> None:
        self.module.launch(
            self.kernel.name,
            self.grid,
            self.block,
            self.arguments,
            shared_bytes=self.kernel.shared_bytes,
            stream=stream,
        )


@dataclass(eq=False)
class Recorded:
    """What a call launches, for one set of sizes and addresses."""

    launches: list[Started]
    memory: list[Any]  # what the launches use beside inputs and outputs
    graph: Any = None

    def run(self, gpu: Gpu, stream: int) -> None:
        """Launch by launch the first time; from then on as a graph."""
        if self.graph is None:
            self.start(stream)
            self.graph = False
            return
        if self.graph is False:
            waits = waits_of([launch.spans for launch in self.launches])
            self.graph = gpu.graph([launch.start for launch in self.launches], waits)
        self.graph.launch(stream)

    def start(self, stream: int) -> None:
        for launch in self.launches:
            launch.start(stream)


class DeviceModule(runtime.Module):
    """A model as kernels of a GPU."""

    def __init__(
        self,
        program: Program,
        plan: MemoryPlan,
        target: Target,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        gpu: Gpu | None = None,
    ) -> None:
        self.program, self.plan, self.target = program, plan, target
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.threads = 0
        self._names = {spec.name: at for at, spec in enumerate(self.inputs)}
        self._gpu: Gpu = gpu or CudaGpu()
        self._ready: _Loaded | None = None
        self._kept: OrderedDict[tuple[Any, ...], Recorded] = OrderedDict()
        self._scratch: dict[int, Scratch] = {}  # by stream
        self._lock = threading.RLock()  # launches of two calls on one stream must not mix
        self._varies = any(node.op in ("sizes", "require") for node in program.module.main.nodes)

    @property
    def codes(self) -> dict[str, DeviceCode]:
        """The PTX and launches of every kernel on the GPU."""
        return {
            name: pickle.loads(kernel.image)
            for name, kernel in self.program.kernels.items()
            if kernel.device
        }

    @property
    def arena_bytes(self) -> int:
        return self.plan.arena_bytes or 0

    def __call__(
        self,
        *args: Any,
        threads: int = 0,
        out: Sequence[Any] | None = None,
        stream: int = 0,
        **named: Any,
    ) -> tuple[Array, ...]:
        """The outputs, on the GPU; work is queued on `stream`, the caller's by its number."""
        if named:
            args = self._in_order(args, named)
        with self._lock:
            return self._call(args, out, stream)

    def _call(
        self, args: Sequence[Any], out: Sequence[Any] | None, stream: int
    ) -> tuple[Array, ...]:
        given = self._given(args, stream)
        sizes = self._sizes(given)
        wanted = None if out is None else self._wanted(out, sizes, stream)
        if self._varies:
            self._refuse_capture(stream)
            return _Walk(self, self._loaded(), sizes, given, wanted, stream, True).results()
        results = wanted or [self._new(at, sizes, stream) for at in range(len(self.outputs))]
        found = self._recorded(sizes, given, results, stream)
        found.run(self._gpu, stream)
        return tuple(results) if out is None else tuple(out)

    def _loaded(self) -> _Loaded:
        if self._ready is None:
            self._ready = _Loaded(self.program, self._gpu)
        return self._ready

    def _recorded(
        self, sizes: dict[Var, int], given: Sequence[Any], results: Sequence[Any], stream: int
    ) -> Recorded:
        """What a call launches, from an earlier call with the same sizes and addresses or anew."""
        addresses = (*(array.address for array in given), *(array.address for array in results))
        key = (stream, *sizes.values(), *addresses)
        found = self._kept.get(key)
        if found is None:
            self._refuse_capture(stream)
            walk = _Walk(self, self._loaded(), sizes, given, results, stream, False)
            walk.results()
            found = self._kept[key] = Recorded(walk.launches, walk.memory)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def _refuse_capture(self, stream: int) -> None:
        if self._gpu.is_capturing(stream):
            raise UserError(
                "TW4024",
                f"the stream {stream:#x} is being captured, and the model is new to these arrays",
                help="call the model twice with the same arrays before the capture",
            )

    def profile(self, *args: Any, stream: int = 0, **named: Any) -> Record:
        """Run launch by launch and tell how long each took on the GPU."""
        if named:
            args = self._in_order(args, named)
        with self._lock:
            given = self._given(args, stream)
            sizes = self._sizes(given)
            walk = _Walk(self, self._loaded(), sizes, given, None, stream, self._varies)
            walk.results()
            for launch in walk.launches:  # what is loaded at the first start is not measured
                launch.start(stream)
            timer, at, events = self._gpu.timer(), 0, []
            for launch in walk.launches:
                timer.start(stream)
                launch.start(stream)
                took = round(1e6 * timer.stop(stream))
                size = sum(span.stop - span.start for span in launch.spans)
                events.append(Event(launch.label, at, at + took, launch.flops, size, 0))
                at += took
        return Record(tuple(events))

    # ------------------------------------------------------------------ files

    def save(self, path: str | Path, name: str = "") -> Path:
        """Write .so, .o or .h; `name` is the C function's, by default the file's."""
        device_save.check_is_fixed(self.program)

        def walk(gpu: Any, ready: Any, given: list[Any], outputs: list[Any]) -> list[Any]:
            owner = copy(self)
            owner._gpu = gpu
            owner._scratch = {}
            found = _Walk(owner, ready, {}, given, outputs, 0, False)
            found.results()
            return found.launches

        tables = device_save.tables_of(self.program, self.codes, walk, waits_of)
        ports = (self.inputs, self.outputs)
        return device_save.save(Path(path), name, self.program, tables, self.target, ports)

    # ------------------------------------------------------------------ arguments

    def _given(self, args: Sequence[Any], stream: int) -> list[Any]:
        """The inputs on the GPU, checked one by one."""
        if len(args) != len(self.inputs):
            raise UserError("TW4042", f"the model takes {len(self.inputs)} inputs, got {len(args)}")
        pairs = zip(self.inputs, args, strict=True)
        return [self._on_device(spec, arg, stream) for spec, arg in pairs]

    def _on_device(self, spec: Spec, value: Any, stream: int) -> Any:
        if isinstance(value, (str, type(None))):
            raise UserError("TW4041", f"the input {spec.name} is {value!r}, not an array")
        if not isinstance(value, np.ndarray):
            if isinstance(value, Array) or hasattr(value, "__dlpack__"):
                value = cuda.from_dlpack(value, stream)
                if value.device.kind == "cuda":
                    return _checked(spec, value)
                value = value.numpy()
            else:
                value = np.asarray(value)
        _check_dtype(spec, from_numpy(value.dtype))
        compact = np.ascontiguousarray(value).reshape(value.shape)
        made = self.empty(compact.shape, from_numpy(compact.dtype), stream)
        self._gpu.copy_in(made.address, compact, stream)
        return made

    def _wanted(self, out: Sequence[Any], sizes: Mapping[Var, int], stream: int) -> list[Any]:
        """The caller's own outputs: as many as the model has, each as large as it must be."""
        if len(out) != len(self.outputs):
            raise UserError("TW4042", f"the model has {len(self.outputs)} outputs, got {len(out)}")
        found = [self._output(at, value, stream) for at, value in enumerate(out)]
        if self._varies:
            return found  # only the run tells how large they are
        results = self.program.module.main.results
        for spec, value, array in zip(self.outputs, results, found, strict=True):
            dims = tuple(number(dim, sizes) for dim in value.tensor.shape or ())
            if dims != tuple(array.shape):
                shape = tuple(array.shape)
                raise UserError("TW4003", f"{spec.name} has shape {shape}, expected {dims}")
        return found

    def _output(self, at: int, value: Any, stream: int) -> Any:
        spec = self.outputs[at]
        if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            raise UserError("TW4005", f"{spec.name} is not on {cuda.DEVICE}")
        array = cuda.from_dlpack(value, stream)
        check_writable(spec.name, not array.read_only)
        return _checked(spec, array)

    def _sizes(self, given: Sequence[Any]) -> dict[Var, int]:
        """The sizes that the inputs tell; all shapes agree with the model's."""
        sizes: dict[Var, int] = {}
        graph = self.program.module.main
        for spec, param, array in zip(self.inputs, graph.params, given, strict=True):
            dims = param.tensor.shape or ()
            if len(dims) != len(array.shape):
                raise UserError(
                    "TW4002", f"{spec.name} has {len(array.shape)} dimensions, expected {len(dims)}"
                )
            for dim, extent in zip(dims, array.shape, strict=True):
                if isinstance(dim, Size):
                    sizes.setdefault(dim, int(extent))
        for spec, param, array in zip(self.inputs, graph.params, given, strict=True):
            want = tuple(number(dim, sizes) for dim in param.tensor.shape or ())
            if tuple(array.shape) != want:
                raise UserError(
                    "TW4003", f"{spec.name} has shape {tuple(array.shape)}, expected {want}"
                )
        return sizes

    def empty(self, shape: Sequence[int], dtype: DType, stream: int = 0) -> Array:
        """A new array on the GPU whose elements are not set."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.size_bytes
        memory = self._gpu.allocate(size, stream)
        device = cuda.DEVICE
        return Array._from_address(
            memory.address,
            tuple(shape),
            None,
            *code_of(dtype),
            (device.type_code, device.index),
            False,
            memory,
        )

    def _new(self, at: int, sizes: Mapping[Var, int], stream: int) -> Array:
        of = self.program.module.main.results[at].tensor
        return self.empty([number(dim, sizes) for dim in of.shape or ()], of.dtype, stream)


def _check_dtype(spec: Spec, found: DType) -> None:
    if spec.dtype is None:
        raise UserTypeError("TW4001", f"{spec.name} is {found}, expected {spec.kind}")
    check_dtype(spec.name, spec.dtype, found)


def _checked(spec: Spec, array: Array) -> Array:
    """An array of the caller's that kernels may touch as it stands."""
    _check_dtype(spec, array.dtype)
    check_on_device(spec.name, array.dtype, array)
    return array


class _Loaded:
    """Weights on the GPU, and kernels in the driver."""

    def __init__(self, program: Program, gpu: Gpu) -> None:
        self.codes: dict[str, DeviceCode] = {}
        self.modules: dict[str, Any] = {}
        self.host: dict[str, Any] = {}  # kernels that compute sizes, as C functions
        on_host = [kernel for kernel in program.kernels.values() if not kernel.device]
        on_gpu = [kernel for kernel in program.kernels.values() if kernel.device]
        self.codes = {kernel.name: pickle.loads(kernel.image) for kernel in on_gpu}
        with ThreadPoolExecutor(LOADERS) as pool:  # the driver assembles outside of Python's lock
            loaded = pool.map(lambda kernel: gpu.load(self.codes[kernel.name], kernel), on_gpu)
            self.modules = {kernel.name: made for kernel, made in zip(on_gpu, loaded, strict=True)}
        if on_host:
            symbols = tuple(f"{kernel.name}_kernel" for kernel in on_host)
            machine = llvm.machine_of(Target.parse(CPU))
            self.loaded = jit.load([kernel.image for kernel in on_host], symbols, (), machine)
            self.host = {k.name: self.loaded.addresses[f"{k.name}_kernel"] for k in on_host}
        self.weights: dict[str, Any] = {}
        for name, array in program.module.constants.items():
            compact = np.ascontiguousarray(array)
            self.weights[name] = gpu.allocate(compact.nbytes, 0)
            gpu.copy_in(self.weights[name].address, compact, 0)
        gpu.wait(0)  # calls may come on any stream


@dataclass(eq=False)
class _Walk:
    """One walk over the nodes: launches are collected, or started where a stream is given."""

    owner: DeviceModule
    ready: _Loaded
    sizes: dict[Var, int]
    given: Sequence[Any]
    outputs: Sequence[Any] | None
    stream: int
    starts: bool  # as it goes; else what is launched is only collected
    launches: list[Started] = field(default_factory=list)
    memory: list[Any] = field(default_factory=list)
    places: dict[Value, int] = field(default_factory=dict)
    on_host: dict[Value, np.ndarray[Any, Any]] = field(default_factory=dict)
    made: dict[int, Any] = field(default_factory=dict)

    def results(self) -> tuple[Any, ...]:
        graph = self.owner.program.module.main
        for param, array in zip(graph.params, self.given, strict=True):
            self.places[param] = array.address
        self._take_arena()
        for node in graph.nodes:
            _NODES[node.op](self, node)
        return tuple(self._result(graph, at) for at in range(len(graph.results)))

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
            self.places[slot.value] = arena + offset

    def _allocate(self, size_bytes: int) -> int:
        owner, stream = self.owner, self.stream
        if stream not in owner._scratch:
            owner._scratch[stream] = Scratch(owner._gpu, stream)
        self.memory.append(owner._scratch[stream].take(len(self.memory), size_bytes))
        address: int = self.memory[-1].address
        return address

    def address(self, value: Value) -> int:
        """Where a value is, or will be."""
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
        if at not in self.made:
            self.made[at] = self.outputs[at] if self.outputs else self._made(at)
        return self.made[at]

    def _made(self, at: int) -> Any:
        return self.owner._new(at, self.sizes, self.stream)

    def _result(self, graph: Graph, at: int) -> Any:
        """A result; one that is an input, a weight, or another result is copied."""
        value = graph.results[at]
        out = self._out(at)
        source = self.address(value)
        if source != out.address:
            self._start(_Copy(self.owner._gpu, out.address, source, out.size_bytes))
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
        kernel = self.owner.program.kernels[node["function"]]
        numbers = [number(expr, self.sizes) for expr in node["sizes"]]
        asked = dict(zip(kernel.scalars, numbers, strict=True))
        for cond in kernel.requires:
            if not number(cond, asked):
                raise UserError("TW4012", f"{node['label'] or kernel.name} requires {cond}")
        inputs = [value for value in node.inputs if value is not None]
        if not kernel.device:
            self._host_kernel(node, kernel, inputs, numbers)
            return
        code, module = self.ready.codes[kernel.name], self.ready.modules[kernel.name]
        addresses = [self.address(value) for value in (*inputs, *node.outputs)]
        places = dict(zip(code.buffers, addresses, strict=True))
        given = dict(zip(code.scalars, numbers, strict=True))

        def workspace(buffer: Buffer, size: int) -> None:
            places[buffer] = self._allocate(size)

        for device, values in launches(code.steps, given, workspace):
            grid = tuple(number(dim, values) for dim in device.grid)
            block = tuple(number(dim, values) for dim in device.block)
            if 0 in grid or 0 in block:
                continue
            pointers = [places[buffer] for buffer in device.buffers]
            maps = [
                self.owner._gpu.tensor_map(
                    places[made.buffer],
                    matrix_of(made, values),
                    made.buffer.dtype,
                    (made.rows, made.columns),
                )
                for made in device.maps
            ]
            arguments = (*pointers, *(values[var] for var in device.scalars), *maps)
            label = node["label"] or kernel.name
            flops = number(sym.as_expr(node["flops"]), asked)
            touched = tuple(
                Span(at, at + _size_of(buffer, values), buffer in device.written)
                for buffer, at in zip(device.buffers, pointers, strict=True)
            )
            touched += tuple(
                Span(
                    places[made.buffer], places[made.buffer] + _size_of(made.buffer, values), False
                )
                for made in device.maps
            )
            self._start(Started(module, device, grid, block, arguments, label, flops, touched))  # type: ignore[arg-type]  # three axes each

    def _host_kernel(
        self, node: Node, kernel: Kernel, inputs: list[Value], numbers: list[int]
    ) -> None:
        """A kernel that computes sizes: it runs here, on copies of what it reads."""
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
        """The elements of a value, here."""
        root = self.owner.plan.root(value)
        if root not in self.on_host:
            of = root.tensor
            made = np.empty([number(dim, self.sizes) for dim in of.shape or ()], of.dtype.numpy)
            self.owner._gpu.copy_out(made, self.address(root), self.stream)
            self.on_host[root] = made
        return self.on_host[root]

    def told(self, node: Node) -> None:
        (source,) = node.inputs
        assert source is not None
        values = self.host_value(source).reshape(-1)
        for size, value in zip(node["sizes"], values, strict=True):
            if not 0 <= value <= MAX_SIZE:
                raise UserError("TW4012", f"{node['label']}: the size {size.name} would be {value}")
            self.sizes[size] = int(value)


def _size_of(buffer: Buffer, values: Mapping[Var, int]) -> int:
    return buffer.dtype.size_bytes * math.prod(number(dim, values) for dim in buffer.shape)


MAX_SIZE = 1 << 40
_NODES: dict[str, Callable[[_Walk, Node], None]] = {
    "constant": _Walk.constant,
    "kernel": _Walk.kernel,
    "sizes": _Walk.told,
    "reshape": _Walk.view,
    "require": _Walk.view,
}


@dataclass(frozen=True, slots=True)
class _Copy:
    """Memory of the GPU that is copied there."""

    gpu: Any
    to: int
    source: int
    size_bytes: int
    label: str = "copy"
    flops: int = 0

    @property
    def spans(self) -> tuple[Span, ...]:
        return (
            Span(self.source, self.source + self.size_bytes, False),
            Span(self.to, self.to + self.size_bytes, True),
        )

    def start(self, stream: int) -> None:
        self.gpu.copy(self.to, self.source, self.size_bytes, stream)
