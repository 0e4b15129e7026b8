"""The CUDA driver API: memory, PTX modules, launches. Nothing is linked; the driver compiles the
PTX.

    module = Module(ptx)
    with_copies = to_device(numpy_array)
    module.launch("kernel", grid, block, [array.address, 128])
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtype import DType, from_numpy
from tilewright.base.dtype import dtype as as_dtype
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.runtime.array import Array
from tilewright.runtime.array import from_dlpack as borrow
from tilewright.runtime.device import Device
from tilewright.runtime.dlpack import code_of

SHARED_BYTES_BY_DEFAULT = 48 * 1024
STATIC_SHARED_BYTES = 4096  # static shared memory of kernels that also use dynamic, at most
DEVICE = Device("cuda")  # the first GPU, whose context is used
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


class CudaError(TilewrightError, RuntimeError):
    """A call of the driver failed."""


LOST = (
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
)  # sticky errors: every later call in the process fails
LEAST_DRIVER, LEAST_COMPUTE = 12000, (8, 0)  # CUDA 12.0, sm_80


class Driver:
    """The driver, initialized once; its device's primary context is made current in every calling
    thread."""

    _instance: Driver | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._entered = threading.local()
        self._lost = ""
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise Unsupported(
                "TW4020",
                "the CUDA driver cannot be reached: cuda-bindings is not installed",
                help="pip install 'tilewright[cuda]' on a machine with an NVIDIA GPU",
            ) from error
        self.api: Any = driver
        self._entered.done = True  # there is no context to enter yet
        try:
            self.call("cuInit", 0)
        except CudaError:
            raise
        except RuntimeError as error:  # the bindings are installed, the driver library is not
            raise Unsupported(
                "TW4020",
                f"the CUDA driver cannot be reached: {error}",
                help="install NVIDIA's driver on a machine with one of its GPUs",
            ) from error
        (version,) = self.call("cuDriverGetVersion")
        if version < LEAST_DRIVER:
            raise Unsupported(
                "TW4020",
                f"the CUDA driver is of version {_version(version)}, "
                f"{_version(LEAST_DRIVER)} is needed",
                help="install a newer driver of NVIDIA's",
            )
        (self.device,) = self.call("cuDeviceGet", 0)
        self._check_device()
        (self.context,) = self.call("cuDevicePrimaryCtxRetain", self.device)
        self._entered.done = False

    def _check_device(self) -> None:
        attribute = self.api.CUdevice_attribute
        found = tuple(
            self.call("cuDeviceGetAttribute", kind, self.device)[0]
            for kind in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        if found < LEAST_COMPUTE:
            shown, needed = (f"sm_{major}{minor}" for major, minor in (found, LEAST_COMPUTE))
            raise Unsupported("TW4020", f"the GPU is {shown}, {needed} or later is needed")

    @classmethod
    def get(cls) -> Driver:
        if cls._instance is None:
            with cls._making:
                if cls._instance is None:
                    cls._instance = cls()
        return cls._instance

    def call(self, name: str, *args: Any) -> tuple[Any, ...]:
        """Call a driver function by name; its results without the error code."""
        if self._lost:
            raise CudaError(
                "TW4023",
                f"the GPU's context is lost: {self._lost}",
                help="start a new process, not a forked one; a kernel or the hardware failed",
            )
        if not getattr(self._entered, "done", False):
            self._entered.done = True
            self.call("cuCtxSetCurrent", self.context)
        code, *results = getattr(self.api, name)(*args)
        if code != self.api.CUresult.CUDA_SUCCESS:
            _, text = self.api.cuGetErrorString(code)
            message = f"{name} failed: {(text or b'unknown').decode()}"
            if getattr(code, "name", "") in LOST:
                self._lost = message
            raise CudaError("TW4021", message)
        return tuple(results)

    def drop(self, name: str, *args: Any) -> None:
        """A releasing call, whose failure cannot be reported any more."""
        with contextlib.suppress(TilewrightError, RuntimeError, TypeError, AttributeError):
            self.call(name, *args)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def is_available() -> bool:
    """Whether a GPU is available."""
    try:
        Driver.get()
    except TilewrightError:
        return False
    return True


def start_driver() -> None:
    """Initialize the driver in the background: it takes a third of a second, without the GIL. A
    missing driver is reported on first use."""
    if Driver._instance is None:
        threading.Thread(target=is_available, name="tilewright-cuda").start()


def _mark_forked() -> None:
    """In a forked child the parent's driver does not work, and cannot be initialized again."""
    if Driver._instance is not None:
        Driver._instance._lost = "the process was forked after the driver had started"
    Driver._making.release()


