"""Load ONNX models from files that may be damaged or malicious.

The source is a path, bytes, or a model in memory. Any defect raises one descriptive error: there
are no crashes, and no access to files outside of the model's folder.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

from tilewright.base.errors import Unsupported, UserError, UserTypeError
from tilewright.frontends.onnx.check import check_names
from tilewright.frontends.onnx.external import ExternalData
from tilewright.frontends.onnx.flatbuffer import Damaged
from tilewright.frontends.onnx.ort_format import is_ort_format, read_ort_format
from tilewright.frontends.onnx.tensors import Tensors
from tilewright.frontends.onnx.wire import Span, Weights, strip

MAX_BYTES = (1 << 31) - 1  # limit of protocol buffers
OLDEST = 1

Source = str | os.PathLike[str] | bytes | onnx.ModelProto


@dataclass(frozen=True)
class Loaded:
    """A loaded model, its name in messages, and its tensor reader; a context manager that closes
    the file."""

    model: onnx.ModelProto
    name: str
    tensors: Tensors

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *error: object) -> None:
        if self.tensors.weights is not None:
            self.tensors.weights.file.close()


def load_model(
    source: Source, *, name: str = "", files: Mapping[str, bytes] | None = None
) -> Loaded:
    """Load a model and check that it can be imported.

    `files` contains the contents of its external files.
    """
    if isinstance(source, onnx.ModelProto):
        loaded = Loaded(source, name or "model", Tensors(ExternalData(None, files or {})))
    elif isinstance(source, (bytes, bytearray, memoryview)):
        name = name or "model"
        loaded = _from_bytes(bytes(source), name, files or {})
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        loaded = _from_file(path, name or path.name, files or {})
    else:
        raise UserTypeError(
            "TW1111",
            f"a model is a path, bytes or an onnx.ModelProto, not {type(source).__name__}",
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(loaded)
        _check(loaded.model, loaded.name)
        stack.pop_all()
    return loaded


def _from_file(path: Path, name: str, files: Mapping[str, bytes]) -> Loaded:
    """Load a model with its weights left in the file until they are used."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UserError("TW1111", f"{str(path)!r} is not a file")
        if found.st_size > MAX_BYTES:
            raise UserError(
                "TW1111",
                f"{str(path)!r} has {found.st_size} bytes, more than a model file can have",
                help="store weights as external data",
            )
        file = path.open("rb")
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise UserError("TW1111", f"{str(path)!r}: {reason.lower()}") from error
    except ValueError as error:  # a NUL in the name
        if isinstance(error, UserError):
            raise
        raise UserError("TW1111", f"{str(path)!r}: {error}") from error
    with contextlib.ExitStack() as stack:
        stack.enter_context(file)
        if is_ort_format(file.peek(8)):
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                model, spans = _parsed_ort_format(whole, name)
            weights = Weights(file, spans)
        else:
            data, weights = strip(file, os.fstat(file.fileno()).st_size)
            model = _parsed(data, name)
        loaded = Loaded(model, name, Tensors(ExternalData(path.parent, files), weights))
        stack.pop_all()
    return loaded


def _from_bytes(source: bytes, name: str, files: Mapping[str, bytes]) -> Loaded:
    external = ExternalData(None, files)
    if not is_ort_format(source):
        return Loaded(_parsed(source, name), name, Tensors(external))
    model, spans = _parsed_ort_format(source, name)
    file = io.BytesIO(source)
    return Loaded(model, name, Tensors(external, Weights(file, spans)))


def _parsed_ort_format(
    data: bytes | mmap.mmap, name: str
) -> tuple[onnx.ModelProto, dict[int, Span]]:
    try:
        return read_ort_format(data)
    except (Damaged, ValueError, TypeError) as error:
        raise UserError(
            "TW1112", f"{name} is damaged: {error}", help="download or convert it again"
        ) from error


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise UserError(
            "TW1112",
            f"{name} is not an ONNX model, or it is damaged",
            help="download or export it again",
        ) from error
    return model


def _check(model: onnx.ModelProto, name: str) -> None:
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise UserError("TW1112", f"{name} holds no graph", help="download or export it again")
    check_names(model, name)
    newest = onnx.defs.onnx_opset_version()
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions and any(node.domain in ("", "ai.onnx") for node in model.graph.node):
        raise UserError("TW1113", f"{name} does not declare its opset")
    for version in versions:
        if not OLDEST <= version <= newest:
            raise Unsupported(
                "TW1114",
                f"{name} uses opset {version}; opsets {OLDEST} to {newest} are known",
                help="install a newer onnx package" if version > newest else "export it again",
            )
