"""remove_invariant_carries: remove loop-carried values and branch results that never change.

    %y, %v = if(%c, %x, %w) do { graph(%a, %b) -> (f(%a), %b), graph(%a, %b) -> (g(%a), %b) }

uses %w instead of %v; a carried value that every iteration returns unchanged becomes a capture.
Exporters that carry all variables of a loop do so with weights. Captured constants are copied into
the bodies, where weights can be folded and packed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.ops.control import BRANCHES
from tilewright.graph.visit import Edit, Instead, first_capture, map_graphs, rewrite_by

LOOP = "loop"
CONTROL = (*BRANCHES, LOOP, "scan")


def remove_invariant_carries(module: Module, ctx: PassContext) -> Module:
    """Before: %v = loop(%n, %c, %w) do { graph(%i, %d, %u) -> (%d, %u) }.   After: %w for %v."""
    module = map_graphs(module, lambda graph: rewrite_by(graph, lambda _: _settled))
    known: dict[Value, Node] = {}

    def learn(node: Node) -> Instead | None:
        if node.op == "constant":
            known[node.output] = node
        return None

    def sunk(graph: Graph) -> Graph:
        return rewrite_by(graph, lambda _: learn, lambda node: _with_constants(node, known))

    return map_graphs(module, sunk)


def _settled(node: Node) -> Instead | None:
    if node.op in BRANCHES:
        return _settled_branches(node)
    return _settled_loop(node) if node.op == LOOP else None


def _settled_branches(node: Node) -> Instead | None:
    """Replace results that are the same value in every body."""
    values = [_through(node, at) or out for at, out in enumerate(node.outputs)]
    kept = [a is b for a, b in zip(values, node.outputs, strict=True)]
    if all(kept):
        return None
    bodies = tuple(_giving(body, kept) for body in node.bodies)
    return _instead(replace(node, bodies=bodies), kept, values)


def _through(node: Node, at: int) -> Value | None:
    """The value that every body returns as this result, if the types are equal."""
    given = {_place(body.params, body.results[at]) for body in node.bodies}
    place = given.pop()
    if given or place is None:
        return None
    value = node.inputs[1 + place]
    return value if value is not None and value.type == node.outputs[at].type else None


def _place(values: Sequence[Value], value: Value) -> int | None:
    return next((at for at, each in enumerate(values) if each is value), None)


def _settled_loop(node: Node) -> Instead | None:
    """Turn unchanged carried values into captures."""
    (body,) = node.bodies
    count = int(node["carried"])
    carried, params = node.inputs[2 : 2 + count], body.params[2 : 2 + count]
    kept = [
        body.results[1 + at] is not params[at]
        or value is None
        or not value.type == params[at].type == node.outputs[at].type
        for at, value in enumerate(carried)
    ]
    if all(kept):
        return None
    settled = [not each for each in kept]
    inputs = (
        *node.inputs[:2],
        *itertools.compress(carried, kept),
        *node.inputs[2 + count :],
        *itertools.compress(carried, settled),
    )
    body = replace(
        body,
        params=(
            *body.params[:2],
            *itertools.compress(params, kept),
            *body.params[2 + count :],
            *itertools.compress(params, settled),
        ),
    )
    scanned = len(node.outputs) - count
    body = _giving(body, [True, *kept, *[True] * scanned])
    attributes = tuple(
        (name, sum(kept) if name == "carried" else value) for name, value in node.attributes
    )
    values = [
        node.outputs[at] if keep else value
        for at, (keep, value) in enumerate(zip(kept, carried, strict=True))
    ]
    made = replace(node, inputs=inputs, bodies=(body,), attributes=attributes)
    return _instead(made, [*kept, *[True] * scanned], [*values, *node.outputs[count:]])


def _giving(body: Graph, kept: Sequence[bool]) -> Graph:
    return replace(body, results=tuple(itertools.compress(body.results, kept)))


def _instead(node: Node, kept: Sequence[bool], values: Sequence[Value | None]) -> Instead:
    outputs = tuple(itertools.compress(node.outputs, kept))
    known = tuple(value for value in values if value is not None)
    assert len(known) == len(values)
    return Instead((replace(node, outputs=outputs),) if outputs else (), known)


def _with_constants(node: Node, known: dict[Value, Node]) -> Node:
    """Copy captured constants into the bodies."""
    if node.op not in CONTROL:
        return node
    values = node.inputs[first_capture(node) :]
    bodies = tuple(_with_own(body, values, known) for body in node.bodies)
    same = all(a is b for a, b in zip(bodies, node.bodies, strict=True))
    return node if same else replace(node, bodies=bodies)


def _with_own(body: Graph, values: Sequence[Value | None], known: dict[Value, Node]) -> Graph:
    params = body.params[len(body.params) - len(values) :]
    used = {value for node in body.nodes for value in node.inputs} | set(body.results)
    edit, own = Edit(), []
    for param, value in zip(params, values, strict=True):
        source = None if value is None else known.get(value)
        if source is None or param not in used or param.type != source.output.type:
            continue
        made = Value(param.name, param.type)
        own.append(replace(source, outputs=(made,)))
        edit.values[param] = made
    if not own:
        return body
    nodes = tuple(edit.node(node) for node in body.nodes)
    results = tuple(edit.value(value) for value in body.results)
    return replace(body, nodes=(*own, *nodes), results=results)
