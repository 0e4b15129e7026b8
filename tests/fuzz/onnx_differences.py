"""Differences from ONNX Runtime that are no faults of ours, as data: each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx_random import Case

# Operators that order numbers; where among them NaN is, ONNX does not say.
ORDERING = {"ArgMax", "ArgMin", "TopK", "Hardmax", "Unique", "Max", "Min", "Clip", "Relu"}
ORDERING |= {"ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "Sign", "ScatterND"}
RECURRENT = {"GRU", "LSTM", "RNN"}


@dataclass(frozen=True)
class Reason:
    """Why an output may differ, and which."""

    name: str
    applies: Callable[[Case, str, Any, Any], bool]  # (case, output, ours, the peer's)


@dataclass(frozen=True)
class Refusal:
    """What ONNX Runtime says where it refuses a valid model, and for which."""

    words: str
    applies: Callable[[Case], bool] = lambda case: True


def ancestors(model: onnx.ModelProto, output: str) -> list[onnx.NodeProto]:
    """The nodes an output depends on."""
    wanted, found = {output}, []
    for node in reversed(model.graph.node):
        if wanted & set(node.output):
            found.append(node)
            wanted |= set(read_by(node))
    return found


def read_by(node: onnx.NodeProto) -> list[str]:
    """The names a node and its bodies read."""
    names = list(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                names += read_by(inner)
            names += [info.name for info in attribute.g.output]
    return names


def is_from(case: Case, output: str, ops: set[str]) -> bool:
    """Whether an operator of some kind is on the way to an output."""
    return any(node.op_type in ops for node in ancestors(case.model, output))


def has_nan(case: Case) -> bool:
    """Whether NaN goes into the model, or infinities that make it."""
    arrays = [array for feeds in case.feeds for array in feeds.values()]
    arrays += [numpy_helper.to_array(tensor) for tensor in case.model.graph.initializer]
    for node in case.model.graph.node:
        arrays += [numpy_helper.to_array(a.t) for a in node.attribute if a.HasField("t")]
    floats = [a.astype(np.float64) for a in arrays if a.dtype.kind not in "iub"]
    return any(not np.isfinite(array).all() for array in floats)


def is_empty(case: Case) -> bool:
    return any(array.size == 0 for feeds in case.feeds for array in feeds.values())


def counts_axes_from_the_end(case: Case, output: str) -> bool:
    """Whether a reduction on the way to an output has negative axes that the model tells."""
    known = {tensor.name: tensor for tensor in case.model.graph.initializer}
    for node in case.model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                known[node.output[0]] = attribute.t
    axes: list[int] = []
    for node in ancestors(case.model, output):
        if node.op_type.startswith("Reduce"):
            axes += [at for each in node.attribute if each.name == "axes" for at in each.ints]
            for name in node.input[1:2]:
                axes += numpy_helper.to_array(known[name]).tolist() if name in known else []
    return min(axes, default=0) < 0


REASONS: tuple[Reason, ...] = (
    Reason(
        "the peer overlooks negative axes where it reduces a tensor without elements",
        lambda case, output, ours, theirs: (
            np.shape(ours) != np.shape(theirs)
            and (is_empty(case) or np.size(theirs) == 0)
            and counts_axes_from_the_end(case, output)
        ),
    ),
    Reason(
        "a loop without turns stacks nothing: its other dimensions are not defined",
        lambda case, output, ours, theirs: (
            is_from(case, output, {"Loop"}) and np.size(ours) == 0 and np.size(theirs) == 0
        ),
    ),
    Reason(
        "the peer's gates give numbers for NaN",
        lambda case, output, ours, theirs: (
            has_nan(case) and is_from(case, output, RECURRENT) and bool(np.isnan(ours).any())
        ),
    ),
    Reason(
        "a sum of no products is 0: the peer leaves memory as it was",
        lambda case, output, ours, theirs: (
            is_empty(case) and is_from(case, output, {"MatMul", "Gemm"}) and not np.any(ours)
        ),
    ),
    Reason(
        "where NaN stands in an order is not defined",
        lambda case, output, ours, theirs: has_nan(case) and is_from(case, output, ORDERING),
    ),
)

REFUSALS: tuple[Refusal, ...] = (
    Refusal("NOT_IMPLEMENTED"),
    Refusal("operand cannot broadcast on dim", is_empty),
    Refusal("Subgraph must have the shape set for all outputs"),
    Refusal("is not a graph input, initializer, or output of a previous node"),
    Refusal("crash (SIG"),  # it died, as by an assertion of its own
)
