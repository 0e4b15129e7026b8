"""The cost table that passes query for alternatives, before kernels exist.

    direct = Candidate("direct", alone(node), weights)
    prices = costs.prices((direct, replace(direct, "winograd 4", ...)))

A candidate is a kernel: a graph of one or a few nodes. The table returns its measured time on the
target where tuning has it, else the estimate of schedule rules. Prices that are compared are of the
same source: all measured, or all estimated. The driver gives passes the table
(`PassContext.costs`); without it, passes that depend on costs do nothing. Choices are recorded with
the prices of all candidates (`PassContext.choices`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tilewright.base.loc import Fused, Loc, ModelNode
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.sym import ZERO, Const, Expr, Var

MEASURED, ESTIMATED = "measured", "estimated"
AT_LEAST = "at least"  # a lower bound sufficed for the comparison
COMPOSED = ("attention",)  # operators with a rule for the whole, or with several kernels
LEAST_SPEEDUP = 1.1  # least predicted speedup to choose another form, since estimates are inexact


@dataclass(frozen=True, eq=False)
class Candidate:
    """One implementation of a computation, as a kernel."""

    name: str
    kernel: Graph
    weights: frozenset[int] = frozenset()  # parameters known at compile time
    in_cache: bool = True  # weights stay in L2 between calls
    is_fused: bool = False  # one kernel, regardless of fusion
    spatial: frozenset[Var] = frozenset()  # sizes of images' spatial axes
    extents: frozenset[Expr] = frozenset()  # sizes of layers derived from those

    @property
    def has_stages(self) -> bool:
        """Whether it may be several loop nests with its prologue and epilogue."""
        return len(self.kernel.nodes) > 1 or self.kernel.nodes[0].op in COMPOSED

    @property
    def is_empty(self) -> bool:
        """Whether one of its tensors is empty: then there is no size to plan with."""
        return ZERO in self._dims()

    @property
    def is_dynamic(self) -> bool:
        """Whether one of its tensors has a dynamic size."""
        return not all(isinstance(dim, Const) for dim in self._dims())

    def _dims(self) -> list[Expr]:
        values = [*self.kernel.params, *(v for node in self.kernel.nodes for v in node.outputs)]
        return [dim for value in values for dim in value.tensor.shape or ()]


@dataclass(frozen=True)
class Price:
    """The time of a candidate."""

    name: str
    ns: float
    source: str  # MEASURED, ESTIMATED or AT_LEAST


@dataclass(frozen=True)
class GraphChoice:
    """A choice of a pass, with all alternatives."""

    step: str  # name of the pass
    node: str  # location in the user's model
    what: str
    chosen: str
    prices: tuple[Price, ...] = field(default=())


class Costs(Protocol):
    """The interface for passes. A tuner can measure every candidate that was queried."""

    @property
    def threads(self) -> int:
        """Number of threads of kernels."""

    @property
    def is_lowered(self) -> bool:
        """Whether f32 GEMMs may be computed at lower precision."""

    @property
    def has_times(self) -> bool:
        """Whether there are measurements, or will be: otherwise queries are unnecessary."""

    def measured(self, candidates: Sequence[Candidate]) -> tuple[Price, ...] | None:
        """Measured times of candidates; None unless all are known."""

    def prices(self, candidates: Sequence[Candidate]) -> tuple[Price, ...] | None:
        """Measured times, or else estimates; None unless all are available."""

    def estimated(self, candidate: Candidate) -> float | None:
        """The estimate of a kernel that is a part of an alternative, in nanoseconds."""


def costs_of(ctx: PassContext) -> Costs | None:
    """The table in a pass's context."""
    found: Costs | None = ctx.costs
    return found


def note_choice(
    ctx: PassContext, step: str, node: Node, what: str, chosen: str, prices: Sequence[Price]
) -> None:
    """Record a choice, for inspection."""
    ctx.choices.append(GraphChoice(step, place_of(node.loc), what, chosen, tuple(prices)))


def place_of(loc: Loc) -> str:
    """The name of a node's origin in the user's model."""
    if isinstance(loc, Fused):
        return next((name for name in map(place_of, loc.parts) if name), "")
    return loc.node if isinstance(loc, ModelNode) else ""


def weights_stay(module: Module, target: Any) -> bool:
    """Whether the weights of the whole model fit in L2, so that they stay there between calls."""
    total = sum(array.nbytes for array in module.constants.values())
    return isinstance(target, Target) and total <= target.l2_bytes


def candidate_of(name: str, nodes: Sequence[Node], outputs: tuple[Value, ...] = ()) -> Candidate:
    """Make a candidate of consecutive nodes; `outputs` are by default those of the last.

    Values from outside become parameters, including constants: weights.
    """
    inside = [node for node in nodes if node.op != "constant"]
    fixed = {node.output for node in nodes if node.op == "constant"}
    made = {value for node in inside for value in node.outputs}
    taken = [value for node in inside for value in node.inputs if value is not None]
    params = tuple(dict.fromkeys(value for value in taken if value not in made))
    kernel = Graph(inside[-1].op, params, tuple(inside), outputs or inside[-1].outputs)
    weights = frozenset(at for at, value in enumerate(params) if value in fixed)
    return Candidate(name, kernel, weights)


def alone(node: Node) -> Graph:
    """A graph of a single node."""
    params: dict[Value, Value] = {}
    for value in node.inputs:
        if value is not None:
            params.setdefault(value, Value(value.name, value.type))
    inputs = tuple(None if v is None else params[v] for v in node.inputs)
    outputs = tuple(Value(value.name, value.type) for value in node.outputs)
    inner = replace(node, inputs=inputs, outputs=outputs)
    return Graph(node.op, tuple(params[v] for v in node.inputs if v is not None), (inner,), outputs)