# No fork during initialization: the child would wait for a thread that it does not have.
os.register_at_fork(
    before=Driver._making.acquire,
    after_in_parent=Driver._making.release,
    after_in_child=_mark_forked,
)


def is_lost() -> bool:
    """Whether a kernel has destroyed this process's context: every call fails from then on."""
    return Driver._instance is not None and bool(Driver._instance._lost)


ROUND_BYTES = 512  # sizes of allocations are multiples


def _rounded(size_bytes: int) -> int:
    return -(-max(1, size_bytes) // ROUND_BYTES) * ROUND_BYTES


class _Pool:
    """Device memory cached by stream and size: on one stream, work of the previous owner precedes
    that of the next."""

    def __init__(self) -> None:
        self.free: dict[tuple[int, int], list[int]] = {}
        self.lock = threading.RLock()  # memory may be given back while it is taken

    def take(self, size_bytes: int, stream: int) -> tuple[int, int]:
        """An address, and the size to release it with."""
        size = _rounded(size_bytes)
        with self.lock:
            kept = self.free.get((stream, size))
            if kept:
                return kept.pop(), size
        return self.new(size), size

    def new(self, size: int) -> int:
        """The address of memory that nothing has used."""
        driver = Driver.get()
        try:
            (pointer,) = driver.call("cuMemAlloc", size)
        except CudaError as first:
            if first.code != "TW4021":
                raise
            self.release()
            try:
                (pointer,) = driver.call("cuMemAlloc", size)
            except CudaError as error:
                left, total = driver.call("cuMemGetInfo")
                raise CudaError(
                    "TW4022",
                    f"{size} bytes of device memory were asked for, {left} of {total} are free",
                    help="give back arrays that are no longer needed, or use smaller batches",
                ) from error
        return int(pointer)

    def give(self, address: int, size: int, stream: int) -> None:
        with self.lock:
            self.free.setdefault((stream, size), []).append(address)

    def release(self) -> None:
        """Return unused memory to the driver."""
        driver = Driver.get()
        driver.call("cuCtxSynchronize")
        with self.lock:
            kept, self.free = self.free, {}
        for addresses in kept.values():
            for address in addresses:
                driver.call("cuMemFree", address)


_pool = _Pool()


class Memory:
    """Device memory used by work on a stream, released with its last reference."""

    def __init__(self, size_bytes: int, stream: int = 0, *, is_new: bool = False) -> None:
        """With `is_new`, memory that no queued work uses."""
        self.stream, self._pool = stream, _pool
        if is_new:
            self.size_bytes = _rounded(size_bytes)
            self.address = _pool.new(self.size_bytes)
        else:
            self.address, self.size_bytes = _pool.take(size_bytes, stream)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._pool.give(self.address, self.size_bytes, self.stream)


def allocate(size_bytes: int, stream: int = 0) -> Memory:
    """Device memory for work on a stream."""
    return Memory(size_bytes, stream)


LEGACY, NO_ORDER = 1, -1  # DLPack's numbers of the legacy default stream, and of no stream


class DeviceArray(Array):
    """An array on the GPU whose elements are computed on a stream. A consumer by DLPack names its
    stream, whose later work waits for them."""

    __slots__ = ("stream",)
    stream: int

    @classmethod
    def of(cls, memory: Any, shape: Sequence[int], dtype: DType, stream: int) -> DeviceArray:
        """View memory as an array."""
        device = (DEVICE.type_code, DEVICE.index)
        made = cls._from_address(
            memory.address, tuple(shape), None, *code_of(dtype), device, False, memory
        )
        made.stream = stream
        return made

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if stream != NO_ORDER:
            follow(LEGACY if stream is None else stream, self.stream)
        return super().__dlpack__(stream=stream, **options)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For consumers without DLPack, which may ignore streams: waits for the elements first,
        unless the stream is being captured."""
        kind = self.dtype.numpy
        if kind.kind == "V":  # a type without NumPy text
            raise AttributeError(f"{INTERFACE} does not know {self.dtype}")
        if not is_capturing(self.stream):
            wait(self.stream)
        return {
            "version": 3,
            "shape": tuple(self.shape),
            "typestr": kind.str,
            "data": (self.address, self.read_only),
            "strides": None,
            "stream": None,
        }


def follow(stream: int, before: int) -> None:
    """Make later work of a stream wait for earlier work of another. Not where either is being
    captured: a graph runs when the caller says so. Work of a destroyed stream precedes later work
    of the legacy stream."""
    stream, before = stream or LEGACY, before or LEGACY
    if before in Stream.gone:
        before = LEGACY
    if stream == before or is_capturing(stream) or is_capturing(before):
        return
    driver = Driver.get()
    (event,) = driver.call("cuEventCreate", NO_TIMING)
    driver.call("cuEventRecord", event, before)
    driver.call("cuStreamWaitEvent", stream, event, 0)
    driver.call("cuEventDestroy", event)


def empty(shape: Sequence[int], dtype: str | DType = "f32", stream: int = 0) -> DeviceArray:
    """A new, uninitialized array on the GPU."""
    of = as_dtype(dtype)
    return DeviceArray.of(Memory(math.prod(shape) * of.size_bytes, stream), shape, of, stream)


class _StreamOrdered:
    """An array of another library, imported in the order of a stream. A stream being captured does
    not wait: the graph runs when the caller says so."""

    def __init__(self, value: Any, stream: int) -> None:
        self.value, self.stream = value, stream or LEGACY
        if is_capturing(stream):
            self.stream = NO_ORDER

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.__dlpack__(**{**options, "stream": self.stream})


def from_dlpack(value: Any, stream: int = 0) -> Array:
    """Import another library's GPU array without a copy, ordered after its pending work."""
    if isinstance(value, DeviceArray):
        follow(stream, value.stream)
    if isinstance(value, Array):
        return value
    if not hasattr(value, "__dlpack__") and hasattr(value, INTERFACE):
        return _from_interface(value, stream)
    kind, _ = value.__dlpack_device__()
    on_gpu = kind == DEVICE.type_code
    return borrow(_StreamOrdered(value, stream) if on_gpu else value)


INTERFACE = "__cuda_array_interface__"  # of Numba and others older than DLPack


def is_shared(value: Any) -> bool:
    """Whether an array exposes a GPU address, by either protocol."""
    return isinstance(value, Array) or hasattr(value, "__dlpack__") or hasattr(value, INTERFACE)


def _from_interface(value: Any, stream: int) -> Array:
    """Import an array by the CUDA array interface."""
    form = value.__cuda_array_interface__
    (address, read_only), of = form["data"], from_numpy(np.dtype(form["typestr"]))
    strides = form.get("strides")
    if strides is not None:
        strides = tuple(each // of.size_bytes for each in strides)
    if form.get("stream") is not None:
        follow(stream, form["stream"])
    index = DEVICE.index
    if math.prod(form["shape"]):
        driver = Driver.get()
        kind = driver.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        (index,) = driver.call("cuPointerGetAttribute", kind, address)
    return Array._from_address(
        address,
        tuple(form["shape"]),
        strides,
        *code_of(of),
        (DEVICE.type_code, int(index)),
        read_only,
        value,
    )


def to_device(source: NDArray[Any], stream: int = 0) -> Array:
    """A copy of a NumPy array on the GPU."""
    compact = np.ascontiguousarray(source)  # of rank >= 1
    made = empty(source.shape, from_numpy(compact.dtype), stream)
    copy_in(made.address, compact, stream)
    return made


def to_host(source: Array, target: NDArray[Any] | None = None, stream: int = 0) -> NDArray[Any]:
    """Copy a GPU array to host memory, after the stream's queued work."""
    out = np.empty(source.shape, source.dtype.numpy)
    copy_out(out, source.address, stream)
    if target is None:
        return out
    target[...] = out
    return target


def copy_in(address: int, source: NDArray[Any], stream: int = 0) -> None:
    """Copy host to device memory in stream order; the source may be reused on return."""
    if source.nbytes:
        driver = Driver.get()
        driver.call("cuMemcpyHtoDAsync", address, source.ctypes.data, source.nbytes, stream)


def copy_out(target: NDArray[Any], address: int, stream: int = 0) -> None:
    """Copy device to host memory, after the stream's queued work."""
    if target.nbytes:
        driver = Driver.get()
        driver.call("cuMemcpyDtoHAsync", target.ctypes.data, address, target.nbytes, stream)
        driver.call("cuStreamSynchronize", stream)


def wait(stream: int = 0) -> None:
    """Wait for all work queued on a stream."""
    Driver.get().call("cuStreamSynchronize", stream)


def is_capturing(stream: int) -> bool:
    """Whether a stream is being captured."""
    driver = Driver.get()
    (status,) = driver.call("cuStreamIsCapturing", stream)
    return bool(status != driver.api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


@contextlib.contextmanager
def beside_capture() -> Iterator[None]:
    """Lets this thread allocate memory and wait for other streams while a stream is captured."""
    driver = Driver.get()
    relaxed = driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    (before,) = driver.call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        driver.call("cuThreadExchangeStreamCaptureMode", before)


def copy_in_beside(address: int, source: NDArray[Any]) -> None:
    """Copy host to new device memory on a stream of its own; returns when it is there."""
    stream = Stream()
    copy_in(address, source, stream.handle)
    stream.synchronize()


def copy(to: int, source: int, size_bytes: int, stream: int = 0) -> None:
    """Copy device memory in stream order."""
    if size_bytes:
        Driver.get().call("cuMemcpyDtoDAsync", to, source, size_bytes, stream)


class TensorMap:
    """A tensor map for bulk copies of a matrix or a batch: boxes of 128-byte rows, swizzled in
    shared memory. Extents are outermost first. With corners, it is an im2col map of channels-last
    images: lower and upper corners of the windows' origins, the upper ones relative to the image's
    last line and column, and strides; a box is one kernel position of some pixels.

    Without an address there is nothing to copy from, as of an empty array of torch's: the driver
    would refuse to describe it, and no kernel looks at what is described."""

    TYPES: ClassVar = {
        "bf16": "BFLOAT16",
        "f16": "FLOAT16",
        "f32": "FLOAT32",
        "u8": "UINT8",
        "i8": "UINT8",
        "f8e4m3": "UINT8",
    }

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: DType,
        box: tuple[int, ...],
        corners: tuple[int, ...] = (),
    ) -> None:
        self.driver = driver = Driver.get()
        api, inward = driver.api, shape[::-1]
        if not address:
            self._map = api.CUtensorMap()
            return
        kind = f"CU_TENSOR_MAP_DATA_TYPE_{self.TYPES[dtype.name]}"
        strides, apart = [], dtype.size_bytes
        for extent in inward[:-1]:
            apart *= extent
            strides.append(api.cuuint64_t(apart))
        extents = [api.cuuint64_t(extent) for extent in inward]
        given = (getattr(api.CUtensorMapDataType, kind), len(shape), address, extents, strides)
        form = self._form()
        if corners:
            low_y, low_x, high_y, high_x, step_y, step_x = corners
            pixels, channels = box
            steps = [api.cuuint32_t(step) for step in (1, step_x, step_y, 1)]
            lower, upper = [low_x, low_y], [high_x, high_y]
            name = "cuTensorMapEncodeIm2col"
            (self._map,) = driver.call(name, *given, lower, upper, channels, pixels, steps, *form)
            return
        sizes = [api.cuuint32_t(extent) for extent in box[::-1]]
        steps = [api.cuuint32_t(1)] * len(box)
        if len(box) > len(shape):
            inward, apart_by = grouped_axes(shape, box)
            extents = [api.cuuint64_t(extent) for extent in inward]
            strides = [api.cuuint64_t(rows * shape[-1] * dtype.size_bytes) for rows in apart_by]
            given = (given[0], len(box), address, extents, strides)
        (self._map,) = driver.call("cuTensorMapEncodeTiled", *given, sizes, steps, *form)

    @classmethod
    @functools.cache
    def _form(cls) -> tuple[Any, ...]:
        api = Driver.get().api
        return (
            api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            api.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )

    @property
    def pointer(self) -> int:
        return int(self._map.getPtr())


def grouped_axes(
    shape: tuple[int, ...], box: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A matrix with permuted groups of rows: extents, innermost first, and the row strides of all
    but the first. Of a group's axes, j, q and e in a box, q is outermost in memory."""
    rows, columns = shape
    _, j, q, e, _ = box
    return (columns, e, q, j, rows // (j * q * e)), (1, e * j, e, e * j * q)


class Stream:
    """A queue of work."""

    gone: ClassVar[set[int]] = set()  # destroyed handles that arrays may still refer to

    def __init__(self) -> None:
        self.driver = Driver.get()
        (self._handle,) = self.driver.call("cuStreamCreate", 0)
        self.gone.discard(self.handle)

    @property
    def handle(self) -> int:
        return int(self._handle)

    def synchronize(self) -> None:
        Driver.get().call("cuStreamSynchronize", self._handle)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.gone.add(self.handle)
            self.driver.drop("cuStreamDestroy", self._handle)


def synchronize() -> None:
    """Wait until the GPU is idle."""
    Driver.get().call("cuCtxSynchronize")


class Module:
    """Kernels loaded from PTX."""

    def __init__(self, ptx: str) -> None:
        self.driver = Driver.get()
        (self._handle,) = self.driver.call("cuModuleLoadData", ptx.encode() + b"\0")
        self._kernels: dict[str, Any] = {}

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.driver.drop("cuModuleUnload", self._handle)

    def kernel(self, name: str, shared_bytes: int = 0) -> Any:
        """A kernel, with this much dynamic shared memory enabled."""
        if name not in self._kernels:
            (found,) = self.driver.call("cuModuleGetFunction", self._handle, name.encode())
            if shared_bytes + STATIC_SHARED_BYTES > SHARED_BYTES_BY_DEFAULT:
                attribute = self.driver.api.CUfunction_attribute
                wanted = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.driver.call("cuFuncSetAttribute", found, wanted, shared_bytes)
            self._kernels[name] = found
        return self._kernels[name]

    def launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[int | TensorMap],
        *,
        shared_bytes: int = 0,
        stream: int = 0,
        is_early: bool = False,
        is_together: bool = False,
    ) -> None:
        """Launch a kernel; each argument is a pointer, a 64-bit integer or a tensor map. `is_early`
        uses programmatic dependent launch, before the previous kernel on the stream has ended;
        `is_together` a cooperative launch, with all blocks resident."""
        if 0 in grid or 0 in block:
            return
        pointers, _values = _packed(arguments)
        kernel = self.kernel(name, shared_bytes)
        if is_early or is_together:
            config = self._config(grid, block, shared_bytes, stream, is_early, is_together)
            self.driver.call("cuLaunchKernelEx", config, kernel, ctypes.addressof(pointers), 0)
            return
        self.driver.call(
            "cuLaunchKernel",
            kernel,
            *grid,
            *block,
            shared_bytes,
            stream,
            ctypes.addressof(pointers),
            0,
        )

    def _config(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: int,
        is_early: bool,
        is_together: bool,
    ) -> Any:
        api = self.driver.api
        kinds, config = api.CUlaunchAttributeID, api.CUlaunchConfig()
        attributes = []
        if is_early:
            attributes.append(api.CUlaunchAttribute())
            attributes[-1].id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attributes[-1].value.programmaticStreamSerializationAllowed = 1
        if is_together:
            attributes.append(api.CUlaunchAttribute())
            attributes[-1].id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attributes[-1].value.cooperative = 1
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = shared_bytes, stream
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config


class NodeParams:
    """The parameters of a kernel's node in a graph, written anew for every change."""

    def __init__(self, kernel: Any, count: int, shared_bytes: int) -> None:
        self.params = params = Driver.get().api.CUDA_KERNEL_NODE_PARAMS()
        params.func, params.sharedMemBytes = kernel, shared_bytes
        self._values = (ctypes.c_uint64 * max(1, count))()
        first, apart = ctypes.addressof(self._values), ctypes.sizeof(ctypes.c_uint64)
        places = [first + apart * at for at in range(max(1, count))]
        self._pointers = (ctypes.c_void_p * len(places))(*places)
        params.kernelParams = ctypes.addressof(self._pointers)

    def write(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[int | TensorMap],
    ) -> None:
        params = self.params
        params.gridDimX, params.gridDimY, params.gridDimZ = grid
        params.blockDimX, params.blockDimY, params.blockDimZ = block
        for at, value in enumerate(arguments):
            if isinstance(value, TensorMap):
                self._pointers[at] = value.pointer
            else:
                self._values[at] = value & (1 << 64) - 1


def _packed(arguments: Sequence[int | TensorMap]) -> tuple[Any, Any]:
    """Pointers to the arguments of a kernel, and the memory that they point to."""
    values = [
        value if isinstance(value, TensorMap) else ctypes.c_uint64(value & (1 << 64) - 1)
        for value in arguments
    ]
    places = [v.pointer if isinstance(v, TensorMap) else ctypes.addressof(v) for v in values]
    return (ctypes.c_void_p * max(1, len(places)))(*places), values


class Timer:
    """GPU time between two points of a stream."""

    def __init__(self) -> None:
        self.driver = Driver.get()
        (self._begin,) = self.driver.call("cuEventCreate", 0)
        (self._end,) = self.driver.call("cuEventCreate", 0)

    def start(self, stream: int = 0) -> None:
        self.driver.call("cuEventRecord", self._begin, stream)

    def stop(self, stream: int = 0) -> float:
        """Milliseconds since `start`, once the GPU has reached this point."""
        self.driver.call("cuEventRecord", self._end, stream)
        self.driver.call("cuEventSynchronize", self._end)
        (elapsed,) = self.driver.call("cuEventElapsedTime", self._begin, self._end)
        return float(elapsed)

    def __del__(self) -> None:
        for name in ("_begin", "_end"):
            if hasattr(self, name):
                self.driver.drop("cuEventDestroy", getattr(self, name))
