"""Calling a model on a GPU with tensors, in the order of PyTorch's streams.

Tensors on the GPU are used where they are, and results are tensors of PyTorch's own allocator, so
that they live and are captured as those of any other operator. A call runs on PyTorch's current
stream. On another one it begins after what is queued on the current one, which then waits for it.

A PyTorch without CUDA gives tensors on the host, and gets such.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from tilewright.base.dtype import DType
from tilewright.frontends.torch.tensors import DTYPES, dtype_of, tensor_of
from tilewright.runtime import cuda
from tilewright.runtime.array import Array
from tilewright.runtime.dlpack import code_of

ALIGN_BYTES = 16  # of what kernels take
OF_DTYPE = {ours: theirs for theirs, ours in DTYPES.items()}


@functools.cache
def place() -> torch.device:
    """Where tensors of a model on a GPU are."""
    has_cuda = torch.cuda.is_available()
    return torch.device("cuda", cuda.DEVICE.index) if has_cuda else torch.device("cpu")


def current_stream() -> int:
    """PyTorch's, on the GPU that models run on."""
    on_gpu = place()
    if on_gpu.type != "cuda":
        return 0
    stream: int = torch.cuda.current_stream(on_gpu).cuda_stream
    return stream


def shared(tensor: torch.Tensor) -> Any:
    """A contiguous tensor as an array of ours in the same memory, if it is on a GPU."""
    if tensor.device.type != cuda.DEVICE.kind:
        return tensor
    index = cuda.DEVICE.index if tensor.device.index is None else tensor.device.index
    return Array._from_address(
        tensor.data_ptr(),
        tuple(tensor.shape),
        None if tensor.is_contiguous() else tensor.stride(),
        *code_of(dtype_of(tensor.dtype)),
        (cuda.DEVICE.type_code, index),
        False,
        tensor,
    )


def as_argument(value: Any) -> Any:
    """An argument, contiguous and aligned for kernels."""
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.contiguous()
    return shared(tensor.clone() if tensor.data_ptr() % ALIGN_BYTES else tensor)


def as_tensor(array: cuda.DeviceArray) -> torch.Tensor:
    """A result as a tensor. The current stream waits for it."""
    if place().type == cuda.DEVICE.kind:
        made: torch.Tensor = from_dlpack(array)  # type: ignore[no-untyped-call]
        return made
    return tensor_of(cuda.to_host(array, stream=array.stream), OF_DTYPE[array.dtype])


def called(
    run: Callable[..., Sequence[Any]],
    given: Sequence[Any],
    out: Sequence[torch.Tensor] | None,
    stream: int | None,
) -> Sequence[torch.Tensor]:
    """The results of `run`, which takes arrays and options of a model on a GPU."""
    current = current_stream()
    own = current if stream is None else stream
    cuda.follow(own, current)
    values = [as_argument(each) for each in given]
    results: list[torch.Tensor] = []
    if out is not None:
        run(values, out=[shared(each) for each in out], stream=own)
        results += out
    elif place().type == cuda.DEVICE.kind:
        made = run(values, stream=own, empty=functools.partial(_empty, results))
        if len(results) != len(made):  # of sizes that the data tells
            results = [as_tensor(each) for each in made]
    else:
        results = [as_tensor(each) for each in run(values, stream=own)]
    cuda.follow(current, own)
    return results


def _empty(made: list[torch.Tensor], shape: Sequence[int], dtype: DType) -> Any:
    """Memory for a result, of PyTorch's allocator."""
    made.append(torch.empty(tuple(shape), dtype=OF_DTYPE[dtype], device=place()))
    return shared(made[-1])
