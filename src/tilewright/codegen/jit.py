"""Loading object code into this process (ORC)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import Any

import llvmlite.binding as llvm

from tilewright.base.errors import UserError
from tilewright.codegen import llvm as backend
from tilewright.codegen.externs import address_of, is_registered
from tilewright.codegen.machine import Machine
from tilewright.runtime import _native

_lock = threading.Lock()
_numbers = itertools.count()
_jits: dict[str, Any] = {}


def _jit(machine: Machine) -> Any:
    with _lock:
        found = _jits.get(machine.triple)
        if found is None:
            found = llvm.create_lljit_compiler(
                backend.target_machine(machine), use_jit_link=True, suppress_errors=True
            )
            _jits[machine.triple] = found
        return found


class Loaded:
    """Object code in memory; it stays while this object does."""

    def __init__(self, tracker: Any, names: tuple[str, ...]) -> None:
        self._tracker = tracker
        self.addresses: dict[str, int] = {name: tracker[name] for name in names}


def load(
    images: Iterable[bytes], names: tuple[str, ...], externs: tuple[str, ...], machine: Machine
) -> Loaded:
    """Link object images with each other and the runtime, and find the functions named."""
    library = llvm.JITLibraryBuilder()
    for image in images:
        library.add_object_img(image)
    for name, address in _native.symbols().items():
        library.import_symbol(name, address)
    for name in externs:
        library.import_symbol(name, address_of(name))
    library.add_current_process()
    for name in names:
        library.export_symbol(name)
    try:
        tracker = library.link(_jit(machine), f"tilewright.{next(_numbers)}")
    except RuntimeError as error:
        missing = [name for name in externs if not is_registered(name)]
        raise UserError(
            "TW3020",
            f"cannot link {', '.join(names)}: {error}",
            help=f"register the external kernels {', '.join(missing)}" if missing else "",
        ) from error
    return Loaded(tracker, names)
