"""Memory planning of a lowered model: values in the arena, in caller's memory, or aliases.

    plan = plan_memory(module.main)

The lifetime of a value is from the step that computes it to its last use; values with disjoint
lifetimes may share memory. If sizes follow from the inputs, the offset in the arena is static for
numbers, else computed by the same algorithm at the start of a call; memory for data-dependent sizes
is `late`: allocated when they are known. Results are computed in the caller's memory. A reshape
aliases its input, and bodies read captured values in place. A kernel that reads each element just
before writing it may reuse the memory of an operand that it is the last to read. A new state is
computed in the state's memory if nothing reads the old one afterwards, else copied there at the
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.types import TensorType
from tilewright.graph.visit import first_capture, walk
from tilewright.runtime import _native
from tilewright.sym import Const, Expr, Size, Var, free_vars

ALIGN = 64  # bytes: alignment of vectors on all targets, and a cache line
VIEWS = {"reshape": 0, "require": 1}  # operators whose output aliases this input


@dataclass(frozen=True, slots=True)
class Slot:
    """A value's bytes in the arena, live from step `first` to step `last`."""

    value: Value
    size_bytes: Expr
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of values. Every value is a root or an alias of one."""

    slots: tuple[Slot, ...]
    offsets: tuple[int, ...] | None  # in the arena; None if dynamic
    arena_bytes: int | None
    roots: Mapping[Value, Value]  # of aliases
    outputs: Mapping[Value, int]  # index of the result or state whose memory a value uses
    late: frozenset[Value]  # values of data-dependent size
    last_use: Mapping[Value, Node]  # of a late root: the last node of its graph that reads it

    def root(self, value: Value) -> Value:
        while value in self.roots:
            value = self.roots[value]
        return value

    def floor_bytes(self) -> int | None:
        """The maximum of live bytes, a lower bound of every plan. None for dynamic sizes."""
        sizes = [(slot, _number(slot.size_bytes)) for slot in self.slots]
        if any(size is None for _, size in sizes):
            return None
        steps = {slot.first for slot in self.slots}
        return max(
            (
                sum(_aligned(size or 0) for slot, size in sizes if slot.first <= at <= slot.last)
                for at in steps
            ),
            default=0,
        )


def size_bytes(of: TensorType) -> Expr:
    """The bytes of a tensor."""
    total: Expr = sym.const(of.dtype.size_bytes)
    for dim in of.shape or ():
        total = sym.mul(total, dim)
    return sym.simplify(total)


def given_sizes(graph: Graph) -> dict[Var, None]:
    """The sizes determined by the parameters: dimensions on their own."""
    return {
        dim: None
        for param in graph.params
        if isinstance(param.type, TensorType)
        for dim in param.type.shape or ()
        if isinstance(dim, Size)
    }


def plan_memory(graph: Graph, *, in_place: bool = True, states: int = 0) -> MemoryPlan:
    """Plan a lowered model's main graph; its last `states` results replace parameters."""
    return _Planner(graph, in_place, states).plan()


