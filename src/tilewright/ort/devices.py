"""ONNX Runtime's descriptions of devices and memory. All values are in CPU memory.

Descriptions of other devices can be constructed and read; placing a value there raises.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from tilewright.ort.enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from tilewright.ort.errors import InvalidArgument, absent

CPU = "CPUExecutionProvider"
_TYPES = {"cpu": 0, "cuda": 1, "dml": 1, "webgpu": 1, "gpu": 1, "fpga": 2, "npu": 3, "cann": 3}
_VENDORS = {
    "cuda": OrtDeviceVendorId.NVIDIA,
    "dml": OrtDeviceVendorId.MICROSOFT,
    "cann": OrtDeviceVendorId.HUAWEI,
}


@dataclass(frozen=True)
class CDevice:
    """The device class of ONNX Runtime's C++ binding: numbers only."""

    type: int = 0
    memory: int = 0
    vendor: int = 0
    id: int = 0

    def __init__(self, type: int, memory: int, vendor_or_id: int, id: int | None = None) -> None:
        object.__setattr__(self, "type", type)
        object.__setattr__(self, "memory", memory)
        object.__setattr__(self, "vendor", 0 if id is None else vendor_or_id)
        object.__setattr__(self, "id", vendor_or_id if id is None else id)

    def device_id(self) -> int:
        return self.id

    def device_type(self) -> int:
        return self.type

    def vendor_id(self) -> int:
        return self.vendor

    def mem_type(self) -> int:
        return self.memory

    @staticmethod
    def default_memory() -> int:
        return 0

    @staticmethod
    def cpu() -> int:
        return _TYPES["cpu"]

    @staticmethod
    def cuda() -> int:
        return _TYPES["cuda"]

    @staticmethod
    def dml() -> int:
        return _TYPES["dml"]

    @staticmethod
    def webgpu() -> int:
        return _TYPES["webgpu"]

    @staticmethod
    def gpu() -> int:
        return _TYPES["gpu"]

    @staticmethod
    def fpga() -> int:
        return _TYPES["fpga"]

    @staticmethod
    def npu() -> int:
        return _TYPES["npu"]

    @staticmethod
    def cann() -> int:
        return _TYPES["cann"]


class OrtDevice:
    """The location of a value."""

    def __init__(self, c_ort_device: CDevice) -> None:
        self._ort_device = c_ort_device

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        name = ort_device_name.lower()
        if name not in _TYPES:
            raise InvalidArgument(
                "TW6041",
                f"there is no device {ort_device_name}",
                help=f"known: {', '.join(_TYPES)}",
            )
        vendor = int(_VENDORS.get(name, 0)) if vendor_id < 0 else int(vendor_id)
        return OrtDevice(CDevice(_TYPES[name], 0, vendor, device_id))

    def device_id(self) -> int:
        return self._ort_device.device_id()

    def device_type(self) -> int:
        return self._ort_device.device_type()

    def device_vendor_id(self) -> int:
        return self._ort_device.vendor_id()

    def device_mem_type(self) -> int:
        return self._ort_device.mem_type()

    def _get_c_device(self) -> CDevice:
        return self._ort_device


def check_on_cpu(device_type: str) -> None:
    """Reject locations other than CPU memory; the device index is ignored."""
    if device_type.lower() not in ("cpu", "cuda_pinned"):
        raise absent(f"memory on the device {device_type}", "sessions run on the CPU: use cpu")


class OrtMemoryInfo:
    """A kind of memory."""

    def __init__(
        self,
        name: str,
        allocator_type: OrtAllocatorType,
        device_id: int,
        mem_type: OrtMemType,
        vendor_id: int = 0,
        device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT,
    ) -> None:
        self.name = name
        self.allocator_type = allocator_type
        self.device_id = device_id
        self.mem_type = mem_type
        self.device_vendor_id = vendor_id
        self.device_mem_type = device_mem_type

    @classmethod
    def create_v2(
        cls,
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        kind = OrtMemType.DEFAULT
        return cls(name, allocator_type, device_id, kind, vendor_id, device_mem_type)


def cpu_memory() -> OrtMemoryInfo:
    """The memory of all inputs and outputs of sessions."""
    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, OrtMemType.DEFAULT)


class OrtArenaCfg:
    """Arena configuration. Accepted without effect: memory is planned at compile time."""

    KEYS: ClassVar = (
        "max_mem",
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "initial_growth_chunk_size_bytes",
        "max_power_of_two_extend_bytes",
    )

    def __init__(self, *args: int | Mapping[str, int]) -> None:
        first = args[0] if args else {}
        if isinstance(first, Mapping):
            given = dict(first)
        else:
            numbers = [arg for arg in args if not isinstance(arg, Mapping)]
            given = dict(zip(self.KEYS, numbers, strict=False))
        unknown = [key for key in given if key not in self.KEYS]
        if unknown:
            raise InvalidArgument("TW6041", f"an arena has no setting {unknown[0]}")
        self.max_mem = int(given.get("max_mem", 0))
        self.arena_extend_strategy = int(given.get("arena_extend_strategy", -1))
        self.initial_chunk_size_bytes = int(given.get("initial_chunk_size_bytes", -1))
        self.max_dead_bytes_per_chunk = int(given.get("max_dead_bytes_per_chunk", -1))
        self.initial_growth_chunk_size_bytes = int(given.get("initial_growth_chunk_size_bytes", -1))
        self.max_power_of_two_extend_bytes = int(given.get("max_power_of_two_extend_bytes", -1))


@dataclass(frozen=True)
class OrtHardwareDevice:
    """A processor."""

    type: OrtHardwareDeviceType = OrtHardwareDeviceType.CPU
    vendor_id: int = 0
    vendor: str = field(default_factory=platform.machine)
    device_id: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)


class OrtSyncStream:
    """A queue of work on a device. The CPU's is synchronous."""

    def get_handle(self) -> int:
        return 0


@dataclass(frozen=True)
class OrtEpDevice:
    """An execution provider on a device: Tilewright on this processor."""

    ep_name: str = CPU
    ep_vendor: str = "Tilewright"
    ep_metadata: Mapping[str, str] = field(default_factory=dict)
    ep_options: Mapping[str, str] = field(default_factory=dict)
    device: OrtHardwareDevice = field(default_factory=OrtHardwareDevice)

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo:
        return cpu_memory()

    def create_sync_stream(self, options: Mapping[str, str] | None = None) -> OrtSyncStream:
        return OrtSyncStream()


@dataclass(frozen=True)
class OrtEpAssignedNode:
    """A node of the model, assigned to a provider."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True)
class OrtEpAssignedSubgraph:
    """The nodes assigned to a provider as a unit."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self.nodes)


class OrtEpContextData:
    """Data that providers store outside of the compiled model: not supported, none is needed."""

    def __init__(self) -> None:
        raise absent("OrtEpContextData", "a compiled model is one file: ModelCompiler writes it")


class OrtEpContextDataBuffer:
    """Data that providers store outside of the compiled model: not supported, none is needed."""

    def __init__(self) -> None:
        raise absent("OrtEpContextDataBuffer", "a compiled model is one file")


@dataclass(frozen=True)
class OrtExternalInitializerInfo:
    """The location of a weight in a file."""

    filepath: str
    file_offset: int
    byte_size: int
