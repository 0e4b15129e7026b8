"""A model whose kernels run on a GPU, with its weights and arena in GPU memory.

    module = DeviceModule(program, plan, target, inputs, outputs)
    outputs = module(x)            results stay on the GPU; NumPy inputs are copied there

The nodes are walked once per set of sizes and addresses. The launches are recorded, and from the
second such call on they are one CUDA graph. Models with data-dependent sizes are walked at every
call, since what they launch depends on what they computed. The last inputs of a model with states
are their memory, which a call updates in place.
"""

from __future__ import annotations

import functools
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.dtype import DType, from_numpy
from tilewright.base.errors import UserError, UserTypeError
from tilewright.base.target import Target
from tilewright.codegen.cuda import check_dtype, check_on_device, check_writable
from tilewright.codegen.launches import number
from tilewright.codegen.nvptx import DeviceCode
from tilewright.driver import device_save
from tilewright.driver.compiled import Inside, with_begins
from tilewright.driver.device_buckets import Buckets
from tilewright.driver.device_control import (
    check_capture,
    decides_beforehand,
    graph_of,
    refused_capture,
)
from tilewright.driver.device_launch import CudaGpu, Gpu, Recorded, Scratch, in_order
from tilewright.driver.device_walk import HostKernels, Loaded, Walk
from tilewright.driver.lowering import Program
from tilewright.graph.ir import Value
from tilewright.graph.memory import MemoryPlan
from tilewright.runtime import cuda
from tilewright.runtime import module as runtime
from tilewright.runtime.array import Array
from tilewright.runtime.device import CPU
from tilewright.runtime.module import Spec
from tilewright.runtime.profiler import Event, Record
from tilewright.sym import Size, Var
from tilewright.tensor.ir import Buffer
from tilewright.tune.outcome import Outcome
from tilewright.tune.stats import Paired

Empty = Callable[[Sequence[int], DType], Array]  # allocates a result
MAX_RECORDED = 32  # recorded sets of sizes and addresses, least recently used ones dropped
# Comparing two modules: pairs of timings, and graph launches per timing.
TIMING_PAIRS, LAUNCHES_PER_TIMING = 15, 20


