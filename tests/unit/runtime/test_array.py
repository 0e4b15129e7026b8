import gc
import pickle
import weakref

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import dtype
from tilewright.base.errors import TilewrightError
from tilewright.runtime import Array, OutOfMemory, empty, from_dlpack
from tilewright.runtime.array import array
from tilewright.runtime.device import CPU, Device, device

NAMES = [
    "f64",
    "f32",
    "f16",
    "bf16",
    "f8e4m3",
    "f8e5m2",
    "i64",
    "i32",
    "i16",
    "i8",
    "i4",
    "u64",
    "u32",
    "u16",
    "u8",
    "u4",
    "bool",
]


def address_of(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]


@pytest.mark.parametrize("name", NAMES)
def test_empty_has_the_asked_shape_dtype_and_alignment(name):
    a = empty((3, 5), name)
    assert (a.shape, a.dtype, a.device, a.ndim, a.size) == ((3, 5), dtype(name), CPU, 2, 15)
    assert a.address % 64 == 0
    assert a.size_bytes == 15 * dtype(name).size_bytes
    assert a.is_contiguous
    assert not a.read_only


@pytest.mark.parametrize("name", NAMES)
def test_numpy_sees_the_same_memory(name):
    a = empty((2, 3), name)
    n = np.asarray(a)
    assert n.dtype == dtype(name).numpy
    assert n.shape == (2, 3)
    assert address_of(n) == a.address
    n[...] = np.ones((2, 3), dtype(name).numpy)
    assert (np.asarray(a) == n).all()


@pytest.mark.parametrize("name", NAMES)
def test_array_shares_the_memory_of_a_numpy_array(name):
    n = np.ones((4, 2), dtype(name).numpy)
    a = array(n)
    assert (a.dtype, a.shape, a.address) == (dtype(name), (4, 2), address_of(n))
    assert a.base is n


def test_array_keeps_strides_and_offsets():
    n = np.arange(24.0).reshape(4, 6)[1:, ::-2]
    a = array(n)
    assert a.strides == (6, -2)
    assert not a.is_contiguous
    assert np.array_equal(np.asarray(a), n)


def test_what_has_no_elements_is_contiguous():
    for n in (np.zeros((2, 0, 3)), np.zeros((4, 6))[:0, ::2], np.zeros((4, 6))[:, 6:]):
        assert n.flags.c_contiguous
        assert array(n).is_contiguous


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (np.zeros(2, "i4,f4"), "which no kernel takes"),
        (np.zeros(2, np.clongdouble), "which no kernel takes"),
        (np.zeros(2, "M8[s]"), "which no kernel takes"),
        (np.zeros(2, ">f4"), "not in this machine's order"),
    ],
)
def test_types_that_no_kernel_takes_are_named(made, told):
    with pytest.raises(TypeError, match=told):
        array(made)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1)])
def test_arrays_without_dimensions_or_elements(shape):
    n = np.ones(shape, np.float32)
    a = array(n)
    assert a.shape == shape
    assert np.array_equal(np.asarray(a), n)
    assert np.array_equal(np.asarray(empty(shape, "bf16")).shape, shape)
    assert a.copy().shape == shape


def test_numpy_view_keeps_the_memory_alive():
    a = empty(100, "f32")
    gone = weakref.ref(a)
    n = np.asarray(a)
    n[...] = 7
    del a
    gc.collect()
    assert gone() is not None
    assert (n == 7).all()
    del n
    gc.collect()
    assert gone() is None


def test_borrowed_numpy_array_is_kept_alive():
    n = np.arange(1000.0)
    gone = weakref.ref(n)
    a = array(n)
    del n
    gc.collect()
    assert gone() is not None
    assert np.asarray(a)[999] == 999
    del a
    gc.collect()
    assert gone() is None


def test_read_only_memory_stays_read_only():
    n = np.zeros(3, np.float32)
    n.flags.writeable = False
    a = array(n)
    assert a.read_only
    assert not np.asarray(a).flags.writeable
    assert not a.copy().read_only
    bf16 = np.zeros(3, ml_dtypes.bfloat16)
    bf16.flags.writeable = False
    assert not np.asarray(array(bf16)).flags.writeable


def test_copy_is_contiguous_aligned_and_apart():
    n = np.arange(12.0).reshape(3, 4)
    c = array(n.T).copy()
    assert c.is_contiguous
    assert c.address % 64 == 0
    n[...] = 0
    assert np.array_equal(np.asarray(c), np.arange(12.0).reshape(3, 4).T)


def test_array_converts_when_a_dtype_is_given():
    a = array(np.array([1.5, 2.5]), "bf16")
    assert a.dtype is dtype("bf16")
    assert np.asarray(a).tolist() == [1.5, 2.5]
    assert array([[1, 2], [3, 4]], "i8").shape == (2, 2)
    assert array(3.0).shape == ()
    assert array(3.0).item() == 3.0


def test_array_copies_or_refuses_to_as_told():
    n = np.zeros(4, np.float32)
    assert array(n, copy=True).address != address_of(n)
    assert array(n, copy=False).address == address_of(n)
    a = array(n)
    assert array(a) is a
    with pytest.raises(ValueError, match="TW4015"):
        array([1, 2], copy=False)
    with pytest.raises(ValueError, match="TW4015"):
        array(n, "f64", copy=False)


def test_array_takes_bytearrays_and_memoryviews():
    raw = bytearray(b"\x01\x02\x03")
    a = array(raw)
    assert (a.dtype, a.shape) == (dtype("u8"), (3,))
    np.asarray(a)[0] = 9
    assert raw[0] == 9
    assert array(memoryview(b"abc")).read_only


