"""A tensor function on a GPU: PTX, checked arguments, launches.

run = build_cuda(fn, "cuda -arch=sm_90a")
run(a, b, c)        # arrays on the GPU by DLPack, or NumPy arrays, which are copied
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import DType, from_numpy
from tilewright.base.errors import UserError, UserTypeError
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.codegen.launches import Kernel, box_of, launches, matrix_of
from tilewright.codegen.nvptx import ARGUMENT_ALIGN, DeviceCode, device_code
from tilewright.runtime import cuda
from tilewright.runtime.array import Array
from tilewright.sym import TRUE, Const, Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.ir import Buffer, For, Function, annotation
from tilewright.tensor.passes import lower
from tilewright.tensor.roles import SPECIALIZE
from tilewright.tensor.scopes import ARRIVALS
from tilewright.tensor.visit import output_buffers, walk


@dataclass(eq=False)
class CudaFunction:
    """Kernels of one tensor function; loaded into the driver at the first call."""

    function: Function  # of stage device
    target: Target
    code: DeviceCode
    _module: cuda.Module | None = field(default=None, repr=False)
    _counts: dict[tuple[Buffer, int], Array] = field(default_factory=dict, repr=False)

    def __call__(self, *args: Any, stream: int = 0) -> None:
        """Run; returns when results in NumPy arrays are there, else when the work is queued on
        the stream, the caller's by its number."""
        values = self._values(args)
        arrays, copies = self._arrays(args, stream)
        for kernel, numbers in launches(self.code.steps, values, self._workspace(arrays, stream)):
            pointers = [arrays[buffer].address for buffer in kernel.buffers]
            maps = [
                cuda.TensorMap(
                    arrays[made.buffer].address,
                    matrix_of(made, numbers),
                    made.buffer.dtype,
                    box_of(made),
                    made.corners,
                )
                for made in kernel.maps
            ]
            self.module.launch(
                kernel.name,
                _extents(kernel.grid, numbers),
                _extents(kernel.block, numbers),
                [*pointers, *(numbers[var] for var in kernel.scalars), *maps],
                shared_bytes=kernel.shared_bytes,
                stream=stream,
                is_early=kernel.can_start_early and not kernel.is_together,
                is_together=kernel.is_together,
            )
        for buffer, host in copies.items():
            cuda.to_host(arrays[buffer], host, stream)

    @property
    def ptx(self) -> str:
        return self.code.ptx

    @property
    def kernels(self) -> list[Kernel]:
        return self.code.kernels

    def _workspace(self, arrays: dict[Buffer, Array], stream: int) -> Callable[[Buffer, int], None]:
        """Makes memory that kernels of this function pass values through."""

        def make(buffer: Buffer, size_bytes: int) -> None:
            if buffer.memory == ARRIVALS:
                counts, key = self._counts, (buffer, stream)
                if key not in counts:
                    counts[key] = cuda.to_device(np.zeros(size_bytes, np.uint8), stream)
                arrays[buffer] = counts[key]
            elif buffer not in arrays or arrays[buffer].size_bytes < size_bytes:
                arrays[buffer] = cuda.empty((size_bytes,), "u8", stream)

        return make

    @property
    def module(self) -> cuda.Module:
        if self._module is None:
            self._module = cuda.Module(self.ptx)
        return self._module

    def _values(self, args: tuple[Any, ...]) -> dict[Var, int]:
        """The sizes and scalars, checked against every argument before anything runs."""
        params = self.function.params
        if len(args) != len(params):
            raise UserTypeError(
                "TW4009", f"{self.function.name} takes {len(params)} arguments, got {len(args)}"
            )
        values: dict[Var, int] = {}
        for param, arg in zip(params, args, strict=True):
            if isinstance(param, Var):
                values[param] = int(arg)
                continue
            shape = tuple(arg.shape)
            if len(shape) != param.rank:
                raise UserError(
                    "TW4002", f"{param.name} has {len(shape)} dimensions, expected {param.rank}"
                )
            for dim, got in zip(param.shape, shape, strict=True):
                if isinstance(dim, Var):
                    values.setdefault(dim, int(got))
        for param, arg in zip(params, args, strict=True):
            if isinstance(param, Buffer):
                want = _extents(param.shape, values)
                if tuple(arg.shape) != want:
                    raise UserError(
                        "TW4003", f"{param.name} has shape {tuple(arg.shape)}, expected {want}"
                    )
        for cond in self.function.requires:
            if _known(cond, values) is not TRUE:
                raise UserError("TW4012", f"{self.function.name} requires {cond}")
        return values

    def _arrays(
        self, args: tuple[Any, ...], stream: int
    ) -> tuple[dict[Buffer, Array], dict[Buffer, Any]]:
        """Arrays on the GPU, and those among the arguments that results are copied back to."""
        written = output_buffers(self.function)
        pairs = zip(self.function.params, args, strict=True)
        given = {param: arg for param, arg in pairs if isinstance(param, Buffer)}
        arrays: dict[Buffer, Array] = {}
        copies: dict[Buffer, Any] = {}
        for param, arg in given.items():
            if isinstance(arg, np.ndarray):
                check_dtype(param.name, param.dtype, from_numpy(arg.dtype))
                check_writable(param.name, param not in written or arg.flags.writeable)
                if param in written:
                    copies[param] = arg
            else:
                array = arrays[param] = cuda.from_dlpack(arg, stream)
                check_on_device(param.name, param.dtype, array)
                check_writable(param.name, param not in written or not array.read_only)
                if param in written and isinstance(array, cuda.DeviceArray):
                    array.stream = stream  # where its elements are computed from now on
        for param in given:
            if param not in arrays:
                arrays[param] = cuda.to_device(given[param], stream)
        return arrays, copies