class DeviceModule(runtime.Module):
    """A model as kernels on a GPU."""

    inside: Inside
    call_options = ("stream",)

    def __init__(
        self,
        program: Program,
        plan: MemoryPlan,
        target: Target,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        gpu: Gpu | None = None,
        ready: Loaded | None = None,
        tuning: Outcome | None = None,
    ) -> None:
        """`ready` holds weights and kernels that are already loaded; `tuning` is the outcome of
        tuning, if it was asked for."""
        self.program, self.plan, self.target = program, plan, target
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.threads = 0
        self._names = {spec.name: at for at, spec in enumerate(self.inputs)}
        self._gpu: Gpu = gpu or CudaGpu()
        self._ready = ready
        self.tuning = tuning
        self._records: OrderedDict[tuple[Any, ...], Recorded] = OrderedDict()
        self._buckets = Buckets()
        self._scratch: dict[int, Scratch] = {}  # by stream
        # Zeroed arrival counters and signals of blocks, by stream, node and buffer.
        self._counts: dict[tuple[int, Value, Buffer], Any] = {}
        self._lock = threading.RLock()  # launches of two calls on one stream must not interleave
        self._known: set[tuple[int, ...]] = set()  # sizes of earlier calls: kernels are loaded
        self._captured: list[Any] = []  # what graphs of callers use
        self._varies = not decides_beforehand(program)
        self.device = cuda.DEVICE
        self._n_states = len(program.module.states)

    @property
    def gpu(self) -> Gpu:
        return self._gpu

    @property
    def codes(self) -> dict[str, DeviceCode]:
        """The PTX and launch parameters of every kernel on the GPU."""
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
        empty: Empty | None = None,
        **named: Any,
    ) -> tuple[Array, ...]:
        """The outputs, on the GPU. Work is queued on `stream`, a raw handle of the caller's.

        `empty` allocates the results, from the first to the last, for a library with an allocator
        of its own. It is not called for sizes that depend on values."""
        if named:
            args = self._in_order(args, named)
        with self._lock:
            return self._call(args, out, stream, empty)

    def _call(
        self, args: Sequence[Any], out: Sequence[Any] | None, stream: int, empty: Empty | None
    ) -> tuple[Array, ...]:
        captures = self._gpu.is_capturing(stream)
        if captures:
            self._check_captured(args, stream)
        given = self._given(args, stream)
        states = self._states_on_host(args, given, stream) if self._n_states else ()
        sizes = self._sizes(given)
        wanted = None if out is None else self._checked_outputs(out, sizes, stream)
        made: Sequence[Any]
        if self._varies:
            made = Walk(self, self._loaded(), sizes, given, wanted, stream, True).results()
        elif captures:
            made = self._capture(sizes, given, wanted, stream, empty)
        else:
            made = wanted or self._results(sizes, stream, empty)
            self._run(sizes, given, made, stream)
            self._known.add(tuple(sizes.values()))
        self._take_back(states, stream)
        return tuple(made) if out is None else tuple(out)

    def _loaded(self) -> Loaded:
        if self._ready is None:
            self._ready = Loaded(self.program, self._gpu)
        return self._ready

    def _run(
        self, sizes: dict[Var, int], given: Sequence[Any], results: Sequence[Any], stream: int
    ) -> None:
        """Run a call by a graph of its own, by that of its bucket, or launch by launch."""
        addresses = (*(array.address for array in given), *(array.address for array in results))
        key = (stream, *sizes.values(), *addresses)
        if key not in self._records and not self._n_states:
            loaded = self._loaded()
            if self._buckets.run(self, loaded, sizes, given, results, stream):
                return
        self._recorded(sizes, given, results, stream).run(self._gpu, stream, graph_of)

    def _recorded(
        self, sizes: dict[Var, int], given: Sequence[Any], results: Sequence[Any], stream: int
    ) -> Recorded:
        """The launches of a call, recorded by an earlier call with the same sizes and addresses, or
        now."""
        addresses = (*(array.address for array in given), *(array.address for array in results))
        key = (stream, *sizes.values(), *addresses)
        found = self._records.get(key)
        if found is None:
            made = Walk(self, self._loaded(), sizes, given, results, stream, False)
            made.results()
            found = self._records[key] = Recorded(made.launches, [*made.memory, *made.numbers])
            while len(self._records) > MAX_RECORDED:
                self._records.popitem(last=False)
        self._records.move_to_end(key)
        return found

    def _check_captured(self, args: Sequence[Any], stream: int) -> None:
        """Check that a graph of the caller's can contain a call."""
        if self._varies:
            raise refused_capture(stream, "sizes depend on values")
        for spec, arg in zip(self.inputs, args, strict=False):
            if not cuda.is_shared(arg) or _host_memory(arg) is not None:
                raise UserError(
                    "TW4024",
                    f"the stream {stream:#x} is being captured, and {spec.name} is in host memory",
                    help="copy it to an array on the GPU before each run of the graph",
                )

    def _capture(
        self,
        sizes: dict[Var, int],
        given: Sequence[Any],
        wanted: Sequence[Any] | None,
        stream: int,
        empty: Empty | None,
    ) -> Sequence[Any]:
        """Make the launches of a call part of a graph of the caller's. They have memory of their
        own, for the graph may run while other calls do."""
        if tuple(sizes.values()) not in self._known:
            raise UserError(
                "TW4024",
                f"the stream {stream:#x} is being captured, and the model has not run yet"
                + (" with these sizes" if sizes else ""),
                help="call the model once before the capture",
            )
        with self._gpu.beside_capture() as gpu:
            owner = copy(self)
            owner._gpu, owner._scratch, owner._counts = gpu, {}, {}
            made = wanted or owner._results(sizes, stream, empty)
            walk = Walk(owner, self._loaded(), sizes, given, made, stream, False)
            walk.results()
            check_capture(gpu, walk.launches, stream)
            gpu.record(*in_order(walk.launches), stream)
        is_ours = wanted is None and empty is None
        self._captured.append((owner, walk.memory, walk.numbers, made if is_ours else ()))
        return made

    def profile(self, *args: Any, stream: int = 0, **named: Any) -> Record:
        """Run launch by launch, and measure the time of each on the GPU."""
        if named:
            args = self._in_order(args, named)
        with self._lock:
            made = self._walk(args, stream)
            for launch in made.launches:  # warm-up: the driver loads kernels lazily
                launch.start(stream)
            timer, at, events = self._gpu.timer(), 0, []
            for launch in made.launches:
                timer.start(stream)
                launch.start(stream)
                took = round(1e6 * timer.stop(stream))
                size = sum(span.stop - span.start for span in launch.spans)
                events.append(Event(launch.label, at, at + took, launch.flops, size, 0))
                at += took
        return Record(tuple(events))

    def walk(self, *args: Any) -> Walk:
        """The launches of a call, for a tuner to time; they own the call's inputs and outputs."""
        with self._lock:
            return self._walk(args, 0)

    def _walk(self, args: Sequence[Any], stream: int) -> Walk:
        given = self._given(args, stream)
        made = Walk(self, self._loaded(), self._sizes(given), given, None, stream, self._varies)
        made.results()
        return made

    # ------------------------------------------------------------------ files

    def save(
        self,
        path: str | Path,
        name: str = "",
        sizes: Mapping[str, Sequence[int]] | None = None,
    ) -> Path:
        """Write .so, .o or .h; `name` is the C function's, by default the file's.

        A model with dynamic sizes is saved for given values: `sizes={"batch": [1, 8, 32]}`.
        """
        return self.save_beginning(path, name, (), sizes)

    def save_beginning(
        self,
        path: str | Path,
        name: str,
        states: Sequence[Any],
        sizes: Mapping[str, Sequence[int]] | None = None,
    ) -> Path:
        sets = device_save.size_sets(self.program, sizes or {})

        def launched(
            gpu: Any, ready: Any, given: list[Any], outputs: list[Any], dims: dict[Var, int]
        ) -> list[Any]:
            owner = copy(self)
            owner._gpu = gpu
            owner._scratch, owner._counts = {}, {}
            found = Walk(owner, ready, dims, given, outputs, 0, False)
            found.results()
            return found.launches

        host = HostKernels(self.program)
        tables = device_save.tables_of(self.program, self.codes, launched, sets, host.addresses)
        ports = (self.inputs, self.outputs)
        program = with_begins(self.program, states)
        return device_save.save(Path(path), name, program, tables, self.target, ports)

    # ------------------------------------------------------------------ arguments

    def _given(self, args: Sequence[Any], stream: int) -> list[Any]:
        """The inputs on the GPU, each checked against its spec."""
        if len(args) != len(self.inputs):
            raise UserError("TW4042", f"the model takes {len(self.inputs)} inputs, got {len(args)}")
        pairs = zip(self.inputs, args, strict=True)
        return [self._on_device(spec, arg, stream) for spec, arg in pairs]

    def _states_on_host(
        self, args: Sequence[Any], given: Sequence[Any], stream: int
    ) -> list[tuple[np.ndarray[Any, Any], Any]]:
        """The states that the caller has in host memory, with their copies on the GPU; checks that
        all may be overwritten."""
        found = []
        first = len(args) - self._n_states
        for spec, arg, array in zip(self.inputs[first:], args[first:], given[first:], strict=True):
            host = _host_memory(arg)
            is_read_only = array.read_only if host is None else not host.flags.writeable
            check_writable(spec.name, not is_read_only)
            if host is not None:
                found.append((host, array))
            elif isinstance(array, cuda.DeviceArray):
                array.stream = stream  # it is computed on this stream from now on
        return found

    def _take_back(self, states: Sequence[tuple[np.ndarray[Any, Any], Any]], stream: int) -> None:
        for host, array in states:
            made = np.empty(array.shape, array.dtype.numpy)
            self._gpu.copy_out(made, array.address, stream)
            host[...] = made

    def _on_device(self, spec: Spec, value: Any, stream: int) -> Any:
        if isinstance(value, (str, type(None))):
            raise UserError("TW4041", f"the input {spec.name} is {value!r}, not an array")
        if not isinstance(value, np.ndarray):
            if cuda.is_shared(value):
                value = self._ordered_after_producer(value, stream)
                if value.device.kind == cuda.DEVICE.kind:
                    return _checked(spec, value)
                value = value.numpy()
            else:
                value = np.asarray(value)
        _check_dtype(spec, from_numpy(value.dtype))
        compact = np.ascontiguousarray(value).reshape(value.shape)
        made = self.empty(compact.shape, from_numpy(compact.dtype), stream)
        self._gpu.copy_in(made.address, compact, stream)
        return made

    def _ordered_after_producer(self, value: Any, stream: int) -> Array:
        """An array of ours or of another library, with the stream ordered after its producer."""
        if not isinstance(value, cuda.DeviceArray):
            return cuda.from_dlpack(value, stream)
        self._gpu.follow(stream, value.stream)
        return value

    def _checked_outputs(
        self, out: Sequence[Any], sizes: Mapping[Var, int], stream: int
    ) -> list[Any]:
        """The caller's output arrays, checked for number, shape and dtype."""
        if len(out) != len(self.outputs):
            raise UserError("TW4042", f"the model has {len(self.outputs)} outputs, got {len(out)}")
        found = [self._output(at, value, stream) for at, value in enumerate(out)]
        if self._varies:
            return found  # data-dependent shapes: unknown before the run
        results = self.program.module.made
        for spec, value, array in zip(self.outputs, results, found, strict=True):
            dims = tuple(number(dim, sizes) for dim in value.tensor.shape or ())
            if dims != tuple(array.shape):
                shape = tuple(array.shape)
                raise UserError("TW4003", f"{spec.name} has shape {shape}, expected {dims}")
        return found

    def _output(self, at: int, value: Any, stream: int) -> Any:
        spec = self.outputs[at]
        if isinstance(value, np.ndarray) or not cuda.is_shared(value):
            raise UserError("TW4005", f"{spec.name} is not on {cuda.DEVICE}")
        array = self._ordered_after_producer(value, stream)
        if isinstance(array, cuda.DeviceArray):
            array.stream = stream  # its contents are computed on this stream from now on
        check_writable(spec.name, not array.read_only)
        return _checked(spec, array)

    def _sizes(self, given: Sequence[Any]) -> dict[Var, int]:
        """The dynamic sizes that the inputs define; checks all shapes against the model's."""
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
        """An uninitialized array on the GPU."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.size_bytes
        return cuda.DeviceArray.of(self._gpu.allocate(size, stream), shape, dtype, stream)

    def _new(self, at: int, sizes: Mapping[Var, int], stream: int) -> Array:
        return self._results(sizes, stream, None, slice(at, at + 1))[0]

    def _results(
        self,
        sizes: Mapping[Var, int],
        stream: int,
        empty: Empty | None,
        which: slice = slice(None),
    ) -> list[Array]:
        """Memory for results."""
        make = empty or functools.partial(self.empty, stream=stream)
        types = [value.tensor for value in self.program.module.made[which]]
        return [make([number(dim, sizes) for dim in of.shape or ()], of.dtype) for of in types]


def answers(module: DeviceModule, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of a call, in host memory."""
    return fetched(module(*inputs), module._gpu)


