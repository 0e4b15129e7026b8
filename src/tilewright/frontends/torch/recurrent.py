"""Keep recurrent layers as single operators, of any length.

PyTorch unrolls them for the length of the example. In inference they are replaced by opaque custom
operators with the same signature: while torch.export traces a model, and in the graphs of Dynamo,
which breaks them at recurrent layers unless `torch._dynamo.config.allow_rnn` is set. Where the
graph around them cannot be native, these call PyTorch's implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

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
    calls = (node for node in module.graph.nodes if node.target in _CALLS)
    found = [node for node in calls if not _is_packed(node.args)]
    for node in found:
        node.target = OPERATORS[_CALLS[node.target]]
    if found:
        module.recompile()


def kept_whole(model: torch.nn.Module) -> AbstractContextManager[Any]:
    """A context in which the recurrent layers of a model call custom operators."""
    has_any = any(isinstance(each, torch.nn.RNNBase) for each in model.modules())
    return _Whole() if has_any else nullcontext()


class _Whole(TorchFunctionMode):
    """Redirects calls of recurrent layers, except those of packed sequences."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kind = None if kwargs else _CALLS.get(func)
        if kind is not None and not _is_packed(args):
            return OPERATORS[kind](*args)
        return func(*args, **(kwargs or {}))


def _is_packed(args: Sequence[Any]) -> bool:
    """Whether the second argument of a call is `batch_sizes`."""
    return len(args) > 3 and not isinstance(args[3], bool)
