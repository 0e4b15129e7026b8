"""What a saved library holds of a model's parts for the interpreter: text, and their constants.

to_manifest(parts, inputs, outputs)     plain data for JSON
hybrid_module(loaded, told)             a loaded model that runs its parts
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtype import dtype, from_numpy
from tilewright.driver.hybrid import HybridModule
from tilewright.driver.parts import INPUTS, OUTPUTS, Part, Parts
from tilewright.graph.ir import Graph
from tilewright.graph.parser import parse
from tilewright.graph.types import is_tensor
from tilewright.runtime.module import Module, Spec

Array = np.ndarray[Any, Any]


def to_manifest(parts: Parts, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> dict[str, Any]:
    """The parts, and what users see of the model, as data."""
    return {
        "graphs": str(parts.module),
        "constants": {name: _told(array) for name, array in parts.module.constants.items()},
        "parts": [{"weights": sorted(one.weights), "tells": one.tells} for one in parts.parts],
        "fallbacks": list(parts.fallbacks),
        "inputs": _specs_told(inputs, parts.module.graphs[INPUTS]),
        "outputs": _specs_told(outputs, parts.module.graphs[OUTPUTS]),
    }


def hybrid_module(loaded: Module, told: Mapping[str, Any]) -> HybridModule:
    """A loaded model with the interpreter for its parts."""
    constants = {name: _array(one) for name, one in told["constants"].items()}
    parts = Parts(
        parse(told["graphs"], constants),
        tuple(Part(frozenset(one["weights"]), bool(one["tells"])) for one in told["parts"]),
        tuple(told["fallbacks"]),
    )
    inputs = [_spec(one) for one in told["inputs"]]
    return HybridModule(loaded, parts, inputs, [_spec(one) for one in told["outputs"]])


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


def _specs_told(specs: Sequence[Spec], types: Graph) -> list[dict[str, Any]]:
    """What users see; `handle` is the type of what main holds only a handle of."""
    return [
        {
            "name": spec.name,
            "dtype": None if spec.dtype is None else str(spec.dtype),
            "shape": list(spec.shape),
            "kind": spec.kind,
            "handle": "" if is_tensor(value.type) else str(value.type),
        }
        for spec, value in zip(specs, types.params, strict=True)
    ]


def _spec(told: Mapping[str, Any]) -> Spec:
    of = None if told["dtype"] is None else dtype(told["dtype"])
    return Spec(told["name"], of, tuple(told["shape"]), told["kind"])
