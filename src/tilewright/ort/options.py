"""Session and run options of ONNX Runtime.

Options that apply here are implemented: threads, sizes, initializers, profiling, the optimized
model's file. Those that tune ONNX Runtime's internals are accepted without effect. Missing features
raise with their name.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ort.devices import CPU, OrtEpDevice
from tilewright.ort.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtExecutionProviderDevicePolicy,
)
from tilewright.ort.errors import InvalidArgument, RuntimeException, absent
from tilewright.ort.values import OrtValue

NDArray = np.ndarray[Any, Any]


@dataclass
class SessionOptions:
    """Options of a session. `intra_op_num_threads` is the number of threads; 0 means all cores.

    Examples:
        >>> import tilewright as ort
        >>> options = ort.SessionOptions()
        >>> options.intra_op_num_threads = 1
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    _entries: dict[str, str] = field(default_factory=dict, repr=False)
    _sizes: dict[str, int] = field(default_factory=dict, repr=False)
    _denoted: dict[str, int] = field(default_factory=dict, repr=False)
    _initializers: dict[str, NDArray] = field(default_factory=dict, repr=False)
    _files: dict[str, bytes] = field(default_factory=dict, repr=False)
    _providers: list[str] = field(default_factory=list, repr=False)
    _cancelled: bool = field(default=False, repr=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeException("TW6020", f"there is no configuration entry {key}")
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Compile for a fixed size of a named dimension."""
        self._sizes[name] = int(value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Compile for a fixed size of all dimensions with this denotation."""
        self._denoted[denotation] = int(value)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Replace the value of an initializer."""
        self._initializers[name] = np.asarray(value)

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Replace the values of initializers."""
        if len(names) != len(values):
            raise InvalidArgument("TW6041", f"{len(names)} names for {len(values)} initializers")
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Supply the contents of files that the model's external data names."""
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            self._files[name] = bytes(memoryview(buffer).cast("B")[:length])

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Add a provider; sessions warn if it does not exist."""
        self._providers.append(name)

    def add_provider_for_devices(
        self, devices: Sequence[OrtEpDevice], options: Mapping[str, str]
    ) -> None:
        self._providers.extend(device.ep_name for device in devices[:1])

    def has_providers(self) -> bool:
        return bool(self._providers)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Accepted without effect: there is only one provider."""

    def set_provider_selection_policy_delegate(self, delegate: Callable[..., Any]) -> None:
        """Accepted without effect: there is only one provider."""

    def set_load_cancellation_flag(self, cancel: bool) -> None:
        """Cancel loading of sessions with these options."""
        self._cancelled = bool(cancel)

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        raise absent(
            f"register_custom_ops_library: {os.fspath(path)}",
            "kernels for ONNX Runtime cannot be called; a model's own functions are compiled",
        )

    def set_ep_context_data_read_func(self, read: Callable[..., Any]) -> None:
        """Accepted without effect: a compiled model is one file."""

    def clear_ep_context_data_read_func(self) -> None:
        """Accepted without effect, as above."""


class LoraAdapter:
    """A LoRA adapter: not supported."""

    def Load(self, file_path: str | os.PathLike[str]) -> None:  # noqa: N802  (ONNX Runtime's name)
        raise absent("LoraAdapter.Load", "merge the adapter into the model, or feed its weights")


class AdapterFormat:
    """LoRA weights in memory; adapter files are not supported."""

    def __init__(self, adapter: Any = None) -> None:
        self._parameters: dict[str, OrtValue] = {}
        self._adapter_version = 0
        self._model_version = 0

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        raise absent("AdapterFormat.read_adapter", "merge the adapter into the model")

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        raise absent("AdapterFormat.export_adapter", "store the weights with numpy.savez")

    def get_format_version(self) -> int:
        return 1

    def set_adapter_version(self, adapter_version: int) -> None:
        self._adapter_version = adapter_version

    def get_adapter_version(self) -> int:
        return self._adapter_version

    def set_model_version(self, model_version: int) -> None:
        self._model_version = model_version

    def get_model_version(self) -> int:
        return self._model_version

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        self._parameters = dict(params)

    def get_parameters(self) -> dict[str, OrtValue]:
        return dict(self._parameters)


@dataclass
class RunOptions:
    """Options of a run. `terminate` makes it fail; the others are accepted without effect.

    Examples:
        >>> import tilewright as ort
        >>> options = ort.RunOptions()
        >>> options.logid = "first"
    """

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    _entries: dict[str, str] = field(default_factory=dict, repr=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeException("TW6020", f"there is no configuration entry {key}")
        return self._entries[key]

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        raise absent("RunOptions.add_active_adapter", "merge the adapter into the model")


def check_providers(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None, stacklevel: int = 3
) -> None:
    """Warn if a session falls back to the CPU from requested providers."""
    names = [one if isinstance(one, str) else one[0] for one in providers or ()]
    unknown = [name for name in names if name != CPU]
    if unknown and CPU not in names:
        warnings.warn(
            f"there is no provider {', '.join(unknown)}: the session runs on {CPU}",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
