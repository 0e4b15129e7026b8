"""Weights that were packed: which they were, and whether they still are what they were.

A weight may be replaced (other memory), changed in place (its version counts up), or changed
behind autograd's back, by `p.data.add_(...)`, which no counter shows: a few elements of each,
spread over its memory, are compared as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tilewright.frontends.torch.tensors import array_of

Array = np.ndarray[Any, Any]

SAMPLES = 8  # elements of each weight that every call looks at


class Weights:
    """The weights among the inputs of a graph, as they were when it was compiled."""

    def __init__(self, places: Sequence[int], inputs: Sequence[Any]) -> None:
        self.places = tuple(at for at in places if _is_fixed(inputs[at]))
        tensors = [inputs[at] for at in self.places]
        self.arrays = {at: array_of(_parts(inputs[at])) for at in self.places}
        self.known = [(t.data_ptr(), t._version) for t in tensors]
        self.held = tensors  # memory that is given back could be another weight's
        self.samples = _samples(tensors)
        self.seen = _bits(self.samples)

    def are_same(self, inputs: Sequence[Any]) -> bool:
        """Whether a call has the very weights that were packed."""
        for at, (address, version) in zip(self.places, self.known, strict=True):
            tensor = inputs[at]
            if tensor.data_ptr() != address or tensor._version != version:
                return False
        return _bits(self.samples) == self.seen


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as a real one with a last axis of two."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


def _is_fixed(value: Any) -> bool:
    """Whether changes of a tensor can be noticed: inference tensors count no versions."""
    return isinstance(value, torch.Tensor) and not value.is_inference() and value.numel() > 0


def _samples(tensors: Sequence[torch.Tensor]) -> list[Array]:
    """A few bytes' worth of elements of each tensor, as views of its memory."""
    found: list[Array] = []
    for tensor in tensors:
        if not tensor.is_contiguous():
            continue
        flat = tensor.detach().view(-1)
        if flat.element_size() in (2, 4, 8) and not flat.is_complex():
            width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
            step = max(1, flat.numel() // SAMPLES)
            found.append(flat.view(width)[::step][:SAMPLES].numpy())
    return found


def _bits(samples: Sequence[Array]) -> bytes:
    return np.concatenate(samples).tobytes() if samples else b""
