"""Map the C runtime's error codes to typed Python errors.

The codes are those of `enum tw_code` in native/tilewright.h; messages come from C, which knows the
function and the argument. Each code has an error number, an exception class and a suggestion here.
"""

from __future__ import annotations

from tilewright.base.errors import (
    CompilerBug,
    ExecutionError,
    TilewrightError,
    Unsupported,
    UserError,
    UserTypeError,
)
from tilewright.runtime import _native


class OutOfMemory(TilewrightError, MemoryError):
    """An allocation failed."""


class ForeignPartError(TilewrightError, RuntimeError):
    """A callback for code outside the native library failed."""


class GpuError(TilewrightError, RuntimeError):
    """The GPU driver reported an error."""


_KINDS: dict[int, tuple[str, type[TilewrightError], str]] = {
    1: ("TW4001", UserTypeError, "convert the array, for example with numpy's astype"),
    2: ("TW4002", UserError, "reshape the array to the declared number of dimensions"),
    3: ("TW4003", UserError, "pass an array of the declared shape"),
    4: ("TW4004", UserError, "pass a contiguous array; numpy.ascontiguousarray(x) makes one"),
    5: ("TW4005", UserError, "copy the array to the device that the function was built for"),
    6: ("TW4006", UserError, "pass a writable array as the output"),
    7: ("TW4007", UserError, "copy the array: tilewright.array(x, copy=True) is aligned"),
    8: ("TW4008", UserError, "pass an output of its own, for example tilewright.empty(...)"),
    9: ("TW4009", UserTypeError, "pass every input and every output, in the declared order"),
    10: ("TW4010", UserTypeError, "pass a NumPy array, or any object with __dlpack__ or a buffer"),
    11: ("TW4011", OutOfMemory, ""),
    12: ("TW4012", UserError, ""),
    13: ("TW4013", CompilerBug, "please report this with the program that caused it"),
    32: ("TW7030", ExecutionError, "was it made for another geometry, or damaged on its way?"),
    33: ("TW7014", ExecutionError, "check offsets, extents, strides and banks"),
    34: ("TW7012", ExecutionError, "push fewer tokens ahead"),
    35: ("TW7031", ExecutionError, "verify the stream; give it more time if its memory is slow"),
    36: (
        "TW7013",
        ExecutionError,
        "flush the host's buffers; load scratchpads before they are read",
    ),
    37: ("TW7032", ExecutionError, "check the addresses of the device's buffers"),
    38: ("TW7033", UserError, "see runtime/native/accel/accel.h"),
    14: ("TW4019", ForeignPartError, "load the model with tilewright.load, which runs such parts"),
    15: ("TW4020", Unsupported, "run it where NVIDIA's driver and one of its GPUs are"),
    16: ("TW4021", GpuError, ""),
    17: ("TW4023", GpuError, "start a new process; a kernel or the hardware failed"),
}
_CHECK = 12  # the class of kernels' own error codes


def error_of(code: int, message: str) -> TilewrightError:
    """The exception for a code and message of the C runtime."""
    number, kind, help = _KINDS.get(code) or _KINDS[_CHECK]
    return kind(number, message, help=help)


_native.set_error_factory(error_of)
