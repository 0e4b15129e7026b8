"""Saved models and functions, loaded without the compiler.

from tilewright.runtime import load

model = load("model.so")  # tells by the manifest what the file holds
outputs = model(x, y)
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.base.dtype import dtype
from tilewright.base.errors import UserError
from tilewright.runtime.library import Library, LoadedFunction, load_library
from tilewright.runtime.module import Module, Spec
from tilewright.runtime.signature import Param, Signature

RUNTIME = "tw_this_runtime"  # the library's own, as in native/tilewright.h


class LoadedModule(Module):
    """A model from a library; its weights are mapped from the file."""

    def __init__(self, library: Library) -> None:
        told = library.manifest["model"]
        signature = Signature(told["name"], tuple(_param(one) for one in told["inputs"]))
        super().__init__(
            library.address(told["main"]),
            signature,
            [_spec(one) for one in told["inputs"]],
            [_spec(one) for one in told["outputs"]],
            library.address(told["constants"]),
            library,
            told["threads"],
            library.address(RUNTIME),
        )
        self.library = library
        self.manifest: Mapping[str, Any] = library.manifest

    @property
    def name(self) -> str:
        return str(self.manifest["model"]["name"])

    def save(self, path: str | Path, name: str = "") -> Path:
        """Copy the library."""
        path = Path(path)
        if path.suffix != self.library.path.suffix or (name and name != self.name):
            return super().save(path)
        with tempfile.TemporaryDirectory(prefix=".tilewright-", dir=path.parent) as folder:
            shutil.copyfile(self.library.path, Path(folder) / path.name)
            os.replace(Path(folder) / path.name, path)
        return path


def _spec(told: Mapping[str, Any]) -> Spec:
    return Spec(told["name"], dtype(told["dtype"]), tuple(told["shape"]))


def _param(told: Mapping[str, Any]) -> Param:
    return Param(told["name"], dtype(told["dtype"]), tuple(told["extents"]))


def load(path: str | Path, name: str = "") -> LoadedFunction | LoadedModule:
    """What a library that `save` wrote holds: its model, or its only function unless named."""
    library = load_library(path)
    if not name and library.manifest.get("model") is not None:
        try:
            return LoadedModule(library)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                "TW4033", f"{path} is damaged: its manifest is not that of a model: {error}"
            ) from error
    return library[name or next(iter(library.functions))]
