"""Load compiled functions and models from a shared library, without the compiler.

A library written by Tilewright contains a manifest: a string constant in JSON with the signatures
of its functions, or the description of its model. It also contains its own copy of the C runtime,
so that C programs can use it; errors and the number of threads are therefore those of the library.
"""

from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path
from typing import Any

from tilewright.base.dtype import dtype
from tilewright.base.errors import TilewrightError, UserError
from tilewright.runtime.errors import error_of
from tilewright.runtime.pool import checked_threads
from tilewright.runtime.seal import check_whole
from tilewright.runtime.signature import Param, Signature

MANIFEST = "tilewright_manifest"
VERSION = 1


def to_manifest(signatures: tuple[Signature, ...], target: str) -> str:
    """Write the manifest of a library with these functions."""
    functions = [
        {
            "name": signature.name,
            "params": [
                {
                    "name": param.name,
                    "dtype": str(param.dtype),
                    "shape": list(param.shape),
                    "writable": param.writable,
                    "may_alias": param.may_alias,
                }
                for param in signature.params
            ],
        }
        for signature in signatures
    ]
    return json.dumps({"version": VERSION, "target": target, "functions": functions})


def read_manifest(text: str) -> dict[str, Any]:
    """Read a manifest, and check its version."""
    data: dict[str, Any] = json.loads(text)
    if data["version"] != VERSION:
        raise UserError("TW4031", f"the manifest has version {data['version']}, not {VERSION}")
    return data


def from_manifest(text: str) -> tuple[Signature, ...]:
    """The signatures in a manifest."""
    return tuple(
        Signature(
            function["name"],
            tuple(
                Param(
                    param["name"],
                    dtype(param["dtype"]),
                    tuple(param["shape"]),
                    writable=param["writable"],
                    may_alias=param["may_alias"],
                )
                for param in function["params"]
            ),
        )
        for function in read_manifest(text)["functions"]
    )


# The files opened by this process for each path, as (device, inode).
_opened: dict[Path, list[tuple[int, int]]] = {}
_opening = threading.Lock()


def _open(path: Path) -> ctypes.CDLL:
    """Open a library. `dlopen` identifies a library by its path, even after the file was replaced:
    each new file at a path is opened by a different spelling of it."""
    status = path.stat()
    file = status.st_dev, status.st_ino
    with _opening:
        files = _opened.setdefault(path, [])
        if file not in files:
            files.append(file)
        spelling = "/".join((str(path.parent), *["."] * files.index(file), path.name))
    return ctypes.CDLL(spelling)


class LoadedFunction:
    """A function of a loaded library; call it with arrays, including outputs."""

    def __init__(self, library: Library, signature: Signature) -> None:
        self.library = library
        self.signature = signature
        address = ctypes.cast(library.handle[signature.name], ctypes.c_void_p).value
        assert address is not None
        self._native = signature.bind(address, library)

    def __call__(self, *args: Any, threads: int = 0) -> None:
        handle = self.library.handle
        threads = checked_threads(threads)
        before = handle.tw_set_own_threads(threads) if threads else 0
        try:
            self._native(*args)
        except TilewrightError:
            self.signature.check(*args)  # raises the error again if an argument caused it
            message = handle.tw_last_error().decode(errors="replace")
            raise error_of(handle.tw_last_code(), message) from None
        finally:
            if threads:
                handle.tw_set_own_threads(before)


class Library:
    """A loaded shared library, with its functions by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise UserError("TW4030", f"there is no library {self.path}")
        check_whole(self.path)
        try:
            self.handle = _open(self.path.resolve())
            text = ctypes.c_char_p.in_dll(self.handle, MANIFEST).value
        except (OSError, ValueError) as error:
            raise UserError(
                "TW4030",
                f"{self.path} is not a library of compiled functions for this machine: {error}",
                help="write one with save('name.so')",
            ) from error
        assert text is not None
        self.handle.tw_last_error.restype = ctypes.c_char_p
        self.manifest = read_manifest(text.decode())
        self.functions = {
            signature.name: LoadedFunction(self, signature)
            for signature in from_manifest(text.decode())
        }

    def address(self, name: str) -> int:
        """The address of a function or constant."""
        return ctypes.addressof(ctypes.c_char.in_dll(self.handle, name))

    def __getitem__(self, name: str) -> LoadedFunction:
        if name not in self.functions:
            known = ", ".join(self.functions)
            raise UserError("TW4032", f"{self.path} has no function {name}", help=f"it has {known}")
        return self.functions[name]


def load_library(path: str | Path) -> Library:
    """Load a shared library written by Tilewright."""
    return Library(path)
