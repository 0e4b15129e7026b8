"""Graphs of which some operators have no code: native parts, and PyTorch for what lies between."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tilewright.base.errors import Unsupported

PREFIX = "native_"  # of the names of native stretches
SHOWN = 12  # operators named in a warning; the others are counted
# PyTorch draws these from its own generator, whose state a call must advance.
RANDOM = (
    *("rand", "randn", "randperm", "randint", "bernoulli", "native_dropout", "rand_like"),
    *("randn_like", "randint_like", "multinomial", "normal", "exponential", "uniform"),
)


def is_random(node: fx.Node) -> bool:
    """Whether a node draws numbers."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._schema.name.removeprefix("aten::")
    if name in RANDOM:
        return True
    return torch.Tag.nondeterministic_seeded in node.target.tags and _drops(node)


def _drops(node: fx.Node) -> bool:
    """Whether an operator that may drop elements, such as attention, does so."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for at, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return not isinstance(given, (int, float)) or given != 0
    return True


class _Native(OperatorSupportBase):
    """Nodes that have code."""

    def __init__(self, without: Mapping[fx.Node, str]) -> None:
        self.without = {node.name for node in without}

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return node.op == "call_function" and node.name not in self.without


def split(module: fx.GraphModule, without: Mapping[fx.Node, str]) -> fx.GraphModule:
    """The module with native stretches as submodules whose names begin with PREFIX."""
    partitioner = CapabilityBasedPartitioner(
        module, _Native(without), allows_single_node_partition=True
    )
    made: fx.GraphModule = partitioner.partition_and_fuse(PREFIX)
    return made


def names_of(without: Mapping[fx.Node, str]) -> tuple[str, ...]:
    """The operators among nodes, each once."""
    return tuple(dict.fromkeys(str(node.target) for node in without))


def warn_of(without: Mapping[fx.Node, str]) -> None:
    """Say once which operators PyTorch itself runs."""
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
