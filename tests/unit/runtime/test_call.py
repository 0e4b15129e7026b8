import gc
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import BF16, F32, dtype
from tilewright.base.errors import CompilerBug, TilewrightError
from tilewright.runtime import Array, Device, Param, Signature, _native, empty
from tilewright.runtime.array import array

MATMUL = Signature(
    "matmul",
    (
        Param("A", F32, ("n", "k")),
        Param("B", F32, ("k", 4), strided=True),
        Param("C", F32, ("n", 4), writable=True),
    ),
)


def arguments():
    return [np.zeros(shape, np.float32) for shape in ((2, 3), (3, 4), (2, 4))]


@pytest.fixture
def seen(kernel):
    """A function that notes its arguments' shapes, strides and addresses."""
    notes = []

    def note(tensors):
        notes.append(
            [
                (t.shape[: t.ndim], t.strides[: t.ndim], (t.data or 0) + t.byte_offset)
                for t in tensors
            ]
        )

    return kernel(note), notes


def test_arguments_arrive_as_they_are(seen):
    (address, owner), notes = seen
    a, b, c = arguments()
    b = np.zeros((4, 3), np.float32).T
    MATMUL.bind(address, owner)(a, b, c)
    assert notes == [
        [
            ([2, 3], [3, 1], a.ctypes.data),
            ([3, 4], [1, 3], b.ctypes.data),
            ([2, 4], [4, 1], c.ctypes.data),
        ]
    ]


def test_call_by_address_needs_no_function_object(seen):
    (address, _owner), notes = seen
    _native.call(address, MATMUL.native, tuple(arguments()))
    assert len(notes) == 1


def test_arrays_of_every_kind_may_be_mixed(seen):
    (address, owner), notes = seen
    a, b, c = arguments()

    class OnlyDLPack:
        def __dlpack__(self, **kwargs):
            return b.__dlpack__(**kwargs)

    MATMUL.bind(address, owner)(array(a), OnlyDLPack(), memoryview(c))
    assert [address for _, _, address in notes[0]] == [x.ctypes.data for x in (a, b, c)]


@pytest.mark.parametrize("name", ["bf16", "f8e4m3", "f8e5m2", "i4", "u4", "bool", "f16", "u64"])
def test_every_dtype_is_recognized(seen, name):
    (address, owner), notes = seen
    function = Signature("f", (Param("x", dtype(name), (None,)),)).bind(address, owner)
    function(np.zeros(3, dtype(name).numpy))
    function(empty(3, name))
    assert len(notes) == 2
    with pytest.raises(TypeError, match=f"the dtype is f32, expected {name}"):
        function(np.zeros(3, np.float32))


def test_index_is_a_64_bit_integer(seen):
    (address, owner), notes = seen
    Signature("f", (Param("x", dtype("index"), ()),)).bind(address, owner)(
        np.int64(3) + np.zeros((), np.int64).reshape(())
    )
    assert notes


def refusal(change):
    """Arguments with one of them changed."""
    args = arguments()
    change(args)
    return args


def replace(position, value):
    return lambda args: args.__setitem__(position, value)


def misaligned():
    return np.zeros(33, np.uint8)[1:].view(np.float32).reshape(2, 4)


def read_only():
    x = np.zeros((2, 4), np.float32)
    x.flags.writeable = False
    return x


