"""Frames of graphs under translation: remaining nodes, scope, and destinations of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from tilewright.graph import Value


@dataclass
class Frame:
    """A graph under translation. `into` names its results in the enclosing frame."""

    nodes: Sequence[onnx.NodeProto]
    scope: dict[str, Value]
    outputs: Sequence[str]
    into: Sequence[str] = ()
    at: int = 0
    later: set[str] = field(default_factory=set)  # defined by later nodes, for error messages

    def __post_init__(self) -> None:
        self.later = self.later or {name for node in self.nodes for name in node.output}

    @property
    def is_done(self) -> bool:
        return self.at == len(self.nodes)

    def next(self) -> onnx.NodeProto:
        self.at += 1
        return self.nodes[self.at - 1]

    def needed(self) -> list[str]:
        """The names in scope that the remaining nodes use."""
        free = free_of(self.nodes[self.at :], self.outputs, ())
        return [name for name in free if name in self.scope]

    def copy(self, scope: dict[str, Value]) -> Frame:
        """The same remaining nodes in another scope."""
        return Frame(self.nodes, scope, self.outputs, self.into, self.at, self.later)


def frame_of(proto: onnx.GraphProto, scope: dict[str, Value], into: Sequence[str] = ()) -> Frame:
    """A whole graph, with its initializers and inputs in scope."""
    return Frame(ordered(proto.node), scope, [info.name for info in proto.output], list(into))


def ordered(nodes: Sequence[onnx.NodeProto]) -> Sequence[onnx.NodeProto]:
    """Sort nodes topologically; unchanged if they are sorted.

    Nodes of a cycle keep their place: their missing inputs are reported in translation.
    """
    maker = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    needs = [
        [maker[name] for name in names_used(node) if name in maker and maker[name] != at]
        for at, node in enumerate(nodes)
    ]
    if all(source < at for at, sources in enumerate(needs) for source in sources):
        return nodes
    done: dict[int, None] = {}
    waiting: set[int] = set()
    for first in range(len(nodes)):
        stack = [first]
        while stack:
            at = stack[-1]
            waiting.add(at)
            missing = [s for s in needs[at] if s not in done and s not in waiting]
            if missing:
                stack.append(missing[0])
                continue
            done.setdefault(at)
            stack.pop()
    return [nodes[at] for at in done]


def names_used(node: onnx.NodeProto) -> list[str]:
    """The names that a node uses, including those in its bodies."""
    used = [name for name in node.input if name]
    for attribute in node.attribute:
        bodies = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for body in bodies:
            used.extend(free_names(body))
    return used


def free_names(proto: onnx.GraphProto) -> list[str]:
    """Free names of a graph, in order of first use; including bodies."""
    defined = {info.name for info in proto.input}
    defined |= {tensor.name for tensor in proto.initializer}
    defined |= {tensor.values.name for tensor in proto.sparse_initializer}
    defined |= {name for node in proto.node for name in node.output}  # in any order
    return free_of(proto.node, [info.name for info in proto.output], defined)


def free_of(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], defined: Iterable[str]
) -> list[str]:
    """Names used by nodes and outputs that neither `defined` nor earlier nodes define."""
    inside = set(defined)
    free: dict[str, None] = {}
    for node in nodes:
        used = names_used(node)
        free.update(dict.fromkeys(name for name in used if name not in inside))
        inside.update(node.output)
    free.update(dict.fromkeys(name for name in outputs if name not in inside))
    return list(free)


def values_of(frames: Sequence[Frame], names: Mapping[int, Sequence[str]]) -> dict[Value, None]:
    """The distinct values of names in frames, by their positions."""
    return {frames[at].scope[name]: None for at, used in names.items() for name in used}
