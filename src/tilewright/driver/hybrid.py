"""Models with parts that the interpreter runs: strings, images, sequences.

One native main runs the model and calls back for those parts (`driver/foreign_parts.py`), which the
NumPy references of the operators compute. `fallbacks` names these operators. Objects that native
code cannot hold pass through main as handles: integers that identify an object of the call.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import TilewrightError, UserError
from tilewright.driver.parts import CLOSING, INPUTS, OUTPUTS, Closing, Parts, part_name
from tilewright.graph.interp import Calls, Interpreter, straight_line
from tilewright.graph.ir import Graph, Value
from tilewright.graph.types import is_tensor, tensor_of
from tilewright.runtime import module as runtime
from tilewright.runtime.array import Array
from tilewright.runtime.module import Spec
from tilewright.runtime.profiler import Record

Runner = Callable[..., Sequence[Any]]  # from a part's arguments to its results

FAILED = 1  # returned by a callback; the exception is kept in Python


class DLTensor(ctypes.Structure):
    """The struct of native/dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_TENSORS = ctypes.POINTER(ctypes.POINTER(DLTensor))
_SIZES = ctypes.POINTER(ctypes.c_int64)
# tw_run_part and tw_fetch_part of native/tilewright.h
_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, _TENSORS, ctypes.c_int32, _SIZES, _SIZES
)
_FETCH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, _TENSORS, ctypes.c_int32)


@dataclass
class _Run:
    """The state of one call in flight."""

    # by handle: the object, and the part that made it
    objects: dict[int, tuple[Any, int]] = field(default_factory=dict)
    count: int = 0  # handles given out
    results: tuple[Any, ...] = ()  # of the part that ran last
    error: BaseException | None = None

    def handle(self, value: Any, part: int = -1) -> int:
        """A new handle for an object that a part, or the caller, provides."""
        self.count += 1
        self.objects[self.count] = value, part
        return self.count

    def object(self, handle: int) -> Any:
        return self.objects[handle][0]

    def free(self, handle: int, part: int) -> None:
        """Free an object, if this part made it."""
        if self.objects[handle][1] == part:
            del self.objects[handle]


