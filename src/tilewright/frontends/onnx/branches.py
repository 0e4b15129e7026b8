"""If with branches of different rank: the continuation is duplicated into both branches.

    y = If(c) {Squeeze(x)} else {Identity(x)}; z = f(y)
becomes
    z = if(c) {f(squeeze(x))} else {f(x)}

so that every rank is known. Exporters emit this where a dimension may be one. Often the
continuation is invalid for one of the branches: then the model can only run if the other is taken,
and

    z = f(require(c, squeeze(x)))

states just that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import onnx

from tilewright.base.errors import UserError
from tilewright.base.loc import ModelNode
from tilewright.frontends.onnx.frames import Frame, free_names, values_of
from tilewright.frontends.onnx.tensors import Tensors
from tilewright.graph import Builder, Graph, Value
from tilewright.graph.types import TensorType

MAX_DEPTH = 6  # nesting of such branches: each level doubles the continuation


class Translator(Protocol):
    """The importer's interface for this module."""

    name: str
    tensors: Tensors
    problems: dict[str, list[str]]
    apart: int

    def body(
        self, proto: onnx.GraphProto, builder: Builder, scope: dict[str, Value]
    ) -> list[Value]: ...

    def frame(
        self,
        proto: onnx.GraphProto,
        builder: Builder,
        scope: dict[str, Value],
        into: Sequence[str] = (),
    ) -> Frame: ...

    def run(self, frames: list[Frame], builder: Builder) -> list[Value]: ...


def has_unclear_ranks(node: onnx.NodeProto, scope: dict[str, Value]) -> bool:
    """Whether a node is an If with a result whose rank depends on the condition."""
    if node.op_type != "If":
        return False
    types = [scope[name].type for name in node.output if name in scope]
    return any(isinstance(of, TensorType) and of.shape is None for of in types)


def branches_apart(
    importer: Translator, node: onnx.NodeProto, frames: list[Frame], builder: Builder
) -> list[Value] | None:
    """The results of the first frame, with the continuation of all frames translated in each
    branch.

    None if that does not help, or if only one branch is valid: then its results are in scope.
    """
    if importer.apart >= MAX_DEPTH or not any(frame.nodes[frame.at :] for frame in frames):
        return None
    emitted = builder.nodes.pop()
    assert emitted.op == "if"
    top, loc = frames[-1], ModelNode(importer.name, node.name or node.output[0])
    protos = [_branch(node, "then_branch"), _branch(node, "else_branch")]
    needed = {at: frame.needed() for at, frame in enumerate(frames)}
    inside = [name for proto in protos for name in free_names(proto) if name in top.scope]
    needed[len(frames) - 1] = list(dict.fromkeys([*needed[len(frames) - 1], *inside]))
    values = values_of(frames, needed)
    for output in emitted.outputs:
        values.pop(output, None)
    captured = [value for value in values if not builder.can_restate(value)]
    tried = [
        _try_branch(importer, proto, node.output, frames, needed, values, builder)
        for proto in protos
    ]
    if all(isinstance(end, Graph) for end in tried):
        bodies = tuple(end for end in tried if isinstance(end, Graph))
        if importer.problems:
            return list(emitted.outputs)  # already reported
        return list(
            builder.add_many(
                "if",
                emitted.inputs[0],
                *captured,
                outputs=len(bodies[0].results),
                bodies=bodies,
                loc=loc,
            )
        )
    faults = [end for end in tried if isinstance(end, UserError)]
    if len(faults) == 2:
        raise faults[0]
    cond = emitted.inputs[0]
    if isinstance(tried[0], UserError):
        cond = builder.add("logical_not", cond, loc=loc)
    proto = protos[isinstance(tried[0], UserError)]
    why = f"what follows does not fit: {faults[0].message}"
    scope = dict(top.scope)
    used = [name for name in free_names(proto) if name in scope]
    used = [name for name in used if builder.contents.of((scope[name],))[0][0] is None]
    if used:  # assert the condition under which the branch is taken
        held = builder.add("require", cond, scope[used[0]], message=why, loc=loc)
        frames.append(importer.frame(proto, builder, {**scope, used[0]: held}, node.output))
        return None
    made = importer.body(proto, builder, scope)
    kept = [builder.add("require", cond, value, message=why, loc=loc) for value in made]
    top.scope.update(zip(node.output, kept, strict=False))
    return None


def _branch(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    graph: onnx.GraphProto = next(a.g for a in node.attribute if a.name == name)
    return graph


def _try_branch(
    importer: Translator,
    proto: onnx.GraphProto,
    outputs: Sequence[str],
    frames: Sequence[Frame],
    needed: dict[int, list[str]],
    values: dict[Value, None],
    outer: Builder,
) -> Graph | UserError:
    """Translate one branch and the continuation, or return the reason of failure."""
    builder = Builder(outer=outer)
    stored, problems = set(outer.constants), dict(importer.problems)
    inner: dict[Value, Value] = {}
    for value in values:
        if not outer.can_restate(value):
            inner[value] = builder.param(value.name, value.type)
    for value in values:
        if value not in inner:
            inner[value] = builder.restate(value)
    work = [
        frame.copy(
            {name: inner[frame.scope[name]] for name in needed[at] if frame.scope[name] in inner}
        )
        for at, frame in enumerate(frames)
    ]
    importer.apart += 1
    try:
        work.append(importer.frame(proto, builder, dict(work[-1].scope), outputs))
        return builder.graph(*importer.run(work, builder), name="body")
    except UserError as error:
        for name in set(outer.constants) - stored:
            del outer.constants[name]
        importer.problems.clear()
        importer.problems.update(problems)
        return error
    finally:
        importer.apart -= 1
