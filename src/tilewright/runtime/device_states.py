"""States of a model on a GPU: arrays there, which calls update in place.

Their addresses stay the same, so that launches recorded with them stay valid, also in a CUDA graph
of the caller. Each is computed on the stream of the last call; whoever takes it by DLPack waits for
that.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tilewright.base.dtype import from_numpy
from tilewright.runtime import cuda
from tilewright.runtime.stateful import State


class Gpu(Protocol):
    """Memory of a GPU, as of the module `cuda`."""

    def allocate(self, size_bytes: int, stream: int) -> Any: ...
    def copy_in(self, address: int, source: State, stream: int) -> None: ...
    def copy_out(self, target: State, address: int, stream: int) -> None: ...
    def copy(self, to: int, source: int, size_bytes: int, stream: int) -> None: ...


class DeviceStates:
    """States are arrays on a GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def copy_of(self, state: Any) -> cuda.DeviceArray:
        """An array with the elements of a state, or of an initial value on the host."""
        on_gpu = isinstance(state, cuda.DeviceArray)
        stream = state.stream if on_gpu else 0
        dtype = state.dtype if on_gpu else from_numpy(state.dtype)
        size = state.size * dtype.size_bytes
        made = cuda.DeviceArray.of(self.gpu.allocate(size, stream), state.shape, dtype, stream)
        if on_gpu:
            self.gpu.copy(made.address, state.address, size, stream)
        else:
            self.set(made, state)
        return made

    def set(self, state: cuda.DeviceArray, begin: State) -> None:
        self.gpu.copy_in(state.address, np.ascontiguousarray(begin), state.stream)

    def on_host(self, state: Any) -> State:
        """A copy of a state, wherever the caller keeps it."""
        if not isinstance(state, cuda.DeviceArray):
            return np.array(state, order="C")
        made: State = np.empty(state.shape, state.dtype.numpy)
        self.gpu.copy_out(made, state.address, state.stream)
        return made
