"""From the caller's arguments to memory and sizes, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtype import INDEX, DType
from tilewright.base.errors import ExecutionError, UserTypeError
from tilewright.sym import Const, Size, Var
from tilewright.tensor.interp.memory import Memory
from tilewright.tensor.interp.values import evaluate, number
from tilewright.tensor.ir import Buffer, Function


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call binds: memory of buffers, values of scalars and sizes."""

    memory: dict[Buffer, Memory]
    values: dict[Var, Any]
    outputs: tuple[tuple[NDArray[Any], Memory], ...]

    def write_back(self) -> None:
        """Give the caller's arrays what the program stored."""
        for array, memory in self.outputs:
            array[...] = memory.data.reshape(array.shape)


def bind_arguments(fn: Function, args: tuple[Any, ...], changed: dict[Buffer, None]) -> Arguments:
    """Check the arguments of a call, which changes some, and take sizes from their shapes."""
    if len(args) != len(fn.params):
        names = ", ".join(_describe(param) for param in fn.params)
        raise UserTypeError(
            "TW2320",
            f"@{fn.name} takes {len(fn.params)} arguments, got {len(args)}",
            fn.loc,
            help=f"its parameters are {names}",
        )
    values: dict[Var, Any] = {}
    arrays: dict[Buffer, NDArray[Any]] = {}
    for param, arg in zip(fn.params, args, strict=True):
        if isinstance(param, Buffer):
            arrays[param] = _check_array(fn, param, arg, param in changed)
        else:
            values[param] = _scalar(fn, param, arg)
    _bind_sizes(fn, arrays, values)
    _check_overlap(fn, arrays, changed)
    _check_requires(fn, values)
    memory = {
        buffer: Memory(buffer, array.shape, np.array(array, order="C").reshape(-1))
        for buffer, array in arrays.items()
    }
    outputs = tuple((arrays[buffer], memory[buffer]) for buffer in arrays if buffer in changed)
    return Arguments(memory, values, outputs)


def _describe(param: Buffer | Var) -> str:
    if isinstance(param, Var):
        return f"{param.name}: {param.dtype}"
    return f"%{param.name}: {param.dtype}[{', '.join(str(dim) for dim in param.shape)}]"


def _check_array(fn: Function, buffer: Buffer, arg: Any, changes: bool) -> NDArray[Any]:
    if not isinstance(arg, np.ndarray):
        raise UserTypeError(
            "TW2321",
            f"argument %{buffer.name} of @{fn.name} must be a numpy array, "
            f"got {type(arg).__name__}",
            fn.loc,
            help=f"it is declared {_describe(buffer)}",
        )
    if arg.dtype != buffer.dtype.numpy:
        raise UserTypeError(
            "TW2322",
            f"argument %{buffer.name} of @{fn.name} is {buffer.dtype}, got an array of {arg.dtype}",
            fn.loc,
            help=f"convert it: x.astype({str(buffer.dtype.numpy)!r})",
        )
    if arg.ndim != buffer.rank:
        raise ExecutionError(
            "TW2323",
            f"argument %{buffer.name} of @{fn.name} has {buffer.rank} dimensions, "
            f"got shape {arg.shape}",
            fn.loc,
            help=f"it is declared {_describe(buffer)}",
        )
    if changes and not arg.flags.writeable:
        raise ExecutionError(
            "TW2324",
            f"@{fn.name} writes argument %{buffer.name}, but the array is read-only",
            fn.loc,
            help="pass a copy, or set x.flags.writeable = True",
        )
    return arg


def _scalar(fn: Function, param: Var, arg: Any) -> Any:
    value = arg.item() if isinstance(arg, np.generic) else arg
    of = param.dtype
    fits = isinstance(value, (int, float)) if of.is_float else isinstance(value, int)
    if not fits:
        raise UserTypeError(
            "TW2321",
            f"argument {param.name} of @{fn.name} must be a number of type {of}, "
            f"got {type(arg).__name__}",
            fn.loc,
        )
    if not _in_range(value, of) or (isinstance(param, Size) and value < 0):
        raise ExecutionError(
            "TW2322", f"argument {param.name} of @{fn.name} is {of}: {value} does not fit", fn.loc
        )
    return number(value, of)


def _in_range(value: Any, of: DType) -> bool:
    return of.is_float or of.min <= value <= of.max


def _bind_sizes(fn: Function, arrays: dict[Buffer, NDArray[Any]], values: dict[Var, Any]) -> None:
    source: dict[Var, str] = {var: f"argument {var.name}" for var in values}
    for buffer, array in arrays.items():
        for axis, (dim, extent) in enumerate(zip(buffer.shape, array.shape, strict=True)):
            if not isinstance(dim, Size):
                continue
            if dim not in values:
                values[dim] = extent
                source[dim] = f"dimension {axis} of %{buffer.name}"
            elif values[dim] != extent:
                raise ExecutionError(
                    "TW2323",
                    f"argument %{buffer.name} of @{fn.name} has {extent} elements along "
                    f"dimension {axis}, but {dim.name} is {values[dim]} from {source[dim]}",
                    fn.loc,
                    help=f"it is declared {_describe(buffer)}",
                )
    for buffer, array in arrays.items():
        for axis, (dim, extent) in enumerate(zip(buffer.shape, array.shape, strict=True)):
            want = dim.value if isinstance(dim, Const) else evaluate(dim, values)
            if want != extent:
                raise ExecutionError(
                    "TW2323",
                    f"argument %{buffer.name} of @{fn.name} has {extent} elements along "
                    f"dimension {axis}, expected {want}",
                    fn.loc,
                    help=f"it is declared {_describe(buffer)}",
                )


def _check_overlap(
    fn: Function, arrays: dict[Buffer, NDArray[Any]], changed: dict[Buffer, None]
) -> None:
    items = list(arrays.items())
    for position, (first, a) in enumerate(items):
        for second, b in items[position + 1 :]:
            if (first in changed or second in changed) and _overlap(a, b):
                raise ExecutionError(
                    "TW2326",
                    f"arguments %{first.name} and %{second.name} of @{fn.name} share memory, "
                    "and one of them is written",
                    fn.loc,
                    help="pass a copy of one of them",
                )


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    # The exact answer can take exponential time for strided arrays; those are taken as apart.
    if a.flags.forc and b.flags.forc:
        return np.may_share_memory(a, b)
    return a is b


def _check_requires(fn: Function, values: dict[Var, Any]) -> None:
    for cond in fn.requires:
        if not evaluate(cond, values):
            shown = ", ".join(
                f"{var.name} = {value}" for var, value in values.items() if var.dtype is INDEX
            )
            raise ExecutionError(
                "TW2325",
                f"@{fn.name} requires {cond}" + (f", but {shown}" if shown else ""),
                fn.loc,
                help="pass arguments of shapes that satisfy it",
            )