class _Planner:
    def __init__(self, graph: Graph, share: bool, states: int) -> None:
        self.graph = graph
        self.share = share
        self.states = dict(
            zip(range(len(graph.results))[-states:], graph.params[-states:], strict=True)
            if states
            else ()
        )
        self.given = given_sizes(graph)
        self.roots: dict[Value, Value] = {}
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        self.foreign: set[Value] = set(graph.params)  # in other memory
        self.last_node: dict[Value, Node] = {}
        self.step = 0

    def plan(self) -> MemoryPlan:
        self._visit(self.graph)
        self.step += 1
        outputs = self._outputs()
        slots, late = [], []
        for value in self.first:
            if value in self.foreign or value in self.roots or value in outputs:
                continue
            of = value.tensor
            if of.shape is None:
                continue  # a result that branches write to the caller's memory
            if any(size not in self.given for size in free_vars(*(of.shape or ()))):
                late.append(value)
                continue
            slots.append(Slot(value, size_bytes(of), self.first[value], self.last[value]))
        if self.share:
            slots = self._shared(slots)
        offsets, total = _static_offsets(slots)
        return MemoryPlan(
            tuple(slots),
            offsets,
            total,
            self.roots,
            outputs,
            frozenset(late),
            {value: self.last_node[value] for value in late if value in self.last_node},
        )

    # ------------------------------------------------------------------ lifetimes

    def _root(self, value: Value) -> Value:
        while value in self.roots:
            value = self.roots[value]
        return value

    def _use(self, value: Value, step: int) -> None:
        root = self._root(value)
        self.last[root] = max(self.last.get(root, 0), step)

    def _define(self, value: Value) -> None:
        self.first[value] = self.step
        self._use(value, self.step)

    def _visit(self, graph: Graph) -> None:
        owned: set[Value] = set()
        for node in graph.nodes:
            self.step += not node.get("concurrent", False)
            if node.op == "constant":
                self.foreign.add(node.output)
                continue
            source = view_source(node)
            if source is not None:
                self.roots[node.output] = source
            else:
                for value in node.outputs:
                    self._define(value)
                    owned.add(value)
            for body in node.bodies:
                self._bind(node, body)
                self._visit(body)
                self.step += 1
                for result in body.results:
                    self._use(result, self.step)
            for touched in (*node.inputs, *node.outputs):
                if touched is not None:
                    self._use(touched, self.step)
                    if self._root(touched) in owned:
                        self.last_node[self._root(touched)] = node
        for result in graph.results:
            self._use(result, self.step + 1)
            self.last_node.pop(self._root(result), None)

    def _bind(self, node: Node, body: Graph) -> None:
        """Captured values alias those given; carried values and elements have their own memory."""
        start = first_capture(node)
        own = body.params[: len(body.params) - (len(node.inputs) - start)]
        captured = body.params[len(own) :]
        for param, value in zip(captured, node.inputs[start:], strict=True):
            assert value is not None
            self.roots[param] = value
        for value in own:  # placed by the host: slots, rows of inputs
            self.foreign.add(value)

    # ------------------------------------------------------------------ in place

    def _shared(self, slots: list[Slot]) -> list[Slot]:
        """Let results share the memory of an operand at its last use, where permitted."""
        found = {slot.value: slot for slot in slots}
        for node in walk(self.graph):
            for at, to in node.get("in_place", ()):
                value, made = node.inputs[at], node.outputs[to]
                assert value is not None
                root = self._root(value)
                old, new = found.get(root), found.get(made)
                uses = [v for v in node.inputs if v is not None and self._root(v) is root]
                if old is None or new is None or len(uses) > 1 or old.last != new.first:
                    continue
                if not sym.equal(old.size_bytes, new.size_bytes):
                    continue
                self.roots[made] = root
                found[root] = replace(old, last=new.last)
                del found[made]
        return list(found.values())

    # ------------------------------------------------------------------ results

    def _outputs(self) -> dict[Value, int]:
        """Results to compute in the caller's memory: defined here, and of a shape known before."""
        found: dict[Value, int] = {}
        makers = {value: node for node in self.graph.nodes for value in node.outputs}
        for index, result in enumerate(self.graph.results):
            root = self._root(result)
            if root in found or root in self.foreign or root not in makers:
                continue
            if index in self.states and not self._ends(self.states[index], makers[root], root):
                continue
            known = all(size in self.given for size in free_vars(*(result.tensor.shape or ())))
            if known or (result is root and not makers[root].bodies):
                found[root] = index
        return found

    def _ends(self, state: Value, maker: Node, made: Value) -> bool:
        """Whether nothing reads a state after its memory is overwritten."""
        last, begin = self.last.get(state, 0), self.first[made]
        if last < begin:
            return True
        reads = [v for v in maker.inputs if v is not None and self._root(v) is state]
        pairs = maker.get("in_place", ())
        return (
            last == begin
            and len(reads) == 1
            and any(maker.inputs[at] is reads[0] and maker.outputs[to] is made for at, to in pairs)
        )


def view_source(node: Node) -> Value | None:
    """The input that a node's output aliases."""
    return node.inputs[VIEWS[node.op]] if node.op in VIEWS else None


def _number(expr: Expr) -> int | None:
    return int(expr.value) if isinstance(expr, Const) else None


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _static_offsets(slots: list[Slot]) -> tuple[tuple[int, ...] | None, int | None]:
    sizes = [_number(slot.size_bytes) for slot in slots]
    if any(size is None for size in sizes):
        return None, None
    return _native.plan_arena(tuple(s or 0 for s in sizes), tuple(spans(slots)))


def spans(slots: list[Slot] | tuple[Slot, ...]) -> Iterator[int]:
    """First and last steps, as pairs."""
    for slot in slots:
        yield slot.first
        yield slot.last
