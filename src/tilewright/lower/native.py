"""Determines whether a node has native code, before lowering.

    why_not_native(node)     "" if there is native code; else the unsupported part

It uses the tables of lowerings: operators (`LOWERINGS`), unsupported uses (`REFUSALS`),
data-dependent sizes (`SIZE_RULES`). Control flow is native if the values that it stacks and scans
are tensors; the nodes in its bodies are checked separately.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.memory import VIEWS
from tilewright.graph.ops import OPS
from tilewright.graph.ops.control import BRANCHES
from tilewright.graph.types import is_tensor
from tilewright.graph.visit import SCALAR_BODIES, first_capture
from tilewright.lower import LOWERINGS, REFUSALS
from tilewright.lower.base import Use, static, use_of
from tilewright.lower.sizes import SIZE_RULES, fresh_sizes
from tilewright.sym import Size

CONTROL = (*BRANCHES, "loop", "scan")


def why_not_native(node: Node, given: Container[Value] = ()) -> str:
    """The part of a node without native code; "" if there is none, apart from nodes in bodies.

    `given`: results of branches that go to the caller, of any rank.
    """
    if node.op in CONTROL:
        return _of_control(node, given)
    for value in (*node.inputs, *node.outputs):
        if value is not None and not is_tensor(value.type):
            return f"%{value.name} is {value.type}"
    if node.op == "constant":
        return ""
    if node.op == "fused":
        (body,) = node.bodies
        reasons = (why_not_native(inner) for inner in body.nodes)
        return next((reason for reason in reasons if reason), "")
    return _of_operator(node)


def refusal_of(use: Use) -> str:
    """The part of a use that the lowering does not support; "" if there is none."""
    refuses = REFUSALS.get(use.call.op)
    return "" if refuses is None else refuses(use)


def _of_control(node: Node, given: Container[Value]) -> str:
    """Carried values may be of any type; conditions, and stacked or scanned values, are tensors."""
    for value in _tensors_of_control(node):
        if value is not None and not is_tensor(value.type):
            return f"%{value.name} is {value.type}"
    for outside, inside in _pairs_of_control(node):
        if outside is None or (outside in given and (is_tensor(inside.type) or inside in given)):
            continue
        if is_tensor(outside.type) != is_tensor(inside.type):
            return f"%{inside.name} is {inside.type} in a body, {outside.type} outside"
    return ""


def _tensors_of_control(node: Node) -> Iterator[Value | None]:
    """Conditions, counts, and scanned or stacked values."""
    body = node.bodies[0]
    if node.op in BRANCHES:
        yield node.inputs[0]
    elif node.op == "loop":
        carried = int(node["carried"])
        yield from node.inputs[:2]
        yield from (*body.params[:2], body.results[0])
        yield from (*node.outputs[carried:], *body.results[1 + carried :])
    else:
        states, rows = int(node["states"]), int(node["inputs"])
        yield from node.inputs[states : states + rows]
        yield from (*node.outputs[states:], *body.results[states:])


def _pairs_of_control(node: Node) -> Iterator[tuple[Value | None, Value]]:
    """Outer values with the corresponding values in a body."""
    start = first_capture(node)
    for body in node.bodies:
        captures = node.inputs[start:]
        yield from zip(captures, body.params[len(body.params) - len(captures) :], strict=True)
        if node.op in BRANCHES:
            yield from zip(node.outputs, body.results, strict=True)
            continue
        first = 2 if node.op == "loop" else 0  # first carried value among inputs and parameters
        count = start - first if node.op == "loop" else int(node["states"])
        params = body.params[first : first + count]
        results = body.results[first // 2 : first // 2 + count]
        for carried in (node.inputs[first : first + count], node.outputs[:count], results):
            yield from zip(carried, params, strict=True)


def _of_operator(node: Node) -> str:
    if node.op not in VIEWS and (node.op not in LOWERINGS or not OPS[node.op].native):
        return f"there is no lowering of {node.op}"
    fresh = fresh_sizes(node)
    if fresh:
        if node.op not in SIZE_RULES:
            return f"nothing computes the size {fresh[0].name}"
        told = {d for v in node.outputs for d in v.tensor.shape or () if isinstance(d, Size)}
        hidden = [size.name for size in fresh if size not in told]
        if hidden:
            return f"no dimension tells the size {hidden[0]}"
    if node.op in SCALAR_BODIES:
        return _of_scalars(node.bodies[0])
    if node.op in VIEWS and not fresh:
        return ""
    if _has_open_list(node):
        return "the length of a list is known only at run time"
    return refusal_of(use_of(node))


def _of_scalars(body: Graph) -> str:
    """A body that is part of a kernel: element-wise, one expression per result."""
    for node in body.nodes:
        if node.op != "constant" and not OPS[node.op].is_map:
            return f"{node.op} in a body of numbers"
        reason = why_not_native(node)
        if reason:
            return reason
    return ""


def _has_open_list(node: Node) -> bool:
    """Whether a list of axes, bounds or counts has a dynamic length."""
    for at in OPS[node.op].foldable.values():
        value = node.inputs[at] if at < len(node.inputs) else None
        dims = () if value is None else value.tensor.shape or ()
        if dims and static(dims[0]) is None:
            return True
    return False
