"""Compile models for an accelerator: choose the layers that run there, and call them from the host.

Quantized layers (`recognize_integers`) can run on the accelerator; each connected group of them is
one instruction stream. All other nodes are native code of the host, which calls a stream the way it
calls a part of the interpreter. Which layers run on the accelerator is a minimum cut: the cost of
each layer on either side against the bytes that cross between them, all in nanoseconds of the host.
A layer that the accelerator cannot run stays on the host, with the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.accel.layers import LAYERS, Kernel, kernel_of
from tilewright.accel.part import Part, compile_part, scheduled
from tilewright.accel.rounds import leading_size, round_of, round_shape
from tilewright.base.errors import TilewrightError, UserError
from tilewright.base.geometry import HOST_MACS_PER_CYCLE, Geometry
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target, geometry_of
from tilewright.driver.foreign_parts import call_foreign_parts
from tilewright.driver.hybrid import HybridModule
from tilewright.driver.parts import Parts, part_name
from tilewright.driver.placement import ACCELERATOR, Placement, placement
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.min_cut import Network
from tilewright.graph.passes import CANONICAL
from tilewright.graph.passes.decompose_quantized import decompose_all_but
from tilewright.graph.passes.infer_shapes import infer_shapes
from tilewright.graph.passes.recognize_integers import recognize_integers, why_no_layer
from tilewright.graph.passes.simplify_shapes import simplify_shapes
from tilewright.graph.visit import producers, users
from tilewright.runtime import module as runtime
from tilewright.runtime.module import Spec
from tilewright.sym import Expr

Array = np.ndarray[Any, Any]
INTEGERS = (infer_shapes, simplify_shapes, recognize_integers, *CANONICAL)


def integer_graph(module: Module, target: Target, reasons: dict[str, str] | None = None) -> Module:
    """The model with its quantized layers recognized; `why` collects reasons for those that are
    not."""
    ctx = PassContext(target=target, reasons={} if reasons is None else reasons)
    return run_passes(module, INTEGERS, ctx)


def layers_of(module: Module, target: Target) -> tuple[Graph, dict[Value, Array]]:
    """The quantized layers that the accelerator can run, and the constants they read."""
    geometry = geometry_of(target)
    whole = integer_graph(module, target)
    constants = _constants(whole)
    layers, outside = list[Node](), _host_values(whole.main)
    for node in whole.main.nodes:
        with suppress(TilewrightError):
            if node.op in LAYERS and _one_layer(node, outside, constants, geometry):
                layers.append(node)
    sizes = Counter(leading_size(node.output) for node in layers).most_common(1)
    layers = [node for node in layers if leading_size(node.output) is sizes[0][0]]
    if not layers:
        raise UserError(
            "TW7052", "the model has no int8 layers", help="quantize it to int8, statically"
        )
    produced = {value for node in layers for value in node.outputs}
    boundary = dict.fromkeys(
        v for n in layers for v in n.inputs if v is not None and v not in produced
    )
    layer_set = set(layers)
    used_outside = {v for n in whole.main.nodes if n not in layer_set for v in n.inputs}
    used_outside |= set(whole.main.results)
    results = tuple([v for n in layers for v in n.outputs if v in used_outside])
    weights = {value: constants[value] for value in boundary if value in constants}
    return round_of(Graph("part", (*boundary,), (*layers,), results), geometry)[0], weights


def _host_values(graph: Graph) -> set[Value]:
    """The values that layers get from the host: parameters, and results of other nodes."""
    return {v for n in graph.nodes if n.op not in LAYERS for v in n.outputs} | {*graph.params}


def _one_layer(
    node: Node, outside: set[Value], constants: Mapping[Value, Array], geometry: Geometry
) -> tuple[Graph, Kernel]:
    """A single round of a layer and its kernel; raises if the accelerator cannot run the layer."""
    given = tuple([value for value in node.inputs if value is not None])
    one, _ = round_of(Graph("layer", given, (node,), node.outputs), geometry)
    known = {new for old, new in zip(given, one.params, strict=True) if old in outside}
    return one, kernel_of(one.nodes[0], constants, geometry, known)


def divide(module: Module, target: Target) -> tuple[Module, dict[str, str]]:
    """The model with the layers decomposed that stay on the host, and the reason for each."""
    geometry = geometry_of(target)
    graph, constants = module.main, _constants(module)
    reasons: dict[Node, str] = {}
    costs: dict[Node, tuple[float, float]] = {}
    layers = [node for node in graph.nodes if node.op in LAYERS]
    host_values = _host_values(graph)
    macs = Counter[Expr | None]()  # of layers, by their leading size
    for node in layers:
        try:
            one, kernel = _one_layer(node, host_values, constants, geometry)
            accelerator_cost = sum(scheduled(one.operator, target).predicted for one in kernel.all)
        except TilewrightError as error:
            reasons[node] = error.message
            continue
        macs[leading_size(node.output)] += kernel.macs
        elements = math.prod(one.results[0].tensor.static_shape or ())
        # Elements of the result that the host reads or writes besides the multiplications.
        touched = elements * math.prod(node.get("kernel", (4,)))
        costs[node] = accelerator_cost, (kernel.macs + touched) / HOST_MACS_PER_CYCLE
    for node in list(costs):
        if leading_size(node.output) is not macs.most_common(1)[0][0]:
            reasons[node] = "its leading size is not that of other layers"
            del costs[node]
    chosen = _minimum_cut(graph, costs, target)
    for node in costs:
        if node not in chosen:
            reasons[node] = "moving its tensors costs more than it gains there"
    kept = {node.output for node in chosen}
    why = {node.output.name: reason for node, reason in reasons.items()}
    return decompose_all_but(module, kept), why


def _minimum_cut(
    graph: Graph, costs: Mapping[Node, tuple[float, float]], target: Target
) -> set[Node]:
    """The layers for which the accelerator is cheapest, transfers included."""
    geometry = geometry_of(target)
    network = Network()
    accelerator, host = network.node(), network.node()
    vertices = {node: network.node() for node in costs}
    makers, readers = producers(graph), users(graph)
    for node, (on_accelerator, on_host) in costs.items():
        network.edge(accelerator, vertices[node], on_host)
        network.edge(vertices[node], host, on_accelerator)
    for value in dict.fromkeys((*readers, *graph.results)):
        maker = makers.get(value)
        if maker is not None and maker.op == "constant":
            continue
        ends = [vertices.get(maker, host) if maker is not None else host]
        ends += [vertices.get(user, host) for user in readers.get(value, ())]
        ends += [host] * (value in graph.results)
        if all(end == host for end in ends):
            continue
        cycles = (
            math.prod(round_shape(value, geometry)) / geometry.bus_bytes + geometry.latency_cycles
        )
        for end in dict.fromkeys(ends[1:]):
            if end != ends[0]:
                network.edge(ends[0], end, cycles, cycles)
    side = network.cut(accelerator, host)
    return {node for node, number in vertices.items() if number in side}


def _constants(module: Module) -> dict[Value, Array]:
    """The arrays of main's constants."""
    found = {}
    for node in module.main.nodes:
        if node.op == "constant":
            data = node["data"]
            found[node.output] = module.constants[data] if isinstance(data, str) else data
    return found


