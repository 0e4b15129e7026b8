"""A drop-in replacement of the module `onnxruntime`, on Tilewright.

    import tilewright.ort as onnxruntime                      # in a program of your own
    sys.modules["onnxruntime"] = tilewright.ort               # for programs of others
    tilewright ort PROGRAM ARGS                               # the same from a shell

Options that apply here are implemented; those that tune ONNX Runtime's internals are accepted and
documented as having no effect; features that are missing raise `NotImplemented` with their name
(TW6040).
"""

import contextlib

from tilewright.ort import capi
from tilewright.ort.binding import IOBinding, SessionIOBinding
from tilewright.ort.capi import onnxruntime_validation
from tilewright.ort.devices import (
    OrtArenaCfg,
    OrtDevice,
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
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from tilewright.ort.environment import (
    INTERFACE,
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_ep_devices,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    print_debug_info,
    register_execution_provider_library,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from tilewright.ort.model_compiler import ModelCompiler
from tilewright.ort.options import AdapterFormat, LoraAdapter, RunOptions, SessionOptions
from tilewright.ort.session import InferenceSession
from tilewright.ort.values import ModelMetadata, NodeArg, OrtValue, SparseTensor, copy_tensors

__version__ = INTERFACE
__author__ = "Tilewright"
version = INTERFACE
package_name = "onnxruntime"
cuda_version = ""
import_capi_exception = None
