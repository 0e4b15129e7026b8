"""The CUDA driver: memory, modules of PTX, launches. Nothing is linked; the driver loads the PTX.

module = Module(ptx)
with_copies = to_device(numpy_array)
module.launch("kernel", grid, block, [array.address, 128])
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtype import DType, from_numpy
from tilewright.base.dtype import dtype as as_dtype
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.runtime.array import Array
from tilewright.runtime.device import Device
from tilewright.runtime.dlpack import code_of

SHARED_BYTES_BY_DEFAULT = 48 * 1024
STATIC_SHARED_BYTES = 4096  # that kernels with dynamic shared memory have beside it, at most


class CudaError(TilewrightError, RuntimeError):
    """The driver refused a call."""


class _Driver:
    """The driver, initialised once, its device's primary context current."""

    _instance: _Driver | None = None

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise Unsupported(
                "TW4020",
                "the CUDA driver cannot be reached: cuda-bindings is not installed",
                help="pip install 'tilewright[cuda]' on a machine with an NVIDIA GPU",
            ) from error
        self.api: Any = driver
        try:
            self.call("cuInit", 0)
        except CudaError:
            raise
        except RuntimeError as error:  # the bindings are there, what they bind is not
            raise Unsupported(
                "TW4020",
                f"the CUDA driver cannot be reached: {error}",
                help="install NVIDIA's driver on a machine with one of its GPUs",
            ) from error
        (self.device,) = self.call("cuDeviceGet", 0)
        (self.context,) = self.call("cuDevicePrimaryCtxRetain", self.device)
        self.call("cuCtxSetCurrent", self.context)

    @classmethod
    def get(cls) -> _Driver:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def call(self, name: str, *args: Any) -> tuple[Any, ...]:
        """A driver call by name; its results without the error code."""
        code, *results = getattr(self.api, name)(*args)
        if code != self.api.CUresult.CUDA_SUCCESS:
            _, text = self.api.cuGetErrorString(code)
            raise CudaError("TW4021", f"{name} failed: {(text or b'unknown').decode()}")
        return tuple(results)


def is_available() -> bool:
    """Whether a GPU can be used here."""
    try:
        _Driver.get()
    except TilewrightError:
        return False
    return True


class _Pool:
    """Device memory by size, kept for the next that asks: freed memory is still warm, and work on
    one stream that used it has been queued before work of its next owner."""

    ROUND_BYTES = 512

    def __init__(self) -> None:
        self.free: dict[int, list[int]] = {}

    def take(self, size_bytes: int) -> tuple[int, int]:
        """An address, and the size to give it back with."""
        size = -(-max(1, size_bytes) // self.ROUND_BYTES) * self.ROUND_BYTES
        kept = self.free.get(size)
        if kept:
            return kept.pop(), size
        driver = _Driver.get()
        try:
            (pointer,) = driver.call("cuMemAlloc", size)
        except CudaError:
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
        return int(pointer), size

    def give(self, address: int, size: int) -> None:
        self.free.setdefault(size, []).append(address)

    def release(self) -> None:
        """All that nobody uses goes back to the driver."""
        driver = _Driver.get()
        driver.call("cuCtxSynchronize")
        for addresses in self.free.values():
            for address in addresses:
                driver.call("cuMemFree", address)
        self.free.clear()


_pool = _Pool()


class Memory:
    """Device memory, given back when nothing refers to it any more."""

    def __init__(self, size_bytes: int) -> None:
        self.address, self._size = _pool.take(size_bytes)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _pool.give(self.address, self._size)


def empty(shape: Sequence[int], dtype: str | DType = "f32") -> Array:
    """A new array on the GPU whose elements are not set."""
    of = as_dtype(dtype)
    memory = Memory(math.prod(shape) * of.size_bytes)
    device = Device("cuda")
    return Array._from_address(
        memory.address,
        tuple(shape),
        None,
        *code_of(of),
        (device.type_code, device.index),
        False,
        memory,
    )


def to_device(source: NDArray[Any]) -> Array:
    """A copy of a NumPy array on the GPU."""
    compact = np.ascontiguousarray(source)
    made = empty(compact.shape, from_numpy(compact.dtype))
    if compact.nbytes:
        _Driver.get().call("cuMemcpyHtoD", made.address, compact.ctypes.data, compact.nbytes)
    return made


def to_host(source: Array, target: NDArray[Any] | None = None) -> NDArray[Any]:
    """A copy of a GPU array in host memory."""
    out = np.empty(source.shape, source.dtype.numpy)
    if out.nbytes:
        _Driver.get().call("cuMemcpyDtoH", out.ctypes.data, source.address, out.nbytes)
    if target is None:
        return out
    target[...] = out
    return target


def copy_in(address: int, source: NDArray[Any]) -> None:
    """Host memory to device memory."""
    if source.nbytes:
        _Driver.get().call("cuMemcpyHtoD", address, source.ctypes.data, source.nbytes)


def copy_out(target: NDArray[Any], address: int) -> None:
    """Device memory to host memory, when what was queued before is done."""
    if target.nbytes:
        _Driver.get().call("cuMemcpyDtoH", target.ctypes.data, address, target.nbytes)


def copy(to: int, source: int, size_bytes: int, stream: int = 0) -> None:
    """Device memory to device memory, in the order of the stream."""
    if size_bytes:
        _Driver.get().call("cuMemcpyDtoDAsync", to, source, size_bytes, stream)


class TensorMap:
    """How bulk copies see a matrix, or several: boxes of rows of 128 bytes, swizzled in shared
    memory. Extents are from the outermost in."""

    TYPES: ClassVar = {"bf16": "BFLOAT16", "f16": "FLOAT16", "f32": "FLOAT32", "u8": "UINT8"}

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: DType, box: tuple[int, ...]
    ) -> None:
        self.driver = driver = _Driver.get()
        api, inward = driver.api, shape[::-1]
        kind = f"CU_TENSOR_MAP_DATA_TYPE_{self.TYPES[dtype.name]}"
        strides, apart = [], dtype.size_bytes
        for extent in inward[:-1]:
            apart *= extent
            strides.append(api.cuuint64_t(apart))
        (self._map,) = driver.call(
            "cuTensorMapEncodeTiled",
            getattr(api.CUtensorMapDataType, kind),
            len(shape),
            address,
            [api.cuuint64_t(extent) for extent in inward],
            strides,
            [api.cuuint32_t(extent) for extent in box[::-1]],
            [api.cuuint32_t(1)] * len(shape),
            api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            api.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )

    @property
    def pointer(self) -> int:
        return int(self._map.getPtr())


