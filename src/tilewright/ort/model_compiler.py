"""ONNX Runtime's ahead-of-time compiler: compile a model to a library that sessions load."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.ort.enums import GraphOptimizationLevel, OrtCompileApiFlags
from tilewright.ort.errors import Fail, InvalidArgument
from tilewright.ort.options import SessionOptions
from tilewright.ort.session import LIBRARIES, InferenceSession


class ModelCompiler:
    """Compiles a model once. The result contains code and weights, whatever the file's
    extension."""

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Callable[..., Any] | None = None,
    ) -> None:
        self._options = sess_options
        self._source = input_model_path_or_bytes
        self._flags = int(flags)

    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> None:
        """Write the compiled model; by default beside the model, with `_ctx` in its name."""
        if output_model_path is None:
            if isinstance(self._source, bytes):
                raise InvalidArgument("TW6041", "a model from bytes needs a path to be written to")
            path = Path(self._source)
            output_model_path = path.with_name(f"{path.stem}_ctx{path.suffix}")
        path = Path(output_model_path)
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and path.exists():
            raise Fail("TW6041", f"{path} exists already")
        data = self.compile_to_bytes()
        partial = path.with_name(f".{path.name}.part")
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def compile_to_bytes(self) -> bytes:
        session = InferenceSession(self._source, self._options)
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            return session.module.save(Path(folder) / f"model{LIBRARIES[0]}").read_bytes()

    def compile_to_stream(self, write_function: Callable[[bytes], None]) -> None:
        write_function(self.compile_to_bytes())

    def set_ep_context_data_write_func(self, write_func: Callable[..., Any]) -> None:
        """Accepted without effect: no other files are written."""

    def clear_ep_context_data_write_func(self) -> None:
        """Accepted without effect, as above."""
