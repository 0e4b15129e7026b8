"""Weights in the form that kernels read, made once while compiling.

    packing = Packing(module.constants, kernels, images, target)
    names = packing.pack(kernel, weights)     packed by another thread
    packing.finish()                          all of them are there

A packer is code of its own, shared by all kernels that pack alike, and weights that several kernels
want packed alike are packed once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.target import Target
from tilewright.codegen import jit, llvm
from tilewright.driver.kernels import (
    Kernel,
    Packer,
    PackerJob,
    packing_target,
    try_cached_packer,
)
from tilewright.runtime import empty

Array = np.ndarray[Any, Any]


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


class Packing:
    """Runs packers on weights."""

    def __init__(
        self,
        constants: Mapping[str, Array],
        kernels: Mapping[str, Kernel],
        images: Mapping[str, bytes],
        target: Target,
    ) -> None:
        self.constants: dict[str, Array] = dict(constants)
        self.kernels = kernels
        packers = [k.packer for k in kernels.values() if k.packer is not None]
        self._run = _loaded(packers, images, target) if packers else {}
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, "tilewright-pack")
        self._pending: list[Future[None]] = []

    def pack(self, kernel: Kernel, weights: tuple[str, ...]) -> tuple[str, ...]:
        """The names of the packed forms of weights; they are filled when all is finished."""
        packer = kernel.packer
        assert packer is not None
        results = packer.signature.params[len(packer.weights) :]
        base = "+".join(weights)
        names = tuple(f"{base}#{packer.signature.name}.{at}" for at in range(len(results)))
        if names[0] not in self.constants:
            made = [_memory(param.shape, param.dtype) for param in results]
            given = [np.asarray(self.constants[name], order="C") for name in weights]
            run = self._run[packer.signature.name]
            self._pending.append(self._threads.submit(_pack, run, given, made))
            self.constants.update(zip(names, made, strict=True))
        return names

    def finish(self) -> None:
        for pending in self._pending:
            pending.result()
        self._threads.shutdown()


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


def _pack(run: Any, given: Sequence[Array], made: Sequence[Array]) -> None:
    for array in made:
        array[...] = 0  # a layout may have holes that the packer leaves alone
    run(*given, *made)


def _memory(shape: tuple[int | str | None, ...], of: DType) -> Array:
    """Memory of the runtime: on cache lines, and on large pages where it is much."""
    extents = tuple(extent for extent in shape if isinstance(extent, int))
    assert len(extents) == len(shape)
    return empty(extents, of).numpy()