@pytest.mark.parametrize("name", [name for name in NAMES if dtype(name).numpy.isbuiltin == 1])
def test_dlpack_goes_to_numpy_without_a_copy(name):
    a = empty((2, 2), name)
    n = np.from_dlpack(a)
    assert n.dtype == dtype(name).numpy
    assert address_of(n) == a.address


def test_dlpack_comes_from_numpy_without_a_copy():
    n = np.arange(6, dtype=np.int16).reshape(2, 3)
    a = from_dlpack(n)
    assert (a.dtype, a.address) == (dtype("i16"), address_of(n))


class ForeignArray:
    """An array of some other library: it has DLPack and nothing else."""

    def __init__(self, inner, legacy):
        self.inner, self.legacy = inner, legacy

    def __dlpack__(self, **kwargs):
        if self.legacy and kwargs:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.inner.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


@pytest.mark.parametrize("legacy", [False, True])
def test_both_generations_of_dlpack_are_read(legacy):
    a = empty((3, 2), "bf16")
    b = from_dlpack(ForeignArray(a, legacy))
    assert (b.dtype, b.shape, b.address) == (a.dtype, a.shape, a.address)
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is not None
    del b
    gc.collect()
    assert gone() is None


def test_read_only_memory_crosses_dlpack_only_with_its_flag():
    n = np.zeros(3)
    n.flags.writeable = False
    a = array(n)
    assert from_dlpack(ForeignArray(a, False)).read_only
    with pytest.raises(BufferError, match="read-only"):
        a.__dlpack__()


def test_four_bit_elements_cross_dlpack_only_as_padded():
    a = empty(3, "i4")
    assert from_dlpack(ForeignArray(a, False)).dtype is dtype("i4")
    with pytest.raises(BufferError, match="padded"):
        a.__dlpack__()


def test_dlpack_copies_on_request_and_stays_on_its_device():
    a = empty(3, "f32")
    assert a.__dlpack_device__() == (1, 0)
    assert from_dlpack(a).address == a.address
    copied = np.from_dlpack(a, copy=True)
    assert address_of(copied) != a.address
    with pytest.raises(BufferError, match="on cpu"):
        a.__dlpack__(dl_device=(2, 0))


def test_capsule_that_nobody_reads_lets_go():
    a = empty(3, "f32")
    gone = weakref.ref(a)
    capsules = [a.__dlpack__(), a.__dlpack__(max_version=(1, 0))]
    del a
    gc.collect()
    assert gone() is not None
    capsules.clear()
    gc.collect()
    assert gone() is None


def test_numpy_conversion_follows_its_own_rules():
    a = array(np.array([1.0, 2.0], ml_dtypes.bfloat16))
    assert np.asarray(a, dtype=np.float32).dtype == np.float32
    assert address_of(np.array(a, copy=False)) == a.address
    assert address_of(np.array(a, copy=True)) != a.address
    with pytest.raises(ValueError, match="needs a copy"):
        np.array(a, dtype=np.float32, copy=False)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (np.zeros(2, object), "TW4001"),
        (np.zeros(2, "U3"), "TW4001"),
        (np.zeros(2, [("a", np.int32)]), "TW4001"),
        (np.zeros(2, ">f4"), "TW4001"),
        (np.zeros((1,) * 20), "TW4002"),
        (np.zeros(4, [("a", np.int32), ("b", np.int8)])["a"], "TW4004"),
    ],
    ids=["object", "text", "record", "byte order", "rank", "uneven stride"],
)
def test_memory_that_no_kernel_can_read_is_refused(value, code):
    with pytest.raises(TilewrightError, match=code):
        array(value)


@pytest.mark.parametrize("shape", [(-1,), (2, -3)])
def test_negative_extents_are_refused(shape):
    with pytest.raises(ValueError, match="is negative"):
        empty(shape)


def test_too_large_an_array_is_refused():
    with pytest.raises(OutOfMemory, match="TW4011"):
        empty((1 << 40, 1 << 40))
    with pytest.raises(MemoryError, match="cannot allocate"):
        empty(1 << 60, "u8")


def test_arrays_show_their_values_and_type():
    assert repr(array(np.array([[1, 2]], np.int32))) == "Array([[1, 2]], i32[1, 2])"
    assert repr(empty((2, 0), "bf16")) == "Array([], i32[2, 0])".replace("i32", "bf16")


def test_arrays_have_the_length_and_truth_of_numpy_arrays():
    assert len(empty((3, 2))) == 3
    assert array(1.0)
    assert not array(0)
    with pytest.raises(TypeError):
        len(array(1.0))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(empty(3))


def test_arrays_cannot_be_made_without_memory():
    with pytest.raises(TypeError):
        Array()


def test_devices_are_named_and_compared():
    assert str(CPU) == "cpu"
    assert device("cuda:1") == Device("cuda", 1)
    assert str(Device("cuda")) == "cuda:0"
    assert pickle.loads(pickle.dumps(CPU)) == CPU
    for bad in ("gpu", "cuda:x", "cuda:-1"):
        with pytest.raises(ValueError, match="TW4014"):
            device(bad)


def test_only_cpu_memory_is_allocated_here():
    with pytest.raises(ValueError, match="TW4005"):
        empty(3, "f32", "cuda")


def test_torch_shares_memory_both_ways():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for name, kind in (("f32", torch.float32), ("bf16", torch.bfloat16), ("bool", torch.bool)):
        a = empty((2, 3), name)
        t = torch.from_dlpack(a)
        assert t.dtype == kind
        assert t.data_ptr() == a.address
        back = array(t)
        assert (back.address, back.dtype) == (a.address, a.dtype)
    strided = array(torch.zeros(4, 6)[:, ::2])
    assert strided.strides == (6, 2)
