"""Loops whose state changes rank: peel the first iteration.

    y = Loop(trip, cond, x) {body}
becomes
    y = If(trip > 0 and cond) {x1, c1 = body(0, cond, x); Loop(trip - 1, c1, x1) {body}} else {x}

Exporters emit such loops where a list of tensors starts empty, as a tensor of shape [0]. Usually
the rank is stable after one iteration; code size grows linearly with their number.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

MAX_PEELED = 8  # iterations of one loop
_MARK = "/peeled_"


class Peel(Exception):
    """Raised if a loop's body returns a state of another rank than its parameter."""


def can_peel(node: onnx.NodeProto) -> bool:
    """Whether an iteration can be peeled: there are no scan outputs, and the limit is not
    reached."""
    body = next((a.g for a in node.attribute if a.name == "body" and a.HasField("g")), None)
    carried = len(node.input) - 2
    stacks = body is None or len(body.output) != 1 + carried
    return not stacks and carried > 0 and node.name.count(_MARK) < MAX_PEELED


def peeled(node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], list[str]]:
    """Nodes that replace a loop, and the names of their results."""
    body = next(a.g for a in node.attribute if a.name == "body")
    base = f"{node.output[0]}{_MARK}{node.name.count(_MARK)}"
    trip, cond, states = node.input[0], node.input[1], list(node.input[2:])
    head, runs = _condition(base, trip, cond)
    then = helper.make_graph(
        _peeled_iteration(node, body, base, trip, cond, states), "then", [], []
    )
    results = [f"{base}_result_{at}" for at in range(len(states))]
    then.output.extend(_untyped(f"{base}_then_{at}") for at in range(len(states)))
    nodes = [
        helper.make_node("Identity", [state], [f"{base}_else_{at}"])
        for at, state in enumerate(states)
    ]
    other = helper.make_graph(nodes, "else", [], [])
    other.output.extend(_untyped(f"{base}_else_{at}") for at in range(len(states)))
    branch = helper.make_node(
        "If", [runs], results, name=node.name, then_branch=then, else_branch=other
    )
    return [*head, branch], results


def _condition(base: str, trip: str, cond: str) -> tuple[list[onnx.NodeProto], str]:
    """The condition that the loop runs at all."""
    nodes = [_constant(f"{base}_none", np.int64(0)), _constant(f"{base}_always", np.bool_(True))]
    runs = cond or f"{base}_always"
    if trip:
        nodes.append(helper.make_node("Greater", [trip, f"{base}_none"], [f"{base}_some"]))
        nodes.append(helper.make_node("And", [runs, f"{base}_some"], [f"{base}_runs"]))
        runs = f"{base}_runs"
    return nodes, runs


def _peeled_iteration(
    node: onnx.NodeProto,
    body: onnx.GraphProto,
    base: str,
    trip: str,
    cond: str,
    states: list[str],
) -> list[onnx.NodeProto]:
    """The body's nodes once, followed by the loop for the rest."""
    given = [f"{base}_none", cond or f"{base}_always", *states]
    nodes = [
        helper.make_node("Identity", [value], [info.name])
        for value, info in zip(given, body.input, strict=True)
    ]
    nodes += [helper.make_node("Constant", [], [t.name], value=t) for t in body.initializer]
    nodes += list(body.node)
    rest = ""
    if trip:
        rest = f"{base}_rest"
        nodes.append(_constant(f"{base}_one", np.int64(1)))
        nodes.append(helper.make_node("Sub", [trip, f"{base}_one"], [rest]))
    made = []  # renamed: the remaining loop's body uses the original names
    for at, info in enumerate(body.output):
        made.append(f"{base}_state_{at}")
        nodes.append(helper.make_node("Identity", [info.name], [made[-1]]))
    outputs = [f"{base}_then_{at}" for at in range(len(states))]
    name = f"{node.name}{_MARK}"
    loop = helper.make_node(
        "Loop", [rest, *made], outputs, name=name, body=_shifted_body(body, base)
    )
    return [*nodes, loop]


def _shifted_body(body: onnx.GraphProto, base: str) -> onnx.GraphProto:
    """The body with its iteration counter shifted by one."""
    later = onnx.GraphProto()
    later.CopyFrom(body)
    count = later.input[0].name
    later.input[0].name = f"{base}_count"
    nodes = [
        _constant(f"{base}_step", np.int64(1)),
        helper.make_node("Add", [f"{base}_count", f"{base}_step"], [count]),
        *body.node,
    ]
    del later.node[:]
    later.node.extend(nodes)
    return later


def _constant(name: str, value: np.generic) -> onnx.NodeProto:
    return helper.make_node(
        "Constant", [], [name], value=numpy_helper.from_array(np.asarray(value))
    )


def _untyped(name: str) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, onnx.TypeProto())
