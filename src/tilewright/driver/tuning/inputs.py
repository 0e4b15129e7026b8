"""Random inputs to run kernels and models with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.graph.ir import Value
from tilewright.graph.types import TensorType
from tilewright.runtime.array import empty
from tilewright.sym import Expr, Size, Var, evaluate, free_vars

Array = np.ndarray[Any, Any]
PAGE_BYTES = 4096
# values of dynamic sizes, by name: one, or several to be used in turn
Sizes = Mapping[str, int | Sequence[int]]


def sizes_of_values(values: Sequence[Value]) -> list[Size]:
    """The dynamic sizes in the types of values."""
    found: dict[Var, None] = {}
    for value in values:
        if isinstance(value.type, TensorType):
            found.update(free_vars(*(value.type.shape or ())))
    return [size for size in found if isinstance(size, Size)]


def size_sets(values: Sequence[Value], sizes: Sizes, default: int) -> list[dict[Var, int]]:
    """Sets of values for all dynamic sizes, ascending; a size with fewer values repeats them."""
    listed = {
        each: [given] if isinstance(given, int) else list(given)
        for each in sizes_of_values(values)
        for given in [sizes.get(each.name, default)]
    }
    count = max((len(each) for each in listed.values()), default=1)
    sets: list[dict[Var, int]] = [
        {name: each[at % len(each)] for name, each in listed.items()} for at in range(count)
    ]
    return sorted(sets, key=lambda each: tuple(each.values()))


def random_arrays(
    values: Sequence[Value], sizes: Mapping[Var, int], random: np.random.Generator
) -> list[Array]:
    """Cache-line-aligned arrays of normal numbers, arbitrary bytes, or integers 0 and 1, which are
    valid indices nearly everywhere."""
    return [_random(value, sizes, random) for value in values]


def shape_of(value: Value, sizes: Mapping[Var, int]) -> tuple[int, ...]:
    return tuple(_extent(dim, sizes) for dim in value.tensor.shape or ())


def _extent(dim: Expr, sizes: Mapping[Var, int]) -> int:
    return int(evaluate(dim, dict(sizes)))


def placements(arrays: Sequence[Array]) -> list[list[Array]]:
    """The same arrays at different offsets within a page: at its start, wherever NumPy puts them,
    and in its middle.

    Addresses that differ by a multiple of a page map to the same cache sets. A plan that wins with
    one placement only has won by chance.
    """
    return [list(arrays), [each.copy() for each in arrays], [_halfway(each) for each in arrays]]


def _halfway(array: Array) -> Array:
    memory = np.empty(array.nbytes + 2 * PAGE_BYTES, np.uint8)
    start = (PAGE_BYTES // 2 + 64 - memory.ctypes.data) % PAGE_BYTES
    made = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def _random(value: Value, sizes: Mapping[Var, int], random: np.random.Generator) -> Array:
    if not isinstance(value.type, TensorType) or value.tensor.dtype.is_str:
        raise UserError("TW5011", f"there are no random inputs for {value.name}: {value.type}")
    shape, dtype = shape_of(value, sizes), value.tensor.dtype
    made = np.asarray(empty(shape, dtype))
    if dtype.kind == "float":
        made[...] = random.standard_normal(shape).astype(dtype.numpy)
    elif dtype.size_bytes == 1 and dtype.numpy != np.dtype(bool):
        made[...] = random.integers(0, 256, shape).astype(np.uint8).view(dtype.numpy)
    else:
        made[...] = random.integers(0, 2, shape).astype(dtype.numpy)
    return made
