"""Devices: where memory is located.

Device("cpu"), Device("cuda", 1), device("cuda:1")
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.errors import UserError

_TYPES: dict[str, int] = {
    # name: DLPack's device type
    "cpu": 1,
    "cuda": 2,
    "cuda_host": 3,
    "opencl": 4,
    "vulkan": 7,
    "metal": 8,
    "rocm": 10,
    "rocm_host": 11,
    "cuda_managed": 13,
    "oneapi": 14,
    "webgpu": 15,
    "hexagon": 16,
}
_NAMES = {number: name for name, number in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a kind, by index."""

    kind: str
    index: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _TYPES or self.index < 0:
            raise UserError(
                "TW4014",
                f"unknown device {self.kind}:{self.index}",
                help=f"name one of {', '.join(_TYPES)}, with a number after a colon: cuda:0",
            )

    @property
    def type_code(self) -> int:
        """DLPack's number of this kind."""
        return _TYPES[self.kind]

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device("cpu")


def device(text: str | Device) -> Device:
    """Parse a device name: `cpu`, `cuda`, `cuda:1`."""
    if isinstance(text, Device):
        return text
    kind, _, index = text.partition(":")
    return Device(kind, int(index) if index.isdecimal() else -1 if index else 0)


def device_of(type_code: int, index: int) -> Device:
    """The device with DLPack's numbers."""
    return Device(_NAMES.get(type_code, f"dlpack type {type_code}"), index)
