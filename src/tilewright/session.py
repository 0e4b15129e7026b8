"""ONNX Runtime's interface: existing code runs by changing the import.

import tilewright as ort

session = ort.InferenceSession("model.onnx")
outputs = session.run(None, {"x": x})  # a list of NumPy arrays
[(i.name, i.shape, i.type) for i in session.get_inputs()]

Options that steer ONNX Runtime's inner workings are accepted and mean nothing here.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.dtype import dtype
from tilewright.base.errors import UserError, UserTypeError
from tilewright.driver.load import load
from tilewright.runtime.array import Array
from tilewright.runtime.module import Module, Spec

PROVIDER = "CPUExecutionProvider"
LIBRARIES = (".so", ".dylib")

# ONNX Runtime's names of element types.
_ELEMENTS = {
    "f64": "double",
    "f32": "float",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8e4m3fn",
    "f8e4m3fnuz": "float8e4m3fnuz",
    "f8e5m2": "float8e5m2",
    "f8e5m2fnuz": "float8e5m2fnuz",
    "f8e8m0": "float8e8m0",
    "f4e2m1": "float4e2m1",
    "str": "string",
    "bool": "bool",
}
_KIND = re.compile(r"(?P<outer>seq|opt)<(?P<inner>.*)>")
_MAP = re.compile(r"map<(?P<key>\w+), (?P<value>\w+)>")


class GraphOptimizationLevel(IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass
class SessionOptions:
    """How a session runs. `intra_op_num_threads` is the number of threads; 0 means all cores."""

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = ""
    use_deterministic_compute: bool = True
    _entries: dict[str, str] = field(default_factory=dict, repr=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise UserError("TW6020", f"there is no configuration entry {key}")
        return self._entries[key]


@dataclass
class RunOptions:
    """Accepted by `run`; nothing in it changes a run."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    terminate: bool = False
    only_execute_path_to_fetches: bool = False


@dataclass(frozen=True)
class NodeArg:
    """An input or output: its name, its shape of numbers and names, its type as a word."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True)
class ModelMetadata:
    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


class OrtValue:
    """A NumPy array by another name."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        return OrtValue(np.asarray(array))

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return tensor_name(str(dtype(self._array.dtype.name)))

    def device_name(self) -> str:
        return "cpu"

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        return np.asarray(self._array, *args, **kwargs)


class InferenceSession:
    """A model, compiled when the session is made."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **unused: Any,
    ) -> None:
        """A path to an .onnx file or to a library that `save` wrote, or the bytes of a model."""
        _check_providers(providers)
        self._options = sess_options if sess_options is not None else SessionOptions()
        self._source = path_or_bytes
        self.module = self._load(path_or_bytes, int(self._options.intra_op_num_threads))
        self._inputs = [_node_arg(spec) for spec in self.module.inputs]
        self._outputs = [_node_arg(spec) for spec in self.module.outputs]
        self._places = {spec.name: at for at, spec in enumerate(self.module.outputs)}

    def _load(self, source: Any, threads: int) -> Module:
        if isinstance(source, (str, os.PathLike)) and Path(source).suffix in LIBRARIES:
            loaded = load(Path(source))
            if not isinstance(loaded, Module):
                raise UserError("TW6021", f"{source} holds functions, not a model")
            loaded.threads = threads
            return loaded
        from tilewright.driver.compile import compile  # slow to load, and not always needed

        return compile(source, threads=threads)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The outputs named, or all, as NumPy arrays."""
        wanted = None if not output_names else [self._place(name) for name in output_names]
        made = self.module(*self._in_order(input_feed))
        chosen = made if wanted is None else [made[at] for at in wanted]
        return [_plain(value) for value in chosen]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run on what was bound; results are read from the binding."""
        iobinding._run()

    def _place(self, name: str) -> int:
        if name not in self._places:
            raise UserError(
                "TW6022",
                f"the model has no output {name}",
                help=f"its outputs are {', '.join(self._places)}",
            )
        return self._places[name]

    def _in_order(self, feed: Mapping[str, Any]) -> list[Any]:
        known = {spec.name for spec in self.module.inputs}
        for name in feed:
            if name not in known:
                raise UserTypeError(
                    "TW6023",
                    f"the model has no input {name}",
                    help=f"its inputs are {', '.join(spec.name for spec in self.module.inputs)}",
                )
        missing = [spec.name for spec in self.module.inputs if spec.name not in feed]
        if missing:
            raise UserError("TW6024", f"the feed lacks the inputs {', '.join(missing)}")
        return [_fed(feed[spec.name], spec) for spec in self.module.inputs]

    # ------------------------------------------------------------------ what it is

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What the model's file tells about itself."""
        if self.module.manifest is not None:
            return ModelMetadata(graph_name=self.module.name)
        from tilewright.frontends.onnx.metadata import read_metadata

        return ModelMetadata(**read_metadata(self._source))

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {}}

    def set_providers(self, providers: Sequence[Any] | None = None, *unused: Any) -> None:
        _check_providers(providers)

    def disable_fallback(self) -> None:
        """There is one provider: nothing falls back to it."""

    def enable_fallback(self) -> None:
        """There is one provider: nothing falls back to it."""