def build_cuda(fn: Function, target: str | Target = "cuda") -> CudaFunction:
    """Compile a scheduled or device function for an NVIDIA GPU; needs no GPU itself.

    Kernels with bulk copies start early: their blocks have a multiprocessor each, wherever there is
    room first, and need a while before they compute.
    """
    chosen = Target.parse(target)
    if fn.stage == ir.SCHEDULED:
        is_early = any(
            isinstance(stmt, For) and annotation(stmt, SPECIALIZE) for stmt in walk(fn.body)
        )
        fn = lower(fn, "gpu", PassContext(target=chosen if is_early else None))
    return CudaFunction(fn, chosen, device_code(fn, chosen))


def check_dtype(name: str, wanted: DType, found: DType) -> None:
    if found.name != wanted.name:
        raise UserTypeError("TW4001", f"{name} is {found}, expected {wanted}")


def check_writable(name: str, ok: bool) -> None:
    if not ok:
        raise UserError("TW4006", f"{name} is an output, but read-only")


def check_on_device(name: str, wanted: DType, array: Array) -> None:
    """The array is one that a kernel may touch as it stands."""
    check_dtype(name, wanted, array.dtype)
    if array.device != cuda.DEVICE:
        raise UserError("TW4005", f"{name} is on {array.device}, expected {cuda.DEVICE}")
    if not array.is_contiguous:
        raise UserError("TW4004", f"{name} has strides {array.strides}, expected compact")
    if array.address % ARGUMENT_ALIGN:
        raise UserError(
            "TW4007", f"{name} is at {array.address:#x}, expected {ARGUMENT_ALIGN}-aligned"
        )


def _known(expr: Expr, values: dict[Var, int]) -> Expr:
    return sym.simplify(sym.substitute(expr, {v: sym.const(n) for v, n in values.items()}))


def _extents(dims: tuple[Expr, ...], values: dict[Var, int]) -> Any:
    known = [_known(dim, values) for dim in dims]
    return tuple(int(dim.value) for dim in known if isinstance(dim, Const))
