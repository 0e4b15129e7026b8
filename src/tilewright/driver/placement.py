"""Which device runs which node of a model.

    placed = placement(module, target)
    placed[node]     Device("cpu"), or INTERPRETER for what has no native code
    print(placed)    one line per node, with the reason where it is the interpreter

Nodes in bodies of control flow are placed one by one: a native loop may call the interpreter for a
node of its body. Control flow runs in the interpreter as a whole if native code cannot hold the
values it carries, or if nothing in its bodies has native code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.base.target import ACCEL, Target
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.ops.control import BRANCHES
from tilewright.graph.types import TensorType, is_tensor
from tilewright.graph.visit import producers, users, walk
from tilewright.lower.native import CONTROL, why_not_native


@dataclass(frozen=True, slots=True)
class Device:
    """Something that runs nodes: a kind of target, or the interpreter."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.index else self.kind


INTERPRETER = Device("interpreter")
ACCELERATOR = Device(ACCEL)


@dataclass(frozen=True)
class Placement:
    """The device of every node, bodies of native control flow included."""

    graph: Graph
    devices: Mapping[Node, Device]
    reasons: Mapping[Node, str] = field(default_factory=dict)  # why nodes are on the interpreter

    def __getitem__(self, node: Node) -> Device:
        return self.devices[node]

    def is_foreign(self, node: Node) -> bool:
        """Whether the host calls the interpreter or an accelerator for a node."""
        return self.devices[node] in (INTERPRETER, ACCELERATOR)

    @property
    def is_native(self) -> bool:
        """Whether no node needs the interpreter."""
        return INTERPRETER not in self.devices.values()

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The operators that the interpreter runs, sorted by name."""
        names = {
            inner.op
            for node, device in self.devices.items()
            if device == INTERPRETER
            for inner in _with_bodies(node)
        }
        return tuple(sorted(names - {"constant", "fused"}))

    def counts(self) -> dict[str, int]:
        """How many nodes each device runs, constants excluded."""
        placed = ((n, d) for n, d in self.devices.items() if n.op != "constant")
        return dict(Counter(str(device) for _, device in placed))

    def rows(self) -> Iterator[tuple[int, Node, Device, str]]:
        """Every node but constants, in order: nesting depth, node, device, reason."""
        stack = [(0, node) for node in reversed(self.graph.nodes)]
        while stack:
            depth, node = stack.pop()
            if node.op == "constant":
                continue
            device = self.devices[node]
            yield depth, node, device, self.reasons.get(node, "")
            if device != INTERPRETER and node.op in CONTROL:
                inner = [n for body in node.bodies for n in body.nodes]
                stack.extend((depth + 1, n) for n in reversed(inner))

    def __str__(self) -> str:
        lines = []
        for depth, node, device, reason in self.rows():
            outputs = ", ".join(f"%{value.name}" for value in node.outputs)
            text = f"{'  ' * depth}{device}: {outputs} = {describe(node)}"
            lines.append(f"{text}  // {reason}" if reason else text)
        return "\n".join(lines)


def describe(node: Node) -> str:
    """A node's operator, with the operators of its body if it is a fused node."""
    if node.op != "fused":
        return node.op
    (body,) = node.bodies
    return f"fused({', '.join(inner.op for inner in body.nodes if inner.op != 'constant')})"


def _with_bodies(node: Node) -> Iterator[Node]:
    yield node
    for body in node.bodies:
        yield from walk(body)


def placement(module: Module, target: Target, open_ends: bool = False) -> Placement:
    """The device of every node of the main graph. `open_ends`: branches may return results of
    different ranks to the caller, provided that the whole model is native."""
    if open_ends:
        placed = _placed(module, target, open_results(module.main))
        if placed.is_native:
            return placed
    return _placed(module, target, frozenset())


def open_results(graph: Graph) -> frozenset[Value]:
    """Values of unknown rank that branches produce and only the caller reads, including those of
    nested branches."""
    found: set[Value] = set()

    def follow(graph: Graph, at: int) -> None:
        value = graph.results[at]
        of, maker = value.type, producers(graph).get(value)
        if is_tensor(of) or not isinstance(of, TensorType) or of.dtype.is_str:
            return
        is_read = value in users(graph) or graph.results.count(value) > 1
        if maker is None or maker.op not in BRANCHES or is_read:
            return
        found.add(value)
        for body in maker.bodies:
            follow(body, maker.outputs.index(value))

    for at in range(len(graph.results)):
        follow(graph, at)
    return frozenset(found)


def _placed(module: Module, target: Target, given: frozenset[Value]) -> Placement:
    native = Device(target.kind)
    devices: dict[Node, Device] = {}
    reasons: dict[Node, str] = {}

    def place(graph: Graph) -> None:
        for node in graph.nodes:
            reason = why_not_native(node, given)
            if not reason and node.op in CONTROL:
                for body in node.bodies:
                    place(body)
                reason = _none_is_native(node)
            devices[node] = INTERPRETER if reason else native
            if reason:
                reasons[node] = reason
                for body in node.bodies:
                    for inner in walk(body):
                        devices.pop(inner, None)
                        reasons.pop(inner, None)

    def _none_is_native(node: Node) -> str:
        inside = [n for body in node.bodies for n in walk(body) if n.op != "constant"]
        if inside and all(devices.get(n, INTERPRETER) == INTERPRETER for n in inside):
            return "nothing in it has native code"
        return ""

    place(module.main)
    return Placement(module.main, devices, reasons)
