"""Lower bounds of the elements of tensors, from the operators that define them."""

from __future__ import annotations

from tilewright.graph.definitions import Definitions
from tilewright.graph.ir import Value

NOT_NEGATIVE = ("relu", "abs", "sigmoid", "exp", "sqrt", "softmax")
KEPT = ("reshape", "transpose", "slice", "max_pool", "reduce_max")


def lower_bound(value: Value | None, known: Definitions) -> float | None:
    """A lower bound of all elements except NaN; None if unknown."""
    bounds: list[float] = []
    while (node := known.producer(value)) is not None:
        if node.op in NOT_NEGATIVE:
            bounds.append(0.0)
            break
        if node.op == "clip":
            low = known.number(node.inputs[1]) if len(node.inputs) > 1 else None
            if low is not None:
                bounds.append(low)
        elif node.op not in KEPT:
            break
        value = node.inputs[0]
    return max(bounds, default=None)
