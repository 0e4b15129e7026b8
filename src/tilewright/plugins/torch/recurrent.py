"""Keep recurrent layers as single operators under torch.compile.

Dynamo breaks a graph at them unless `torch._dynamo.config.allow_rnn` is set; then AOTAutograd would
unroll them for the length of the example. In inference they are replaced by opaque custom operators
with the same signature. Where the graph around them cannot be native, these call PyTorch's
implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
LIBRARY: Any = torch.library.Library("tilewright", "DEF")  # type: ignore[no-untyped-call]


def _declare(kind: str) -> Any:
    """Define a custom operator like ATen's: (input, hx, params, ...) -> (output, *states)."""
    own = getattr(torch.ops.aten, kind).input
    schema = str(own._schema).removeprefix("aten::").replace(".input", "", 1)
    LIBRARY.define(schema)
    LIBRARY.impl(kind, lambda *args: own(*args), "CPU")
    torch.library.register_fake(f"tilewright::{kind}", _shapes(kind), lib=LIBRARY)
    return getattr(torch.ops.tilewright, kind).default


def _shapes(kind: str) -> Callable[..., Any]:
    def fake(
        given: torch.Tensor,
        hx: Any,
        params: list[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        states = hx if kind == "lstm" else [hx]
        width = states[0].shape[-1] * (2 if bidirectional else 1)
        output = given.new_empty((*given.shape[:-1], width))
        return output, *(state.new_empty(state.shape) for state in states)

    return fake


OPERATORS = {kind: _declare(kind) for kind in KINDS}
_CALLS = {getattr(torch._VF, kind): kind for kind in KINDS}  # the functions that Dynamo traces


def keep_whole(module: fx.GraphModule) -> None:
    """Replace the recurrent layers of a graph by custom operators, except those of packed
    sequences."""
    found = [node for node in module.graph.nodes if node.target in _CALLS and not _is_packed(node)]
    for node in found:
        node.target = OPERATORS[_CALLS[node.target]]
    if found:
        module.recompile()


def _is_packed(node: fx.Node) -> bool:
    """Whether the second argument of a call is `batch_sizes`."""
    return len(node.args) > 3 and not isinstance(node.args[3], bool)
