"""A model whose kernels run on a GPU: weights and arena there, launches queued from here.

    module = DeviceModule(program, plan, target, inputs, outputs)
    outputs = module(x)            arrays on the GPU stay there; NumPy arrays are copied

The nodes are walked once for each set of sizes and addresses; what they launch is kept, and from
the second such call on it is one CUDA graph. Models whose sizes depend on values are walked anew at
every call, since what they launch depends on what they computed.
"""

from __future__ import annotations

import ctypes
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.base.dtype import DType, from_numpy
from tilewright.base.errors import UserError, UserTypeError
from tilewright.base.target import CPU, Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.launches import Kernel as DeviceKernel
from tilewright.codegen.launches import launches, matrix_of, number
from tilewright.codegen.nvptx import ARGUMENT_ALIGN, DeviceCode
from tilewright.driver import device_save
from tilewright.driver.kernels import Kernel
from tilewright.driver.lowering import Program
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.memory import MemoryPlan, size_bytes, spans
from tilewright.runtime import _native, cuda
from tilewright.runtime import module as runtime
from tilewright.runtime.array import Array, from_dlpack
from tilewright.runtime.device import Device
from tilewright.runtime.dlpack import code_of
from tilewright.runtime.module import Spec
from tilewright.sym import Size, Var
from tilewright.tensor.ir import Buffer

KEPT = 16  # sets of sizes and addresses whose launches are remembered


class Gpu(Protocol):
    """What a module asks of a GPU; `runtime.cuda` is one, tests have one in host memory."""

    def allocate(self, size_bytes: int) -> Any: ...
    def copy_in(self, address: int, source: np.ndarray[Any, Any]) -> None: ...
    def copy_out(self, target: np.ndarray[Any, Any], address: int) -> None: ...
    def copy(self, to: int, source: int, size_bytes: int, stream: int) -> None: ...
    def load(self, code: DeviceCode, kernel: Kernel) -> Any: ...
    def graph(self, record: Callable[[int], None]) -> Any: ...
    def tensor_map(
        self, address: int, shape: tuple[int, int], dtype: DType, box: tuple[int, int]
    ) -> Any: ...