class Stream:
    """A queue of work."""

    def __init__(self) -> None:
        (self._handle,) = _Driver.get().call("cuStreamCreate", 0)

    @property
    def handle(self) -> int:
        return int(self._handle)

    def synchronize(self) -> None:
        _Driver.get().call("cuStreamSynchronize", self._handle)


class Graph:
    """Launches recorded once, started together as often as wanted."""

    def __init__(self, record: Callable[[int], None]) -> None:
        """What `record` queues on the stream it is given becomes the graph."""
        self.driver = driver = _Driver.get()
        stream = Stream()
        mode = driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        driver.call("cuStreamBeginCapture", stream.handle, mode)
        try:
            record(stream.handle)
        finally:
            (graph,) = driver.call("cuStreamEndCapture", stream.handle)
        (self._executable,) = driver.call("cuGraphInstantiate", graph, 0)
        driver.call("cuGraphDestroy", graph)

    def launch(self, stream: int = 0) -> None:
        self.driver.call("cuGraphLaunch", self._executable, stream)

    def __del__(self) -> None:
        if hasattr(self, "_executable"):
            self.driver.api.cuGraphExecDestroy(self._executable)


def synchronize() -> None:
    """Wait until the GPU has done everything asked of it."""
    _Driver.get().call("cuCtxSynchronize")


class Module:
    """Kernels loaded from PTX."""

    def __init__(self, ptx: str) -> None:
        self.driver = _Driver.get()
        (self._handle,) = self.driver.call("cuModuleLoadData", ptx.encode() + b"\0")
        self._kernels: dict[str, Any] = {}

    def kernel(self, name: str, shared_bytes: int = 0) -> Any:
        """A kernel that may have this much dynamic shared memory."""
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
    ) -> None:
        """Start a kernel; every argument is a pointer, a 64-bit integer or a tensor map."""
        if 0 in grid or 0 in block:
            return
        values = [
            value if isinstance(value, TensorMap) else ctypes.c_uint64(value & (1 << 64) - 1)
            for value in arguments
        ]
        places = [v.pointer if isinstance(v, TensorMap) else ctypes.addressof(v) for v in values]
        pointers = (ctypes.c_void_p * max(1, len(places)))(*places)
        kernel = self.kernel(name, shared_bytes)
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


class Timer:
    """Time on the GPU between two points of its stream."""

    def __init__(self) -> None:
        self.driver = _Driver.get()
        (self._begin,) = self.driver.call("cuEventCreate", 0)
        (self._end,) = self.driver.call("cuEventCreate", 0)

    def start(self) -> None:
        self.driver.call("cuEventRecord", self._begin, 0)

    def stop(self) -> float:
        """Milliseconds since `start`, once the GPU got here."""
        self.driver.call("cuEventRecord", self._end, 0)
        self.driver.call("cuEventSynchronize", self._end)
        (elapsed,) = self.driver.call("cuEventElapsedTime", self._begin, self._end)
        return float(elapsed)
