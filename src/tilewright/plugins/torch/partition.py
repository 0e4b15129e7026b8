"""Partition graphs with unsupported operators into native subgraphs and PyTorch operators."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tilewright.base.errors import Unsupported

PREFIX = "native_"  # prefix of native submodules' names
SHOWN = 12  # operators named in a warning; the others are counted
# These draw from PyTorch's generator, whose state a call must advance.
RANDOM = (
    *("rand", "randn", "randperm", "randint", "bernoulli", "native_dropout", "rand_like"),
    *("randn_like", "randint_like", "multinomial", "normal", "exponential", "uniform"),
)


def is_random(node: fx.Node) -> bool:
    """Whether a node uses the random generator."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._schema.name.removeprefix("aten::")
    if name in RANDOM:
        return True
    return torch.Tag.nondeterministic_seeded in node.target.tags and _may_drop(node)


UNUSED = {"dropout_p": 0.0, "training": False}  # with these values nothing is drawn


def _may_drop(node: fx.Node) -> bool:
    """Whether an operator with a dropout probability, such as attention, uses it."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for at, argument in enumerate(node.target._schema.arguments):
        if argument.name in UNUSED:
            unused = UNUSED[argument.name]
            given = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name, unused)
            return not isinstance(given, (int, float)) or given != unused
    return True


class _NativeSupport(OperatorSupportBase):
    """Nodes with native code."""

    def __init__(self, without: Mapping[fx.Node, str]) -> None:
        self.without = {node.name for node in without}

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return node.op == "call_function" and node.name not in self.without


def split(module: fx.GraphModule, without: Mapping[fx.Node, str]) -> fx.GraphModule:
    """Move native subgraphs to submodules with names that begin with PREFIX."""
    partitioner = CapabilityBasedPartitioner(
        module, _NativeSupport(without), allows_single_node_partition=True
    )
    made: fx.GraphModule = partitioner.partition_and_fuse(PREFIX)
    return made


def names_of(without: Mapping[fx.Node, str]) -> tuple[str, ...]:
    """The distinct operators of nodes."""
    return tuple(dict.fromkeys(str(node.target) for node in without))


def warn_of(without: Mapping[fx.Node, str]) -> None:
    """Warn once about operators that PyTorch runs."""
    names = names_of(without)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    warnings.warn(
        f"tilewright has no code for {', '.join(names[:SHOWN])}{more}: PyTorch runs these",
        stacklevel=2,
    )


def refusal(without: Mapping[fx.Node, str]) -> Unsupported:
    """The same as an error."""
    reasons = dict.fromkeys(without.values())
    return Unsupported(
        "TW1101",
        "the graph needs what is not supported: " + "; ".join(reasons),
        help='options={"fallback": "eager"} lets PyTorch run these',
    )
