"""Native functions made from Python ones, so that calls can be tested without a code generator."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.driver.hybrid import DLTensor
from tilewright.runtime import _native

KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int32)
TASK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@pytest.fixture
def native() -> SimpleNamespace:
    """The runtime's functions, callable from Python."""
    types = {
        "tw_error": (ctypes.c_int32, ctypes.c_int32, ctypes.c_char_p),
        "tw_parallel_for": (
            ctypes.c_int32,
            TASK,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int32,
        ),
        "tw_threads": (ctypes.c_int32,),
        "tw_profile_begin": (ctypes.c_int64,),
        "tw_profile_end": (
            None,
            ctypes.c_char_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int64,
        ),
    }
    addresses = _native.symbols()
    made = {name: ctypes.CFUNCTYPE(*of)(addresses[name]) for name, of in types.items()}
    return SimpleNamespace(task=TASK, **made)


@pytest.fixture
def kernel() -> Callable[..., tuple[int, object]]:
    """`kernel(fn)` is the address of a native function that calls `fn(tensors)`, and its owner."""

    def make(fn: Callable[[list[DLTensor]], int | None]) -> tuple[int, object]:
        def run(args: Any, n_args: int) -> int:
            return fn([DLTensor.from_address(args[i]) for i in range(n_args)]) or 0

        owner = KERNEL(run)
        return ctypes.cast(owner, ctypes.c_void_p).value or 0, owner

    return make