class _Callbacks:
    """Runs parts when main calls back, on the thread that called the model."""

    def __init__(self, parts: Parts, runners: Mapping[int, Runner]) -> None:
        self.parts = parts
        self.runners = runners
        self.graphs = [parts.module.graphs[part_name(at)] for at in range(len(parts.parts))]
        self.calls: Calls = {}
        self.straight = [straight_line(parts.module, graph) for graph in self.graphs]
        self.takes = [[_element(value) for value in graph.params] for graph in self.graphs]
        self.gives = [
            [(_element(value), value) for value in graph.results[part.tells :]]
            for graph, part in zip(self.graphs, parts.parts, strict=True)
        ]
        self._mine = threading.local()
        self._run = _RUN(self._run_part)
        self._fetch = _FETCH(self._fetch_part)

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of the two callbacks; valid as long as this object lives."""
        run, fetch = (ctypes.cast(one, ctypes.c_void_p).value for one in (self._run, self._fetch))
        return run or 0, fetch or 0

    @property
    def stack(self) -> list[_Run]:
        """The calls in flight on this thread: a reference implementation may itself call a
        model."""
        found: list[_Run] | None = getattr(self._mine, "stack", None)
        if found is None:
            found = self._mine.stack = []
        return found

    def _run_part(
        self, context: Any, number: int, inputs: Any, count: int, sizes: Any, defined: Any
    ) -> int:
        run = self.stack[-1]
        try:
            graph, part = self.graphs[number], self.parts.parts[number]
            args = []
            for at, of in enumerate(self.takes[number][:count]):
                if of is None:
                    args.append(run.object(_handle(inputs[at].contents).value))
                    continue
                # a copy, since main reuses the memory; never of weights
                array = _array(inputs[at].contents, of)
                args.append(array if at in part.weights else array.copy())
            for param in graph.params[count:]:
                (known,) = param.tensor.static_shape or ()
                args.append(np.array(sizes[:known], np.int64))
            straight = self.straight[number]
            if number in self.runners:
                results = tuple(self.runners[number](*args))
            elif straight is not None:
                results = straight(args)
            else:
                results = Interpreter(self.parts.module, calls=self.calls).run(graph, args)
            if part.tells:
                for at, size in enumerate(results[0].tolist()):
                    defined[at] = size
            run.results = results[part.tells :]
            for at, maker in part.ends:
                run.free(_handle(inputs[at].contents).value, maker)
        except BaseException as error:
            run.error = error
            return FAILED
        return 0

    def _fetch_part(self, context: Any, number: int, outputs: Any, count: int) -> int:
        run = self.stack[-1]
        try:
            gives = zip(self.gives[number], run.results, strict=True)
            for at, ((of, value), result) in enumerate(gives):
                if of is not None:
                    _fill(_array(outputs[at].contents, of), np.asarray(result), value)
                else:
                    _handle(outputs[at].contents).value = run.handle(result, number)
            run.results = ()
        except BaseException as error:
            run.error = error
            return FAILED
        return 0


class _Closing:
    """Runs the closing graph: computes a model's outputs from main's results."""

    def __init__(self, parts: Parts, closing: Closing) -> None:
        graph = parts.module.graphs[CLOSING]
        run = straight_line(parts.module, graph)
        if run is None:
            raise UserError("TW6007", f"@{CLOSING} asks for sizes that it does not know")
        self.run = run
        self.takes = [
            (at, is_tensor(param.type))
            for at, param in zip(closing.takes, graph.params, strict=True)
        ]
        self.gives = closing.gives
        self.has_numbers = any(_has_numbers(value) for value in graph.results)

    def __call__(self, made: tuple[Any, ...]) -> tuple[Any, ...]:
        results = self.run([np.asarray(made[at]) if of else made[at] for at, of in self.takes])
        every = made + (tuple(map(_as_array, results)) if self.has_numbers else results)
        return tuple([every[at] for at in self.gives])


def _has_numbers(value: Value) -> bool:
    """Whether callers get a numeric array for a value: not for strings or maps."""
    of = tensor_of(value.type)
    return of is not None and not of.dtype.is_str


def _handle(tensor: DLTensor) -> ctypes.c_int64:
    """The memory in which main holds a handle."""
    return ctypes.c_int64.from_address(tensor.data)


def _element(value: Value) -> np.dtype[Any] | None:
    """The NumPy dtype of a tensor; None if main holds a handle."""
    return np.dtype(value.tensor.dtype.numpy) if is_tensor(value.type) else None


def _array(tensor: DLTensor, of: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The memory of a tensor of the host program as an array."""
    shape = tuple(tensor.shape[: tensor.ndim])
    size = math.prod(shape) * of.itemsize
    if size == 0:
        return np.empty(shape, of)
    memory = (ctypes.c_uint8 * size).from_address(tensor.data)
    return np.ndarray(shape, of, memory)


def _fill(memory: np.ndarray[Any, Any], made: np.ndarray[Any, Any], value: Value) -> None:
    """Copy a result of the interpreter, if it has the shape and dtype that main expects."""
    if made.shape != memory.shape or made.dtype != memory.dtype:
        raise UserError(
            "TW6007",
            f"%{value.name} is {value.type}, here {memory.dtype}{list(memory.shape)}, "
            f"but the interpreter gave {made.dtype}{list(made.shape)}",
        )
    memory[...] = made


