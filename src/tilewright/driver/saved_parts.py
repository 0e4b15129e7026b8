"""What a saved library holds of a model's parts for the interpreter: text, and their constants.

Foreign(parts, inputs, outputs).told()     plain data for JSON
hybrid_module(loaded, told)                a loaded model that runs its parts
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
    """The parts of a model, and what users see of it."""

    parts: Parts
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]

    def told(self) -> dict[str, Any]:
        """All of it as data."""
        module, closing = self.parts.module, self.parts.closing
        return {
            "graphs": str(module),
            "constants": {name: _told(array) for name, array in module.constants.items()},
            "parts": [
                {"weights": sorted(one.weights), "tells": one.tells, "ends": sorted(one.ends)}
                for one in self.parts.parts
            ],
            "closing": None if closing is None else [closing.takes, closing.gives],
            "fallbacks": list(self.parts.fallbacks),
            "inputs": [_spec_told(spec) for spec in self.inputs],
            "outputs": [_spec_told(spec) for spec in self.outputs],
        }

    @property
    def calls_back(self) -> bool:
        """Whether main runs any part, or holds handles."""
        return bool(self.parts.parts) or any(self.handles())

    def handles(self) -> tuple[str, ...]:
        """Of each input, then output, the type of what main holds a handle of; "" for tensors."""
        graphs = self.parts.module.graphs
        values = (*graphs[INPUTS].params, *graphs[OUTPUTS].params)
        return tuple("" if is_tensor(value.type) else str(value.type) for value in values)


def hybrid_module(loaded: Module, told: Mapping[str, Any]) -> HybridModule:
    """A loaded model with the interpreter for its parts."""
    constants = {name: _array(one) for name, one in told["constants"].items()}
    parts = Parts(
        parse(told["graphs"], constants),
        tuple(_part(one) for one in told["parts"]),
        tuple(told["fallbacks"]),
        _closing(told["closing"]),
    )
    inputs = [_spec(one) for one in told["inputs"]]
    return HybridModule(loaded, parts, inputs, [_spec(one) for one in told["outputs"]])


def _part(told: Mapping[str, Any]) -> Part:
    ends = frozenset((int(at), int(maker)) for at, maker in told["ends"])
    return Part(frozenset(told["weights"]), bool(told["tells"]), ends)


def _closing(told: Any) -> Closing | None:
    if told is None:
        return None
    takes, gives = told
    return Closing(tuple(map(int, takes)), tuple(map(int, gives)))


def _told(array: Array) -> dict[str, Any]:
    of = from_numpy(array.dtype)
    head = {"dtype": str(of), "shape": list(array.shape)}
    if of.is_str:
        return head | {"items": [str(item) for item in array.ravel().tolist()]}
    return head | {"bytes": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}


def _array(told: Mapping[str, Any]) -> Array:
    of = np.dtype(dtype(told["dtype"]).numpy)
    if "items" in told:
        return np.array(told["items"], dtype=object).astype(of).reshape(told["shape"])
    return np.frombuffer(base64.b64decode(told["bytes"]), of).reshape(told["shape"])


def _spec_told(spec: Spec) -> dict[str, Any]:
    of = None if spec.dtype is None else str(spec.dtype)
    return {"name": spec.name, "dtype": of, "shape": list(spec.shape), "kind": spec.kind}


def _spec(told: Mapping[str, Any]) -> Spec:
    of = None if told["dtype"] is None else dtype(told["dtype"])
    return Spec(told["name"], of, tuple(told["shape"]), told["kind"])
