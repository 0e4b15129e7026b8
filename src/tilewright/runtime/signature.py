"""Signatures: the types and shapes of a compiled function's arguments.

    Signature("matmul", (
        Param("A", F32, ("n", "k")),
        Param("B", F32, ("k", 64)),
        Param("C", F32, ("n", 64), writable=True),
    ))

An extent is a number, a symbol's name, or None for any. A symbol takes its value from the first
dimension that mentions it; every other one must agree. The C runtime checks the signature before
native code runs, for all callers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.base.dtype import DType
from tilewright.runtime import _native
from tilewright.runtime.device import CPU, Device
from tilewright.runtime.dlpack import code_of

# As in native/tilewright.h.
DIM_ANY = -1
WRITABLE, STRIDED, ALIAS, ANY_RANK = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class Param:
    """Type and shape of one argument."""

    name: str
    dtype: DType
    shape: tuple[int | str | None, ...]
    writable: bool = False  # an output
    is_state: bool = False  # a writable parameter that is also read
    strided: bool = False  # any strides are accepted; otherwise contiguous
    may_alias: bool = False  # an output that may share memory with other arguments
    any_rank: bool = False  # an output of dynamic rank
    align: int = 0  # in bytes; 0 is the natural alignment of an element
    device: Device | None = CPU  # None: the host or a CUDA device

    @property
    def device_code(self) -> int:
        """DLPack's number of the kind of device; 0 for None."""
        return 0 if self.device is None else self.device.type_code

    @property
    def flags(self) -> int:
        aliased = ALIAS * self.may_alias | ANY_RANK * self.any_rank
        return WRITABLE * self.writable | STRIDED * self.strided | aliased


@dataclass(frozen=True)
class Signature:
    """A function's name and parameters."""

    name: str
    params: tuple[Param, ...]

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols, in order of first mention."""
        extents = (extent for param in self.params for extent in param.shape)
        return tuple(dict.fromkeys(extent for extent in extents if isinstance(extent, str)))

    def extents(self, param: Param) -> tuple[int, ...]:
        """The shape in the C runtime's encoding: symbol k is -2 - k, any is -1."""
        return tuple(self._encode(extent) for extent in param.shape)

    def _encode(self, extent: int | str | None) -> int:
        match extent:
            case None:
                return DIM_ANY
            case str():
                return -2 - self.symbols.index(extent)
            case _:
                return extent

    @cached_property
    def native(self) -> _native.Signature:
        """Encode the signature for calls."""
        raw = tuple(
            (
                param.name,
                *code_of(param.dtype),
                self.extents(param),
                param.device_code,
                param.flags,
                param.align,
            )
            for param in self.params
        )
        return _native.Signature(self.name, raw, self.symbols)

    def check(self, *arrays: object) -> dict[str, int]:
        """Check arguments as a call would; returns the symbols' values."""
        return dict(zip(self.symbols, _native.check(self.native, arrays), strict=True))

    def bind(self, address: int, owner: object) -> _native.Function:
        """Make a callable of the function at an address. It keeps `owner`, the code's memory,
        alive."""
        return _native.Function(address, self.native, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Signature, (self.name, self.params))
