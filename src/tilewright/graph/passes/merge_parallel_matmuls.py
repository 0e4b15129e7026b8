"""merge_parallel_matmuls: matmuls of one tensor with several weights as one wider matmul.

The tensor is read once, by one kernel: queries, keys and values of attention, for example. The
results are slices of the wider one. That pays only if their consumers read slices in place;
otherwise it would cost copies, and the original matmuls their epilogues.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.graph import ir
from tilewright.graph.build import make_node, store_constant
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.match import Array
from tilewright.graph.rates import Rates, context_rates
from tilewright.graph.views import is_view, reads_views
from tilewright.graph.visit import map_bodies, producers, users


def merge_parallel_matmuls(module: Module, ctx: PassContext) -> Module:
    """Before: %a = matmul(%x, %v); %b = matmul(%x, %w).

    After: %c = matmul(%x, %vw); %a = slice(%c); %b = slice(%c).
    """
    constants = dict(module.constants)
    rates = context_rates(ctx)
    changed = map_bodies(module, lambda graph: _Merging(graph, constants, rates).run())
    return module if changed is module else replace(changed, constants=constants)


@dataclass(eq=False)
class _Branch:
    """A matmul with constant weights, and the bias added to it, if any."""

    product: Node
    weights: Array
    add: Node | None = None
    bias: Array | None = None

    @property
    def result(self) -> Value:
        return self.product.output if self.add is None else self.add.output


@dataclass(eq=False)
class _Merging:
    """Merges the matmuls of one graph."""

    graph: Graph
    constants: dict[str, Array]
    rates: Rates
    made: dict[Value, Node] = field(init=False)
    users: dict[Value, list[Node]] = field(init=False)

    def __post_init__(self) -> None:
        self.made = producers(self.graph)
        self.users = users(self.graph)

    def run(self) -> Graph:
        groups: dict[Value, list[_Branch]] = {}
        for node in self.graph.nodes:
            branch = self._branch(node)
            if branch is not None and node.inputs[0] is not None:
                groups.setdefault(node.inputs[0], []).append(branch)
        merged: dict[Node, list[Node]] = {}  # replacements of nodes
        for x, branches in groups.items():
            if len(branches) > 1 and self._is_worth(x, branches):
                self._merge(x, branches, merged)
        if not merged:
            return self.graph
        nodes = [new for node in self.graph.nodes for new in merged.get(node, [node])]
        return replace(self.graph, nodes=tuple(nodes))

    def _constant(self, value: Value | None) -> Array | None:
        node = None if value is None else self.made.get(value)
        return self.constants[node["data"]] if node and node.op == "constant" else None

    def _branch(self, node: Node) -> _Branch | None:
        """A matmul whose users all read slices in place; None if one does not."""
        if node.op != "matmul" or len(node.outputs) != 1:
            return None
        weights = self._constant(node.inputs[1])
        rank = len(node.inputs[0].tensor.shape or ()) if node.inputs[0] is not None else 0
        if weights is None or weights.ndim != 2 or rank < 2:
            return None
        branch = _Branch(node, weights)
        following = self.users.get(node.output, [])
        if len(following) == 1 and following[0].op == "add" and node.output not in self._results:
            self._take_bias(branch, following[0])
        return branch if self._is_read_in_place(branch.result) else None

    @property
    def _results(self) -> tuple[Value, ...]:
        return self.graph.results

    def _take_bias(self, branch: _Branch, add: Node) -> None:
        for value in add.inputs:
            bias = self._constant(value)
            if bias is not None and bias.shape == branch.weights.shape[1:]:
                branch.add, branch.bias = add, bias

    def _is_read_in_place(self, value: Value) -> bool:
        """Whether only contractions use a value, directly or through views."""
        stack, seen = [value], 0
        while stack:
            current = stack.pop()
            if current in self._results:
                return False
            for node in self.users.get(current, ()):
                if reads_views(node):
                    seen += 1
                elif is_view(node) and node.inputs[0] is current:
                    stack.append(node.output)
                else:
                    return False
        return seen > 0

    def _is_worth(self, x: Value, branches: list[_Branch]) -> bool:
        """Whether reading x once outweighs the larger stride between rows of the results."""
        first = branches[0].weights.dtype
        if any(branch.weights.dtype != first for branch in branches):
            return False
        once_ns = self.rates.byte_ns * self.rates.size_bytes(x) + self.rates.launch_ns
        widths = [branch.weights.shape[1] for branch in branches]
        if all(width * first.itemsize % self.rates.line_bytes == 0 for width in widths):
            return True
        rows = self.rates.elements(branches[0].result) / max(1, widths[0])
        again_ns = self.rates.byte_ns * rows * self.rates.line_bytes * len(branches)
        return bool((len(branches) - 1) * once_ns > again_ns)

    def _merge(self, x: Value, branches: list[_Branch], merged: dict[Node, list[Node]]) -> None:
        like = branches[0].product
        weights = store_constant(
            self.constants,
            np.concatenate([branch.weights for branch in branches], axis=1),
            "weights",
            like.loc,
        )
        product = make_node("matmul", (x, weights.output), {}, like.loc, hints=("matmul",))
        nodes = [weights, product]
        if any(branch.bias is not None for branch in branches):
            parts = [
                np.zeros(b.weights.shape[1], b.weights.dtype) if b.bias is None else b.bias
                for b in branches
            ]
            bias = store_constant(self.constants, np.concatenate(parts), "bias", like.loc)
            inputs = (product.output, bias.output)
            nodes += [bias, make_node("add", inputs, {}, like.loc, hints=("add",))]
        start, axis = 0, len(product.output.tensor.shape or ()) - 1
        whole = nodes[-1].output
        for branch in branches:
            end = start + branch.weights.shape[1]
            bounds = ir.attributes(axes=(axis,), starts=(start,), ends=(end,), steps=(1,))
            nodes.append(Node("slice", (whole,), (branch.result,), bounds, (), branch.product.loc))
            merged[branch.product] = []
            if branch.add is not None:
                merged[branch.add] = []
            start = end
        merged[like] = nodes
