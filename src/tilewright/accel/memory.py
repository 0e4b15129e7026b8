"""DRAM with separate host and device copies, synchronized by flush and invalidate.

    memory = Memory(stream)
    memory.write("x", array)   # the host's copy
    memory.flush("x")          # copy to the device
    ...
    memory.invalidate("y")     # copy to the host
    memory.read("y", "i8", shape)

Uninitialized bytes are poison on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.accel.isa.encode import encode_microcode
from tilewright.accel.isa.stream import Stream
from tilewright.base.errors import UserError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
DTYPES = {"i8": np.int8, "i32": np.int32, "u8": np.uint8}


class Memory:
    """The buffers of a stream. Microcode is initialized."""

    def __init__(self, stream: Stream) -> None:
        self._numbers = {buffer.name: at for at, buffer in enumerate(stream.buffers)}
        sizes = [buffer.size_bytes for buffer in stream.buffers]
        self.host: list[Bytes] = [np.zeros(size, np.uint8) for size in sizes]
        self.device: list[Bytes] = [np.zeros(size, np.uint8) for size in sizes]
        self.written: list[Flags] = [np.zeros(size, np.bool_) for size in sizes]
        code = encode_microcode(stream.microcode, stream.geometry)
        for buffer in stream.buffers:
            if buffer.role == "uop":
                self.write(buffer.name, np.frombuffer(code, np.uint8))
                self.flush(buffer.name)

    def write(self, name: str, values: np.ndarray[Any, Any]) -> None:
        """Write the host's copy of a buffer."""
        at = self._number(name)
        data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        if len(data) != len(self.host[at]):
            raise UserError(
                "TW7020",
                f"buffer {name} has {len(self.host[at])} bytes, and {len(data)} were given",
                help="pack the array as the stream expects it",
            )
        self.host[at][:] = data

    def read(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Read the host's copy of a buffer."""
        data = self.host[self._number(name)]
        if dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise UserError("TW7020", f"buffers are not read as {dtype!r}", help=f"as: {known}")
        kind = np.dtype(DTYPES[dtype])
        if int(np.prod(shape)) * kind.itemsize != len(data):
            raise UserError(
                "TW7020",
                f"buffer {name} has {len(data)} bytes, which are not {dtype}{list(shape)}",
                help="ask for the shape that the stream stores",
            )
        return data.view(kind).reshape(shape).copy()

    def flush(self, name: str) -> None:
        """Copy host to device."""
        at = self._number(name)
        self.device[at][:] = self.host[at]
        self.written[at][:] = True

    def invalidate(self, name: str) -> None:
        """Copy device to host."""
        at = self._number(name)
        self.host[at][:] = self.device[at]

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            known = ", ".join(self._numbers)
            raise UserError("TW7020", f"there is no buffer {name!r}", help=f"there are: {known}")
        return self._numbers[name]
