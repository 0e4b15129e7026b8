"""The torch.compile backend, registered as an entry point.

    compiled = torch.compile(model, backend="tilewright")
    compiled = torch.compile(model, backend="tilewright", options={"fallback": "error"})

Dynamo traces graphs of PyTorch calls. AOTAutograd makes them functional, splits differentiable ones
into a forward and a backward graph, and decomposes composite operators; each resulting graph of
ATen operators becomes a `CompiledGraph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import SubclassCreationMeta
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from tilewright.base.errors import Unsupported, UserError
from tilewright.frontends.torch.decompositions import under_autograd
from tilewright.frontends.torch.recurrent import keep_whole
from tilewright.plugins.torch.graphs import CompiledGraph
from tilewright.plugins.torch.report import note

EAGER, ERROR = "eager", "error"


@dataclass(frozen=True)
class Options:
    """The `options=` of torch.compile."""

    fallback: str = EAGER  # operators without native code: run by PyTorch, or rejected
    threads: int = 0  # 0: as many as PyTorch uses
    freeze: bool = True  # pack inference weights once, and again when they change
    cache: bool = True  # keep kernels on disk


def options_of(given: Mapping[str, Any] | None) -> Options:
    """Validate options."""
    known = {each.name for each in fields(Options)}
    for name in given or {}:
        if name not in known:
            raise UserError(
                "TW6010", f"the backend has no option {name!r}", help=f"known: {sorted(known)}"
            )
    made = Options(**(given or {}))
    if made.fallback not in (EAGER, ERROR):
        raise UserError(
            "TW6010", f"fallback cannot be {made.fallback!r}", help=f"use {EAGER!r} or {ERROR!r}"
        )
    return made


def tilewright(
    module: fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph traced by Dynamo."""
    if mode not in (None, "default"):
        raise UserError("TW6010", f"the backend has no mode {mode!r}", help="leave it out")
    chosen = options_of(options)
    check_devices((*examples, *module.parameters(), *module.buffers()))
    if not torch.is_grad_enabled():
        keep_whole(module)

    bare: list[CompiledGraph] = []  # without AOTAutograd's wrapper

    def compiler(*, inference: bool) -> Callable[..., Any]:
        def compile(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            about = metadata()
            frozen = inference and chosen.freeze and about is not None
            weights = tuple(about.static_input_indices) if frozen else ()
            made = CompiledGraph(
                graph,
                weights,
                refuse=chosen.fallback == ERROR,
                threads=chosen.threads,
                cache=chosen.cache,
            )
            note(made)
            if inference and not made.without and len(inputs) == len(examples) and is_bare(about):
                bare.append(made)
            return make_boxed_func(made)

        return compile

    wrapped = aot_module_simplified(
        module,
        examples,
        fw_compiler=compiler(inference=False),
        bw_compiler=untraced(compiler(inference=False)),
        inference_compiler=compiler(inference=True),
        decompositions=under_autograd(),
        partition_fn=min_cut_rematerialization_partition,
    )
    return bare[0] if bare else wrapped


def check_devices(tensors: Sequence[Any]) -> None:
    """Check that all tensors of a graph are on the CPU."""
    for each in tensors:
        if isinstance(each, torch.Tensor) and each.device.type != "cpu":
            raise Unsupported(
                "TW1121",
                f"a tensor of the graph is on {each.device}; torch.compile runs on CPUs only",
                help="move model and inputs to the CPU, or compile ahead of time: "
                'tw.compile(model, target="cuda", args=...)',
            )


def untraced(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler of backward graphs. Where a compiled function calls backward(), Dynamo would trace
    the compiler, and what it makes."""

    def compile(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return torch._dynamo.disable(torch._dynamo.disable(compiler)(graph, inputs))

    return compile


def metadata() -> Any:
    """AOTAutograd's metadata of the graph being compiled: static inputs, mutations, aliases."""
    context = torch._guards.TracingContext.try_get()
    return None if context is None else context.fw_metadata


def is_bare(about: Any) -> bool:
    """Whether an inference graph needs no wrapper by AOTAutograd: no input is mutated, no output
    aliases another tensor, there are no tensor subclasses."""
    if about is None:
        return False
    changed = any(each.mutates_data or each.mutates_metadata for each in about.input_info)
    tensors = (*about.subclass_inp_meta, *about.subclass_fw_graph_out_meta)
    return not (
        changed
        or about.num_outputs_aliased
        or about.num_intermediate_bases
        or about.tokens
        or about.dynamic_outputs
        or about.is_rng_op_functionalized
        or about.grad_enabled_mutation is not None
        or any(isinstance(each, SubclassCreationMeta) for each in tensors)
    )
