"""Inputs and outputs bound by name before a run."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.ort.devices import check_on_cpu
from tilewright.ort.errors import InvalidArgument
from tilewright.ort.values import OrtValue, OrtValueVector, numpy_type

NDArray = np.ndarray[Any, Any]


class Bound(Protocol):
    """The interface of a session that a binding uses."""

    def _output_index(self, name: str) -> Any: ...

    def _run_into(self, inputs: Any, outputs: Any) -> Any: ...


class IOBinding:
    """Bindings of inputs and outputs by name; results are computed into bound arrays."""

    def __init__(self, session: Bound) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, NDArray | None] = {}
        self._results: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory at an address, which the caller keeps alive."""
        check_on_cpu(device_type)
        self._inputs[name] = _at_address(buffer_ptr, shape, element_type)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to new memory, or to memory at an address, which the caller keeps
        alive."""
        check_on_cpu(device_type)
        self._session._output_index(name)
        if buffer_ptr is None:
            self._outputs[name] = None
            return
        if shape is None or element_type is None:
            raise InvalidArgument("TW6041", f"memory for {name} needs a shape and an element type")
        self._outputs[name] = _at_address(buffer_ptr, shape, element_type)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._session._output_index(name)
        self._outputs[name] = ortvalue.numpy()

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Accepted without effect: the CPU is synchronous."""

    def synchronize_outputs(self) -> None:
        """Accepted without effect: the CPU is synchronous."""

    def _run(self) -> None:
        self._results = self._session._run_into(self._inputs, self._outputs)

    def copy_outputs_to_cpu(self) -> list[Any]:
        return list(self._results)

    def get_outputs(self) -> list[OrtValue]:
        return [OrtValue(result) for result in self._results]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        return OrtValueVector(self.get_outputs())


class SessionIOBinding(IOBinding):
    """The binding class of ONNX Runtime's C++ side: the same."""


def _at_address(address: int, shape: Sequence[int], element_type: Any) -> NDArray:
    of = numpy_type(element_type)
    count = math.prod(shape) * of.itemsize
    memory = memoryview((ctypes.c_uint8 * count).from_address(address))
    made: NDArray = np.frombuffer(memory, np.uint8, count).view(of).reshape(tuple(shape))
    return made
