"""Process-wide settings of ONNX Runtime: providers, threads, logging, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ort.devices import CPU, OrtArenaCfg, OrtEpDevice, OrtHardwareDevice, OrtMemoryInfo
from tilewright.ort.errors import absent
from tilewright.runtime.pool import checked_threads

INTERFACE = "1.31.1"  # the implemented version of ONNX Runtime's interface

_threads = {"intra": 0}  # of sessions with a shared pool


def get_available_providers() -> list[str]:
    """List the execution providers.

    Examples:
        >>> import tilewright as ort
        >>> ort.get_available_providers()[-1]
        'CPUExecutionProvider'
    """
    return [CPU]


def get_all_providers() -> list[str]:
    return [CPU]


def get_device() -> str:
    """Return the kind of device that sessions run on: `CPU`.

    Examples:
        >>> import tilewright as ort
        >>> ort.get_device()
        'CPU'
    """
    return "CPU"


def get_version_string() -> str:
    return INTERFACE


def get_build_info() -> str:
    return f"Tilewright, with the interface of ONNX Runtime {INTERFACE}"


def get_ep_devices() -> list[OrtEpDevice]:
    return [OrtEpDevice()]


def get_hardware_devices() -> list[OrtHardwareDevice]:
    return [OrtHardwareDevice()]


def has_collective_ops() -> bool:
    """Always false: models are not distributed over machines."""
    return False


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Set the number of threads of sessions with `use_per_session_threads = False`."""
    _threads["intra"] = checked_threads(intra_op_num_threads)


def global_threads() -> int:
    return _threads["intra"]


def set_default_logger_severity(severity: int) -> None:
    """Accepted without effect: sessions write no log; problems are errors or warnings."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted without effect, like the severity."""


def set_seed(seed: int) -> None:
    """Accepted without effect: random operators use the seeds in the model."""


def enable_telemetry_events() -> None:
    """Accepted without effect: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Accepted without effect: there is no telemetry."""


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg) -> None:
    """Accepted without effect: memory is planned at compile time."""


def create_and_register_allocator_v2(
    provider_type: str,
    memory_info: OrtMemoryInfo,
    options: Mapping[str, str],
    arena_cfg: OrtArenaCfg,
) -> None:
    """Accepted without effect: memory is planned at compile time."""


def register_execution_provider_library(registration_name: str, library_path: str) -> None:
    raise absent(
        f"register_execution_provider_library: {registration_name}", "sessions run on the CPU"
    )


def unregister_execution_provider_library(registration_name: str) -> None:
    raise absent(
        f"unregister_execution_provider_library: {registration_name}", "none was registered"
    )


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Any = None
) -> None:
    """Accepted without effect: CUDA libraries are not needed."""


def print_debug_info() -> None:
    """Print version information."""
    print(get_build_info())
    print(f"providers: {', '.join(get_available_providers())}")


def get_model_compatibility_for_ep_devices(devices: Sequence[OrtEpDevice], info: str) -> int:
    """Always 0: compatibility is checked when a model is loaded."""
    return 0