class CudaGpu:
    """The GPU of this machine."""

    def allocate(self, size_bytes: int) -> Any:
        return cuda.Memory(size_bytes)

    def copy_in(self, address: int, source: np.ndarray[Any, Any]) -> None:
        cuda.copy_in(address, source)

    def copy_out(self, target: np.ndarray[Any, Any], address: int) -> None:
        cuda.copy_out(target, address)

    def copy(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        cuda.copy(to, source, size_bytes, stream)

    def load(self, code: DeviceCode, kernel: Kernel) -> Any:
        return cuda.Module(code.ptx)

    def graph(self, record: Callable[[int], None]) -> Any:
        return cuda.Graph(record)

    def tensor_map(
        self, address: int, shape: tuple[int, int], dtype: DType, box: tuple[int, int]
    ) -> Any:
        return cuda.TensorMap(address, shape, dtype, box)


@dataclass(frozen=True, slots=True)
class Started:
    """One launch, all of it known."""

    module: Any
    kernel: DeviceKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]  # numbers, and tensor maps

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
            self.graph = gpu.graph(self.start)
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
        given = self._given(args)
        sizes = self._sizes(given)
        if self._ready is None:
            self._ready = _Loaded(self.program, self._gpu)
        wanted = None if out is None else self._wanted(out, sizes)
        if self._varies:
            walk = _Walk(self, self._ready, sizes, given, wanted, stream)
            return walk.results()
        results = wanted or [self._new(at, sizes) for at in range(len(self.outputs))]
        addresses = (*(array.address for array in given), *(array.address for array in results))
        key = (*sizes.values(), *addresses)
        found = self._kept.get(key)
        if found is None:
            walk = _Walk(self, self._ready, sizes, given, results, None)
            walk.results()
            found = self._kept[key] = Recorded(walk.launches, walk.memory)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        found.run(self._gpu, stream)
        return tuple(results) if out is None else tuple(out)

    # ------------------------------------------------------------------ files

    def save(self, path: str | Path, name: str = "") -> Path:
        """Write .so, .o or .h; `name` is the C function's, by default the file's."""
        device_save.check_is_fixed(self.program)

        def walk(gpu: Any, ready: Any, given: list[Any], outputs: list[Any]) -> list[Any]:
            owner = copy(self)
            owner._gpu = gpu
            found = _Walk(owner, ready, {}, given, outputs, None)
            found.results()
            return found.launches

        tables = device_save.tables_of(self.program, self.codes, walk)
        ports = (self.inputs, self.outputs)
        return device_save.save(Path(path), name, self.program, tables, self.target, ports)

    # ------------------------------------------------------------------ arguments

    def _given(self, args: Sequence[Any]) -> list[Any]:
        """The inputs on the GPU, checked one by one."""
        if len(args) != len(self.inputs):
            raise UserError("TW4042", f"the model takes {len(self.inputs)} inputs, got {len(args)}")
        return [self._on_device(spec, arg) for spec, arg in zip(self.inputs, args, strict=True)]

    def _on_device(self, spec: Spec, value: Any) -> Any:
        if isinstance(value, (str, type(None))):
            raise UserError("TW4041", f"the input {spec.name} is {value!r}, not an array")
        if not isinstance(value, np.ndarray):
            if isinstance(value, Array) or hasattr(value, "__dlpack__"):
                value = value if isinstance(value, Array) else from_dlpack(value)
                if value.device.kind == "cuda":
                    return _checked(spec, value)
                value = value.numpy()
            else:
                value = np.asarray(value)
        _check_dtype(spec, from_numpy(value.dtype))
        compact = np.ascontiguousarray(value).reshape(value.shape)
        made = self.empty(compact.shape, from_numpy(compact.dtype))
        self._gpu.copy_in(made.address, compact)
        return made

    def _wanted(self, out: Sequence[Any], sizes: Mapping[Var, int]) -> list[Any]:
        """The caller's own outputs: as many as the model has, each as large as it must be."""
        if len(out) != len(self.outputs):
            raise UserError("TW4042", f"the model has {len(self.outputs)} outputs, got {len(out)}")
        found = [self._output(at, value) for at, value in enumerate(out)]
        if self._varies:
            return found  # only the run tells how large they are
        results = self.program.module.main.results
        for spec, value, array in zip(self.outputs, results, found, strict=True):
            dims = tuple(number(dim, sizes) for dim in value.tensor.shape or ())
            if dims != tuple(array.shape):
                shape = tuple(array.shape)
                raise UserError("TW4003", f"{spec.name} has shape {shape}, expected {dims}")
        return found

    def _output(self, at: int, value: Any) -> Any:
        array = value if isinstance(value, Array) else from_dlpack(value)
        spec = self.outputs[at]
        if array.read_only:
            raise UserError("TW4006", f"{spec.name} is an output, but read-only")
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

    def empty(self, shape: Sequence[int], dtype: DType) -> Array:
        """A new array on the GPU whose elements are not set."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.size_bytes
        memory = self._gpu.allocate(size)
        device = Device("cuda")
        return Array._from_address(
            memory.address,
            tuple(shape),
            None,
            *code_of(dtype),
            (device.type_code, device.index),
            False,
            memory,
        )

    def _new(self, at: int, sizes: Mapping[Var, int]) -> Array:
        of = self.program.module.main.results[at].tensor
        return self.empty([number(dim, sizes) for dim in of.shape or ()], of.dtype)


def _check_dtype(spec: Spec, found: DType) -> None:
    if spec.dtype is None or found.name != spec.dtype.name:
        raise UserTypeError("TW4001", f"{spec.name} is {found}, expected {spec.dtype}")


def _checked(spec: Spec, array: Array) -> Array:
    """An array of the caller's that kernels may touch as it stands."""
    _check_dtype(spec, array.dtype)
    if array.device.kind != "cuda":
        raise UserError("TW4005", f"{spec.name} is on {array.device}, expected cuda")
    if not array.is_contiguous:
        raise UserError("TW4004", f"{spec.name} has strides {array.strides}, expected compact")
    if array.address % ARGUMENT_ALIGN:
        raise UserError(
            "TW4007", f"{spec.name} is at {array.address:#x}, expected {ARGUMENT_ALIGN}-aligned"
        )
    return array


class _Loaded:
    """Weights on the GPU, and kernels in the driver."""

    def __init__(self, program: Program, gpu: Gpu) -> None:
        self.codes: dict[str, DeviceCode] = {}
        self.modules: dict[str, Any] = {}
        self.host: dict[str, Any] = {}  # kernels that compute sizes, as C functions
        on_host = []
        for name, kernel in program.kernels.items():
            if kernel.device:
                self.codes[name] = pickle.loads(kernel.image)
                self.modules[name] = gpu.load(self.codes[name], kernel)
            else:
                on_host.append(kernel)
        if on_host:
            symbols = tuple(f"{kernel.name}_kernel" for kernel in on_host)
            machine = llvm.machine_of(Target.parse(CPU))
            self.loaded = jit.load([kernel.image for kernel in on_host], symbols, (), machine)
            self.host = {k.name: self.loaded.addresses[f"{k.name}_kernel"] for k in on_host}
        self.weights: dict[str, Any] = {}
        for name, array in program.module.constants.items():
            compact = np.ascontiguousarray(array)
            self.weights[name] = gpu.allocate(compact.nbytes)
            gpu.copy_in(self.weights[name].address, compact)


@dataclass(eq=False)
class _Walk:
    """One walk over the nodes: launches are collected, or started where a stream is given."""

    owner: DeviceModule
    ready: _Loaded
    sizes: dict[Var, int]
    given: Sequence[Any]
    outputs: Sequence[Any] | None
    stream: int | None
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
        self.memory.append(self.owner._gpu.allocate(size_bytes))
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
            self.made[at] = self.outputs[at] if self.outputs else self.owner._new(at, self.sizes)
        return self.made[at]

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
        if self.stream is not None:
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
            self._start(Started(module, device, grid, block, arguments))  # type: ignore[arg-type]  # three axes each

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
            self.owner._gpu.copy_out(made, self.address(root))
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

    def start(self, stream: int) -> None:
        self.gpu.copy(self.to, self.source, self.size_bytes, stream)
