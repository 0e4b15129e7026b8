"""The one table that passes ask what a choice would cost, before there are kernels.

    direct = Candidate("direct", alone(node), weights)
    prices = costs.prices((direct, replace(direct, "winograd 4", ...)))

A candidate is a kernel: a graph of a node or a few. The table gives the time that was measured of
such a kernel on the target where tuning knows it, else what schedule rules expect of it. Prices
that are compared are of one kind: all measured, or all estimated. Who compiles a model hands the
table to its passes (`PassContext.costs`); without one they leave out what needs it. What was
chosen, and what all candidates cost, is noted (`PassContext.choices`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tilewright.base.loc import Fused, Loc, ModelNode
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.sym import ZERO, Expr, Var

MEASURED, ESTIMATED = "measured", "estimated"
AT_LEAST = "at least"  # nobody had to know more
COMPOSED = ("attention",)  # operators whose own rule takes all of it, or several a part each
LEAST_SPEEDUP = 1.1  # how many times faster another form must be, since estimates are not exact


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to compute something, as a kernel."""

    name: str
    kernel: Graph
    weights: frozenset[int] = frozenset()  # parameters that are known before any call
    in_cache: bool = True  # weights are still in L2 from the call before
    is_fused: bool = False  # one kernel, whatever fusion would make of its nodes
    spatial: frozenset[Var] = frozenset()  # sizes that are extents of images
    extents: frozenset[Expr] = frozenset()  # what layers of the model make of those sizes

    @property
    def has_stages(self) -> bool:
        """Whether it may be more than one nest of loops with what goes before and after it."""
        return len(self.kernel.nodes) > 1 or self.kernel.nodes[0].op in COMPOSED

    @property
    def is_empty(self) -> bool:
        """Whether a tensor of it has no elements: then there is no size to plan with."""
        values = [*self.kernel.params, *(v for node in self.kernel.nodes for v in node.outputs)]
        return any(dim is ZERO for value in values for dim in value.tensor.shape or ())


@dataclass(frozen=True)
class Price:
    """What a candidate takes."""

    name: str
    ns: float
    source: str  # MEASURED, ESTIMATED or AT_LEAST


@dataclass(frozen=True)
class GraphChoice:
    """What a pass chose, and what it chose from."""

    step: str  # the pass
    node: str  # where in the user's model
    what: str
    chosen: str
    prices: tuple[Price, ...] = field(default=())


class Costs(Protocol):
    """What a pass may ask. Every candidate that was asked about can be measured by a tuner."""

    @property
    def threads(self) -> int:
        """That kernels are shared out to."""

    @property
    def is_lowered(self) -> bool:
        """Whether products of f32 are to be those of fewer bits."""

    @property
    def has_times(self) -> bool:
        """Whether anything was measured, or is going to be: else there is no need to ask."""

    def measured(self, candidates: Sequence[Candidate]) -> tuple[Price, ...] | None:
        """Times of candidates; None where not all of them are known."""

    def prices(self, candidates: Sequence[Candidate]) -> tuple[Price, ...] | None:
        """Times that were measured, or else estimates; None where there are neither of some."""


def costs_of(ctx: PassContext) -> Costs | None:
    """The table that a pass was given."""
    found: Costs | None = ctx.costs
    return found


def note_choice(
    ctx: PassContext, step: str, node: Node, what: str, chosen: str, prices: Sequence[Price]
) -> None:
    """Remember a choice, for people to look at."""
    ctx.choices.append(GraphChoice(step, place_of(node.loc), what, chosen, tuple(prices)))


def place_of(loc: Loc) -> str:
    """Where in the user's model a node comes from."""
    if isinstance(loc, Fused):
        return next((name for name in map(place_of, loc.parts) if name), "")
    return loc.node if isinstance(loc, ModelNode) else ""


def weights_stay(module: Module, target: Any) -> bool:
    """Whether the weights of a model wait in L2 from one call to the next: only all of them do."""
    total = sum(array.nbytes for array in module.constants.values())
    return isinstance(target, Target) and total <= target.l2_bytes


def candidate_of(
    name: str,
    nodes: Sequence[Node],
    in_cache: bool = True,
    outputs: tuple[Value, ...] = (),
) -> Candidate:
    """Some nodes that follow each other as a candidate; without `outputs` the last one gives them.

    What they take from outside are parameters, and so are constants: weights.
    """
    inside = [node for node in nodes if node.op != "constant"]
    fixed = {node.output for node in nodes if node.op == "constant"}
    made = {value for node in inside for value in node.outputs}
    taken = [value for node in inside for value in node.inputs if value is not None]
    params = tuple(dict.fromkeys(value for value in taken if value not in made))
    kernel = Graph(inside[-1].op, params, tuple(inside), outputs or inside[-1].outputs)
    weights = frozenset(at for at, value in enumerate(params) if value in fixed)
    return Candidate(name, kernel, weights, in_cache)


def alone(node: Node) -> Graph:
    """A node as a graph of its own."""
    params: dict[Value, Value] = {}
    for value in node.inputs:
        if value is not None:
            params.setdefault(value, Value(value.name, value.type))
    inputs = tuple(None if v is None else params[v] for v in node.inputs)
    outputs = tuple(Value(value.name, value.type) for value in node.outputs)
    inner = replace(node, inputs=inputs, outputs=outputs)
    return Graph(node.op, tuple(params[v] for v in node.inputs if v is not None), (inner,), outputs)
