"""Control flow, fused kernels, calls."""

from __future__ import annotations

import numpy as np

from tilewright.base.dtype import I64
from tilewright.frontends.onnx.export.emitter import Emitter, Rule
from tilewright.graph.ir import Node
from tilewright.graph.visit import first_capture


def _scalar(e: Emitter, name: str) -> str:
    return str(e.emit("Reshape", name, e.constant(np.zeros(0, np.int64))))


def _if(e: Emitter, node: Node) -> list[str]:
    names = e.inputs(node)
    bodies = [
        e.body(body, list(zip(body.params, names[1:], strict=True)), word)
        for body, word in zip(node.bodies, ("then", "else"), strict=True)
    ]
    made = e.emit(
        "If",
        _scalar(e, names[0]),
        outputs=len(node.outputs),
        then_branch=bodies[0],
        else_branch=bodies[1],
    )
    return [made] if isinstance(made, str) else list(made)


def _loop(e: Emitter, node: Node) -> list[str]:
    (body,) = node.bodies
    names, start = e.inputs(node), first_capture(node)
    captured = dict(zip(body.params[len(body.params) - len(names[start:]) :], names[start:]))  # noqa: B905
    trip = e.operand(node, 0)
    cond = names[1] if len(names) > 1 else ""
    params = [(param, captured.get(param)) for param in body.params]
    graph = e.body(body, params, "body", lead=1)
    inputs = [_scalar(e, trip) if trip else "", _scalar(e, cond) if cond else ""]
    if trip and node.inputs[0] is not None and node.inputs[0].tensor.dtype is not I64:
        inputs[0] = e.cast(inputs[0], I64)
    made = e.emit("Loop", *inputs, *names[2:start], outputs=len(node.outputs), body=graph)
    return [made] if isinstance(made, str) else list(made)


def _scan(e: Emitter, node: Node) -> list[str]:
    (body,) = node.bodies
    names, start = e.inputs(node), first_capture(node)
    captured = dict(zip(body.params[start:], names[start:], strict=True))
    graph = e.body(body, [(param, captured.get(param)) for param in body.params], "body")
    made = e.emit(
        "Scan",
        *names[:start],
        outputs=len(node.outputs),
        body=graph,
        num_scan_inputs=node["inputs"],
    )
    return [made] if isinstance(made, str) else list(made)


def _fused(e: Emitter, node: Node) -> list[str]:
    """Export a kernel as a function of its inputs."""
    (body,) = node.bodies
    for param, value in zip(body.params, node.inputs, strict=True):
        assert value is not None
        e.define(param, e.name(value))
    e.translate(body)
    return [e.name(result) for result in body.results]


def _call(e: Emitter, node: Node) -> list[str]:
    graph = e.shared.module.graphs[node["graph"]]
    for param, value in zip(graph.params, node.inputs, strict=True):
        assert value is not None
        e.define(param, e.name(value))
    e.translate(graph)
    return [e.name(result) for result in graph.results]


def _require(e: Emitter, node: Node) -> str:
    """ONNX has no assertions: the value is passed on."""
    return str(e.emit("Identity", e.inputs(node)[1]))


RULES: dict[str, Rule] = {
    "if": _if,
    "loop": _loop,
    "scan": _scan,
    "fused": _fused,
    "call": _call,
    "require": _require,
}
COMPOSITES = ("fused", "call", "require")
