"""Compiled models, called with their inputs.

outputs = module(x, y)              arrays in the order of module.inputs
outputs = module(tokens=x, mask=y)  or by name
module.inputs, module.outputs       names, element types and shapes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.errors import UserError, UserTypeError
from tilewright.base.html import table
from tilewright.runtime import _native
from tilewright.runtime.array import Array
from tilewright.runtime.device import CPU, Device
from tilewright.runtime.dlpack import code_of
from tilewright.runtime.pool import checked_threads
from tilewright.runtime.pool import threads as default_threads
from tilewright.runtime.profiler import Record, profile
from tilewright.runtime.signature import Param, Signature


@dataclass(frozen=True, slots=True)
class Spec:
    """An input or output of a model. A dimension is a number, a name or an expression of names."""

    name: str
    dtype: DType | None
    shape: tuple[int | str, ...]
    kind: str = ""  # the whole type of a non-tensor, or of a tensor of dynamic rank

    def __str__(self) -> str:
        if self.kind:
            return f"{self.name}: {self.kind}"
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class Module:
    """A model compiled to native code.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import graph
        >>> program = graph.parse("graph @main(%x: f32[n, 4]) { %y = relu(%x) return %y }")
        >>> model = tw.compile(program, threads=1)
        >>> model
        <Module (x: f32[n, 4]) -> (y: f32[n, 4])>
        >>> model.inputs[0].name, model.fallbacks
        ('x', ())
        >>> model(x=np.ones((2, 4), np.float32))[0].shape
        (2, 4)
    """

    device: Device = CPU  # where it runs
    call_options: tuple[str, ...] = ()  # further named arguments of a call that are no inputs
    fallbacks: tuple[str, ...] = ()  # operators without native code
    timings: Mapping[str, Mapping[str, float]] = {}  # compile time in seconds: stage, pass
    choices: Sequence[Any] = ()  # alternatives that graph passes chose between, with costs
    manifest: Mapping[str, Any] | None = None  # of the file that it was loaded from
    _runtime: int = 0

    def __init__(
        self,
        address: int,
        signature: Signature,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        constants: int,
        owner: object,
        threads: int = 0,
        runtime: int = 0,
    ) -> None:
        """Wrap code at an address and its table of weights; `owner` keeps both in memory.

        `runtime` is the address of the C runtime that the code is linked with, if not this
        process's.
        """
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.threads = checked_threads(threads)
        self._names = {spec.name: at for at, spec in enumerate(self.inputs)}
        codes = tuple(code_of(spec.dtype) for spec in self.outputs if spec.dtype is not None)
        self._runtime = runtime
        whole = _with_outputs(signature, self.outputs).native
        self._native = _native.Model(
            address, signature.native, codes, constants, Array, owner, runtime, whole
        )

    @property
    def name(self) -> str:
        return "model"

    @property
    def flat(self) -> Module:
        """The module that takes `inputs` and returns a tuple of `outputs`: itself, unless it is
        called with nested structures of another library."""
        return self

    def __call__(
        self,
        *args: Any,
        threads: int = 0,
        out: Sequence[Any] | None = None,
        **named: Any,
    ) -> tuple[Array, ...]:
        """Run the model; with `out`, results are written to the caller's arrays."""
        if named:
            args = self._in_order(args, named)
        inputs = tuple([lendable(value) for value in args])
        count = checked_threads(threads) if threads else self.threads
        if self._runtime and not count:
            count = default_threads()  # the library does not know this process's setting
        if out is not None:
            self._native.call_into(inputs, tuple(out), count)
            return tuple(out)
        return self._native(*inputs, threads=count)

    def call_exchanged(
        self, exchange: _native.Exchange, inputs: Sequence[object], threads: int = 0
    ) -> tuple[Any, ...] | None:
        """Run the model with results as tensors of the library that owns `exchange`; inputs may be
        such tensors. None if the model is more than one native function."""
        return None

    def _in_order(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        values: list[Any] = [*args, *[None] * (len(self.inputs) - len(args))]
        for name, value in named.items():
            at = self._names.get(name)
            if at is None:
                raise UserTypeError(
                    "TW4040",
                    f"the model has no input {name}",
                    help=f"its inputs are {', '.join(self._names)}",
                )
            if at < len(args):
                raise UserTypeError("TW4040", f"the input {name} is given twice")
            values[at] = value
        missing = [spec.name for spec, value in zip(self.inputs, values, strict=False)
                   if value is None]  # fmt: skip
        if missing:
            raise UserTypeError("TW4040", f"the input {missing[0]} is missing")
        return tuple(values)

    def set_foreign(self, run: int, fetch: int, context: int = 0) -> None:
        """Register callbacks for the parts without native code: addresses as in tw_foreign of
        native/tilewright.h. They must outlive the module."""
        self._native.set_foreign(run, fetch, context)

    @property
    def arena_bytes(self) -> int:
        """The arena that calls reuse; none before the first call."""
        return self._native.arena_bytes

    def profile(self, *args: Any, **named: Any) -> Record:
        """Run once and return the time of each kernel."""
        with profile(runtime=self._runtime) as record:
            self(*args, **named)
        return record

    def save(self, path: str | Path, name: str = "") -> Path:
        """Write the model to a file of the kind given by the suffix: .so, .o or .h"""
        raise UserError(
            "TW4043",
            f"cannot write {Path(path).name}: this model comes from a file",
            help="copy the file under another name, or compile the model again and save that",
        )

    def save_beginning(self, path: str | Path, name: str, states: Sequence[Any]) -> Path:
        """Write the model with other initial values of its last inputs, which are states."""
        return Module.save(self, path, name)

    def _repr_html_(self) -> str:
        """Inputs and outputs, for notebooks."""
        ports = [("input", spec) for spec in self.inputs]
        ports += [("output", spec) for spec in self.outputs]
        rows = [
            (word, spec.name, spec.kind or spec.dtype, ", ".join(map(str, spec.shape)))
            for word, spec in ports
        ]
        if self.fallbacks:
            rows.append(("fallbacks", ", ".join(self.fallbacks), "", ""))
        return table(("", "name", "type", "shape"), rows)

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        outputs = ", ".join(map(str, self.outputs))
        return f"<Module ({inputs}) -> ({outputs})>"


def _with_outputs(signature: Signature, outputs: Sequence[Spec]) -> Signature:
    """The signature of a call with the caller's outputs; dynamic sizes are checked at run time."""
    params = [
        Param(
            spec.name,
            spec.dtype,
            tuple(dim if isinstance(dim, int) else None for dim in spec.shape),
            writable=True,
            any_rank=bool(spec.kind),
        )
        for spec in outputs
        if spec.dtype is not None
    ]
    return Signature(signature.name, (*signature.params, *params))


def copy_outputs(specs: Sequence[Spec], out: Sequence[Any], made: Sequence[Any]) -> tuple[Any, ...]:
    """Copy results into the caller's arrays, which must have their shapes and element types."""
    if len(out) != len(made):
        raise UserError("TW4042", f"the model has {len(made)} outputs, got {len(out)}")
    results = [np.asarray(each) for each in made]
    targets = [_target(*each) for each in zip(specs, out, results, strict=True)]
    for target, result in zip(targets, results, strict=True):
        target[...] = result
    return tuple(out)


def _target(spec: Spec, target: Any, result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The memory that a result is copied to."""
    is_text = result.dtype.kind in "OUS"
    lent = None if is_text else Array._borrow(target)
    array = np.asarray(target) if lent is None else lent.numpy()
    if array.shape != result.shape or (array.dtype != result.dtype and not is_text):
        raise UserError(
            "TW4042",
            f"output {spec.name} is {result.dtype}{list(result.shape)}, "
            f"not {array.dtype}{list(array.shape)}",
        )
    if lent is not None and lent.read_only:
        raise UserError("TW4006", f"output {spec.name} is read-only", help="pass a writable array")
    return array


def lendable(value: Any) -> Any:
    """Convert an input to what the runtime takes: a contiguous array."""
    if isinstance(value, np.ndarray):
        if value.flags.c_contiguous and value.dtype.isnative:
            return value
        return np.asarray(value, value.dtype.newbyteorder("="), order="C")
    if isinstance(value, Array):
        return value if value.is_contiguous else value.copy()
    if hasattr(value, "__dlpack__") or isinstance(value, (bytes, bytearray, memoryview)):
        return _contiguous(value)
    if isinstance(value, (str, type(None))):
        raise UserError("TW4041", f"an input is {value!r}, not an array")
    return np.asarray(value, order="C")


def _contiguous(value: Any) -> Any:
    array = Array._borrow(value)
    return array if array.is_contiguous else array.copy()
