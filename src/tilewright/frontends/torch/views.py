"""Outputs of a graph that are views of an input or another result: PyTorch recreates the views.

They then share memory with their base, and have the strides of eager mode. The base of a chain of
views is an input, or a node that computes something.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


def base_of(node: fx.Node) -> fx.Node:
    """The base of a chain of views whose arguments are known at each call; otherwise the node."""
    at = node
    while True:
        source = _viewed_by(at)
        if source is None:
            return at
        at = source


def _viewed_by(node: fx.Node) -> fx.Node | None:
    """The source of one view."""
    if node.op != "call_function" or not node.args:
        return None
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return None
    if node.target is operator.getitem:  # one of several views, as of a split
        return source if _is_view(source) else None
    return source if _is_view(node) and _are_sizes(node, source) else None


def _is_view(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.is_view


def _are_sizes(node: fx.Node, source: fx.Node) -> bool:
    return all(_is_size(each) for each in node.all_input_nodes if each is not source)


def _is_size(node: fx.Node) -> bool:
    """Whether a node is a number that follows from sizes of inputs."""
    if node.op == "placeholder":
        return True
    if node.op != "call_function" or not isinstance(node.meta.get("val"), (int, torch.SymInt)):
        return False
    return all(_is_size(each) for each in node.all_input_nodes)


# Methods take a quarter of the time that the same operators take.
METHODS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.alias.default: lambda x: x.view(x.shape),
    torch.ops.aten.expand.default: torch.Tensor.expand,
    torch.ops.aten.permute.default: torch.Tensor.permute,
    torch.ops.aten.t.default: torch.Tensor.t,
    torch.ops.aten.transpose.int: torch.Tensor.transpose,
    torch.ops.aten.unsqueeze.default: torch.Tensor.unsqueeze,
    torch.ops.aten.view.default: torch.Tensor.view,
}


@dataclass(frozen=True)
class Step:
    """A view that is recreated by each call, from its source and possibly sizes."""

    node: fx.Node
    take: Callable[..., Any]

    @staticmethod
    def of(node: fx.Node) -> Step:
        assert callable(node.target)
        return Step(node, METHODS.get(node.target, node.target))

    def taken(self, known: Mapping[fx.Node, Any]) -> Any:
        source, *rest = self.node.args
        if isinstance(source, fx.Node) and len(self.node.all_input_nodes) == 1:
            return self.take(known[source], *rest, **self.node.kwargs)
        args, kwargs = fx.map_arg((self.node.args, self.node.kwargs), known.__getitem__)
        return self.take(*args, **kwargs)


def steps_to(nodes: Iterable[fx.Node], known: Container[fx.Node]) -> tuple[Step, ...]:
    """The views to recreate for some nodes, in order."""
    found: dict[fx.Node, Step] = {}

    def need(node: fx.Node) -> None:
        if node in known or node in found:
            return
        for each in node.all_input_nodes:
            need(each)
        found[node] = Step.of(node)

    for node in nodes:
        need(node)
    return tuple(found.values())
