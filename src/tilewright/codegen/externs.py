"""External kernels: where the symbols that `extern` statements call are to be found.

A kernel has the ABI of our own functions, `int32_t f(const DLTensor *const *args, int32_t n)`.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from tilewright.base.errors import UserError

_addresses: dict[str, int] = {}
_kept: dict[str, object] = {}  # libraries and callbacks whose code is in use


def register_extern(symbol: str, where: int | str | Path | object) -> None:
    """Tell where a kernel is: an address, a shared library's path, or a ctypes function."""
    if isinstance(where, int):
        _addresses[symbol] = where
        return
    if isinstance(where, (str, Path)):
        library = ctypes.CDLL(str(where))
        try:
            where = library[symbol]
        except AttributeError as error:
            raise UserError("TW3021", f"{where} has no symbol {symbol}") from error
    address = ctypes.cast(where, ctypes.c_void_p).value  # type: ignore[arg-type]  # checked below
    if not address:
        raise UserError("TW3021", f"the external kernel {symbol} has no address")
    _kept[symbol] = where
    _addresses[symbol] = address


def is_registered(symbol: str) -> bool:
    return symbol in _addresses


def address_of(symbol: str) -> int:
    if symbol not in _addresses:
        raise UserError(
            "TW3022",
            f"no external kernel named {symbol}",
            help="tell where it is: codegen.register_extern(symbol, address or library path)",
        )
    return _addresses[symbol]
