"""ONNX Runtime's sessions: a model compiled when the session is created.

session = InferenceSession("model.onnx")
outputs = session.run(None, {"x": x})  # a list of NumPy arrays
[(i.name, i.shape, i.type) for i in session.get_inputs()]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.errors import TilewrightError, UserError, UserTypeError
from tilewright.driver.load import load
from tilewright.ort import environment
from tilewright.ort.binding import IOBinding
from tilewright.ort.devices import (
    CPU,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    OrtMemoryInfo,
    cpu_memory,
)
from tilewright.ort.errors import (
    Fail,
    InvalidArgument,
    ModelLoadCanceled,
    as_running,
    loading,
)
from tilewright.ort.observe import observers
from tilewright.ort.options import RunOptions, SessionOptions, check_providers
from tilewright.ort.profiling import SessionProfile
from tilewright.ort.values import (
    ModelMetadata,
    NodeArg,
    OrtValue,
    OrtValueVector,
    SparseTensor,
    node_arg,
)
from tilewright.runtime.array import Array
from tilewright.runtime.module import Module, Spec

if TYPE_CHECKING:
    from tilewright.frontends.onnx.metadata import Interface

LIBRARIES = (".so", ".dylib")
_LIBRARY_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe")  # of shared libraries


class InferenceSession:
    """A model, compiled when the session is created.

    Examples:
        >>> import numpy as np
        >>> import onnx.parser
        >>> import tilewright as ort
        >>> text = '''<ir_version: 8, opset_import: ["" : 17]>
        ... net (float[2] x) => (float[2] y) { y = Neg (x) }'''
        >>> model = onnx.parser.parse_model(text).SerializeToString()
        >>> session = ort.InferenceSession(model)
        >>> session.run(None, {"x": np.array([1, 2], np.float32)})
        [array([-1., -2.], dtype=float32)]
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """`path_or_bytes` is the path of an .onnx or .ort file or of a library that `save`
        wrote, or the contents of one."""
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes)):
            kind = type(path_or_bytes).__name__
            raise UserTypeError("TW6042", f"a session is made of a path or bytes, not of {kind}")
        self._options = sess_options if sess_options is not None else SessionOptions()
        check_providers(providers if providers is not None else self._options._providers)
        self._source: str | os.PathLike[str] | bytes = path_or_bytes
        self._lock = Lock()
        self._fed_initializers: dict[frozenset[str], Module] = {}
        begun = time.perf_counter()
        try:
            with loading():
                self._load()
        except TilewrightError as error:
            for observer in observers:
                observer.refused(path_or_bytes, error)
            raise
        self._inputs = [self._described(spec, "inputs") for spec in self.module.inputs]
        self._outputs = [self._described(spec, "outputs") for spec in self.module.outputs]
        self._places = {spec.name: at for at, spec in enumerate(self.module.outputs)}
        self._profile = self._new_profile()
        for observer in observers:
            observer.loaded(self, time.perf_counter() - begun)

    # ------------------------------------------------------------------ loading

    def _load(self) -> None:
        if self._options._cancelled:
            raise ModelLoadCanceled("TW6043", "loading was called off by the session's options")
        self._interface: Interface | None = None
        library = self._library()
        if library is not None:
            self.module: Module = library
        else:
            # Imported here: a saved library runs without the compiler, which takes long to load.
            from tilewright.frontends.onnx.metadata import read_interface

            self._interface = read_interface(self._source)
            self.module = self._compiled(frozenset())
            self._write_optimized()

    def _library(self) -> Module | None:
        """Load the model if it is a saved library; None otherwise."""
        source = self._source
        if isinstance(source, bytes):
            if not source.startswith(_LIBRARY_MAGIC):
                return None
            with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
                path = Path(folder) / f"model{LIBRARIES[0]}"
                path.write_bytes(source)
                return self._loaded(path)
        path = Path(source)
        head = b""
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(4)
        is_library = path.suffix in LIBRARIES or head.startswith(_LIBRARY_MAGIC)
        return self._loaded(path) if is_library else None

    def _loaded(self, path: Path) -> Module:
        loaded = load(path)
        if not isinstance(loaded, Module):
            raise UserError("TW6021", f"{path} holds functions, not a model")
        loaded.threads = self._threads()
        return loaded

    def _compiled(self, fed: frozenset[str]) -> Module:
        """Compile the model; the named initializers become inputs."""
        from tilewright.driver.compile import compile
        from tilewright.frontends.onnx import Given, import_model

        options = self._options
        given = Given(options._initializers, fed, options._files)
        graph = import_model(self._source, given=given)
        return compile(graph, threads=self._threads(), dynamic=self._sizes(graph))

    def _sizes(self, graph: Any) -> dict[str, int]:
        """Sizes of symbolic dimensions that the options fix, by their names in the graph."""
        from tilewright.driver.sizes import size_names
        from tilewright.frontends.onnx.importer import size_name

        assert self._interface is not None
        wanted = {size_name(name): value for name, value in self._options._sizes.items()}
        for denotation, value in self._options._denoted.items():
            wanted |= dict.fromkeys(self._interface.denotations.get(denotation, ()), value)
        known = size_names(graph)
        return {name: value for name, value in wanted.items() if name in known}

    def _threads(self) -> int:
        own = int(self._options.intra_op_num_threads)
        return own if self._options.use_per_session_threads else environment.global_threads()

    def _write_optimized(self) -> None:
        if not self._options.optimized_model_filepath:
            return
        from tilewright.driver.optimize import staged_graph
        from tilewright.frontends.onnx.export import write_onnx

        write_onnx(staged_graph(self._source), self._options.optimized_model_filepath)

    def _described(self, spec: Spec, side: str) -> NodeArg:
        if self._interface is None:
            return node_arg(spec)
        declared = self._interface.inputs if side == "inputs" else self._interface.outputs
        return node_arg(spec, declared.get(spec.name))

    # ------------------------------------------------------------------ runs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model; the named outputs, or all, as NumPy arrays."""
        wanted = None if not output_names else [self._output_index(name) for name in output_names]
        made = self._call(input_feed, run_options)
        chosen = made if wanted is None else [made[at] for at in wanted]
        return [_as_output(value) for value in chosen]

    def _call(
        self, feed: Mapping[str, Any], run_options: RunOptions | None = None, out: Any = None
    ) -> Any:
        """All outputs, as the module returns them."""
        if run_options is not None and run_options.terminate:
            raise Fail("TW6043", "the run was called off by its options")
        module = self._module_for(feed)
        values = _in_order(feed, module.inputs, self._options)
        begun = time.perf_counter()
        try:
            with nullcontext() if self._profile is None else self._profile.run():
                made = module(*values, out=out)
        except TilewrightError as error:
            raise as_running(error) from error
        for observer in observers:
            observer.ran(self, feed, time.perf_counter() - begun)
        return made

    def _module_for(self, feed: Mapping[str, Any]) -> Module:
        """The module; a second one if a feed overrides initializers, compiled on first use."""
        overridable = () if self._interface is None else self._interface.overridable
        fed = frozenset(name for name in overridable if name in feed)
        if not fed:
            return self.module
        with self._lock:
            if fed not in self._fed_initializers:
                self._fed_initializers[fed] = self._compiled(fed)
            return self._fed_initializers[fed]

    def _run_into(
        self, feed: Mapping[str, Any], outputs: Mapping[str, np.ndarray[Any, Any] | None]
    ) -> list[Any]:
        """The bound outputs; those bound to the caller's memory are computed there."""
        names = list(outputs) or [spec.name for spec in self.module.outputs]
        whole = {name: array for name, array in outputs.items() if array is not None}
        if len(whole) == len(self.module.outputs) and all(
            array.flags.c_contiguous for array in whole.values()
        ):
            self._call(feed, out=[whole[spec.name] for spec in self.module.outputs])
            return [whole[name] for name in names]
        results = self.run(names, feed)
        for at, name in enumerate(names):
            array = outputs.get(name)
            if array is None:
                continue
            if array.shape != results[at].shape or array.dtype != results[at].dtype:
                raise InvalidArgument(
                    "TW6044",
                    f"the output {name} is {results[at].dtype}{list(results[at].shape)}, "
                    f"its memory {array.dtype}{list(array.shape)}",
                )
            array[...] = results[at]
            results[at] = array
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[Any, Any, str], Any],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on another thread, which then calls `callback(results, user_data, error)`."""

        def work() -> None:
            try:
                results: Any = self.run(output_names, input_feed, run_options)
            except Exception as error:
                callback([], user_data, str(error))
                return
            callback(results, user_data, "")

        Thread(target=work, name="tilewright-run-async").start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        made = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(value) for value in made]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run on a list of values; results are appended to `fetches`."""
        feed = dict(zip(feed_names, feeds, strict=True))
        fetches.extend(self.run_with_ort_values(fetch_names, feed, run_options))

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run with bound inputs and outputs; results are in the binding."""
        iobinding._run()

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type)

    def _output_index(self, name: str) -> int:
        if name not in self._places:
            raise InvalidArgument(
                "TW6022",
                f"the model has no output {name}",
                help=f"its outputs are {', '.join(self._places)}",
            )
        return self._places[name]

    # ------------------------------------------------------------------ what it is

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that a feed may override; the first such feed compiles the model again."""
        names = () if self._interface is None else self._interface.overridable
        if not names:
            return []
        specs = self._module_for(dict.fromkeys(names)).inputs
        return [node_arg(spec) for spec in specs if spec.name in names]

    def get_modelmeta(self) -> ModelMetadata:
        """The metadata in the model's file."""
        if self._interface is None:
            return ModelMetadata(graph_name=self.module.name)
        return ModelMetadata(**self._interface.fields)

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {CPU: {}}

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """All nodes of the model, assigned to the only provider."""
        nodes = () if self._interface is None else self._interface.nodes
        return [OrtEpAssignedSubgraph(CPU, tuple(OrtEpAssignedNode(*node) for node in nodes))]

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        return [cpu_memory() for _ in self._inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return [cpu_memory() for _ in self._outputs]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        return [OrtEpDevice() for _ in self._inputs]

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Any = None
    ) -> None:
        check_providers(providers)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Accepted without effect: the provider has no options that change between runs."""

    def disable_fallback(self) -> None:
        """Accepted without effect: there is only one provider."""

    def enable_fallback(self) -> None:
        """Accepted without effect: there is only one provider."""

    def get_tuning_results(self) -> list[Any]:
        """Always empty: nothing is tuned at run time."""
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        """Accepted without effect: nothing is tuned at run time."""

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Accepted without effect: the CPU captures no graphs."""

    # ------------------------------------------------------------------ profiling

    def _new_profile(self) -> SessionProfile | None:
        if not self._options.enable_profiling:
            return None
        return SessionProfile(self._options.profile_file_prefix, self.module._runtime)

    def end_profiling(self) -> str:
        """Write the profile and return the file's name; "" if profiling was off."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.write()

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._profile is None else self._profile.start_ns


def _in_order(
    feed: Mapping[str, Any], inputs: Sequence[Spec], options: SessionOptions
) -> list[Any]:
    absent_inputs = [spec for spec in inputs if spec.name not in feed]
    if absent_inputs or len(feed) != len(inputs):
        known = {spec.name for spec in inputs}
        for name in feed:
            if name not in known and name not in options._initializers:
                raise InvalidArgument(
                    "TW6023",
                    f"the model has no input {name}",
                    help=f"its inputs are {', '.join(spec.name for spec in inputs)}",
                )
    missing = [spec.name for spec in absent_inputs if not _is_optional(spec)]
    if missing:
        raise UserError("TW6024", f"the feed lacks the inputs {', '.join(missing)}")
    return [_as_input(feed.get(spec.name), spec) for spec in inputs]


def _is_optional(spec: Spec) -> bool:
    return spec.kind.startswith("opt<")


def _as_input(value: Any, spec: Spec) -> Any:
    """Convert a value to a module's input: lists of numbers become arrays of the input's type."""
    if isinstance(value, OrtValue):
        return value.fed()
    if isinstance(value, SparseTensor):
        return value.dense()
    if spec.dtype is None or spec.kind or isinstance(value, (np.ndarray, Array)):
        return value
    if isinstance(value, (list, tuple, bool, int, float)):
        return np.asarray(value, spec.dtype.numpy)
    return value


def _as_output(value: Any) -> Any:
    """Convert an output to ONNX Runtime's types: NumPy arrays, lists and dicts."""
    if isinstance(value, Array):
        return np.asarray(value)
    if isinstance(value, (list, tuple)):
        return [_as_output(item) for item in value]
    return value
