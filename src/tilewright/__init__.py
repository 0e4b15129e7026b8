"""Tilewright: an end-to-end optimizing compiler for deep learning.

Names are loaded when they are first used, so that a program which only runs a saved model, through
`tilewright.load`, does not load the compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright import intrin, ort, te, tensor, tune
    from tilewright.base.errors import TilewrightError
    from tilewright.base.target import Target
    from tilewright.codegen.build import CompiledFunction, build
    from tilewright.driver.compile import compile
    from tilewright.driver.load import load
    from tilewright.frontends.onnx.export import to_onnx
    from tilewright.ort import (
        ExecutionMode,
        GraphOptimizationLevel,
        InferenceSession,
        OrtValue,
        RunOptions,
        SessionOptions,
        get_available_providers,
        get_device,
    )
    from tilewright.runtime.array import Array, array, empty, from_dlpack
    from tilewright.runtime.module import Module
    from tilewright.runtime.pool import set_threads
    from tilewright.runtime.profiler import profile
    from tilewright.tensor import Schedule, Trace, interpret

__version__ = "0.2.0"

_HOMES = {
    "intrin": "",
    "ort": "",
    "te": "",
    "tensor": "",
    "tune": "",
    "TilewrightError": "base.errors",
    "Target": "base.target",
    "CompiledFunction": "codegen.build",
    "build": "codegen.build",
    "compile": "driver.compile",
    "load": "driver.load",
    "to_onnx": "frontends.onnx.export",
    "Array": "runtime.array",
    "array": "runtime.array",
    "empty": "runtime.array",
    "from_dlpack": "runtime.array",
    "Module": "runtime.module",
    "set_threads": "runtime.pool",
    "profile": "runtime.profiler",
    "ExecutionMode": "ort",
    "GraphOptimizationLevel": "ort",
    "InferenceSession": "ort",
    "OrtValue": "ort",
    "RunOptions": "ort",
    "SessionOptions": "ort",
    "get_available_providers": "ort",
    "get_device": "ort",
    "Schedule": "tensor",
    "Trace": "tensor",
    "interpret": "tensor",
}
__all__ = [
    "Array",
    "CompiledFunction",
    "ExecutionMode",
    "GraphOptimizationLevel",
    "InferenceSession",
    "Module",
    "OrtValue",
    "RunOptions",
    "Schedule",
    "SessionOptions",
    "Target",
    "TilewrightError",
    "Trace",
    "array",
    "build",
    "compile",
    "empty",
    "from_dlpack",
    "get_available_providers",
    "get_device",
    "interpret",
    "intrin",
    "load",
    "ort",
    "profile",
    "set_threads",
    "te",
    "tensor",
    "to_onnx",
    "tune",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "tensor" in (name, home):  # programs may name the intrinsics and memories of hardware
        import_module(f"{__name__}.intrin")
    if not home:
        return import_module(f"{__name__}.{name}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
