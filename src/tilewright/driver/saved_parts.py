"""Serialization of the foreign parts of a saved model: graphs as text, with their constants.

Foreign(parts, inputs, outputs).told()     plain data for JSON
hybrid_module(loaded, data)                a loaded model that runs its parts
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtype import dtype, from_numpy
from tilewright.driver.hybrid import HybridModule
from tilewright.driver.parts import INPUTS, OUTPUTS, Closing, Part, Parts
from tilewright.graph.parser import parse
from tilewright.graph.types import is_tensor
from tilewright.runtime.module import Module, Spec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Foreign:
    """The foreign parts of a model, and the specs of its inputs and outputs."""

    parts: Parts
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]

    def told(self) -> dict[str, Any]:
        """Everything as plain data."""
        module, closing = self.parts.module, self.parts.closing
        return {
            "graphs": str(module),
            "constants": {name: _array_data(array) for name, array in module.constants.items()},
            "parts": [
                {"weights": sorted(one.weights), "tells": one.tells, "ends": sorted(one.ends)}
                for one in self.parts.parts
            ],
            "closing": None if closing is None else [closing.takes, closing.gives],
            "fallbacks": list(self.parts.fallbacks),
            "inputs": [_spec_data(spec) for spec in self.inputs],
            "outputs": [_spec_data(spec) for spec in self.outputs],
        }

    @property
    def calls_back(self) -> bool:
        """Whether main calls any part, or holds handles."""
        return bool(self.parts.parts) or any(self.handles())

    def handles(self) -> tuple[str, ...]:
        """For each input, then each output, the type of an object that main has a handle for; ""
        for tensors."""
        graphs = self.parts.module.graphs
        values = (*graphs[INPUTS].params, *graphs[OUTPUTS].params)
        return tuple("" if is_tensor(value.type) else str(value.type) for value in values)


def hybrid_module(loaded: Module, data: Mapping[str, Any]) -> HybridModule:
    """A loaded model, with the interpreter for its parts."""
    constants = {name: _array(one) for name, one in data["constants"].items()}
    parts = Parts(
        parse(data["graphs"], constants),
        tuple(_part(one) for one in data["parts"]),
        tuple(data["fallbacks"]),
        _closing(data["closing"]),
    )
    inputs = [_spec(one) for one in data["inputs"]]
    return HybridModule(loaded, parts, inputs, [_spec(one) for one in data["outputs"]])


def _part(data: Mapping[str, Any]) -> Part:
    ends = frozenset((int(at), int(maker)) for at, maker in data["ends"])
    return Part(frozenset(data["weights"]), bool(data["tells"]), ends)


def _closing(data: Any) -> Closing | None:
    if data is None:
        return None
    takes, gives = data
    return Closing(tuple(map(int, takes)), tuple(map(int, gives)))


def _array_data(array: Array) -> dict[str, Any]:
    of = from_numpy(array.dtype)
    head = {"dtype": str(of), "shape": list(array.shape)}
    if of.is_str:
        return head | {"items": [str(item) for item in array.ravel().tolist()]}
    return head | {"bytes": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}


def _array(data: Mapping[str, Any]) -> Array:
    of = np.dtype(dtype(data["dtype"]).numpy)
    if "items" in data:
        return np.array(data["items"], dtype=object).astype(of).reshape(data["shape"])
    return np.frombuffer(base64.b64decode(data["bytes"]), of).reshape(data["shape"])


def _spec_data(spec: Spec) -> dict[str, Any]:
    of = None if spec.dtype is None else str(spec.dtype)
    return {"name": spec.name, "dtype": of, "shape": list(spec.shape), "kind": spec.kind}


def _spec(data: Mapping[str, Any]) -> Spec:
    of = None if data["dtype"] is None else dtype(data["dtype"])
    return Spec(data["name"], of, tuple(data["shape"]), data["kind"])
