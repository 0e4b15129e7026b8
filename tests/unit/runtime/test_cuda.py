"""What is said where a GPU cannot be used: a driver that refuses stands in for NVIDIA's."""

import enum
import os
import signal
import sys
import threading
import types

import numpy as np
import pytest

from tilewright.base.dtype import BF16
from tilewright.base.errors import TilewrightError
from tilewright.runtime import cuda, cuda_graphs


class CUresult(enum.Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Attribute(enum.Enum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class Driver:
    """Answers as it is told; every other call succeeds, with a number."""

    CUresult, CUdevice_attribute = CUresult, Attribute

    def __init__(self, version=13000, compute=(9, 0), **refused):
        self.version, self.compute, self.refused = version, compute, refused
        self.calls = []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args):
            self.calls.append((name, *args))
            answer = self.refused.get(name, CUresult.CUDA_SUCCESS)
            if isinstance(answer, Exception):
                raise answer
            if name == "cuGetErrorString":
                return CUresult.CUDA_SUCCESS, args[0].name.encode()
            if name == "cuDriverGetVersion":
                return answer, self.version
            if name == "cuDeviceGetAttribute":
                return answer, self.compute[args[0].name.endswith("MINOR")]
            if name == "cuMemGetInfo":
                return answer, 1000, 4000
            return answer, 4096

        return call


@pytest.fixture
def driver(monkeypatch):
    """The bindings, with a driver behind them that the test makes."""

    def use(made):
        bindings = types.ModuleType("cuda.bindings")
        if made is not None:
            bindings.driver = made
        monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        monkeypatch.delitem(sys.modules, "cuda.bindings.driver", raising=False)
        monkeypatch.setattr(cuda.Driver, "_instance", None)
        monkeypatch.setattr(cuda, "_pool", cuda._Pool())
        monkeypatch.setattr(cuda_graphs, "_of_thread", threading.local())
        return made

    return use


NO_DEVICE = CUresult.CUDA_ERROR_NO_DEVICE


@pytest.mark.parametrize(
    ("made", "code", "message"),
    [
        (None, "TW4020", "cuda-bindings is not installed"),
        (Driver(cuInit=RuntimeError("libcuda.so.1 is missing")), "TW4020", "libcuda.so.1"),
        (Driver(cuInit=NO_DEVICE), "TW4021", "CUDA_ERROR_NO_DEVICE"),
        (Driver(version=11080), "TW4020", "version 11.8, 12.0 is needed"),
        (Driver(compute=(7, 5)), "TW4020", "the GPU is sm_75, sm_80 or later is needed"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_named_with_what_is_needed(driver, made, code, message):
    driver(made)
    with pytest.raises(TilewrightError) as caught:
        cuda.empty((4,))
    assert caught.value.code == code
    assert message in caught.value.message
    assert not cuda.is_available()


def test_memory_that_is_not_there_says_what_was_asked_and_what_is_free(driver):
    made = driver(Driver(cuMemAlloc=CUresult.CUDA_ERROR_OUT_OF_MEMORY))
    with pytest.raises(TilewrightError) as caught:
        cuda.empty((1 << 20,), "f32")
    assert caught.value.code == "TW4022"
    assert "4194304 bytes of device memory were asked for, 1000 of 4000 are free" in str(
        caught.value
    )
    made.refused.clear()
    assert cuda.empty((4,)).address == 4096  # it goes on


def test_memory_goes_back_to_the_pool_that_it_is_of(driver, monkeypatch):
    driver(Driver())
    kept, other = cuda.empty((4,)), cuda._Pool()
    monkeypatch.setattr(cuda, "_pool", other)
    del kept
    assert not other.free


def test_after_a_fault_every_call_says_that_the_context_is_lost(driver):
    made = driver(Driver(cuCtxSynchronize=CUresult.CUDA_ERROR_ILLEGAL_ADDRESS))
    codes = []
    for work in (cuda.synchronize, cuda.synchronize, lambda: cuda.empty((4,))):
        with pytest.raises(TilewrightError) as caught:
            work()
        codes.append(caught.value.code)
    assert codes == ["TW4021", "TW4023", "TW4023"]
    made.refused.clear()  # it stays so
    with pytest.raises(TilewrightError):
        cuda.to_device(np.zeros(4, np.float32))


class Launch:
    """Work that notes on which stream it was queued, and whether early."""

    def __init__(self, is_kernel=True, starts_early=True):
        self.is_kernel, self.starts_early = is_kernel, starts_early
        self.was = None

    def start(self, stream, is_early=False):
        self.was = is_early


@pytest.mark.parametrize(
    ("launches", "waits", "early"),
    [
        ([Launch(), Launch(), Launch()], [[], [0], [1]], [False, True, True]),
        ([Launch(), Launch(starts_early=False), Launch()], [[], [0], [1]], [False, False, True]),
        ([Launch(), Launch(is_kernel=False, starts_early=False), Launch()], [[], [0], [1]],
         [False, False, False]),
        ([Launch(), Launch(), Launch()], [[], [], [0, 1]], [False, False, False]),
    ],
)  # fmt: skip
def test_launches_start_early_behind_the_kernel_they_wait_for_alone(driver, launches, waits, early):
    driver(Driver())
    cuda_graphs.branched(launches, waits)(7)
    assert [launch.was for launch in launches] == early


class Enum:
    """Stands for any enumeration of the driver's."""

    def __getattr__(self, name):
        return name


def with_streams(captured=()):
    """A driver that knows of streams, some of which record, and tells where memory is."""
    made = Driver()
    made.CUstreamCaptureStatus = made.CUpointer_attribute = Enum()
    none = "CU_STREAM_CAPTURE_STATUS_NONE"
    made.cuStreamIsCapturing = lambda stream: (
        CUresult.CUDA_SUCCESS,
        "recording" if stream in captured else none,
    )
    made.cuPointerGetAttribute = lambda kind, address: (CUresult.CUDA_SUCCESS, 0)
    return made


@pytest.mark.parametrize(("address", "asked"), [(4096, 1), (0, 0)])
def test_an_empty_array_without_memory_is_not_described_to_the_driver(driver, address, asked):
    """As torch has it; kernels that are handed what stands for its map copy nothing by it."""
    made = driver(Driver())
    made.CUtensorMapDataType = made.CUtensorMapInterleave = Enum()
    made.CUtensorMapSwizzle = made.CUtensorMapL2promotion = made.CUtensorMapFloatOOBfill = Enum()
    made.cuuint64_t = made.cuuint32_t = int
    made.CUtensorMap = lambda: types.SimpleNamespace(getPtr=lambda: 64)
    made.cuTensorMapEncodeTiled = lambda *args: (
        made.calls.append("encoded") or CUresult.CUDA_SUCCESS,
        made.CUtensorMap(),
    )
    found = cuda.TensorMap(address, (1, 64), BF16, (64, 64))
    assert (found.pointer, made.calls.count("encoded")) == (64, asked)


def waits(made):
    """(stream, stream that it waits for), in order."""
    records = [call[2] for call in made.calls if call[0] == "cuEventRecord"]
    waiting = [call[1] for call in made.calls if call[0] == "cuStreamWaitEvent"]
    return list(zip(waiting, records, strict=True))


@pytest.mark.parametrize(
    ("made_on", "used_on", "expected"),
    [
        (7, 9, [(9, 7)]),
        (7, 7, []),
        (0, 1, []),  # both are the stream that waits for all
        (7, None, [(1, 7)]),
        (7, -1, []),  # the caller orders them
        (7, 5, []),  # it records
    ],
)
def test_who_takes_an_array_waits_for_what_computes_it(driver, made_on, used_on, expected):
    made = driver(with_streams(captured=(5,)))
    cuda.empty((4,), stream=made_on).__dlpack__(stream=used_on, max_version=(1, 0))
    assert waits(made) == expected


def test_an_array_of_ours_is_ordered_between_streams_too(driver):
    made = driver(with_streams())
    x = cuda.empty((4,), stream=7)
    assert cuda.from_dlpack(x, stream=9) is x
    assert waits(made) == [(9, 7)]


def test_an_array_may_outlive_the_stream_that_computes_it(driver, monkeypatch):
    made = driver(with_streams())
    monkeypatch.setattr(cuda.Stream, "gone", set())
    stream = cuda.Stream()
    x = cuda.empty((4,), stream=stream.handle)
    handle = stream.handle
    del stream
    cuda.from_dlpack(x, stream=9)
    assert waits(made) == [(9, 1)]  # what is gone is not asked for
    assert cuda.Stream().handle == handle  # the driver gives a handle again
    kept = cuda.Stream()
    cuda.from_dlpack(cuda.empty((4,), stream=kept.handle), stream=9)
    assert waits(made)[1:] == [(9, handle)]


class Foreign:
    """An array as CuPy has it: DLPack before its version 1, and CUDA's array interface."""

    def __init__(self, stream=None, strides=None):
        self.array = cuda.empty((2, 4), "f16", stream=3)
        self.asked = []
        self.__cuda_array_interface__ = {
            "shape": (2, 4), "typestr": "<f2", "data": (4096, True), "version": 3,
            "strides": strides, "stream": stream,
        }  # fmt: skip


class Cupy(Foreign):
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        return self.array.__dlpack__(stream=-1)


@pytest.mark.parametrize(("stream", "named"), [(0, 1), (9, 9), (5, -1)])
def test_an_array_like_cupy_s_is_used_where_it_is_in_the_order_of_the_stream(driver, stream, named):
    driver(with_streams(captured=(5,)))
    given = Cupy()
    taken = cuda.from_dlpack(given, stream)
    assert (taken.address, taken.shape, taken.dtype.name) == (4096, (2, 4), "f16")
    assert given.asked == [named]


def test_an_array_without_dlpack_tells_of_itself_by_the_array_interface(driver):
    made = driver(with_streams())
    given = Foreign(stream=7, strides=(16, 4))
    assert cuda.is_shared(given)
    taken = cuda.from_dlpack(given, stream=9)
    assert (taken.address, taken.shape, taken.dtype.name) == (4096, (2, 4), "f16")
    assert (taken.strides, taken.read_only, taken.device) == ((8, 2), True, cuda.DEVICE)
    assert waits(made) == [(9, 7)]
    made.cuPointerGetAttribute = lambda kind, address: (CUresult.CUDA_SUCCESS, 1)
    assert cuda.from_dlpack(given).device.index == 1


def test_an_array_of_ours_tells_of_itself_by_the_array_interface_when_it_is_computed(driver):
    made = driver(with_streams(captured=(5,)))
    told = cuda.empty((2, 4), "f16", stream=7).__cuda_array_interface__
    assert (told["shape"], told["typestr"], told["data"]) == ((2, 4), "<f2", (4096, False))
    assert told["strides"] is told["stream"] is None  # nobody has to wait
    assert ("cuStreamSynchronize", 7) in [call[:2] for call in made.calls]
    assert cuda.empty((2,), stream=5).__cuda_array_interface__["version"] == 3
    assert ("cuStreamSynchronize", 5) not in [call[:2] for call in made.calls]
    assert not hasattr(cuda.empty((2,), "bf16"), "__cuda_array_interface__")


def start_waiting(driver):
    """A driver that has begun to start, with the event that lets it go on."""
    begun, go_on = threading.Event(), threading.Event()
    made = driver(Driver())

    def initialize(flags):
        begun.set()
        assert go_on.wait(600)
        return (CUresult.CUDA_SUCCESS,)

    made.cuInit = initialize
    cuda.start_driver()
    assert begun.wait(600)
    return made, go_on


def test_the_driver_starts_beside_what_the_caller_does(driver):
    made, go_on = start_waiting(driver)  # and the caller is here
    go_on.set()
    assert cuda.empty((4,)).address == 4096
    cuda.start_driver()  # there is nothing left to do
    assert [call[0] for call in made.calls].count("cuDevicePrimaryCtxRetain") == 1


def test_a_driver_that_does_not_start_is_told_of_where_it_is_needed(driver):
    driver(Driver(cuInit=NO_DEVICE))
    cuda.start_driver()
    with pytest.raises(TilewrightError, match="CUDA_ERROR_NO_DEVICE"):
        cuda.empty((4,))


def told_in_a_child():
    """What a forked process is told that uses the GPU; a signal ends it if it waits for ever."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(600)
        try:
            cuda.synchronize()
        except TilewrightError as error:
            os.write(writing, f"{error.code} {error.message}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        found = told.read()
    return found, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


LOST = "TW4023 the GPU's context is lost: the process was forked after the driver had started"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_told_that_the_driver_had_started(driver):
    driver(Driver())
    cuda.empty((4,))
    assert told_in_a_child() == (LOST, 0)
    assert cuda.empty((4,)).address == 4096  # the process itself goes on


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_nobody_forks_while_the_driver_starts(driver):
    _, go_on = start_waiting(driver)
    later = threading.Timer(0.05, go_on.set)
    later.start()
    assert told_in_a_child() == (LOST, 0)
    later.join()
