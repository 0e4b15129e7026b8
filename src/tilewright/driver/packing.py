"""Pack weights at compile time into the layouts that kernels read.

    packing = Packing(module.constants, kernels, images, target)
    names = packing.pack(kernel, weights)     names of the packed weights, not filled yet
    constants = packing.finish(names)         all constants, packed, in one block of memory

A packer is native code of its own, shared by all kernels that pack alike; weights that several
kernels want packed alike are packed once. Packers write directly to the memory from which the model
reads, so that compiling needs the memory of the original and the packed weights, no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.host import host_cores
from tilewright.base.target import Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.export import places_of
from tilewright.driver.kernels import (
    Kernel,
    Packer,
    PackerJob,
    packing_target,
    try_cached_packer,
)
from tilewright.runtime import empty

Array = np.ndarray[Any, Any]

_BLOCK_ELEMENTS = 1 << 16  # elements processed at a time, so that they stay in a cache


def cached_images(kernels: Iterable[Kernel], target: Target) -> dict[str, bytes]:
    """The cached code of packers, by their texts."""
    texts = dict.fromkeys(k.packer.text for k in kernels if k.packer is not None)
    found = {text: try_cached_packer(text, packing_target(target)) for text in texts}
    return {text: image for text, image in found.items() if image is not None}


class MissingPackers:
    """Finds the packers that still have to be compiled, each once."""

    def __init__(self, known: Iterable[str], target: Target) -> None:
        self._seen = set(known)
        self._target = packing_target(target)

    def of(self, kernel: Kernel) -> PackerJob | None:
        """The packer job of a kernel, unless the packer is cached or was returned before."""
        packer = kernel.packer
        if packer is None or packer.source is None or packer.text in self._seen:
            return None
        self._seen.add(packer.text)
        return PackerJob(kernel.name, packer.text, packer.source, self._target)


@dataclass(frozen=True)
class _Task:
    """Names of weights to be packed, and of the results."""

    packer: str
    weights: tuple[str, ...]
    results: tuple[str, ...]


class Packing:
    """Runs packers on weights."""

    def __init__(
        self,
        constants: Mapping[str, Array],
        kernels: Mapping[str, Kernel],
        images: Mapping[str, bytes],
        target: Target,
    ) -> None:
        # packed weights are placeholders until `finish`
        self.constants: dict[str, Array] = dict(constants)
        self.kernels = kernels
        packers = [k.packer for k in kernels.values() if k.packer is not None]
        self._taken = {
            each.signature.name: [_extents(param.shape) for param in each.signature.params]
            for each in packers
        }
        self._run = _loaded(packers, images, target) if packers else {}
        self._tasks: list[_Task] = []

    def pack(self, kernel: Kernel, weights: tuple[str, ...]) -> tuple[str, ...]:
        """The names of the packed forms of weights, which `finish` fills."""
        packer = kernel.packer
        assert packer is not None
        results = packer.signature.params[len(packer.weights) :]
        base = "+".join(weights)
        names = tuple(f"{base}#{packer.signature.name}.{at}" for at in range(len(results)))
        if names[0] not in self.constants:
            self._tasks.append(_Task(packer.signature.name, weights, names))
            made = [_placeholder(param.shape, param.dtype) for param in results]
            self.constants.update(zip(names, made, strict=True))
        return names

    def finish(self, names: Iterable[str], *, moved: bool = True) -> dict[str, Array]:
        """The named constants in one block of memory; those that need no packing stay where they
        are if `moved` is false."""
        packed = {name: self.constants[name] for task in self._tasks for name in task.results}
        found = {name: self.constants[name] for name in names}
        placed = side_by_side((found if moved else {}) | packed)
        with ThreadPoolExecutor(host_cores(), "tilewright-pack") as threads:
            pending = [threads.submit(self._fill, task, placed) for task in self._tasks]
            for name in (name for name in placed if name not in packed):
                placed[name][...] = found[name]
            for each in pending:
                each.result()
        return {name: placed.get(name, array) for name, array in found.items()}

    def _fill(self, task: _Task, placed: Mapping[str, Array]) -> None:
        made = [placed[name] for name in task.results]
        for array in made:
            array[...] = 0  # layouts may have padding that the packer does not write
        # A kernel may see several axes of the weights collapsed to one: the memory is the same.
        given = (
            np.asarray(self.constants[name], order="C").reshape(shape)
            for name, shape in zip(task.weights, self._taken[task.packer], strict=False)
        )
        self._run[task.packer](*given, *made)
        for array in made:
            _flush_subnormals(array)


def _flush_subnormals(weights: Array) -> None:
    """Set subnormal weights to 0, as native code does with its results. Folded batch norms produce
    them, and arithmetic with a subnormal takes some hundred cycles on x86."""
    if weights.dtype not in (np.float32, np.float64):
        return
    flat, least = weights.reshape(-1), np.finfo(weights.dtype).tiny
    for at in range(0, flat.size, _BLOCK_ELEMENTS):
        piece = flat[at : at + _BLOCK_ELEMENTS]
        small = np.abs(piece) < least
        if small.any():
            piece[small] = 0


def side_by_side(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Uninitialized arrays of the same shapes in one block of memory, on huge pages if it is large.

    Weights are streamed through, so with small pages each page would be a TLB miss.
    """
    places = list(places_of(arrays.values()))
    ends = [at + each.nbytes for at, each in zip(places, arrays.values(), strict=True)]
    memory = np.asarray(empty((max(ends, default=0),), "u8"))
    return {
        name: memory[at:end].view(each.dtype).reshape(each.shape)
        for (name, each), at, end in zip(arrays.items(), places, ends, strict=True)
    }


def _loaded(
    packers: Sequence[Packer], images: Mapping[str, bytes], target: Target
) -> dict[str, Any]:
    """The packers as callable functions, by name."""
    distinct = {packer.signature.name: packer for packer in packers}
    machine = llvm.machine_of(packing_target(target))
    code = [images[packer.text] for packer in distinct.values()]
    loaded = jit.load(code, tuple(distinct), (), machine)
    return {
        name: packer.signature.bind(loaded.addresses[name], loaded)
        for name, packer in distinct.items()
    }


def _placeholder(shape: tuple[int | str | None, ...], of: DType) -> Array:
    """An array of that shape without memory of its own."""
    return np.broadcast_to(np.zeros((), of.numpy), _extents(shape))


def _extents(shape: tuple[int | str | None, ...]) -> tuple[int, ...]:
    """The shape of weights, which is always static."""
    extents = tuple(extent for extent in shape if isinstance(extent, int))
    assert len(extents) == len(shape)
    return extents