class IOBinding:
    """Inputs and outputs bound by name; outputs bound to an array end up in it."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._results: list[Any] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self._inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._inputs[name] = value

    def bind_output(self, name: str, *unused: Any, **unknown: Any) -> None:
        self._session._place(name)
        self._outputs[name] = None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self._session._place(name)
        self._outputs[name] = value.numpy()

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Inputs are always there."""

    def synchronize_outputs(self) -> None:
        """Outputs are always there."""

    def _run(self) -> None:
        names = list(self._outputs) or None
        self._results = self._session.run(names, self._inputs)
        for at, array in enumerate(self._outputs.values()):
            if array is not None:
                np.copyto(array, self._results[at], casting="no")
                self._results[at] = array

    def copy_outputs_to_cpu(self) -> list[Any]:
        return list(self._results)

    def get_outputs(self) -> list[OrtValue]:
        return [OrtValue(result) for result in self._results]


def get_available_providers() -> list[str]:
    """What sessions can run on."""
    return [PROVIDER]


def get_all_providers() -> list[str]:
    return [PROVIDER]


def get_device() -> str:
    return "CPU"


def _check_providers(providers: Sequence[Any] | None) -> None:
    names = [one if isinstance(one, str) else one[0] for one in providers or ()]
    unknown = [name for name in names if name != PROVIDER]
    if unknown and PROVIDER not in names:
        warnings.warn(
            f"there is no provider {', '.join(unknown)}: the session runs on {PROVIDER}",
            UserWarning,
            stacklevel=3,
        )


def tensor_name(element: str) -> str:
    """`tensor(float)` for f32."""
    if element in _ELEMENTS:
        return f"tensor({_ELEMENTS[element]})"
    named = re.sub(r"^u(?=\d)", "uint", re.sub(r"^i(?=\d)", "int", element))
    return f"tensor({named})"


def _type_name(spec: Spec) -> str:
    return _kind_name(spec.kind) if spec.kind else tensor_name(str(spec.dtype))


def _kind_name(kind: str) -> str:
    """ONNX Runtime's name of a type that is no tensor."""
    outer = _KIND.fullmatch(kind)
    if outer is not None:
        word = {"seq": "seq", "opt": "optional"}[outer["outer"]]
        return f"{word}({_kind_name(outer['inner'])})"
    table = _MAP.fullmatch(kind)
    if table is not None:
        key = tensor_name(table["key"])[len("tensor(") : -1]
        return f"map({key},{tensor_name(table['value'])})"
    return tensor_name(kind.split("[", 1)[0])


def _node_arg(spec: Spec) -> NodeArg:
    return NodeArg(spec.name, list(spec.shape), _type_name(spec))


def _fed(value: Any, spec: Spec) -> Any:
    """A value as modules take it: lists of numbers become arrays of the input's type."""
    if isinstance(value, OrtValue):
        return value.numpy()
    if spec.dtype is None or spec.kind or isinstance(value, (np.ndarray, Array)):
        return value
    if isinstance(value, (list, tuple, bool, int, float)):
        return np.asarray(value, spec.dtype.numpy)
    return value


def _plain(value: Any) -> Any:
    """An output as ONNX Runtime gives it: NumPy arrays, lists and dicts."""
    if isinstance(value, Array):
        return np.asarray(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