def place(module: Module, host: Target, why: Mapping[str, str]) -> Placement:
    """Place quantized layers on the accelerator and everything else on the host."""
    found = placement(module, host)
    devices, reasons = dict(found.devices), dict(found.reasons)
    for node in module.main.nodes:
        if node.op in LAYERS:
            devices[node] = ACCELERATOR
            reasons.pop(node, None)
        else:
            inner = [n for body in node.bodies for n in body.nodes] if node.op == "fused" else []
            names = [value.name for one in (node, *inner) for value in one.outputs]
            found_why = [f"%{name}: {why[name]}" for name in dict.fromkeys(names) if name in why]
            found_why = found_why or why_no_layer((node, *inner), why)
            if found_why:
                reasons[node] = "; ".join(found_why)
    placed = Placement(found.graph, devices, reasons)
    if not placed.is_native:
        raise UserError(
            "TW6011",
            f"the model does not run beside an accelerator: {', '.join(placed.fallbacks)} have no "
            "native code",
            help="compile it for a CPU, or export it without them",
        )
    return placed


def compile_parts(
    module: Module, placed: Placement, target: Target
) -> tuple[Module, Parts, list[Part]]:
    """Main with calls of the accelerator's parts, the parts as graphs, and their streams."""
    constants = _constants(module)
    main, parts = call_foreign_parts(module, placed)
    calls = {node["part"]: node for node in main.main.nodes if node.op == "foreign"}
    compiled = []
    for number, one in enumerate(parts.parts):
        graph, given = parts.module.graphs[part_name(number)], calls[number].inputs
        stored = {
            graph.params[at]: constants[value]
            for at in one.weights
            if (value := given[at]) is not None
        }
        compiled.append(compile_part(graph, stored, target))
    return main, parts, compiled


class AcceleratedModule(HybridModule):
    """A native module with layers that run on an accelerator."""

    def __init__(
        self,
        native: runtime.Module,
        parts: Parts,
        specs: tuple[Sequence[Spec], Sequence[Spec]],
        streams: Sequence[Part],
        placed: Placement,
    ) -> None:
        runners = {number: part.run for number, part in enumerate(streams)}
        super().__init__(native, parts, *specs, runners)
        self.streams, self.placed = tuple(streams), placed

    def report(self) -> list[dict[str, Any]]:
        """One row per layer on the accelerator, in order."""
        return [row for part in self.streams for row in part.report()]

    @property
    def placement(self) -> Placement:
        """Where each node runs: what layers cost on the accelerator, and why other nodes do not."""
        reasons = dict(self.placed.reasons)
        nodes = self.placed.graph.nodes
        by_name = {n.output.name: n for n in nodes if self.placed[n] == ACCELERATOR}
        for number, part in enumerate(self.streams):
            graph = self.parts.module.graphs[part_name(number)]
            layers = [node for node in graph.nodes if node.op != "constant"]
            descriptions = {}
            for row in part.report():
                descriptions[row["name"]] = (
                    f"{row['cycles']:,} cycles, {row['bytes']:,} bytes, "
                    f"{row['share']:.1%} of peak, {row['plan']}"
                )
                descriptions |= dict.fromkeys(row["fused"], f"computed with %{row['name']}")
            for node in layers:
                reasons[by_name[node.output.name]] = descriptions[node.output.name]
        return replace(self.placed, reasons=reasons)

    @property
    def cycles(self) -> int:
        """The sum over all parts, which run one after the other."""
        return sum(part.timing().total for part in self.streams)
