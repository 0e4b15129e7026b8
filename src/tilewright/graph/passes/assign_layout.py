"""assign_layout: use channels-last layout where it pays, decided for the whole model at once.

Nodes that support both layouts are assigned to one of them; all other nodes, and inputs and outputs
of the model, stay channels-first. The cost of an assignment is the time of each kernel in its
layout plus a transpose for each value that is produced in one layout and read in the other. The
cheapest assignment is a minimum cut. Transposes of constants are folded, and pairs of inverse ones
cancel.

Kernel times are those that tuning measured in both layouts (`graph/costs.py`), or else are
estimated: channels last in the cheapest form that later passes give a convolution; on GPUs from
arithmetic and bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tilewright.base.dots import multiplies_bytes
from tilewright.base.dtype import BF16, F32
from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, CUDA, Target
from tilewright.graph import rates
from tilewright.graph.build import make_node
from tilewright.graph.channels_last import ChannelsLast, is_free, rank_of, try_channels_last
from tilewright.graph.conv_forms import FormPrices, Problem
from tilewright.graph.costs import (
    AT_LEAST,
    ESTIMATED,
    LEAST_SPEEDUP,
    Candidate,
    Price,
    alone,
    costs_of,
    note_choice,
    weights_stay,
)
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.min_cut import INFINITE, Network
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import channels_first, channels_last
from tilewright.graph.passes.choose_winograd import best_tile, winograd_channels
from tilewright.graph.passes.densify_groups import widened
from tilewright.graph.passes.hoist_strides import without_strides
from tilewright.graph.passes.split_dilations import split_forms
from tilewright.graph.types import TensorType, Type
from tilewright.graph.visit import map_graphs, users, walk
from tilewright.sym import Const, Expr, Var, free_vars

Makers = dict[Value, Node]
Prices = tuple[Price, Price]  # channels first, channels last
Move = tuple[Value, str]  # a value, and the layout it is transposed to
FIRST, LAST = "channels first", "channels last"
CONVOLUTIONS = ("conv", "conv_transpose", "conv_integer")
# Operators with different kernels in the two layouts.
KERNELS = (*CONVOLUTIONS, "resize", "roi_align", *(name for name in OPS if name.endswith("_pool")))


def assign_layout(module: Module, ctx: PassContext) -> Module:
    """Before: conv(x).   After: transpose(conv(transpose(x)) {layout = "channels_last"})."""
    weigher = _LayoutCosts(module, ctx)
    return map_graphs(module, lambda graph: _assign(graph, weigher))


def _assign(graph: Graph, weigher: _LayoutCosts) -> Graph:
    nodes = tuple([_with_bodies(node, weigher) for node in graph.nodes])
    if any(a is not b for a, b in zip(nodes, graph.nodes, strict=True)):
        graph = replace(graph, nodes=nodes)
    able = {
        node: found
        for node in graph.nodes
        if _may_move(node, weigher.ctx.target) and (found := try_channels_last(node)) is not None
    }
    if not any(node.op in KERNELS for node in able):
        return graph
    chosen = _choose(graph, able, weigher)
    if not chosen:
        return graph
    return _Relayout(chosen).graph(graph)


def _may_move(node: Node, target: Any) -> bool:
    """Threads of a GPU make an element of a region each, vectors of a CPU all channels of a bin."""
    return not _has_dynamic_channels(node) and not (node.op == "roi_align" and _is_gpu(target))


def _has_dynamic_channels(node: Node) -> bool:
    """Whether a resize or pooling has a dynamic number of channels. Such channels are not the
    result of a convolution; usually they are the colors of an image, too few to fill vectors."""
    image = node.inputs[0] if node.op in KERNELS and node.op not in CONVOLUTIONS else None
    shape = (image.tensor.shape or ()) if image is not None else ()
    return len(shape) > 1 and not isinstance(shape[1], Const)


def _with_bodies(node: Node, weigher: _LayoutCosts) -> Node:
    if not node.bodies:
        return node
    bodies = tuple([_assign(body, weigher) for body in node.bodies])
    same = all(a is b for a, b in zip(bodies, node.bodies, strict=True))
    return node if same else replace(node, bodies=bodies)


# ------------------------------------------------------------------------------------ costs


class _LayoutCosts:
    """Costs of nodes in both layouts, and of transposes between them, in nanoseconds."""

    def __init__(self, module: Module, ctx: PassContext) -> None:
        self.ctx, self.costs, self.rates = ctx, costs_of(ctx), rates.context_rates(ctx)
        self.in_cache = weights_stay(module, ctx.target)
        self.forms = FormPrices(module, ctx, "assign_layout")
        self.moves: dict[Move, float] = {}  # prices of transposes so far
        self.spatial, self.extents = _spatial_sizes(module)

    def prices(
        self, node: Node, found: ChannelsLast, makers: Makers, *, exact: bool = False
    ) -> Prices | None:
        """The costs of a kernel in both layouts; None for a node that costs the same in either.

        Unless `exact`, channels first is estimated by a lower bound, its multiply-adds.
        """
        if node.op not in KERNELS:
            return None
        given = [value for value in node.inputs if value is not None]
        weights = frozenset(at for at, value in enumerate(given) if _is_constant(value, makers))
        candidates = (
            self._candidate(FIRST, node, weights),
            self._candidate(
                LAST, self._densified(_channels_last_node(node, found), weights), weights
            ),
        )
        if _is_gpu(self.ctx.target):
            measured = self.costs and self.costs.has_times and self.costs.measured(candidates)
            return (measured[0], measured[1]) if measured else self._on_tensor_cores(node)
        if self.costs is None:
            return None
        made = candidates[1].kernel.nodes[0]
        problem = self._few_bits(made) if 1 in weights else None
        if problem is not None:
            return self._few_bits_prices(node, problem, candidates, exact=exact)
        least_ns = 0.0 if exact or self.costs.has_times else self._least_ns(node)
        prices = self.costs.prices(candidates[1:])
        first = Price(FIRST, least_ns, AT_LEAST) if least_ns else self._first(node, weights)
        if prices is None or first is None:
            return None
        return first, self._fastest(made, weights, prices[0])

    def _first(self, node: Node, weights: frozenset[int]) -> Price | None:
        """The price of a kernel channels first, in the form that `hoist_strides` gives it."""
        *before, node = without_strides(node) or (node,)
        asked = [
            *map(partial(self._candidate, FIRST), before),
            self._candidate(FIRST, node, weights),
        ]
        prices = None if self.costs is None else self.costs.prices(asked)
        if prices is None:
            return None
        launch_ns = self.rates.launch_ns * (len(prices) - 1)
        return replace(prices[-1], ns=launch_ns + sum(price.ns for price in prices))

    def _few_bits_prices(
        self, node: Node, problem: Problem, candidates: tuple[Candidate, Candidate], *, exact: bool
    ) -> Prices | None:
        """The costs of a convolution of few bits: channels last in its cheapest form."""
        assert self.costs is not None
        measured = self.costs.measured(candidates) if self.costs.has_times else None
        if measured is not None:
            return measured[0], measured[1]
        least_ns = 0.0 if exact else self._least_ns(node)
        first = least_ns or self.costs.estimated(candidates[0])
        last = self.forms.least_ns(problem)
        if first is None or last is None:
            return None
        source = AT_LEAST if least_ns else ESTIMATED
        return Price(FIRST, first, source), Price(LAST, last, ESTIMATED)

    def _fastest(self, node: Node, weights: frozenset[int], direct: Price) -> Price:
        """The price of a convolution channels last, in the fastest form that later passes give
        it."""
        target, costs = self.ctx.target, self.costs
        if not isinstance(target, Target) or target.kind != CPU or costs is None:
            return direct
        if node.op != "conv" or 1 not in weights or costs.is_lowered:
            return direct
        forms, _ = split_forms(node, target, costs, self.in_cache)
        channels = winograd_channels(node, target)
        if channels and not forms:
            _, forms = best_tile(node, channels, costs, True, self.in_cache)
        others = [price.ns for price in forms if price.source == direct.source]
        return replace(direct, ns=min([direct.ns, *others]))

    def _few_bits(self, node: Node) -> Problem | None:
        """The convolution of few bits that later passes choose a form of."""
        x, w = node.inputs[0], (*node.inputs, None)[1]
        shape = None if w is None else w.tensor.static_shape
        if x is None or w is None or shape is None or node.op not in CONVOLUTIONS:
            return None
        if node.op == "conv_integer":
            zeros = np.broadcast_to(np.zeros((), w.tensor.dtype.numpy), shape)
            return None if any(node.inputs[2:4]) else Problem(node, x, zeros)
        is_lowered = self.costs is not None and self.costs.is_lowered
        if not is_lowered or node.get("groups", 1) != 1 or x.tensor.dtype is not F32:
            return None
        image = Value(x.name, replace(x.tensor, dtype=BF16))
        zeros = np.broadcast_to(np.zeros((), BF16.numpy), shape)
        return Problem(node, image, zeros, None, {"to": F32}, node)

    def _densified(self, node: Node, weights: frozenset[int]) -> Node:
        """The channels-last node as `densify_groups` will rewrite it later, if its weights are
        constant."""
        target = self.ctx.target
        if not isinstance(target, Target) or target.kind == CUDA or not multiplies_bytes(target):
            return node
        if 1 not in weights:
            return node
        return widened(node, target, self.forms)

    def _candidate(self, name: str, node: Node, weights: frozenset[int] = frozenset()) -> Candidate:
        """A candidate kernel of one node. Dynamic image sizes are marked, so that all candidates
        are estimated at the same size, though rules for GEMMs and transposes assume other sizes
        than those for convolutions. Resizing has the same rules in both layouts."""
        spatial = frozenset() if node.op == "resize" else self.spatial
        kernel = alone(node)
        return Candidate(
            name, kernel, weights, self.in_cache, spatial=spatial, extents=self.extents
        )

    def _least_ns(self, node: Node) -> float:
        """A lower bound of a convolution's time, channels first: its multiply-adds in lanes of
        vectors on all threads."""
        is_plain = node.op == "conv_integer" and node.get("groups", 1) == 1
        is_f32 = node.op == "conv" and node.output.tensor.dtype is F32
        if self.costs is None or not (is_plain or is_f32):
            return 0.0
        return self.rates.operations(node) / 2 * self.rates.operation_ns / self.costs.threads

    def _on_tensor_cores(self, node: Node) -> Prices | None:
        """Costs of convolutions on a GPU: arithmetic at the rate of vectors, and channels last at
        that of tensor cores."""
        target = self.ctx.target
        if node.op not in CONVOLUTIONS or not isinstance(target, Target):
            return None
        sm = multiprocessor_of(target)
        first = self.rates.operations(node) * self.rates.operation_ns
        last = first * sm.fma_per_cycle / sm.tensor_fma_per_cycle
        return Price(FIRST, first, ESTIMATED), Price(LAST, last, ESTIMATED)

    def transpose_ns(self, move: Move, makers: Makers) -> float:
        """The cost of a transpose; a lower bound until it is estimated."""
        value, _ = move
        shape = value.tensor.shape or ()
        if len(shape) < 3 or _is_constant(value, makers):
            return 0.0
        if is_free(shape):
            return self.rates.byte_ns  # a view; a small cost keeps neighbours in the same layout
        least_ns = 2 * self.rates.size_bytes(value) * self.rates.shared_byte_ns  # read and write
        return self.moves.get(move, least_ns) + self.rates.launch_ns

    def is_known(self, move: Move) -> bool:
        return move in self.moves or is_free(move[0].tensor.shape or ())

    def estimate_transpose(self, move: Move) -> None:
        value, to = move
        rank = rank_of(value)
        of = value.type if to == LAST else _channels_last_type(value.tensor)
        perm = (channels_last if to == LAST else channels_first)(range(rank))
        node = make_node("transpose", (Value(value.name, of),), {"perm": perm})
        prices = self.costs and self.costs.prices((self._candidate("transpose", node),))
        moved_ns = 2 * self.rates.size_bytes(value) * self.rates.byte_ns
        self.moves[move] = prices[0].ns if prices else moved_ns


def _spatial_sizes(module: Module) -> tuple[frozenset[Var], frozenset[Expr]]:
    """Dynamic sizes that occur on spatial axes of images only; and all extents of spatial axes."""
    nodes = [node for graph in module.graphs.values() for node in walk(graph)]
    images = [v for node in nodes if node.op in KERNELS for v in (node.inputs[0], *node.outputs)]
    shapes = [image.tensor.shape or () for image in images if image is not None]
    others = free_vars(*[dim for shape in shapes for dim in shape[:2]])
    extents = frozenset(dim for shape in shapes for dim in shape[2:])
    return frozenset(free_vars(*extents)) - frozenset(others), extents


def _gain_ns(prices: Sequence[Price]) -> float:
    """The time that channels last saves. Estimates are inexact, so it has to be faster by a
    margin."""
    first, last = prices
    return LEAST_SPEEDUP * first.ns - last.ns


def _is_gpu(target: Any) -> bool:
    return isinstance(target, Target) and target.kind == CUDA


def _is_constant(value: Value, makers: Makers) -> bool:
    maker = makers.get(value)
    return maker is not None and maker.op == "constant"


def _channels_last_node(node: Node, found: ChannelsLast) -> Node:
    """The channels-last form of a node, on operands of its own."""

    def transpose_ns(value: Value, moves: bool) -> Value:
        is_image = moves and rank_of(value) >= 3
        return Value(value.name, _channels_last_type(value.tensor) if is_image else value.type)

    pairs = zip(node.inputs, found.inputs, strict=True)
    given = [None if value is None else transpose_ns(value, moves) for value, moves in pairs]
    made = zip(node.outputs, found.outputs, strict=True)
    types = [transpose_ns(value, moves).type for value, moves in made]
    names = [value.name for value in node.outputs]
    return make_node(node.op, given, found.attributes, node.loc, hints=names, types=types)


def _choose(
    graph: Graph, able: dict[Node, ChannelsLast], weigher: _LayoutCosts
) -> dict[Node, ChannelsLast]:
    """The nodes that will be channels-last: a minimum cut.

    Transposes and channels-first kernels start with lower bounds of their cost. Bounds that a
    minimum cut relies on are replaced by estimates, until it relies on none: then it is optimal.
    """
    makers = {value: node for node in graph.nodes for value in node.outputs}
    weighed = {node: weigher.prices(node, found, makers) for node, found in able.items()}
    while True:
        side, moves = _minimum_cut(graph, able, weighed, weigher, makers)
        unknown = [move for move in moves if not weigher.is_known(move)]
        bounded = {node: p[1].ns for node, p in weighed.items() if p and p[0].source == AT_LEAST}
        guessed = [node for node in bounded if node not in side]
        if not unknown and not guessed:
            break
        for move in unknown:
            weigher.estimate_transpose(move)
        # The most expensive quarter may already change the cut.
        guessed.sort(key=bounded.__getitem__, reverse=True)
        for node in guessed[: -(-len(guessed) // 4)]:
            weighed[node] = weigher.prices(node, able[node], makers, exact=True)
    for node, prices in weighed.items():
        if prices is not None:
            chosen = LAST if node in side else FIRST
            note_choice(weigher.ctx, "assign_layout", node, node.op, chosen, prices)
    return {node: found for node, found in able.items() if node in side}


def _minimum_cut(
    graph: Graph,
    able: dict[Node, ChannelsLast],
    weighed: Mapping[Node, Prices | None],
    weigher: _LayoutCosts,
    makers: Makers,
) -> tuple[set[Node], list[Move]]:
    """The channels-last nodes of a minimum cut, and the transposes it needs."""
    network = Network()
    last, first = network.node(), network.node()  # source and sink
    place = {node: network.node() for node in able}
    for node, prices in weighed.items():
        if prices is None:
            # Nodes that cost the same in both layouts follow the convolutions around them.
            network.edge(last, place[node], weigher.rates.byte_ns / (1 + len(able)))
            continue
        gain = _gain_ns(prices)
        network.edge(last, place[node], gain)
        network.edge(place[node], first, -gain)
    uses = users(graph)
    results = dict.fromkeys(graph.results)
    borders: dict[Move, tuple[int, int]] = {}  # network edges that stand for transposes
    for value in (*graph.params, *makers):
        if not isinstance(value.type, TensorType) or rank_of(value) < 3:
            continue
        maker = makers.get(value)
        made = first
        if maker is not None and _moves(maker, channels_first):
            made = last  # the operand of that transpose has the other layout already
        elif maker in able and able[maker].outputs[maker.outputs.index(value)]:
            made = place[maker]
        readers = [
            last if _moves(node, channels_last) else _reader_vertex(value, node, able, place, first)
            for node in uses.get(value, ())
        ]
        if value in results:
            readers.append(first)
        borders |= _connect_readers(network, made, readers, value, weigher, makers)
    side = network.cut(last, first)
    moves = [move for move, (a, b) in borders.items() if a in side and b not in side]
    return {node for node in able if place[node] in side}, moves


def _moves(node: Node, to: Callable[[Sequence[int]], tuple[int, ...]]) -> bool:
    """Whether a node of the model is a transpose to the given layout."""
    return node.op == "transpose" and tuple(node["perm"]) == to(range(len(node["perm"])))


def _reader_vertex(
    value: Value,
    node: Node,
    able: dict[Node, ChannelsLast],
    place: dict[Node, int],
    first: int,
) -> int:
    """The vertex of the network that determines the layout in which a value is read."""
    if node not in able:
        return first
    transpose_ns = [m for v, m in zip(node.inputs, able[node].inputs, strict=True) if v is value]
    return place[node] if all(transpose_ns) else first


def _connect_readers(
    network: Network,
    made: int,
    readers: list[int],
    value: Value,
    weigher: _LayoutCosts,
    makers: Makers,
) -> dict[Move, tuple[int, int]]:
    """Connect a value with its readers, so that one transpose serves all readers on the other
    side."""
    others = [reader for reader in dict.fromkeys(readers) if reader != made]
    there, back = ((value, LAST), (value, FIRST))
    if not others or weigher.transpose_ns(there, makers) <= 0:
        return {}
    on_first, on_last = network.node(), network.node()
    network.edge(made, on_first, weigher.transpose_ns(back, makers))
    network.edge(on_last, made, weigher.transpose_ns(there, makers))
    for reader in others:
        network.edge(on_first, reader, INFINITE)
        network.edge(reader, on_last, INFINITE)
    return {back: (made, on_first), there: (on_last, made)}


# ------------------------------------------------------------------------------------ rewriting


@dataclass
class _Layouts:
    """A value in either layout, or in both."""

    first: Value | None = None
    last: Value | None = None


class _Relayout:
    """Rebuilds a graph with the chosen nodes channels-last."""

    def __init__(self, chosen: dict[Node, ChannelsLast]) -> None:
        self.chosen = chosen
        self.forms: dict[Value, _Layouts] = {}
        self.nodes: list[Node] = []

    def graph(self, graph: Graph) -> Graph:
        for value in graph.params:
            self.forms[value] = _Layouts(first=value)
        for node in graph.nodes:
            self._node(node)
        results = tuple([self._first(value) for value in graph.results])
        return replace(graph, nodes=tuple(self.nodes), results=results)

    def _node(self, node: Node) -> None:
        found = self.chosen.get(node)
        if found is None:
            inputs = tuple([None if v is None else self._first(v) for v in node.inputs])
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            self.nodes.append(node if same else replace(node, inputs=inputs))
            for value in node.outputs:
                self.forms[value] = _Layouts(first=value)
            return
        rank = max(rank_of(value) for value in node.outputs)
        given: list[Value | None] = []
        for taken, transpose_ns in zip(node.inputs, found.inputs, strict=True):
            if taken is None:
                given.append(None)
            else:
                aligned = rank_of(taken) if node.op == "reshape" else rank
                given.append(self._last(taken, aligned) if transpose_ns else self._first(taken))
        types: list[Type] = [
            _channels_last_type(value.tensor) if transpose_ns else value.type
            for value, transpose_ns in zip(node.outputs, found.outputs, strict=True)
        ]
        hints = [value.name for value in node.outputs]
        made = make_node(node.op, given, found.attributes, node.loc, hints=hints, types=types)
        self.nodes.append(made)
        for old, new, transpose_ns in zip(node.outputs, made.outputs, found.outputs, strict=True):
            self.forms[old] = _Layouts(last=new) if transpose_ns else _Layouts(first=new)

    def _first(self, value: Value) -> Value:
        """A value as in the original model."""
        form = self.forms[value]
        if form.first is None:
            assert form.last is not None
            form.first = self._transpose(form.last, channels_first(range(rank_of(value))))
        return form.first

    def _last(self, value: Value, rank: int) -> Value:
        """A value channels-last. A value of lower rank is an operand that broadcasts to `rank`
        axes."""
        form = self.forms[value]
        if rank_of(value) < 3 or rank_of(value) < rank:
            return self._operand(self._first(value), rank)
        if form.last is None:
            assert form.first is not None
            form.last = self._transpose(form.first, channels_last(range(rank_of(value))))
        return form.last

    def _operand(self, value: Value, rank: int) -> Value:
        shape = value.tensor.shape or ()
        items = [int(d.value) if isinstance(d, Const) else d for d in shape]
        full = (*[1] * (rank - len(items)), *items)
        node = make_node("reshape", (value,), {"shape": full}, hints=(value.name,))
        self.nodes.append(node)
        return self._transpose(node.output, channels_last(range(rank)))

    def _transpose(self, value: Value, perm: tuple[int, ...]) -> Value:
        node = make_node("transpose", (value,), {"perm": perm}, hints=(value.name,))
        self.nodes.append(node)
        return node.output


def _channels_last_type(of: TensorType) -> TensorType:
    return TensorType(of.dtype, channels_last(of.shape or ()))
