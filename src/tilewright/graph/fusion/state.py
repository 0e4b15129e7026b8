"""A graph on its way to kernels: groups of nodes, their kinds, and the nodes that are copied."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, CUDA, Target
from tilewright.graph.fused_nodes import kernels
from tilewright.graph.fusion.groups import Groups
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.op import BROADCAST, COMPLEX, ELEMENTWISE, INJECTIVE, REDUCTION
from tilewright.graph.ops import OPS
from tilewright.graph.rates import Rates, context_rates
from tilewright.graph.types import sizes_of
from tilewright.graph.views import ALIAS
from tilewright.graph.visit import attribute_sizes
from tilewright.sym import ONE, Expr, Var

Shape = tuple[Expr, ...]


class Kind(IntEnum):
    """Kinds of groups by what they contain: maps only, row reductions, a contraction."""

    MAP = 0
    ROW_REDUCTION = 1
    CONTRACTION = 2


MAP, ROW_REDUCTION, CONTRACTION = Kind
KINDS = {
    ELEMENTWISE: MAP,
    BROADCAST: MAP,
    INJECTIVE: MAP,
    REDUCTION: ROW_REDUCTION,
    COMPLEX: CONTRACTION,
}
MOVES = ("transpose", "slice", "pad", ALIAS)  # read each element about once


@dataclass(frozen=True)
class Rows:
    """The rows that all reductions of a group share: the shape read and the axes reduced."""

    shape: Shape
    axes: frozenset[int]

    def fits(self, shape: Shape) -> bool:
        """Whether a shape is that of the rows, or of one element per row."""
        kept = tuple(ONE if axis in self.axes else dim for axis, dim in enumerate(self.shape))
        rest = tuple(dim for axis, dim in enumerate(self.shape) if axis not in self.axes)
        return any(same_shape(shape, other) for other in (self.shape, kept, rest))


class Fusion:
    """The fusion groups of one graph. Nodes are numbered in order."""

    def __init__(self, graph: Graph, limit: int, ctx: PassContext) -> None:
        self.graph, self.limit, self.ctx = graph, limit, ctx
        self.rates: Rates = context_rates(ctx)
        self.is_cpu = isinstance(ctx.target, Target) and ctx.target.kind == CPU
        self.is_gpu = isinstance(ctx.target, Target) and ctx.target.kind == CUDA
        self.nodes = graph.nodes
        self.at = {value: at for at, node in enumerate(self.nodes) for value in node.outputs}
        self.users: dict[Value, list[int]] = {}
        for at, node in enumerate(self.nodes):
            for value in dict.fromkeys(v for v in node.inputs if v is not None):
                self.users.setdefault(value, []).append(at)
        self.results = set(graph.results)
        self.is_kernel = kernels(graph)
        self.groups = Groups(self._depends())
        pairs = list(zip(self.nodes, self.is_kernel, strict=True))
        self.kind = [KINDS[OPS[node.op].pattern] if fits else MAP for node, fits in pairs]
        self.rows = [_rows(node) if fits else None for node, fits in pairs]
        # of each group: how many times code is repeated
        self.places = [_parts(node) for node in self.nodes]
        self.repeated: set[int] = set()  # nodes that are copied into each kernel that reads them

    def _depends(self) -> list[list[int]]:
        """For each node the nodes it depends on, through inputs and through dynamic sizes."""
        defined: dict[Var, int] = {}
        for param in self.graph.params:
            defined.update(dict.fromkeys(sizes_of(param.type), -1))
        depends = []
        for at, node in enumerate(self.nodes):
            found = [self.at[v] for v in node.inputs if v is not None and v in self.at]
            mentioned = attribute_sizes(node)
            for value in node.outputs:
                mentioned.update(sizes_of(value.type))
            found += [defined.setdefault(size, at) for size in mentioned]
            found = [source for source in found if source not in (at, -1)]
            depends.append(list(dict.fromkeys(found)))
        return depends

    def is_grouped(self, at: int) -> bool:
        return self.is_kernel[at] and at not in self.repeated

    def group(self, value: Value) -> int:
        return self.groups.group_of[self.at[value]]

    def has_one_user(self, value: Value) -> bool:
        return value not in self.results and len(self.users[value]) == 1

    def copies(self, members: list[int]) -> list[int]:
        """The recomputed nodes of which a group needs copies."""
        found: dict[int, None] = {}
        stack = list(members)
        while stack:
            for value in self.nodes[stack.pop()].inputs:
                source = None if value is None else self.at.get(value)
                if source in self.repeated and source not in found and source is not None:
                    found[source] = None
                    stack.append(source)
        return list(found)

    def is_used(self, value: Value, inside: set[int]) -> bool:
        """Whether a value has users outside of a group and of nodes recomputed elsewhere."""
        users = self.users.get(value, ())
        return value in self.results or any(user not in inside for user in users)


def _parts(node: Node) -> int:
    """The number of cases of a node for the origin of an element, such as parts of a concat."""
    return len(node.inputs) if node.op in ("concat", "interleave") else 1


def _rows(node: Node) -> Rows | None:
    """The rows that a reduction reduces; None for pooling and the like."""
    if OPS[node.op].pattern != REDUCTION or node.inputs[0] is None:
        return None
    shape = node.inputs[0].tensor.shape or ()
    names = {attr.name for attr in OPS[node.op].attributes}
    if "kernel" in names or "size" in names or "groups" in names:
        return None
    axes = node.get("axes", node.get("axis"))
    if axes is None:
        return Rows(shape, frozenset(range(len(shape))))
    if isinstance(axes, int):  # layer_norm reduces from an axis on, arg_max along one
        front = axes % max(1, len(shape))
        keeps = len(node.outputs[0].tensor.shape or ()) == len(shape)
        by_norm = keeps and same_shape(node.outputs[0].tensor.shape or (), shape)
        return Rows(shape, frozenset(range(front, len(shape)) if by_norm else (front,)))
    return Rows(shape, frozenset(int(axis) % len(shape) for axis in axes))


def same_shape(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(x is y or sym.equal(x, y) for x, y in zip(a, b, strict=True))