class HybridModule(runtime.Module):
    """A native module whose foreign parts run in the interpreter, or in given runners."""

    def __init__(
        self,
        native: runtime.Module,
        parts: Parts,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        runners: Mapping[int, Runner] | None = None,
    ) -> None:
        """`native` has handles where `inputs` and `outputs` are objects. A part with a runner is
        run by it instead of the interpreter."""
        self.native = native
        self.parts = parts
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.threads = native.threads
        self.fallbacks, self.manifest = parts.fallbacks, native.manifest
        self._names = {spec.name: at for at, spec in enumerate(self.inputs)}
        self._objects_in = _objects(parts.module.graphs[INPUTS])
        self._objects_out = _objects(parts.module.graphs[OUTPUTS])
        self._callbacks = _Callbacks(parts, runners or {})
        if parts.parts:
            native.set_foreign(*self._callbacks.addresses)
        self._has_objects = any((*self._objects_in, *self._objects_out))
        self._closing = None if parts.closing is None else _Closing(parts, parts.closing)

    @property
    def name(self) -> str:
        return self.native.name

    def __call__(
        self, *args: Any, threads: int = 0, out: Sequence[Any] | None = None, **named: Any
    ) -> tuple[Any, ...]:
        if named:
            args = self._in_order(args, named)
        if len(args) != len(self.inputs):
            raise UserError("TW4042", f"the model takes {len(self.inputs)} inputs, got {len(args)}")
        direct = out is not None and not any(self._objects_out) and self._closing is None
        threads = threads or self.threads
        made: tuple[Any, ...]
        if not self.parts.parts and not self._has_objects:
            made = self.native(*args, threads=threads, out=out if direct else None)
        else:
            made = self._with_parts(args, threads, out if direct else None)
        if direct:
            return made
        results = made if self._closing is None else self._closing(made)
        return results if out is None else runtime.copy_outputs(self.outputs, out, results)

    def _with_parts(
        self, args: Sequence[Any], threads: int, out: Sequence[Any] | None
    ) -> tuple[Any, ...]:
        """Main's results; parts and objects belong to this call."""
        run = _Run()
        given = [
            np.array(run.handle(_as_numpy(arg)), np.int64) if is_object else arg
            for arg, is_object in zip(args, self._objects_in, strict=True)
        ]
        self._callbacks.stack.append(run)
        try:
            made = self.native(*given, threads=threads, out=out)
        except TilewrightError:
            if run.error is not None:
                raise run.error from None
            raise
        finally:
            self._callbacks.stack.pop()
        if not any(self._objects_out):
            return made
        return tuple(
            _as_array(run.object(int(np.asarray(array)))) if is_object else array
            for array, is_object in zip(made, self._objects_out, strict=True)
        )

    @property
    def arena_bytes(self) -> int:
        return self.native.arena_bytes

    @property
    def inside(self) -> Any:
        """How the native module was compiled, if that happened in this process."""
        return getattr(self.native, "inside", None)

    def profile(self, *args: Any, **named: Any) -> Record:
        """Run once, and measure each kernel and part."""
        with runtime.profile(runtime=self.native._runtime) as record:
            self(*args, **named)
        return record

    def save(self, path: str | Path, name: str = "") -> Path:
        """Write the model, its parts included, as .so, .o or .h"""
        return self.native.save(path, name)


def _objects(graph: Graph) -> tuple[bool, ...]:
    """For each parameter, whether main holds a handle for it."""
    return tuple(not is_tensor(value.type) for value in graph.params)


def _as_numpy(value: Any) -> Any:
    if value is None or isinstance(value, np.ndarray):
        return value
    if isinstance(value, (list, tuple)):
        return [_as_numpy(item) for item in value]
    return value if isinstance(value, dict) else np.asarray(value)


def _as_array(value: Any) -> Any:
    """Tensors as `Array`; strings, sequences and absent values unchanged.

    Views are copied: the weights they may view are freed with the module.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
        owned = value if value.base is None else value.copy()
        return Array._borrow(np.asarray(owned, order="C"))
    if isinstance(value, list) and value and isinstance(value[0], (list, np.ndarray)):
        return [_as_array(item) for item in value]  # items are all of one type
    return value
