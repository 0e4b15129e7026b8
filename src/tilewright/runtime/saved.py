"""Load saved models and functions without the compiler.

from tilewright.runtime import load

model = load("model.so")  # the manifest describes the contents
outputs = model(x, y)
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.dtype import dtype
from tilewright.base.errors import TilewrightError, UserError
from tilewright.base.target import Target
from tilewright.runtime import cuda
from tilewright.runtime.device import CPU, device
from tilewright.runtime.device_states import DeviceStates
from tilewright.runtime.library import Library, LoadedFunction, load_library
from tilewright.runtime.module import Module, Spec
from tilewright.runtime.seal import overwrite_weights
from tilewright.runtime.signature import Param, Signature
from tilewright.runtime.stateful import StatefulModule

Array = np.ndarray[Any, Any]

# Symbols of the library's own runtime and its supported version, as in native/tilewright.h.
RUNTIME = "tw_this_runtime"
RUNTIME_VERSION = 3


class LoadedModule(Module):
    """A model from a library; weights are mapped from the file."""

    def __init__(self, library: Library) -> None:
        model = library.manifest["model"]
        _check_machine(library.path, model["features"])
        _check_runtime(library)
        self.device = device(model.get("device", CPU.kind))
        wanted = CPU if self.device == CPU else None  # a GPU also takes tensors of the host
        params = tuple(replace(_param(one), device=wanted) for one in model["inputs"])
        signature = Signature(model["name"], params)
        super().__init__(
            library.address(model["main"]),
            signature,
            [_spec(one) for one in model["inputs"]],
            [_spec(one) for one in model["outputs"]],
            library.address(model["constants"]),
            library,
            model["threads"],
            library.address(RUNTIME),
        )
        self.library = library
        self.manifest = library.manifest
        self._description: Mapping[str, Any] = model
        if "accelerator" in model:  # the library itself runs these parts
            self.set_foreign(*_foreign(library.address(model["accelerator"])))

    def states(self) -> list[Array]:
        """The initial values of the last inputs, where these are states."""
        places = self._description.get("states", [])
        table = (ctypes.c_void_p * (max(places, default=0) + 1)).from_address(
            self.library.address(self._description["constants"])
        )
        kept = self.inputs[len(self.inputs) - len(places) :]
        return [_array(table[at], spec) for at, spec in zip(places, kept, strict=True)]

    @property
    def name(self) -> str:
        return str(self._description["name"])

    @property
    def foreign(self) -> Mapping[str, Any] | None:
        """The program of the parts that the interpreter must run, if any."""
        found: Mapping[str, Any] | None = self._description.get("foreign")
        return found

    def save(self, path: str | Path, name: str = "") -> Path:
        """Copy the library."""
        return self.save_beginning(path, name, ())

    def save_beginning(self, path: str | Path, name: str, states: Sequence[Any]) -> Path:
        """Copy the library, with other initial states if any are given."""
        path = Path(path)
        if path.suffix != self.library.path.suffix or (name and name != self.name):
            return super().save(path)
        if not path.parent.is_dir():
            raise UserError(
                "TW4043",
                f"cannot write {path.name}: there is no folder {path.parent}",
                help="make the folder first",
            )
        with tempfile.TemporaryDirectory(prefix=".tilewright-", dir=path.parent) as folder:
            copy = Path(folder) / path.name
            shutil.copyfile(self.library.path, copy)
            if states and not overwrite_weights(
                copy, dict(zip(self._places(), states, strict=True))
            ):
                return super().save(path)
            os.replace(copy, path)
        return path

    def _places(self) -> Sequence[int]:
        """Where the library's weights have the initial states, in bytes."""
        places: Sequence[int] = self._description.get("state_places", ())
        return places


def _check_machine(path: Path, features: Sequence[str]) -> None:
    """Reject code for another processor, which would end the process with an illegal
    instruction."""
    missing = sorted(set(features) - Target.host().features)
    if missing:
        shown = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
        raise UserError(
            "TW4034",
            f"{path} is compiled for a processor with {shown}, which this one lacks",
            help="compile it for this machine, or with a target that all your machines have, "
            "such as 'x86_64-linux-gnu -mcpu=x86-64-v3'",
        )


def _check_runtime(library: Library) -> None:
    found = ctypes.c_int32.in_dll(library.handle, RUNTIME).value
    if found != RUNTIME_VERSION:
        raise UserError(
            "TW4031",
            f"{library.path} has a runtime of version {found}, not {RUNTIME_VERSION}",
            help="compile the model again with this version",
        )


def _foreign(address: int) -> tuple[int, int, int]:
    """The callbacks and the context in a tw_foreign."""
    run, fetch, context = (ctypes.c_void_p * 3).from_address(address)
    return run or 0, fetch or 0, context or 0


def _spec(port: Mapping[str, Any]) -> Spec:
    return Spec(port["name"], dtype(port["dtype"]), tuple(port["shape"]), port.get("kind", ""))


def _param(port: Mapping[str, Any]) -> Param:
    return Param(port["name"], dtype(port["dtype"]), tuple(port["extents"]))


def _array(address: int | None, spec: Spec) -> Array:
    """A constant of a library as an array."""
    assert spec.dtype is not None
    shape = tuple(extent for extent in spec.shape if isinstance(extent, int))
    size = math.prod(shape) * spec.dtype.size_bytes
    data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address or 0))
    return data.view(spec.dtype.numpy).reshape(shape)


def load(path: str | Path, name: str = "") -> LoadedFunction | Module:
    """Load a library that `save` wrote: its model, or its only function unless named."""
    library = load_library(path)
    if not name and library.manifest.get("model") is not None:
        try:
            loaded = LoadedModule(library)
            begins = loaded.states()
        except TilewrightError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                "TW4033", f"{path} is damaged: its manifest is not that of a model: {error}"
            ) from error
        if not begins:
            return loaded
        memory = (
            DeviceStates(cuda) if loaded.device == cuda.DEVICE and cuda.is_available() else None
        )
        kept = loaded.inputs[-len(begins) :]
        return StatefulModule(loaded, begins, kept, len(loaded.outputs), memory)
    return library[name or next(iter(library.functions))]
