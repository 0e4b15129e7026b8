"""The names that ONNX Runtime's C++ binding exports: exceptions, enumerations, plain classes."""

from tilewright.ort.binding import SessionIOBinding
from tilewright.ort.devices import CDevice as OrtDevice
from tilewright.ort.devices import (
    OrtArenaCfg,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpContextData,
    OrtEpContextDataBuffer,
    OrtEpDevice,
    OrtExternalInitializerInfo,
    OrtHardwareDevice,
    OrtMemoryInfo,
    OrtSyncStream,
)
from tilewright.ort.enums import (
    ArenaExtendStrategy,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtCompiledModelCompatibility,
    OrtDeviceMemoryType,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from tilewright.ort.environment import (
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_ep_devices,
    get_hardware_devices,
    get_version_string,
    has_collective_ops,
    register_execution_provider_library,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from tilewright.ort.errors import (
    Absent,
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from tilewright.ort.model_compiler import ModelCompiler
from tilewright.ort.options import AdapterFormat, LoraAdapter, RunOptions, SessionOptions
from tilewright.ort.session import InferenceSession
from tilewright.ort.values import (
    ModelMetadata,
    NodeArg,
    OrtValue,
    OrtValueVector,
    SparseCooView,
    SparseCsrView,
    SparseTensor,
    copy_tensors,
)

kNextPowerOfTwo = ArenaExtendStrategy.kNextPowerOfTwo  # noqa: N816  (ONNX Runtime's names)
kSameAsRequested = ArenaExtendStrategy.kSameAsRequested  # noqa: N816

OrtDeviceEpIncompatibilityReason = Absent("OrtDeviceEpIncompatibilityReason")
SessionObjectInitializer = Absent("SessionObjectInitializer")
SparseBlockSparseView = Absent("SparseBlockSparseView")
get_all_operator_schema = Absent("get_all_operator_schema")
get_all_opkernel_def = Absent("get_all_opkernel_def")
get_compatibility_info_from_model = Absent("get_compatibility_info_from_model")
get_compatibility_info_from_model_bytes = Absent("get_compatibility_info_from_model_bytes")
get_hardware_device_ep_incompatibility_details = Absent(
    "get_hardware_device_ep_incompatibility_details"
)
get_model_compatibility_for_ep_devices = Absent("get_model_compatibility_for_ep_devices")
get_registered_ep_kernel_defs = Absent("get_registered_ep_kernel_defs")
get_session_initializer = Absent("get_session_initializer")
is_dlpack_uint8_tensor = Absent("is_dlpack_uint8_tensor")
opkernel = Absent("opkernel")
pack_fp4_weights_for_cuda_moe_gemm = Absent("pack_fp4_weights_for_cuda_moe_gemm")
quantize_matmul_2bits = Absent("quantize_matmul_2bits")
quantize_matmul_4bits = Absent("quantize_matmul_4bits")
quantize_matmul_8bits = Absent("quantize_matmul_8bits")
quantize_matmul_bnb4 = Absent("quantize_matmul_bnb4")
quantize_qdq_matmul_2bits = Absent("quantize_qdq_matmul_2bits")
quantize_qdq_matmul_4bits = Absent("quantize_qdq_matmul_4bits")
schemadef = Absent("schemadef")


def get_default_session_options() -> SessionOptions:
    """The default options."""
    return SessionOptions()
