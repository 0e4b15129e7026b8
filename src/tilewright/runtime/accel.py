"""One driver interface to accelerators: simulators, RTL and hardware.

    device = Accelerator(description, "functional", kernels)
    x = device.allocate(4096)
    x.host[:] = values
    x.flush()
    device.submit(words, tasks, [x, y], writable=0b10)
    device.wait()
    y.invalidate()

Host and device have separate memories: transfers are explicit, by `flush` and `invalidate`. Traps
and time-outs raise typed errors; the device is usable again at the next submit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilewright.runtime import _native

TIMEOUT_CYCLES = 1 << 24  # cycles without an event after which the device is considered hung
NO_STALLS = -1
# Flags of stall seeds, for RTL simulation only.
BACK_PRESSURE = 1 << 32  # also randomize `ready` and `valid`
BUS_ERROR = 1 << 33  # memory answers SLVERR to the request numbered by the seed


class Counters(NamedTuple):
    """Counters of a stream's execution, as far as the backend has them."""

    cycles: int
    gemm_steps: int
    read_beats: int
    write_beats: int
    tasks: int


Region = tuple[int, bool, bool, bytes | None]  # bytes, writable, one per round, initial contents


def make_stream(
    description: bytes, words: bytes, tasks: int, rounds: int, regions: Sequence[Region]
) -> bytes:
    """The instruction words of `rounds` repetitions of a stream's tasks, synchronized by tokens.

    There is one region per buffer; a region per round has that size in each round.
    """
    return _native.accel_make(description, words, tasks, rounds, tuple(regions))


class Kernel(Protocol):
    """Native code of a tensor function."""

    @property
    def address(self) -> int: ...


class Accelerator:
    """A device. `backend` is functional, cycle, timing, or the path of a backend library.

    Simulators that compute data need the kernels, in the order of `tw_accel_kernels`.
    """

    def __init__(
        self, description: bytes, backend: str, kernels: Sequence[Kernel] | None = None
    ) -> None:
        self._device = _native.accel_open(description, backend)
        self._kernels = kernels  # the device keeps their addresses
        if kernels is not None:
            _native.accel_use(self._device, tuple(one.address for one in kernels))

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        number, address = _native.accel_alloc(self._device, size_bytes)
        memory = (ctypes.c_uint8 * size_bytes).from_address(address)
        return DeviceBuffer(self, number, size_bytes, np.frombuffer(memoryview(memory), np.uint8))

    def submit(
        self, words: bytes, tasks: int, buffers: Sequence[DeviceBuffer], writable: int
    ) -> None:
        """Start a stream. Base register `k` addresses buffer `k`, which is writable if bit `k` is
        set."""
        numbers = tuple(one.number for one in buffers)
        _native.accel_submit(self._device, words, tasks, numbers, writable)

    def wait(self, timeout_cycles: int = TIMEOUT_CYCLES) -> None:
        """Wait for the stream to end; traps and time-outs are raised."""
        _native.accel_wait(self._device, timeout_cycles)

    def counters(self) -> Counters:
        return Counters(*_native.accel_counters(self._device))

    def times(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """First and last cycle of every task of the last stream; -1 where the backend has no
        count."""
        return _native.accel_times(self._device)

    def error(self) -> tuple[int, int, str]:
        """Code, task (or -1) and message of the last stream's trap; code 0 if there was none."""
        return _native.accel_error(self._device)

    def reset(self, stalls: int = NO_STALLS) -> None:
        """Cancel a pending stream. `stalls` seeds random memory latency in simulators, or injects
        faults: -2 - k makes memory stop responding after request k; see also the flags above."""
        _native.accel_reset(self._device, stalls)


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """Memory shared with the device; `host` is the host's copy."""

    device: Accelerator
    number: int
    size_bytes: int
    host: np.ndarray[Any, np.dtype[np.uint8]]

    def flush(self) -> None:
        """Copy the host's data to the device."""
        _native.accel_sync(self.device._device, self.number, True, 0, self.size_bytes)

    def invalidate(self) -> None:
        """Copy the device's data to the host."""
        _native.accel_sync(self.device._device, self.number, False, 0, self.size_bytes)

    def free(self) -> None:
        _native.accel_free(self.device._device, self.number)
