"""Graphs of ATen operators, compiled on their first call.

At that time the weights are known, which are packed once and again when they change, and the number
of threads. Results have the strides that PyTorch expects, and outputs that alias an input are views
of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tilewright.driver.compile import compile
from tilewright.frontends.torch.calling import called
from tilewright.frontends.torch.flat import FlatGraph, import_graph, untaken, without_rules
from tilewright.plugins.torch.partition import PREFIX, is_random, names_of, refusal, split, warn_of
from tilewright.plugins.torch.weights import Weights
from tilewright.runtime.module import Module

MAX_PACKINGS = 2  # per graph; weights that change more often become inputs


class CompiledGraph:
    """A callable graph, compiled on the first call; partitioned if it has unsupported operators."""

    def __init__(
        self,
        graph: fx.GraphModule,
        weights: Sequence[int],
        *,
        refuse: bool = False,
        threads: int = 0,
        cache: bool = True,
    ) -> None:
        self.graph, self.weights = graph, tuple(weights)
        self.refuse, self.threads, self.cache = refuse, threads, cache
        self.run: Callable[[Sequence[Any]], list[Any]] | None = None
        with unset_fake_temporarily():  # the graph's constants are real tensors
            self.without = without_rules(graph, is_random)
        self.fallbacks = names_of(self.without)
        self.lock = threading.Lock()

    def __call__(self, *inputs: Any) -> list[Any]:
        if self.run is None:
            with self.lock:
                if self.run is None:
                    self.run = self.prepared()
        return self.run(inputs)

    def prepared(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Compile a graph, in partitions if it has unsupported operators."""
        if not self.without:
            return NativeGraph(self.graph, self.weights, self.threads, self.cache)
        if self.refuse:
            raise refusal(self.without)
        warn_of(self.without)
        whole = split(self.graph, self.without)
        for name, part in list(whole.named_children()):
            if not (isinstance(part, fx.GraphModule) and name.startswith(PREFIX)):
                continue
            if not untaken(part):
                whole.add_submodule(name, _Part(NativeGraph(part, (), self.threads, self.cache)))
        return lambda inputs: list(whole(*inputs))


def tables(graph: fx.GraphModule, weights: Sequence[int]) -> set[int]:
    """The weights used only as lookup tables indexed by inputs. There is nothing to pack: as inputs
    they need no second copy, and no checks for changes."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    given = set(inputs).difference(inputs[at] for at in weights)
    for node in graph.graph.nodes:  # in topological order: includes derived values
        if not given.isdisjoint(node.all_input_nodes):
            given.add(node)
    found = set()
    for at in weights:
        users, value = inputs[at].users, inputs[at].meta.get("val")
        if isinstance(value, torch.Tensor) and value.is_contiguous() and users:
            rows = (_chosen_rows(user, inputs[at]) for user in users)
            if all(chosen in given for chosen in rows):
                found.add(at)
    return found


def _chosen_rows(node: fx.Node, table: fx.Node) -> fx.Node | None:
    """The indices of a lookup in `table`."""
    if node.target is not torch.ops.aten.embedding.default or node.args[0] is not table:
        return None
    chosen = node.args[1]
    return chosen if isinstance(chosen, fx.Node) and chosen is not table else None


class _Part(torch.nn.Module):
    """A native partition, in place of its submodule."""

    def __init__(self, native: NativeGraph) -> None:
        super().__init__()
        self.native = native
        self.single = native.single

    def forward(self, *inputs: Any) -> Any:
        made = self.native(inputs)
        return made[0] if self.single else tuple(made)


class NativeGraph:
    """A graph without unsupported operators."""

    compilations: ClassVar[int] = 0  # in this process, over all graphs

    def __init__(
        self, graph: fx.GraphModule, weights: Sequence[int], threads: int, cache: bool
    ) -> None:
        self.graph, self.threads, self.cache = graph, threads, cache
        looked_up = tables(graph, weights)
        self.candidates = tuple(at for at in weights if at not in looked_up)
        self.packings = 0
        self.lock = threading.Lock()
        self.state: tuple[FlatGraph, Module | None, Weights] | None = None
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        self.single = isinstance(output.args[0], fx.Node)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        state = self.state
        if state is None or not state[2].are_same(inputs):
            state = self.compiled(inputs)
        flat, module, _ = state
        if module is None:
            return flat.results(inputs, [])
        threads = self.threads or torch.get_num_threads()
        return flat.results(inputs, called(module, flat.arguments(inputs), threads))

    def compiled(self, inputs: Sequence[Any]) -> tuple[FlatGraph, Module | None, Weights]:
        """Compile for these weights; those that keep changing become inputs."""
        with self.lock:
            if self.state is not None and self.state[2].are_same(inputs):
                return self.state
            self.packings += 1
            NativeGraph.compilations += 1
            kept = self.candidates if self.packings <= MAX_PACKINGS else ()
            weights = Weights(kept, inputs)
            flat = import_graph(self.graph, weights.arrays)
            threads = self.threads or torch.get_num_threads()
            module = None
            if flat.module is not None:
                module = compile(flat.module, threads=threads, cache=self.cache)
            self.state = (flat, module, weights)
            return self.state
