"""What a language model keeps between calls: caches of any kind, as tensors by their places.

    kept = model(tokens, use_cache=True).past_key_values
    tensors = tensors_in(kept)            {"layers.0.keys": ..., "layers.0.conv_states.0": ...}
    other = with_tensors(kept, tensors)   the same object around other tensors

A cache is whatever transformers makes of one: lists of layers, dictionaries of states, tuples. A
tensor of it has an axis of texts, and perhaps one that grows by every token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

# By these names models take what they keep, and give it.
NAMES = ("past_key_values", "cache_params", "state", "mems")


def _is_walked(value: Any) -> bool:
    """Objects of transformers that hold tensors: no model, no config."""
    kind = type(value)
    return (
        kind.__module__.partition(".")[0] == "transformers"
        and hasattr(value, "__dict__")
        and not isinstance(value, (torch.nn.Module, type))
        and not hasattr(value, "model_type")
    )


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            yield from _leaves(each, f"{place}.{at}")
    elif _is_walked(value):
        for key, each in vars(value).items():
            yield from _leaves(each, f"{place}.{key}")
    else:
        yield place[1:], value


def tensors_in(kept: Any) -> dict[str, torch.Tensor]:
    """The tensors of a cache, by their places in it; each once."""
    found: dict[str, torch.Tensor] = {}
    known: set[int] = set()
    for place, value in _leaves(kept):
        if isinstance(value, torch.Tensor) and id(value) not in known:
            known.add(id(value))
            found[place] = value
    return found


def numbers_in(kept: Any) -> dict[str, int]:
    """Python's integers in a cache: what counts tokens there is nothing that a graph can keep."""
    return {place: value for place, value in _leaves(kept) if type(value) is int}


def with_tensors(kept: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """A cache like one that is given, of other tensors."""
    known = tensors_in(kept)
    by_identity = {id(known[place]): tensor for place, tensor in tensors.items()}

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return by_identity.get(id(value), value)
        if isinstance(value, Mapping):
            filled = copy.copy(value)
            for key, each in value.items():
                filled[key] = made(each)  # type: ignore[index]
            return filled
        if isinstance(value, (list, tuple)):
            each = [made(each) for each in value]
            return type(value)(*each) if hasattr(value, "_fields") else type(value)(each)
        if _is_walked(value):
            other = copy.copy(value)
            vars(other).update({key: made(each) for key, each in vars(value).items()})
            return other
        return value

    return made(kept)


class Shape(NamedTuple):
    """The axis of a tensor that is that of the texts, and the one that grows by tokens."""

    texts: int | None
    growing: int | None


def shapes(run: Callable[[int, int], Any], batch: int, count: int) -> dict[str, Shape] | None:
    """Of all that a model keeps of so many texts and tokens, found out by another number of both;
    None where that is more than tensors of which at most one axis grows."""
    one, other = run(batch, count), run(batch + 1, count + 2)
    first, second = tensors_in(one), tensors_in(other)
    if first.keys() != second.keys() or numbers_in(one) != numbers_in(other):
        return None
    found: dict[str, Shape] = {}
    for place, tensor in first.items():
        if tensor.dim() != second[place].dim():
            return None
        sizes = list(zip(tensor.shape, second[place].shape, strict=True))
        texts = [at for at, pair in enumerate(sizes) if pair == (batch, batch + 1)]
        growing = [at for at, (a, b) in enumerate(sizes) if a != b and at not in texts]
        if (
            len(texts) > 1
            or len(growing) > 1
            or any(sizes[at][1] - sizes[at][0] != 2 for at in growing)
        ):
            return None
        found[place] = Shape(next(iter(texts), None), next(iter(growing), None))
    return found