REFUSALS = {
    "dtype": (
        replace(0, np.zeros((2, 3))),
        TypeError,
        "error[TW4001]: matmul: argument A: the dtype is f64, expected f32",
    ),
    "extension dtype": (
        replace(1, np.zeros((3, 4), ml_dtypes.bfloat16)),
        TypeError,
        "error[TW4001]: matmul: argument B: the dtype is bf16, expected f32",
    ),
    "no dtype": (
        replace(1, np.zeros((3, 4), object)),
        TypeError,
        "error[TW4001]: matmul: argument B: its dtype is object, which no kernel takes",
    ),
    "rank": (
        replace(0, np.zeros(3, np.float32)),
        ValueError,
        "error[TW4002]: matmul: argument A: it has 1 dimensions, expected 2",
    ),
    "symbol": (
        replace(1, np.zeros((5, 4), np.float32)),
        ValueError,
        "error[TW4003]: matmul: argument B: dimension 0 is 5, expected k = 3",
    ),
    "too small an output": (
        replace(2, np.zeros((1, 4), np.float32)),
        ValueError,
        "error[TW4003]: matmul: argument C: dimension 0 is 1, expected n = 2",
    ),
    "extent": (
        replace(1, np.zeros((3, 5), np.float32)),
        ValueError,
        "error[TW4003]: matmul: argument B: dimension 1 is 5, expected 4",
    ),
    "strides": (
        replace(0, np.zeros((3, 2), np.float32).T),
        ValueError,
        "error[TW4004]: matmul: argument A: it is not contiguous:"
        " dimension 1 has stride 2, expected 1",
    ),
    "read-only output": (
        replace(2, read_only()),
        ValueError,
        "error[TW4006]: matmul: argument C: it is an output, yet read-only",
    ),
    "read-only array": (
        replace(2, array(read_only())),
        ValueError,
        "error[TW4006]: matmul: argument C: it is an output, yet read-only",
    ),
    "alignment": (
        replace(2, misaligned()),
        ValueError,
        "is not a multiple of 4 bytes",
    ),
    "count": (
        lambda args: args.pop(),
        TypeError,
        "error[TW4009]: matmul: it takes 3 arguments, got 2",
    ),
    "no array": (
        replace(0, [[1.0]]),
        TypeError,
        "error[TW4010]: matmul: argument A: it is no array but of type list",
    ),
    "overlap": (
        lambda args: args.__setitem__(2, args[1][:2]),
        ValueError,
        "error[TW4008]: matmul: argument C: it shares memory with argument B",
    ),
    "device": (
        replace(0, Array._from_address(64, (2, 3), None, 2, 32, 1, (2, 0), False, None)),
        ValueError,
        "error[TW4005]: matmul: argument A: it is on a device of DLPack type 2,"
        " expected type 1 (the CPU)",
    ),
    "no memory": (
        replace(0, Array._from_address(0, (2, 3), None, 2, 32, 1, (1, 0), False, None)),
        TypeError,
        "error[TW4010]: matmul: argument A: it has no data",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_wrong_argument_is_refused_by_name_before_the_call(seen, case):
    (address, owner), notes = seen
    change, kind, message = REFUSALS[case]
    with pytest.raises(kind) as caught:
        MATMUL.bind(address, owner)(*refusal(change))
    assert isinstance(caught.value, TilewrightError)
    assert message in str(caught.value)
    assert caught.value.help
    assert notes == []


@pytest.mark.parametrize("case", REFUSALS)
def test_check_refuses_what_a_call_would(case):
    change, kind, message = REFUSALS[case]
    with pytest.raises(kind) as caught:
        MATMUL.check(*refusal(change))
    assert message in str(caught.value)


def test_check_gives_the_symbols_values():
    assert MATMUL.check(*arguments()) == {"n": 2, "k": 3}


def test_refused_calls_give_all_memory_back(seen):
    (address, owner), _ = seen
    function = MATMUL.bind(address, owner)
    for change, _, _ in REFUSALS.values():
        args = refusal(change)
        before = [sys.getrefcount(arg) for arg in args]
        with pytest.raises(TilewrightError):
            function(*args)
        assert [sys.getrefcount(arg) for arg in args] == before


def test_failing_export_reaches_the_caller(seen):
    (address, owner), _ = seen

    class Broken:
        def __dlpack__(self, **kwargs):
            raise BufferError("not today")

    class Odd:
        def __dlpack__(self, **kwargs):
            return 3

    a, _, c = arguments()
    with pytest.raises(BufferError, match="not today"):
        MATMUL.bind(address, owner)(a, Broken(), c)
    with pytest.raises(TypeError, match="unknown kind"):
        MATMUL.bind(address, owner)(a, Odd(), c)


def test_zero_size_arguments_are_fine(seen):
    (address, owner), notes = seen
    MATMUL.bind(address, owner)(
        np.zeros((0, 0), np.float32), np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)
    )
    assert notes[0][0][0] == [0, 0]


def test_output_may_share_memory_where_the_signature_says_so(seen):
    (address, owner), notes = seen
    params = (Param("x", F32, ("n",)), Param("y", F32, ("n",), writable=True, may_alias=True))
    x = np.zeros(4, np.float32)
    Signature("scale", params).bind(address, owner)(x, x)
    assert notes


def test_alignment_beyond_the_element_can_be_asked_for(seen):
    (address, owner), _ = seen
    function = Signature("f", (Param("x", F32, (None,), align=64),)).bind(address, owner)
    memory = empty(32, "f32").numpy()
    function(memory)
    with pytest.raises(ValueError, match="not a multiple of 64 bytes"):
        function(memory[1:])


def test_error_of_native_code_becomes_an_exception(kernel, native):
    address, owner = kernel(lambda _: native.tw_error(12, b"index 7 is outside of 0..4"))
    with pytest.raises(ValueError, match=r"error\[TW4012\]: index 7 is outside of 0\.\.4"):
        Signature("gather", ()).bind(address, owner)()
    address, owner = kernel(lambda _: native.tw_error(13, b"no such state"))
    with pytest.raises(CompilerBug, match="TW4013"):
        Signature("gather", ()).bind(address, owner)()
    address, owner = kernel(lambda _: native.tw_error(1234, b"a code of its own"))
    with pytest.raises(ValueError, match="a code of its own"):
        Signature("gather", ()).bind(address, owner)()


def test_many_arguments_and_symbols(seen):
    (address, owner), notes = seen
    params = tuple(Param(f"x{i}", F32, (f"n{i}", f"m{i}")) for i in range(40))
    arrays = [np.zeros((i, i + 1), np.float32) for i in range(40)]
    Signature("wide", params).bind(address, owner)(*arrays)
    assert [shape for shape, _, _ in notes[0]] == [[i, i + 1] for i in range(40)]
    arrays[39] = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="argument x39"):
        Signature("wide", params).bind(address, owner)(*arrays)


