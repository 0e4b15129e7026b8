"""assign_layout: images lie channels last where that pays, as one decision for the whole model.

Every node that can work on either form is on one of two sides; the others, and what the model takes
and gives, stay as written. A side costs what kernels take there, and a value that is made on one
side and used on the other costs a transpose. The cheapest division is a minimum cut. Transposes
stand at the borders only; those of constants are folded, and those that meet cancel.

Kernels take what was measured of them in both forms, where tuning did (`graph/costs.py`), else what
the target's rates make of their operations and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.passes import PassContext
from tilewright.graph import rates
from tilewright.graph.build import make_node
from tilewright.graph.channels_last import ChannelsLast, is_free, rank_of, try_channels_last
from tilewright.graph.costs import (
    ESTIMATED,
    Candidate,
    Price,
    alone,
    costs_of,
    note_choice,
)
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.min_cut import INFINITE, Network
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import channels_first, channels_last
from tilewright.graph.types import TensorType, Type
from tilewright.graph.visit import map_graphs, users
from tilewright.sym import Const

CHANNELS_FIRST_TIMES = 3.0  # a convolution channels first takes so many times as long
PLANES_TIMES = 0.6  # what a depthwise convolution takes longer channels first, per byte moved

Makers = dict[Value, Node]
FIRST, LAST = "channels first", "channels last"
CONVOLUTIONS = ("conv", "conv_transpose", "conv_integer")
# What has kernels that differ by the form; all else follows.
KERNELS = (*CONVOLUTIONS, "resize", *(name for name in OPS if name.endswith("_pool")))


def assign_layout(module: Module, ctx: PassContext) -> Module:
    """Before: conv(x).   After: transpose(conv(transpose(x)) {layout = "channels_last"})."""
    return map_graphs(module, lambda graph: _assign(graph, _Weigher(ctx)))


def _assign(graph: Graph, weigher: _Weigher) -> Graph:
    nodes = tuple([_with_bodies(node, weigher) for node in graph.nodes])
    if any(a is not b for a, b in zip(nodes, graph.nodes, strict=True)):
        graph = replace(graph, nodes=nodes)
    able = {node: found for node in graph.nodes if (found := try_channels_last(node)) is not None}
    if not any(node.op in KERNELS for node in able):
        return graph
    chosen = _choose(graph, able, weigher)
    if not chosen:
        return graph
    return _Move(chosen).graph(graph)


def _with_bodies(node: Node, weigher: _Weigher) -> Node:
    if not node.bodies:
        return node
    bodies = tuple([_assign(body, weigher) for body in node.bodies])
    same = all(a is b for a, b in zip(bodies, node.bodies, strict=True))
    return node if same else replace(node, bodies=bodies)


# ------------------------------------------------------------------------------------ costs


class _Weigher:
    """What nodes take on both sides, and what values take to change sides, in nanoseconds."""

    def __init__(self, ctx: PassContext) -> None:
        self.ctx, self.costs, self.rates = ctx, costs_of(ctx), rates.rates_of(ctx.target)

    def prices(self, node: Node, found: ChannelsLast, makers: Makers) -> tuple[Price, Price] | None:
        """A kernel channels first, and last; None of a node that is as good either way."""
        if node.op not in KERNELS:
            return None
        measured = self._measured(node, found, makers)
        return self._estimated(node) if measured is None else measured

    def _measured(
        self, node: Node, found: ChannelsLast, makers: Makers
    ) -> tuple[Price, Price] | None:
        if self.costs is None or not self.costs.has_times:
            return None
        given = [value for value in node.inputs if value is not None]
        weights = frozenset(at for at, value in enumerate(given) if _is_constant(value, makers))
        candidates = (
            Candidate(FIRST, alone(node), weights),
            Candidate(LAST, alone(_moved_node(node, found)), weights),
        )
        prices = self.costs.measured(candidates)
        return None if prices is None else (prices[0], prices[1])

    def _estimated(self, node: Node) -> tuple[Price, Price]:
        size_bytes = rates.size_bytes(node.outputs[0])
        moved_ns = (size_bytes + _size(node.inputs[0])) * self.rates.byte_ns
        if node.op not in CONVOLUTIONS:
            moved_ns = max(size_bytes, _size(node.inputs[0])) * self.rates.byte_ns
            last, first = moved_ns, 2 * moved_ns
        elif _is_depthwise(node):
            last = moved_ns
            first = last + PLANES_TIMES * moved_ns * float(max(node["strides"]))
        else:
            last = rates.operations(node) * self.rates.operation_ns / 2 + moved_ns
            first = CHANNELS_FIRST_TIMES * last
        return Price(FIRST, first, ESTIMATED), Price(LAST, last, ESTIMATED)

    def transposed(self, value: Value, makers: Makers) -> float:
        """What it costs to move a value."""
        shape = value.tensor.shape or ()
        if len(shape) < 3 or _is_constant(value, makers):
            return 0.0
        if is_free(shape):
            return self.rates.byte_ns  # nothing moves, but neighbours should stay together
        if self.costs is not None and self.costs.has_times:
            perm = channels_last(range(len(shape)))
            node = make_node("transpose", (Value(value.name, value.type),), {"perm": perm})
            prices = self.costs.measured((Candidate("transpose", alone(node)),))
            if prices is not None:
                return prices[0].ns
        moved_ns = 2 * rates.size_bytes(value) * self.rates.byte_ns  # read, and written
        return moved_ns + self.rates.launch_ns


def _is_constant(value: Value, makers: Makers) -> bool:
    maker = makers.get(value)
    return maker is not None and maker.op == "constant"


def _moved_node(node: Node, found: ChannelsLast) -> Node:
    """A node by itself, on moved operands."""

    def moved(value: Value, moves: bool) -> Value:
        is_image = moves and rank_of(value) >= 3
        return Value(value.name, _moved_type(value.tensor) if is_image else value.type)

    pairs = zip(node.inputs, found.inputs, strict=True)
    given = [None if value is None else moved(value, moves) for value, moves in pairs]
    made = zip(node.outputs, found.outputs, strict=True)
    types = [moved(value, moves).type for value, moves in made]
    names = [value.name for value in node.outputs]
    return make_node(node.op, given, found.attributes, node.loc, hints=names, types=types)


def _is_depthwise(node: Node) -> bool:
    """Whether planes are convolved one by one, at most places: that goes well either way."""
    weights = None if node.inputs[1] is None else node.inputs[1].tensor.static_shape
    if node.op != "conv" or weights is None or any(step > 2 for step in node["strides"]):
        return False
    return weights[0] == node.get("groups", 1) and weights[1] == 1 and len(weights) == 4


def _size(value: Value | None) -> int:
    return 0 if value is None else rates.size_bytes(value)


def _choose(
    graph: Graph, able: dict[Node, ChannelsLast], weigher: _Weigher
) -> dict[Node, ChannelsLast]:
    """The nodes that are to work channels last: a minimum cut."""
    network = Network()
    last, first = network.node(), network.node()  # the two sides
    place = {node: network.node() for node in able}
    makers = {value: node for node in graph.nodes for value in node.outputs}
    weighed: dict[Node, tuple[Price, Price]] = {}
    for node, found in able.items():
        prices = weigher.prices(node, found, makers)
        if prices is None:
            # Between equals, what follows a convolution stays with it.
            network.edge(last, place[node], weigher.rates.byte_ns / (1 + len(able)))
            continue
        weighed[node] = prices
        gain = prices[0].ns - prices[1].ns
        network.edge(last, place[node], gain)
        network.edge(place[node], first, -gain)
    uses = users(graph)
    results = dict.fromkeys(graph.results)
    for value in (*graph.params, *makers):
        if not isinstance(value.type, TensorType) or rank_of(value) < 3:
            continue
        maker = makers.get(value)
        made = first
        if maker in able and able[maker].outputs[maker.outputs.index(value)]:
            made = place[maker]
        readers = [_reader(value, node, able, place, first) for node in uses.get(value, ())]
        if value in results:
            readers.append(first)
        _join(network, made, readers, weigher.transposed(value, makers))
        if maker is not None and maker.op == "transpose":
            _cancel(network, last, maker, able, place, makers, weigher)
    side = network.cut(last, first)
    for node, prices in weighed.items():
        chosen = prices[1] if place[node] in side else prices[0]
        note_choice(weigher.ctx, "assign_layout", node, node.op, chosen.name, prices)
    return {node: found for node, found in able.items() if place[node] in side}


def _reader(
    value: Value,
    node: Node,
    able: dict[Node, ChannelsLast],
    place: dict[Node, int],
    first: int,
) -> int:
    """The node of the network that decides in which form a value is read."""
    if node not in able:
        return first
    moved = [m for v, m in zip(node.inputs, able[node].inputs, strict=True) if v is value]
    return place[node] if all(moved) else first


def _join(network: Network, made: int, readers: list[int], price: float) -> None:
    """One transpose serves all readers on the other side."""
    if price <= 0 or not readers:
        return
    forth, back = network.node(), network.node()
    network.edge(made, forth, price)
    network.edge(back, made, price)
    for reader in dict.fromkeys(readers):
        network.edge(forth, reader, INFINITE)
        network.edge(reader, back, INFINITE)


def _cancel(
    network: Network,
    last: int,
    node: Node,
    able: dict[Node, ChannelsLast],
    place: dict[Node, int],
    makers: Makers,
    weigher: _Weigher,
) -> None:
    """A transpose of the model that a moved operand makes superfluous speaks for moving it."""
    x = node.inputs[0]
    if x is None or rank_of(x) < 3:
        return
    maker = makers.get(x)
    # From the moved form: perm after the way back.
    back = channels_first(range(rank_of(x)))
    if [back[axis] for axis in node["perm"]] == sorted(back) and maker in able:
        network.edge(last, place[maker], 2 * weigher.transposed(x, {}))


# ------------------------------------------------------------------------------------ the change


@dataclass
class _Forms:
    """A value as written, and moved; at least one of them is there."""

    first: Value | None = None
    last: Value | None = None


class _Move:
    """Rebuilds a graph with some nodes channels last."""

    def __init__(self, chosen: dict[Node, ChannelsLast]) -> None:
        self.chosen = chosen
        self.forms: dict[Value, _Forms] = {}
        self.nodes: list[Node] = []

    def graph(self, graph: Graph) -> Graph:
        for value in graph.params:
            self.forms[value] = _Forms(first=value)
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
                self.forms[value] = _Forms(first=value)
            return
        rank = max(rank_of(value) for value in node.outputs)
        given: list[Value | None] = []
        for taken, moved in zip(node.inputs, found.inputs, strict=True):
            if taken is None:
                given.append(None)
            else:
                aligned = rank_of(taken) if node.op == "reshape" else rank
                given.append(self._last(taken, aligned) if moved else self._first(taken))
        types: list[Type] = [
            _moved_type(value.tensor) if moved else value.type
            for value, moved in zip(node.outputs, found.outputs, strict=True)
        ]
        hints = [value.name for value in node.outputs]
        made = make_node(node.op, given, found.attributes, node.loc, hints=hints, types=types)
        self.nodes.append(made)
        for old, new, moved in zip(node.outputs, made.outputs, found.outputs, strict=True):
            self.forms[old] = _Forms(last=new) if moved else _Forms(first=new)

    def _first(self, value: Value) -> Value:
        """A value as it was written."""
        form = self.forms[value]
        if form.first is None:
            assert form.last is not None
            form.first = self._transpose(form.last, channels_first(range(rank_of(value))))
        return form.first

    def _last(self, value: Value, rank: int) -> Value:
        """A value moved; one of fewer axes is an operand that broadcasts to `rank` of them."""
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


def _moved_type(of: TensorType) -> TensorType:
    return TensorType(of.dtype, channels_last(of.shape or ()))
