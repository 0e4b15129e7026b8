"""Where the values of a lowered model lie: in the arena, with the caller, with another value.

    plan = plan_memory(module.main)

A value lives from the step that computes it to the last that reads it; values whose lives do not
meet may share bytes. Sizes that the inputs tell give a place in the arena, known now if they are
numbers, else computed at the start of a call by the same rule; memory for sizes that only the run
reveals is `late`: it is asked for when they are known. Results are computed where the caller wants
them. A reshape is its input, seen otherwise, and what a body is given it reads in place. A kernel
that reads each element just before it writes it may take the memory of an operand it is the last to
read. What replaces a state is computed in the state's own memory where nothing reads it any more,
else copied there in the end.
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

ALIGN = 64  # bytes: a vector of any target, and a line of a cache, begin at such addresses
VIEWS = {"reshape": 0, "require": 1}  # operators whose output is an input's memory: which


@dataclass(frozen=True, slots=True)
class Slot:
    """A value's bytes in the arena, from step `first` to step `last`."""

    value: Value
    size_bytes: Expr
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """Where values lie. Every value is a root or an alias of one."""

    slots: tuple[Slot, ...]
    offsets: tuple[int, ...] | None  # in the arena; None where sizes are known only at run time
    arena_bytes: int | None
    roots: Mapping[Value, Value]  # values that are others, seen in another shape
    outputs: Mapping[Value, int]  # values computed in the memory of a result, or state: which
    late: frozenset[Value]  # values of sizes that only the run reveals
    last_use: Mapping[Value, Node]  # of a late root: the node of its graph that reads it last

    def root(self, value: Value) -> Value:
        while value in self.roots:
            value = self.roots[value]
        return value

    def floor_bytes(self) -> int | None:
        """The most that is alive at once: no plan needs less. None where sizes are not numbers."""
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
    """The sizes that the parameters tell: dimensions on their own."""
    return {
        dim: None
        for param in graph.params
        if isinstance(param.type, TensorType)
        for dim in param.type.shape or ()
        if isinstance(dim, Size)
    }


def plan_memory(graph: Graph, *, in_place: bool = True, states: int = 0) -> MemoryPlan:
    """The plan for a model's main graph, lowered; its last `states` results replace parameters."""
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
        self.foreign: set[Value] = set(graph.params)  # not ours to place
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
                continue  # a result that branches give to the caller
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

    # ------------------------------------------------------------------ lives

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
        """Captures are what was given; carried values and elements have memory of their own."""
        start = first_capture(node)
        own = body.params[: len(body.params) - (len(node.inputs) - start)]
        captured = body.params[len(own) :]
        for param, value in zip(captured, node.inputs[start:], strict=True):
            assert value is not None
            self.roots[param] = value
        for value in own:  # the host keeps these where it likes: slots, rows of inputs
            self.foreign.add(value)

    # ------------------------------------------------------------------ in place

    def _shared(self, slots: list[Slot]) -> list[Slot]:
        """A result takes the memory of an operand that is read for the last time, where it may."""
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
        """Results that can be computed in place: ours, and of a shape known in time."""
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
        """Whether nothing reads a state once its memory is written to."""
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
    """What a node only sees in another shape, or lets pass."""
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
    """First and last steps, in pairs."""
    for slot in slots:
        yield slot.first
        yield slot.last
