"""merge_common_subexpressions: compute equal expressions once.

Operators are pure: equal operators on equal inputs with equal attributes give equal values.
Constants are equal if their contents are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.visit import Instead, Rule, map_graphs, rewrite_by, same_sizes

Array = np.ndarray[Any, Any]


def merge_common_subexpressions(module: Module, ctx: PassContext) -> Module:
    """Before: %a = f(%x); %b = f(%x).   After: %a = f(%x), used for both."""
    stored = _representatives(module.constants)

    def make_rule(graph: Graph) -> Rule:
        seen: dict[Any, tuple[Value, ...]] = {}

        def rule(node: Node) -> Instead | None:
            if node.bodies or node.op == "call":
                return None
            if node.op == "constant":
                key: Any = stored[node["data"]]
            else:
                key = (node.op, node.inputs, _hashable(node.attributes), len(node.outputs))
            first = seen.setdefault(key, node.outputs)
            if first is node.outputs:
                return None
            sizes = same_sizes(node, first)
            return None if sizes is None else Instead((), first, sizes)

        return rule

    return map_graphs(module, lambda graph: rewrite_by(graph, make_rule))


def _representatives(constants: Mapping[str, Array]) -> dict[str, str]:
    """For each constant the name of the first one with the same contents.

    The first and last bytes distinguish most constants; only if they agree are all compared.
    """
    alike: dict[Any, list[str]] = {}
    first: dict[str, str] = {}
    for name, array in constants.items():
        if array.dtype == object:
            ends: Any = tuple(array.ravel().tolist())
        else:
            flat = np.ravel(array)
            ends = (flat[:32].tobytes(), flat[-32:].tobytes())
        known = alike.setdefault((str(array.dtype), array.shape, ends), [])
        same = next((other for other in known if _equal(constants[other], array)), None)
        if same is None:
            known.append(name)
        first[name] = name if same is None else same
    return first


def _equal(a: Array, b: Array) -> bool:
    if a.dtype == object:
        return True  # compared in full already
    return a is b or bool(np.array_equal(_bytes(a), _bytes(b)))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _hashable(value: Any) -> Any:
    """Attributes as a hashable key: 1, 1.0 and true differ, and so do 0.0 and -0.0."""
    if isinstance(value, tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, float):
        return (float, value.hex())
    return (type(value), value)
