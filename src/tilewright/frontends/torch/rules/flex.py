"""Attention with scores and masks that a program computes: flex_attention and its gradient.

PyTorch has a dense form of both, which takes what modifies scores as functions of single numbers.
That form is traced again here, on the fake tensors of the node, and its operators are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import sdpa_dense, sdpa_dense_backward
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.decompositions import under_autograd
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.control import inlined
from tilewright.graph import Value


def _traced(function: Callable[..., Any]) -> Rule:
    """A higher-order operator by the operators of the function that defines it."""

    def rule(node: Context) -> list[Value | None]:
        given, spec = pytree.tree_flatten(tuple(node.args.values()))
        fakes, _ = pytree.tree_flatten(tuple(node.raw.values()))
        places = [at for at, each in enumerate(given) if isinstance(each, Value)]
        values = [given[at] for at in places]

        def run(*tensors: torch.Tensor) -> Any:
            filled = list(given)
            for at, tensor in zip(places, tensors, strict=True):
                filled[at] = tensor
            return function(*pytree.tree_unflatten(filled, spec))

        examples = [fakes[at] for at in places]
        with examples[0].fake_mode:
            module = make_fx(functionalize(run), decomposition_table=under_autograd())(*examples)
        body = node.importer.body(module, [value.tensor for value in values], node.builder)
        if node.importer.problems:
            raise Skip(f"{node.op_type} with what is not supported")
        return list(inlined(node, body, values))

    return rule


RULES: dict[str, Rule] = {
    "flex_attention": _traced(sdpa_dense),
    "flex_attention_backward": _traced(sdpa_dense_backward),
}
