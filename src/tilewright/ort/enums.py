"""ONNX Runtime's enumerations, with the same numbers."""

from __future__ import annotations

from enum import IntEnum


class GraphOptimizationLevel(IntEnum):
    """Accepted without effect: models are always optimized, without changing results.

    Examples:
        >>> import tilewright as ort
        >>> ort.GraphOptimizationLevel.ORT_ENABLE_ALL.name
        'ORT_ENABLE_ALL'
    """

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted without effect: kernels run in sequence, each on all threads.

    Examples:
        >>> import tilewright as ort
        >>> ort.ExecutionMode.ORT_SEQUENTIAL.name
        'ORT_SEQUENTIAL'
    """

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Accepted without effect: the order of nodes is fixed at compile time."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(IntEnum):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class ArenaExtendStrategy(IntEnum):
    kNextPowerOfTwo = 0  # noqa: N815  (ONNX Runtime's name)
    kSameAsRequested = 1  # noqa: N815


class OrtCompileApiFlags(IntEnum):
    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class OrtCompiledModelCompatibility(IntEnum):
    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


class OrtDeviceMemoryType(IntEnum):
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtDeviceVendorId(IntEnum):
    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtExecutionProviderDevicePolicy(IntEnum):
    """Accepted without effect: sessions run on the CPU."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtHardwareDeviceType(IntEnum):
    CPU = 0
    GPU = 1
    NPU = 2


class OrtMemType(IntEnum):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtMemoryInfoDeviceType(IntEnum):
    CPU = 0
    GPU = 1
    NPU = 3
    FPGA = 2


class OrtSparseFormat(IntEnum):
    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4