def test_threads_are_set_for_one_call(kernel, native):
    counts = []
    address, owner = kernel(lambda _: counts.append(native.tw_threads()))
    function = Signature("f", ()).bind(address, owner)
    before = native.tw_threads()
    function(threads=7)
    function()
    assert counts == [7, before]
    with pytest.raises(TypeError):
        function(thread=7)


def test_calls_run_in_parallel_without_the_interpreter_lock(kernel):
    both = threading.Barrier(2, timeout=600)
    address, owner = kernel(lambda _: both.wait() and 0)
    function = Signature("f", ()).bind(address, owner)
    other = threading.Thread(target=function)
    other.start()
    function()
    other.join()


def test_function_keeps_its_code_alive():
    class Code:
        pass

    owner = Code()
    gone = weakref.ref(owner)
    address = _native.symbols()["tw_last_code"]
    function = MATMUL.bind(address, owner)
    assert (function.address, function.name) == (address, "matmul")
    del owner
    gc.collect()
    assert gone() is not None
    del function
    gc.collect()
    assert gone() is None


def test_function_and_its_code_may_refer_to_each_other():
    class Code:
        pass

    owner = Code()
    owner.function = MATMUL.bind(_native.symbols()["tw_last_code"], owner)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_function_needs_an_address():
    with pytest.raises(ValueError, match="not 0"):
        MATMUL.bind(0, None)


def test_signature_lists_symbols_in_order_and_encodes_extents():
    assert MATMUL.symbols == ("n", "k")
    assert [MATMUL.extents(param) for param in MATMUL.params] == [(-2, -3), (-3, 4), (-2, 4)]
    assert Signature("f", (Param("x", BF16, (None, 0)),)).extents(Param("x", BF16, (None, 0))) == (
        -1,
        0,
    )


@pytest.mark.parametrize(
    "params",
    [
        (("x", 2, 32, 1, (-2,), 1, 0, 0),),  # a symbol that does not exist
        (("x", 2, 32, 1, [3], 1, 0, 0),),
        (("x", 2, 32),),
        (3,),
        ((4, 2, 32, 1, (), 1, 0, 0),),
    ],
)
def test_malformed_native_signatures_are_refused(params):
    with pytest.raises((TypeError, ValueError)):
        _native.Signature("f", params, ())


def test_parameters_can_live_on_another_device(seen):
    (address, owner), notes = seen
    function = Signature("f", (Param("x", F32, (2,), device=Device("cuda")),)).bind(address, owner)
    function(Array._from_address(4096, (2,), None, 2, 32, 1, (2, 0), False, None))
    assert notes
    with pytest.raises(ValueError, match="TW4005"):
        function(np.zeros(2, np.float32))


def test_torch_tensors_are_arguments(seen):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (address, owner), notes = seen
    a, b, c = (torch.zeros(shape) for shape in ((2, 3), (3, 4), (2, 4)))
    MATMUL.bind(address, owner)(a, b, c)
    assert [at for _, _, at in notes[0]] == [x.data_ptr() for x in (a, b, c)]


def test_only_libraries_that_offer_an_exchange_have_one():
    with pytest.raises(AttributeError, match="__dlpack_c_exchange_api__"):
        _native.Exchange(np.ndarray)
    imposter = type("Imposter", (), {"__dlpack_c_exchange_api__": 3})
    with pytest.raises(ValueError, match="PyCapsule"):
        _native.Exchange(imposter)
