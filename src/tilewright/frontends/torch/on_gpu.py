"""Call a model on a GPU with tensors, on PyTorch's streams.

CUDA tensors are used in place, and results are tensors of PyTorch's own allocator, with the
lifetimes and the behaviour under capture of any other operator's. A call runs on PyTorch's current
stream. On another stream it waits for work queued on the current one, which then waits for the
call.

A PyTorch without CUDA passes and gets tensors on the host.
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

ALIGN_BYTES = 16  # alignment that kernels assume
OF_DTYPE = {ours: theirs for theirs, ours in DTYPES.items()}


@functools.cache
def place() -> torch.device:
    """The device of tensors of a model on a GPU."""
    has_cuda = torch.cuda.is_available()
    return torch.device("cuda", cuda.DEVICE.index) if has_cuda else torch.device("cpu")


def current_stream() -> int:
    """PyTorch's current stream on the GPU that models run on."""
    on_gpu = place()
    if on_gpu.type != "cuda":
        return 0
    stream: int = torch.cuda.current_stream(on_gpu).cuda_stream
    return stream


def shared(tensor: torch.Tensor) -> Any:
    """A contiguous tensor on a GPU as an array that shares its memory."""
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
    """A result as a tensor, for which the current stream waits."""
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
        if len(results) != len(made):  # of data-dependent size
            results = [as_tensor(each) for each in made]
    else:
        results = [as_tensor(each) for each in run(values, stream=own)]
    cuda.follow(current, own)
    return results


def _empty(made: list[torch.Tensor], shape: Sequence[int], dtype: DType) -> Any:
    """Memory for a result, from PyTorch's allocator."""
    made.append(torch.empty(tuple(shape), dtype=OF_DTYPE[dtype], device=place()))
    return shared(made[-1])
