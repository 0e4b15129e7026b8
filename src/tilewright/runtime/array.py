"""Arrays: memory with a shape, a data type and a device.

    a = empty((2, 3), "f32")       # new memory, 64-byte aligned
    b = array(numpy_array)         # the same memory, no copy
    np.asarray(a)                  # the same memory, no copy
    torch.from_dlpack(a)           # the same memory, no copy

An array owns its memory, or holds a reference to the owner. It has no arithmetic: it is the type of
arguments and results of compiled functions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtype import DType
from tilewright.base.dtype import dtype as as_dtype
from tilewright.base.errors import UserError
from tilewright.runtime import _native
from tilewright.runtime.device import Device, device_of
from tilewright.runtime.device import device as as_device
from tilewright.runtime.dlpack import code_of, dtype_of

_UINT = 1  # DLPack's code


class Array(_native.Tensor):
    """Memory with a shape, a data type and a device. Made by `array`, `empty` and `from_dlpack`.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> x = tw.array([[1, 2], [3, 4]], "f32")
        >>> x.shape, x.dtype, x.device
        ((2, 2), dtype('f32'), Device(kind='cpu', index=0))
        >>> float(np.asarray(x).sum())  # the same memory
        10.0
    """

    __slots__ = ("__weakref__",)

    @property
    def dtype(self) -> DType:
        return dtype_of(*self._dtype_code)

    @property
    def device(self) -> Device:
        return device_of(*self._device_code)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.size * self.dtype.size_bytes

    def numpy(self) -> NDArray[Any]:
        """View the memory as a NumPy array."""
        if self.dtype.is_vector:
            raise BufferError(f"numpy has no element type for {self.dtype}")
        if self.dtype.numpy.isbuiltin == 1:
            return np.asarray(memoryview(self))
        # The buffer protocol lacks the types of ml_dtypes: export integers of the same width and
        # view them.
        _, bits, lanes = self._dtype_code
        raw = _native.Tensor._from_address(
            self.address,
            self.shape,
            self.strides,
            _UINT,
            max(bits, 8),
            lanes,
            self._device_code,
            self.read_only,
            self,
        )
        return np.asarray(memoryview(raw)).view(self.dtype.numpy)

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        """Called by NumPy for data types that the buffer protocol lacks."""
        same = self.numpy()
        if dtype is None or dtype == same.dtype:
            return same.copy() if copy else same
        if copy is False:
            raise ValueError(f"a change of dtype from {same.dtype} to {dtype} needs a copy")
        return same.astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device_code

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule of this memory; see the Python array API standard."""
        if dl_device is not None and tuple(dl_device) != self._device_code:
            raise BufferError(f"the array is on {self.device}; copy it to the other device first")
        source = self.copy() if copy else self
        return source._export(max_version is not None and max_version[0] >= 1)

    def copy(self) -> Array:
        """Return a contiguous copy in new, aligned memory."""
        made = empty(self.shape, self.dtype, self.device)
        made.numpy()[...] = self.numpy()
        return made

    def item(self) -> Any:
        """Return the value of an array with one element as a Python scalar."""
        return self.numpy().item()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of no dimensions has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __repr__(self) -> str:
        what = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        if self._device_code[0] != 1 or self.dtype.is_vector:
            return f"Array({what}, device={str(self.device)!r})"
        values = np.array2string(self.numpy(), separator=", ", prefix="Array(", threshold=64)
        return f"Array({values}, {what})"


def empty(
    shape: int | tuple[int, ...], dtype: str | DType = "f32", device: str | Device = "cpu"
) -> Array:
    """Allocate an uninitialized array.

    Examples:
        >>> import tilewright as tw
        >>> tw.empty((2, 3), "f16").size_bytes
        12
    """
    if as_device(device).kind != "cpu":
        raise UserError("TW4005", f"no memory of {as_device(device)} can be allocated here")
    return Array._empty((shape,) if isinstance(shape, int) else shape, *code_of(as_dtype(dtype)))


def array(
    value: Any, dtype: str | DType | np.dtype[Any] | None = None, *, copy: bool | None = None
) -> Array:
    """Convert a NumPy array, an object with `__dlpack__` or a buffer, a number or a list to an
    array.

    Memory is shared where possible. `copy=True` always copies; `copy=False` raises instead of
    copying.

    Examples:
        >>> import tilewright as tw
        >>> tw.array([1, 2, 3], "f32").dtype
        dtype('f32')
    """
    wanted = None if dtype is None else as_dtype(dtype)
    shared = value if isinstance(value, Array) else _try_borrow(value)
    if shared is not None and (wanted is None or wanted is shared.dtype):
        return shared.copy() if copy else shared
    if copy is False:
        raise UserError(
            "TW4015",
            "the array cannot be shared without a copy",
            help="leave copy at None, or pass an array of the wanted dtype",
        )
    source = np.asarray(value if shared is None else shared.numpy())
    converted = source if wanted is None else source.astype(wanted.numpy)
    return Array._borrow(converted).copy()


def from_dlpack(value: Any) -> Array:
    """Import another library's array without a copy.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> x = np.arange(4, dtype=np.float32)
        >>> tw.from_dlpack(x).numpy().ctypes.data == x.ctypes.data
        True
    """
    return Array._borrow(value)


def _try_borrow(value: Any) -> Array | None:
    """Borrow memory without a copy; None for other values, and for bytes, which are usually
    text."""
    is_memory = isinstance(value, np.ndarray | bytearray | memoryview)
    return Array._borrow(value) if is_memory or hasattr(value, "__dlpack__") else None
