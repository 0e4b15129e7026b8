"""An exported program run by PyTorch itself, to measure beside a compiled model.

run = program_run("net.pt2", arrays, threads=2, is_compiled=True)
run()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument
from torch.utils import _pytree as pytree

from tilewright.frontends.torch.tensors import tensor_of


def program_run(
    path: str, arrays: Sequence[Any], threads: int, *, is_compiled: bool
) -> Callable[[], Any]:
    """A function that runs a program eagerly, or as inductor compiles it, on the inputs of the
    compiled model in their order."""
    program = torch.export.load(path)
    args, kwargs = _arguments(program, arrays)
    model: Any = program.module()
    run = torch.compile(model) if is_compiled else model

    def call() -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        try:
            with torch.no_grad():
                return run(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return call


def _arguments(program: torch.export.ExportedProgram, arrays: Sequence[Any]) -> Any:
    """The arguments of a program, (args, kwargs), with arrays for its tensors."""
    left = iter(arrays)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    flat: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            continue
        if isinstance(spec.arg, ConstantArgument):
            flat.append(spec.arg.value)
        elif isinstance(spec.arg, TensorArgument):
            flat.append(_tensor(next(left), values[spec.arg.name].dtype))
        else:  # a number that is an input
            flat.append(np.asarray(next(left)).item())
    in_spec = program.call_spec.in_spec
    assert in_spec is not None
    return pytree.tree_unflatten(flat, in_spec)


def _tensor(value: Any, of: torch.dtype) -> torch.Tensor:
    if of.is_complex:  # pairs inside
        return torch.view_as_complex(torch.from_numpy(np.array(value)))
    return tensor_of(np.array(value), of)
