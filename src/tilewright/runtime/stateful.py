"""A stateful compiled model, whose states are kept between calls and updated in place.

    model = compile(program)             whose last parameters are states
    model(x)                             reads and updates them
    model.states["h"]                    the state after the last call, an array
    model.reset()                        restore the initial states
    other = model.fork()                 the same code and weights, states of its own
    model.save("m.so", states="current") a file whose initial states are those of now

Calls of one module are serialized across threads. A call that fails may leave its states partly
updated: reset or overwrite them. States of a model on a GPU are arrays there, which keep their
addresses.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from tilewright.base.errors import UserError, UserTypeError
from tilewright.runtime.array import empty
from tilewright.runtime.module import Module, Spec, copy_outputs

State = np.ndarray[Any, Any]

CURRENT = "current"
SAVED = "initial", CURRENT  # what a file can begin with


class StateMemory(Protocol):
    """Where states are kept."""

    def copy_of(self, state: Any) -> Any: ...
    def set(self, state: Any, begin: State) -> None: ...
    def on_host(self, state: Any) -> State: ...


class HostStates:
    """States are NumPy arrays."""

    def copy_of(self, state: Any) -> Any:
        made = np.asarray(empty(state.shape, state.dtype))
        made[...] = state
        return made

    def set(self, state: Any, begin: State) -> None:
        state[...] = begin

    def on_host(self, state: Any) -> State:
        """A copy of a state."""
        return np.array(state, order="C")


class StatefulModule(Module):
    """A model with states.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import graph
        >>> program = graph.parse(
        ...     "module stage imported states (f32[2](0.0, 0.0)) {"
        ...     " graph @main(%x: f32[2], %sum: f32[2]) {"
        ...     "  %y = add(%x, %sum) %z = neg(%y) return %z, %y } }"
        ... )
        >>> model = tw.compile(program, threads=1)
        >>> [np.asarray(model(np.ones(2, np.float32))[0]).tolist() for _ in range(2)]
        [[-1.0, -1.0], [-2.0, -2.0]]
        >>> model.states["sum"].tolist()
        [2.0, 2.0]
        >>> model.reset()
        >>> model.states["sum"].tolist()
        [0.0, 0.0]
    """

    def __init__(
        self,
        inner: Module,
        begins: Sequence[State],
        kept: Sequence[Spec],
        outputs: int,
        memory: StateMemory | None = None,
    ) -> None:
        """`begins` (initial values) and `kept` describe the last inputs of `inner`. Its outputs
        beyond `outputs` replace states that it does not update in place."""
        self.inner, self.begins, self.kept = inner, tuple(begins), tuple(kept)
        self.memory = memory or HostStates()
        self.inputs = inner.inputs[: len(inner.inputs) - len(self.kept)]
        self.outputs = inner.outputs[:outputs]
        self.device, self.call_options = inner.device, inner.call_options
        self.threads, self.fallbacks = inner.threads, inner.fallbacks
        self.timings, self.manifest = inner.timings, inner.manifest
        self._runtime = inner._runtime
        self._names = {spec.name: at for at, spec in enumerate(self.inputs)}
        self._lock = threading.RLock()
        self._states: Mapping[str, Any] | None = None  # none before they are needed

    @property
    def states(self) -> Mapping[str, Any]:
        """The states after the last call: arrays of NumPy, or on the GPU that the model runs on."""
        with self._lock:
            if self._states is None:
                self._states = {
                    spec.name: self.memory.copy_of(begin)
                    for spec, begin in zip(self.kept, self.begins, strict=True)
                }
            return self._states

    def reset(self) -> None:
        """Restore the initial states."""
        with self._lock:
            for state, begin in zip(self.states.values(), self.begins, strict=True):
                self.memory.set(state, begin)

    def fork(self) -> Self:
        """Another instance of the model, with a copy of the current states."""
        made = type(self)(self.inner, self.begins, self.kept, len(self.outputs), self.memory)
        with self._lock:
            if self._states is not None:
                copies = {name: self.memory.copy_of(each) for name, each in self._states.items()}
                made._states = copies
        return made

    def __call__(
        self, *args: Any, threads: int = 0, out: Sequence[Any] | None = None, **named: Any
    ) -> Any:
        """Run the model and update its states. One on a GPU also takes `stream`."""
        how = {key: named.pop(key) for key in self.call_options if key in named}
        given = self._in_order(args, named) if named else args
        return self.call_on(tuple(self.states.values()), given, threads, out, **how)

    def call_on(
        self,
        states: Sequence[Any],
        given: Sequence[Any],
        threads: int = 0,
        out: Sequence[Any] | None = None,
        **how: Any,
    ) -> tuple[Any, ...]:
        """Run with the caller's states: writable, contiguous arrays."""
        if len(given) != len(self.inputs):
            raise UserTypeError(
                "TW4009", f"the model takes {len(self.inputs)} inputs, got {len(given)}"
            )
        with self._lock:
            count = len(self.outputs)
            if len(self.inner.outputs) == count:
                return tuple(self.inner(*given, *states, threads=threads, out=out, **how))
            made = tuple(self.inner(*given, *states, threads=threads, **how))
            for state, new in zip(states, made[count:], strict=False):
                np.asarray(state)[...] = np.asarray(new)
        return made[:count] if out is None else copy_outputs(self.outputs, out, made[:count])

    @property
    def inside(self) -> Any:
        """What the module was made from, where it was compiled in this process."""
        return self.inner.inside  # type: ignore[attr-defined]

    @property
    def tuning(self) -> Any:
        """The outcome of tuning, if the model was tuned."""
        return self.inner.tuning  # type: ignore[attr-defined]

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def arena_bytes(self) -> int:
        return self.inner.arena_bytes

    def profile(self, *args: Any, **named: Any) -> Any:
        """Run once and return the time of each kernel; on a GPU the states stay as they are."""
        if isinstance(self.memory, HostStates):
            return super().profile(*args, **named)
        how = {key: named.pop(key) for key in self.call_options if key in named}
        given = self._in_order(args, named) if named else args
        with self._lock:
            states = [self.memory.copy_of(state) for state in self.states.values()]
            return self.inner.profile(*given, *states, **how)

    def save(
        self, path: str | Path, name: str = "", *, states: str = "initial", **options: Any
    ) -> Path:
        """Save the model. Loaded, it starts from the initial states; with `states="current"`, from
        those that the last call left, which `reset` then restores. `options` are those of the
        model without states: `sizes` of one for a GPU."""
        kept = tuple(self.states.values()) if states == CURRENT else ()
        return self.save_with(kept, path, name, states, **options)

    def save_with(
        self, states: Sequence[Any], path: str | Path, name: str, which: str, **options: Any
    ) -> Path:
        """Save the model with the initial or with the caller's states."""
        if which not in SAVED:
            raise UserError(
                "TW4056",
                f"states={which!r} is none of the states that can be saved",
                help=f"choose one of {', '.join(map(repr, SAVED))}",
            )
        if len(self.inner.outputs) != len(self.outputs):
            raise UserError(
                "TW4055",
                f"cannot write {Path(path).name}: the model has states that Python keeps",
                help="compile it for a CPU, without operators that the interpreter runs",
            )
        if which != CURRENT:
            return self.inner.save(path, name, **options)
        with self._lock:
            copies = [self.memory.on_host(state) for state in states]
        return self.inner.save_beginning(path, name, copies, **options)
