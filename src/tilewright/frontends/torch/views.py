"""Outputs of a graph that view an input or another result: PyTorch itself takes the view again.

So they share memory with what they view, and have the strides that they have in eager. What a chain
of views begins with is its base: an input, or a node that computes something.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx


def base_of(node: fx.Node) -> fx.Node:
    """What a node views, through views whose arguments a call can work out; else the node."""
    at = node
    while True:
        source = _viewed_by(at)
        if source is None:
            return at
        at = source


def _viewed_by(node: fx.Node) -> fx.Node | None:
    """What one view is taken of."""
    if node.op != "call_function" or not node.args:
        return None
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return None
    if node.target is operator.getitem:  # of several views, such as a split gives
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


def taken_again(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    """A view of what is known, by PyTorch."""
    if node in known:
        return known[node]
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: taken_again(n, known))
    assert callable(node.target)
    return node.target(*args, **kwargs)