def fetched(arrays: Iterable[Array], gpu: Gpu) -> list[np.ndarray[Any, Any]]:
    """Copies of GPU arrays in host memory."""
    found = []
    for each in arrays:
        found.append(np.empty(each.shape, each.dtype.numpy))
        gpu.copy_out(found[-1], each.address, 0)
    return found


def on_device_in_turns(first: DeviceModule, second: DeviceModule, inputs: Sequence[Any]) -> Paired:
    """GPU times of two equivalent modules, as graphs, measured alternately."""
    walks = [module.walk(*inputs) for module in (first, second)]
    pairs = list(zip((first, second), walks, strict=True))
    graphs = [graph_of(module._gpu, walk.launches) for module, walk in pairs]
    timer = first._gpu.timer()
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(TIMING_PAIRS):
        for side in (0, 1) if pair % 2 else (1, 0):
            graphs[side].launch(0)
            timer.start(0)
            for _ in range(LAUNCHES_PER_TIMING):
                graphs[side].launch(0)
            times[side].append(timer.stop(0))
    return Paired(tuple(times[0]), tuple(times[1]))


def _host_memory(value: Any) -> np.ndarray[Any, Any] | None:
    """The memory of an array that is on the host."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, Array):
        if not hasattr(value, "__dlpack_device__") or value.__dlpack_device__()[0] != CPU.type_code:
            return None
        value = cuda.from_dlpack(value)
    return value.numpy() if value.device == CPU else None


def _check_dtype(spec: Spec, found: DType) -> None:
    if spec.dtype is None:
        raise UserTypeError("TW4001", f"{spec.name} is {found}, expected {spec.kind}")
    check_dtype(spec.name, spec.dtype, found)


def _checked(spec: Spec, array: Array) -> Array:
    """A caller's array, checked for dtype and device so that kernels may access it directly."""
    _check_dtype(spec, array.dtype)
    check_on_device(spec.name, array.dtype, array)
    return array
