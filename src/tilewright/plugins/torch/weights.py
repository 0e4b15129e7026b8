"""Detect changes of packed weights.

A weight may be replaced (its address changes), changed in place (its version counter changes), or
changed without autograd, by `p.data.add_(...)` or through NumPy, which no counter shows. So every
call also compares a digest of some cache lines of each weight:

- weights of up to 512 bytes whole, of larger ones a line of each of their 8 parts, of those above
  32 KiB a line of each page of 4 KiB: whatever changes all of a part is noticed by the next call;
- each call takes other lines, in turn: after at most 64 calls every byte has been looked at, and
  any change at all is noticed.

`options={"freeze": False}` disables packing: then no weight can be stale.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tilewright.frontends.torch.tensors import array_of
from tilewright.runtime import _native

LINE_BYTES = 64
PAGE_BYTES = 4096
PARTS = 8  # checked by every call, at least
TURNS = PAGE_BYTES // LINE_BYTES


class Weights:
    """The weights among a graph's inputs, as of compilation."""

    def __init__(self, places: Sequence[int], inputs: Sequence[Any]) -> None:
        self.places = tuple(at for at in places if _is_fixed(inputs[at]))
        self.choose = _chooser(self.places)
        tensors = self.choose(inputs)
        self.arrays = {at: array_of(_parts(inputs[at])) for at in self.places}
        self.addresses, self.versions = _addresses(tensors), _versions(tensors)
        self.held = tensors  # keeps their memory from being reused for another weight
        self.watch = _watch(self.places, tensors)
        self.areas = np.array([_area(tensor) for tensor in tensors], np.uint64).tobytes()
        self.digests = [_native.digest(self.areas, turn) for turn in range(TURNS)]
        self.turns = itertools.cycle(range(TURNS))

    def are_same(self, inputs: Sequence[Any]) -> bool:
        """Whether a call has the packed weights, according to the checks above."""
        if not self.places:
            return True
        if self.watch is None or not self.watch.same(tuple(inputs)):
            tensors = self.choose(inputs)  # possibly other tensors on the same memory
            if _addresses(tensors) != self.addresses or _versions(tensors) != self.versions:
                return False
        turn = next(self.turns)
        return _native.digest(self.areas, turn) == self.digests[turn]


# PyTorch's functions that return a tensor's data pointer and its version.
READERS = ("aoti_torch_get_data_ptr", "_ZNK2at10TensorBase8_versionEv")


def _watch(places: Sequence[int], tensors: Sequence[torch.Tensor]) -> _native.Watch | None:
    """Checks all tensors in one call; None if the object layout of this PyTorch is unknown.

    A Python tensor object contains a pointer to its tensor, equal to `_cdata`. PyTorch's functions
    take the address of that pointer.
    """
    readers, pointer = _readers(), ctypes.sizeof(ctypes.c_void_p)
    if readers is None or not tensors:
        return None
    inside = range(object.__basicsize__, torch.Tensor.__basicsize__ - pointer + 1, pointer)
    for offset in inside:
        if all(_word(id(tensor) + offset) == tensor._cdata for tensor in tensors):
            return _native.Watch(tuple(places), tuple(tensors), *readers, offset)
    return None


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


@functools.cache
def _readers() -> tuple[int, int] | None:
    """The addresses of PyTorch's functions."""
    try:
        library = ctypes.CDLL(torch._C.__file__)
        found = [ctypes.cast(library[name], ctypes.c_void_p).value for name in READERS]
    except (AttributeError, OSError):
        return None
    address, version = found
    return (address, version) if address and version else None


# A graph may have hundreds of weights, checked in every call: a Python loop would be too slow.
_version = operator.attrgetter("_version")


def _chooser(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that selects the tensors at some positions."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda inputs: [inputs[at] for at in places]


def _addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(map(_version, tensors))


def _area(tensor: torch.Tensor) -> tuple[int, int, int]:
    """A tensor's memory: address, size in bytes, and the distance of the lines that a call
    checks."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((extent - 1) * stride for extent, stride in strides)
    size = (last + 1) * tensor.element_size()
    lines = -(-size // (PARTS * LINE_BYTES))
    step = min(max(lines, 1), PAGE_BYTES // LINE_BYTES) * LINE_BYTES
    return tensor.data_ptr(), size, step


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    """View a complex tensor as a real one with a last axis of two."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


def _is_fixed(value: Any) -> bool:
    """Whether changes of a tensor can be detected: inference tensors have no version counter."""
    return isinstance(value, torch.Tensor) and not value.is_inference() and value.numel() > 0
