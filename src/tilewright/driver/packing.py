"""Weights in the form that kernels read, made once while compiling.

    packing = Packing(module.constants, kernels, images, target)
    names = packing.pack(kernel, weights)     of what packing will make
    constants = packing.finish(names)         all of them are there, side by side

A packer is code of its own, shared by all kernels that pack alike, and weights that several kernels
want packed alike are packed once, into the memory where the model reads them: beside the weights
that were given, a model needs no more than those it reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtype import DType
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

_PIECE = 1 << 16  # weights looked at together: they stay in a cache


def cached_images(kernels: Iterable[Kernel], target: Target) -> dict[str, bytes]:
    """The code of packers that were compiled before, by their texts."""
    texts = dict.fromkeys(k.packer.text for k in kernels if k.packer is not None)
    found = {text: try_cached_packer(text, packing_target(target)) for text in texts}
    return {text: image for text, image in found.items() if image is not None}


class Wanted:
    """Tells which packers are to be compiled, each once."""

    def __init__(self, known: Iterable[str], target: Target) -> None:
        self._seen = set(known)
        self._target = packing_target(target)

    def of(self, kernel: Kernel) -> PackerJob | None:
        """The packer of a kernel, if nobody has asked for it before."""
        packer = kernel.packer
        if packer is None or packer.source is None or packer.text in self._seen:
            return None
        self._seen.add(packer.text)
        return PackerJob(kernel.name, packer.text, packer.source, self._target)


@dataclass(frozen=True)
class _Task:
    """Weights to be packed, by name, and what becomes of them."""

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
        self.constants: dict[str, Array] = dict(constants)  # stand-ins for those to be packed
        self.kernels = kernels
        packers = [k.packer for k in kernels.values() if k.packer is not None]
        self._taken = {
            each.signature.name: [_extents(param.shape) for param in each.signature.params]
            for each in packers
        }
        self._run = _loaded(packers, images, target) if packers else {}
        self._tasks: list[_Task] = []

    def pack(self, kernel: Kernel, weights: tuple[str, ...]) -> tuple[str, ...]:
        """The names of the packed forms of weights; they are filled when all is finished."""
        packer = kernel.packer
        assert packer is not None
        results = packer.signature.params[len(packer.weights) :]
        base = "+".join(weights)
        names = tuple(f"{base}#{packer.signature.name}.{at}" for at in range(len(results)))
        if names[0] not in self.constants:
            self._tasks.append(_Task(packer.signature.name, weights, names))
            made = [_stand_in(param.shape, param.dtype) for param in results]
            self.constants.update(zip(names, made, strict=True))
        return names

    def finish(self, names: Iterable[str], *, moved: bool = True) -> dict[str, Array]:
        """The constants of these names, side by side; those that need no packing stay where they
        are unless they are to be moved, too."""
        packed = {name: self.constants[name] for task in self._tasks for name in task.results}
        found = {name: self.constants[name] for name in names}
        placed = side_by_side((found if moved else {}) | packed)
        with ThreadPoolExecutor(os.cpu_count() or 1, "tilewright-pack") as threads:
            pending = [threads.submit(self._fill, task, placed) for task in self._tasks]
            for name in (name for name in placed if name not in packed):
                placed[name][...] = found[name]
            for each in pending:
                each.result()
        return {name: placed.get(name, array) for name, array in found.items()}

    def _fill(self, task: _Task, placed: Mapping[str, Array]) -> None:
        made = [placed[name] for name in task.results]
        for array in made:
            array[...] = 0  # a layout may have holes that the packer leaves alone
        # Axes that a kernel has as one are several of the weights: in memory that is the same.
        given = (
            np.asarray(self.constants[name], order="C").reshape(shape)
            for name, shape in zip(task.weights, self._taken[task.packer], strict=False)
        )
        self._run[task.packer](*given, *made)
        for array in made:
            _flush_subnormals(array)


def _flush_subnormals(weights: Array) -> None:
    """Numbers below the least normal one become 0, as results of a call do: batch norms that are
    folded leave them, and every product with one takes x86 processors a hundred cycles."""
    if weights.dtype not in (np.float32, np.float64):
        return
    flat, least = weights.reshape(-1), np.finfo(weights.dtype).tiny
    for at in range(0, flat.size, _PIECE):
        piece = flat[at : at + _PIECE]
        small = np.abs(piece) < least
        if small.any():
            piece[small] = 0


def side_by_side(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Memory for such arrays, in one piece: what is large enough lies on huge pages.

    Weights are read from end to end, so that every small page would be a miss of its own.
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
    """The packers as functions, by name."""
    distinct = {packer.signature.name: packer for packer in packers}
    machine = llvm.machine_of(packing_target(target))
    code = [images[packer.text] for packer in distinct.values()]
    loaded = jit.load(code, tuple(distinct), (), machine)
    return {
        name: packer.signature.bind(loaded.addresses[name], loaded)
        for name, packer in distinct.items()
    }


def _stand_in(shape: tuple[int | str | None, ...], of: DType) -> Array:
    """An array of that shape which takes no memory."""
    return np.broadcast_to(np.zeros((), of.numpy), _extents(shape))


def _extents(shape: tuple[int | str | None, ...]) -> tuple[int, ...]:
    """Of weights, which are known."""
    extents = tuple(extent for extent in shape if isinstance(extent, int))
    assert len(extents) == len(shape)
    return extents
