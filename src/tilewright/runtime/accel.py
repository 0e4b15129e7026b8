"""Accelerators behind one driver: simulators, RTL and hardware.

    device = Accelerator(description, "functional", kernels)
    x = device.allocate(4096)
    x.host[:] = values
    x.flush()
    device.submit(words, tasks, [x, y], writable=0b10)
    device.wait()
    y.invalidate()

Host and device have memories of their own: nothing crosses without `flush` and `invalidate`. Traps
and time-outs are typed errors; the next submit finds a device that works.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilewright.runtime import _native

TIMEOUT_CYCLES = 1 << 24  # without any event: what takes longer is taken for a fault
NO_STALLS = -1
# Flags of what seeds stalls, which RTL alone heeds.
BACK_PRESSURE = 1 << 32  # `ready` and `valid` come at random, too
BUS_ERROR = 1 << 33  # memory answers SLVERR to the request whose number the seed is


class Counters(NamedTuple):
    """What a stream took, as far as a backend counts it."""

    cycles: int
    gemm_steps: int
    read_beats: int
    write_beats: int
    tasks: int


Region = tuple[int, bool, bool, bytes | None]  # bytes, is writable, is per round, microcode in it


def make_stream(
    description: bytes, words: bytes, tasks: int, rounds: int, regions: Sequence[Region]
) -> bytes:
    """So many rounds of the tasks of a stream, ordered by tokens: its words.

    A region per buffer: each round has those bytes of one that is per round.
    """
    return _native.accel_make(description, words, tasks, rounds, tuple(regions))


class Kernel(Protocol):
    """Native code of a tensor function."""

    @property
    def address(self) -> int: ...


class Accelerator:
    """A device. `backend`: functional, cycle, timing, or the path of a library that is one.

    Simulators that compute are given kernels, in the order of `tw_accel_kernels`.
    """

    def __init__(
        self, description: bytes, backend: str, kernels: Sequence[Kernel] | None = None
    ) -> None:
        self._device = _native.accel_open(description, backend)
        self._kernels = kernels  # as long as their addresses are known there
        if kernels is not None:
            _native.accel_use(self._device, tuple(one.address for one in kernels))

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        number, address = _native.accel_alloc(self._device, size_bytes)
        memory = (ctypes.c_uint8 * size_bytes).from_address(address)
        return DeviceBuffer(self, number, size_bytes, np.frombuffer(memoryview(memory), np.uint8))

    def submit(
        self, words: bytes, tasks: int, buffers: Sequence[DeviceBuffer], writable: int
    ) -> None:
        """Hand over a stream; buffer `k` is behind base register `k`, bit `k` lets it write."""
        numbers = tuple(one.number for one in buffers)
        _native.accel_submit(self._device, words, tasks, numbers, writable)

    def wait(self, timeout_cycles: int = TIMEOUT_CYCLES) -> None:
        """Until the stream has ended; traps and time-outs are raised."""
        _native.accel_wait(self._device, timeout_cycles)

    def counters(self) -> Counters:
        return Counters(*_native.accel_counters(self._device))

    def times(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Begin and end of every task of the last stream; -1 where the backend does not know."""
        return _native.accel_times(self._device)

    def error(self) -> tuple[int, int, str]:
        """Code, task (or -1) and message of the last stream's trap; code 0 if there was none."""
        return _native.accel_error(self._device)

    def reset(self, stalls: int = NO_STALLS) -> None:
        """Forget a stream that waits. `stalls` seeds random memory latency in simulators, and has
        their faults: -2 - k for memory that is silent behind the k-th request, flags above."""
        _native.accel_reset(self._device, stalls)


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """Memory of both sides: `host` is the host's."""

    device: Accelerator
    number: int
    size_bytes: int
    host: np.ndarray[Any, np.dtype[np.uint8]]

    def flush(self) -> None:
        """Let the device see the host's bytes."""
        _native.accel_sync(self.device._device, self.number, True, 0, self.size_bytes)

    def invalidate(self) -> None:
        """Let the host see the device's bytes."""
        _native.accel_sync(self.device._device, self.number, False, 0, self.size_bytes)

    def free(self) -> None:
        _native.accel_free(self.device._device, self.number)
