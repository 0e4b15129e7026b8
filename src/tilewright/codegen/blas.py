"""A BLAS as an external kernel: `cblas_sgemm` from the OpenBLAS that NumPy or SciPy brings along.

    register_blas()
    C = te.extern((n, m), [A, B], "cblas_sgemm", name="C")

The kernel takes two matrices and fills the third: C = A B, any of them with rows further apart than
they are long. It is an adapter from our ABI to the C interface of BLAS, written as LLVM IR.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from tilewright.base.dtype import F32
from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.build import new_module
from tilewright.codegen.builder import FunctionText, ModuleText, Value, i32, i64
from tilewright.codegen.externs import is_registered, register_extern
from tilewright.codegen.hardware import DLTENSOR
from tilewright.runtime.dlpack import code_of
from tilewright.tensor import externs

SYMBOL = "cblas_sgemm"
ROW_MAJOR, NO_TRANSPOSE = 101, 111
WRONG_ARGUMENT = 12  # TW_ERROR_CHECK of the runtime
SET_THREADS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads")

_loaded: list[object] = []


def use_blas(threads: int) -> None:
    """Have the external kernel, computed by so many threads from now on."""
    if not is_registered(SYMBOL):
        register_blas()
    found = find_blas()
    assert found is not None
    library = ctypes.CDLL(str(found[0]))
    for name in SET_THREADS:
        if hasattr(library, name):
            library[name](ctypes.c_int(threads))
            return


def find_blas() -> tuple[Path, str, str] | None:
    """An OpenBLAS library, its symbol for sgemm, and the LLVM type of its integers."""
    site = Path(np.__file__).parent.parent
    for path in sorted((*site.glob("numpy.libs/*openblas*"), *site.glob("scipy.libs/*openblas*"))):
        library = ctypes.CDLL(str(path))
        for symbol, integer in (("scipy_cblas_sgemm64_", "i64"), ("scipy_cblas_sgemm", "i32")):
            if hasattr(library, symbol):
                return path, symbol, integer
    return None


def register_blas() -> None:
    """Make `cblas_sgemm` an external kernel of native code and of the interpreter."""
    found = find_blas()
    if found is None:
        raise UserError(
            "TW3023", "no OpenBLAS was found", help="install numpy or scipy from PyPI wheels"
        )
    path, name, integer = found
    library = ctypes.CDLL(str(path))
    address = ctypes.cast(library[name], ctypes.c_void_p).value
    assert address is not None
    machine = llvm.machine_of(Target.host())
    module = new_module(machine)
    _emit_adapter(module, name, integer)
    image = llvm.to_object(llvm.parse(module.text()), machine)
    register_extern(name, address)
    loaded = jit.load([image], (f"{SYMBOL}_adapter",), (name,), machine)
    _loaded.extend((library, loaded))
    register_extern(SYMBOL, loaded.addresses[f"{SYMBOL}_adapter"])
    externs.register(SYMBOL, lambda a, b, c: np.matmul(a, b, out=c))


def _emit_adapter(module: ModuleText, blas: str, integer: str) -> None:
    params = (("ptr", "args"), ("i32", "n_args"))
    with module.function("i32", f"{SYMBOL}_adapter", params) as (b, (args, n_args)):
        _refuse_unless(b, b.compare("icmp eq", n_args, i32(3)), "takes A, B and C")
        tensors = [b.load("ptr", b.offset("ptr", args, i64(at))) for at in range(3)]
        code, bits, _ = code_of(F32)
        for tensor in tensors:
            is_matrix = b.compare("icmp eq", b.load("i32", b.member(DLTENSOR, tensor, 2)), i32(2))
            _refuse_unless(b, is_matrix, "takes matrices")
            kind = b.load("i8", b.member(DLTENSOR, tensor, 3, 0))
            size = b.load("i8", b.member(DLTENSOR, tensor, 3, 1))
            is_f32 = b.op(
                "and",
                b.compare("icmp eq", kind, Value("i8", str(code))),
                b.compare("icmp eq", size, Value("i8", str(bits))),
            )
            _refuse_unless(b, is_f32, "takes f32")
        (m, k), (k_too, n), (m_too, n_too) = (_extents(b, tensor) for tensor in tensors)
        for x, y in ((k, k_too), (m, m_too), (n, n_too)):
            _refuse_unless(b, b.compare("icmp eq", x, y), "takes matrices whose shapes fit")
        rows = [_row_stride(b, tensor) for tensor in tensors]
        empty = b.compare("icmp eq", b.op("mul", m, n), i64(0))
        with b.when(empty):
            b.ret(i32(0))

        def size_of(value: Value) -> Value:
            return b.convert("trunc", value, integer)

        pointers = [_data(b, tensor) for tensor in tensors]
        layout = [i32(ROW_MAJOR), i32(NO_TRANSPOSE), i32(NO_TRANSPOSE)]
        sizes = [size_of(value) for value in (m, n, k)]
        one, zero = Value("float", "1.0"), Value("float", "0.0")
        steps = [size_of(row) for row in rows]
        b.call(
            blas,
            "void",
            *layout,
            *sizes,
            one,
            pointers[0],
            steps[0],
            pointers[1],
            steps[1],
            zero,
            pointers[2],
            steps[2],
        )
        b.ret(i32(0))


def _refuse_unless(b: FunctionText, holds: Value, what: str) -> None:
    with b.when(b.op("xor", holds, Value("i1", "true")), unlikely=True):
        message = b.module.string(f"{SYMBOL}: it {what}")
        b.ret(b.call("tw_error", "i32", i32(WRONG_ARGUMENT), message))


def _extents(b: FunctionText, tensor: Value) -> tuple[Value, Value]:
    shape = b.load("ptr", b.member(DLTENSOR, tensor, 4))
    return b.load("i64", shape), b.load("i64", b.offset("i64", shape, i64(1)))


def _row_stride(b: FunctionText, tensor: Value) -> Value:
    """The distance of rows; their elements must lie side by side."""
    strides = b.load("ptr", b.member(DLTENSOR, tensor, 5))
    _refuse_unless(b, b.compare("icmp ne", strides, Value("ptr", "null")), "takes strides")
    inner = b.load("i64", b.offset("i64", strides, i64(1)))
    _refuse_unless(b, b.compare("icmp eq", inner, i64(1)), "takes rows without gaps")
    return b.load("i64", strides)


def _data(b: FunctionText, tensor: Value) -> Value:
    base = b.load("ptr", b.member(DLTENSOR, tensor, 0))
    offset = b.load("i64", b.member(DLTENSOR, tensor, 6))
    return b.value("ptr", f"getelementptr i8, {base}, {offset}")
