"""Call a compiled model with tensors, in the structure of the model's own arguments and results.

Tensors are passed by DLPack: contiguous ones are not copied.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.dlpack import from_dlpack

from tilewright.base.errors import UserTypeError
from tilewright.frontends.torch import on_gpu
from tilewright.frontends.torch.tensors import array_of, tensor_of
from tilewright.runtime import _native
from tilewright.runtime.array import Array
from tilewright.runtime.cuda import DeviceArray
from tilewright.runtime.module import Module, lendable
from tilewright.runtime.pool import checked_threads
from tilewright.runtime.stateful import CURRENT, StatefulModule


@dataclass
class Structure:
    """The mapping of a model's flattened arguments and results to those of the compiled module."""

    in_spec: Any  # of (args, kwargs)
    out_spec: Any
    inputs: list[str] = field(default_factory=list)
    # Of each flattened argument: which input it is, or None where it is a constant of the trace.
    order: list[int | None] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)  # by place among the arguments
    # Buffers that calls change: states, in the model's own memory.
    states: dict[str, torch.Tensor] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # of results
    # Of each flattened result: ("tensor", "complex" or "number", which result), or ("constant", a
    # value).
    results: list[tuple[str, Any]] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)  # inputs, by which results

    def restored(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The results of a compiled module in the structure of the model."""
        made: list[Any] = []
        for kind, which in self.results:
            if kind == "constant":
                made.append(which)
            elif kind == "complex":
                made.append(torch.view_as_complex(tensors[which]))
            else:
                made.append(tensors[which].item() if kind == "number" else tensors[which])
        return pytree.tree_unflatten(made, self.out_spec)


def as_input(value: Any) -> Any:
    """An argument as the runtime takes it."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach() if value.requires_grad else value
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        if tensor.is_neg():
            tensor = tensor.resolve_neg()
        return tensor if tensor.is_contiguous() else tensor.contiguous()
    return value


# Tensors without a capsule each, nor an array of ours.
EXCHANGE = _native.Exchange(torch.Tensor)


def called(module: Module, values: Sequence[Any], threads: int) -> Sequence[torch.Tensor]:
    """The results, as tensors, for inputs from `as_lent`."""
    made = module.call_exchanged(EXCHANGE, values, threads)
    if made is not None:
        return made
    return [as_tensor(each) for each in module(*map(as_input, values), threads=threads)]


def as_lent(value: Any) -> Any:
    """An argument as the runtime borrows it, with any strides."""
    if not isinstance(value, torch.Tensor):
        return lendable(value)
    if value.is_complex():
        value = torch.view_as_real(value.detach().resolve_conj())
    return value.resolve_neg()


def as_tensor(array: Array) -> torch.Tensor:
    """A result as a tensor that shares its memory."""
    if isinstance(array, DeviceArray):
        return on_gpu.as_tensor(array)
    made: torch.Tensor = from_dlpack(array._export(False))
    return made


class TorchModule(Module):
    """A compiled model that is called as the PyTorch model was.

    Buffers that calls change are the model's own, as in eager: `states` by their names, which
    `reset` brings back to what they were at first. Calls that change any come one after the other.
    """

    def __init__(self, inner: Module, structure: Structure) -> None:
        self.inner = inner
        self.device, self.is_on_gpu = inner.device, "stream" in inner.call_options
        if self.is_on_gpu:  # states are copies of the model's buffers there
            moved = {name: state.to(on_gpu.place()) for name, state in structure.states.items()}
            structure = replace(structure, states=moved)
        self.structure = structure
        self.inputs, self.outputs = inner.inputs, inner.outputs
        self.threads, self.fallbacks = inner.threads, inner.fallbacks
        self.timings, self.choices = inner.timings, inner.choices
        self._runtime = inner._runtime

    @property
    def flat(self) -> Module:
        return self.inner

    @property
    def inside(self) -> Any:
        """What the module was compiled from."""
        return self.inner.inside  # type: ignore[attr-defined]

    @property
    def tuning(self) -> Any:
        """The outcome of tuning, if it was requested."""
        return self.inner.tuning  # type: ignore[attr-defined]

    def __call__(
        self, *args: Any, threads: int = 0, out: Sequence[Any] | None = None, **named: Any
    ) -> Any:
        """The results, as the model itself gives them; with `out`, tensors in order.

        A model on a GPU runs on PyTorch's current stream, or on `stream`, the handle of one."""
        threads = checked_threads(threads)
        stream = named.pop("stream", None) if self.is_on_gpu else None
        given = self._flattened(args, named)
        targets = None if out is None else [as_input(each) for each in out]
        if self.is_on_gpu:
            tensors = self._run_on_gpu(given, targets, stream)
        else:
            tensors = self._run(given, threads, targets)
        if out is not None and targets is not None:
            for each, target in zip(out, targets, strict=True):
                if each.data_ptr() != target.data_ptr():  # it was not contiguous
                    each.detach().copy_(target)
            return tuple(out)
        for which, result in self.structure.changes:
            given[which].detach().copy_(tensors[result])
        return self.structure.restored(tensors)

    def _run(
        self, given: Sequence[Any], threads: int, out: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """The results as tensors, or in what the caller gave for them."""
        if out is None and not isinstance(self.inner, StatefulModule):
            return called(self.inner, list(map(as_lent, given)), threads)
        values = list(map(as_input, given))
        if not isinstance(self.inner, StatefulModule):
            return self.inner(*values, threads=threads, out=out)
        kept = self.structure.states.values()
        states = [as_input(state) for state in kept]
        made = self.inner.call_on(states, values, threads, out)
        for state, written in zip(kept, states, strict=True):
            if written.data_ptr() != state.data_ptr():  # it was not contiguous
                state.detach().copy_(written)
            elif not state.is_inference():
                torch.autograd.graph.increment_version(state)
        return made if out is not None else [as_tensor(each) for each in made]

    def _run_on_gpu(
        self, given: Sequence[Any], out: Sequence[Any] | None, stream: int | None
    ) -> Sequence[torch.Tensor]:
        """The results as tensors there; states are updated in place."""
        values = list(map(as_input, given))
        if not isinstance(self.inner, StatefulModule):
            return on_gpu.called(lambda some, **how: self.inner(*some, **how), values, out, stream)
        states = list(self.states.values())
        kept = [on_gpu.shared(state.detach()) for state in states]
        run = functools.partial(self.inner.call_on, kept)
        tensors = on_gpu.called(run, values, out, stream)
        for state in states:
            if not state.is_inference():
                torch.autograd.graph.increment_version(state)
        return tensors

    @property
    def states(self) -> Mapping[str, torch.Tensor]:
        """The buffers that calls change."""
        return self.structure.states

    def reset(self) -> None:
        """Bring the states back to what they were when the model was compiled."""
        if isinstance(self.inner, StatefulModule):
            for state, begin in zip(self.states.values(), self.inner.begins, strict=True):
                state.detach().copy_(tensor_of(begin, state.dtype))

    def fork(self) -> TorchModule:
        """The same code and weights with states of its own, which begin as these are."""
        states = {name: state.detach().clone() for name, state in self.states.items()}
        inner = self.inner.fork() if isinstance(self.inner, StatefulModule) else self.inner
        return TorchModule(inner, replace(self.structure, states=states))

    def _flattened(self, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """The inputs of the compiled module; constants of the trace must be what they were."""
        structure = self.structure
        flat = self._leaves(args, named)
        given: list[Any] = []
        for at, (which, value) in enumerate(zip(structure.order, flat, strict=True)):
            if which is not None:
                given.append(value)
                continue
            want = structure.constants[at]
            if not isinstance(want, torch.Tensor) and value != want:
                raise UserTypeError(
                    "TW4045",
                    f"argument {at} is {value!r}, but the model was traced with {want!r}",
                    help="compile the model again with the new value",
                )
        return given

    def _leaves(self, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        structure = self.structure
        keys = structure.in_spec.child(1).context
        if sorted(keys) == sorted(named):
            named = {key: named[key] for key in keys}
        flat, spec = pytree.tree_flatten((args, named))
        if spec == structure.in_spec:
            return list(flat)
        if len(flat) == len(structure.order):  # all by position, or by name
            ordered = self._by_name(args, named)
            if ordered is not None:
                return ordered
        raise UserTypeError(
            "TW4044",
            "the arguments have another structure than those that the model was traced with",
            help=f"it takes {', '.join(structure.inputs)}",
        )

    def _by_name(self, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
        """Plain tensors, some by the names of inputs."""
        names = self.structure.inputs
        if len(names) != len(self.structure.order) or any(name not in names for name in named):
            return None
        flat = [*args, *(named[name] for name in names[len(args) :] if name in named)]
        return flat if len(flat) == len(names) else None

    @property
    def arena_bytes(self) -> int:
        return self.inner.arena_bytes

    def profile(self, *args: Any, **named: Any) -> Any:
        """Run once and tell how long each kernel took."""
        if not self.is_on_gpu:
            return super().profile(*args, **named)
        stream = named.pop("stream", None)
        given = self._flattened(args, named)
        found: list[Any] = []

        def run(values: Sequence[Any], stream: int, **how: Any) -> Sequence[Any]:
            found.append(self.inner.profile(*values, stream=stream))
            return ()

        on_gpu.called(run, list(map(as_input, given)), None, stream)
        return found[0]

    def save(
        self,
        path: str | Path,
        name: str = "",
        sizes: Mapping[str, Sequence[int]] | None = None,
        *,
        states: str = "initial",
    ) -> Path:
        """Write the model as a file. States begin there as they were when it was compiled; with
        `states="current"`, as they are.

        One for a GPU has the dynamic sizes that are named, `sizes={"batch": [1, 8]}`; others have
        all."""
        how: dict[str, Any] = {} if sizes is None or not self.is_on_gpu else {"sizes": sizes}
        if not isinstance(self.inner, StatefulModule):
            return self.inner.save(path, name, **how)
        current = self.states.values() if states == CURRENT else ()
        kept = [array_of(as_input(state.cpu())) for state in current]
        return self.inner.save_with(kept, path, name, states, **how)
