"""What ONNX Runtime's C++ side exports: exceptions, enumerations, plain classes."""

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


def get_default_session_options() -> SessionOptions:
    """Options as they are by default."""
    return SessionOptions()
