"""ONNX Runtime's exceptions. Each is also a `TilewrightError` with a code, message and help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from tilewright.base.errors import CompilerBug, TilewrightError, Unsupported, UserError


class Fail(TilewrightError, RuntimeError):
    """Any other failure."""


class InvalidArgument(UserError):
    """An invalid input, name or option."""


class NoSuchFile(UserError, FileNotFoundError):
    """The model file does not exist."""


class NoModel(UserError):
    """The source contains no model."""


class EngineError(TilewrightError, RuntimeError):
    """Never raised here."""


class RuntimeException(TilewrightError, RuntimeError):
    """A run failed, or a requested value was never set."""


class InvalidProtobuf(UserError):
    """The file is not an ONNX model, or is damaged."""


class ModelLoaded(TilewrightError, RuntimeError):
    """Never raised here."""


class NotImplemented(Unsupported):
    """A feature that is not supported, with its name."""


class AbsentModule(NotImplemented, ImportError):
    """A module that does not exist here; an `ImportError`, so that optional imports work."""


class AbsentMember(NotImplemented, AttributeError):
    """A member that does not exist here; an `AttributeError`, so that `hasattr` works."""


class InvalidGraph(UserError):
    """The model is invalid ONNX."""


class EPFail(TilewrightError, RuntimeError):
    """Never raised here: there is one execution provider."""


class ModelLoadCanceled(TilewrightError, RuntimeError):
    """Loading was cancelled before it began."""


class ModelRequiresCompilation(TilewrightError, RuntimeError):
    """Never raised here: every model is compiled."""


class NotFound(UserError, LookupError):
    """No item has this name."""


class DeviceReset(TilewrightError, RuntimeError):
    """Never raised here."""


NAMES = (
    Fail,
    InvalidArgument,
    NoSuchFile,
    NoModel,
    EngineError,
    RuntimeException,
    InvalidProtobuf,
    ModelLoaded,
    NotImplemented,
    InvalidGraph,
    EPFail,
    ModelLoadCanceled,
    ModelRequiresCompilation,
    NotFound,
    DeviceReset,
)
UNREADABLE, DAMAGED = "TW1111", ("TW1105", "TW1112")  # codes of the importer


def as_loading(error: TilewrightError) -> TilewrightError:
    """Convert an error of loading a model to the class that ONNX Runtime would raise."""
    if isinstance(error, (CompilerBug, *NAMES)):
        return error
    if error.code in DAMAGED:
        return _again(InvalidProtobuf, error)
    if error.code == UNREADABLE:
        return _again(NoSuchFile, error)
    if isinstance(error, Unsupported):
        return _again(NotImplemented, error)
    return _again(InvalidGraph if error.code.startswith("TW1") else InvalidArgument, error)


def as_running(error: TilewrightError) -> TilewrightError:
    """Convert an error of a run to the class that ONNX Runtime would raise."""
    if isinstance(error, (CompilerBug, *NAMES)):
        return error
    return _again(InvalidArgument, error)


def _again(kind: type[TilewrightError], error: TilewrightError) -> TilewrightError:
    return kind(error.code, error.message, error.loc, context=error.context, help=error.help)


@contextmanager
def loading() -> Iterator[None]:
    """Convert errors in the block to those of loading a model."""
    try:
        yield
    except TilewrightError as error:
        raise as_loading(error) from error


def absent(
    name: str, help: str = "", kind: type[NotImplemented] = NotImplemented
) -> NotImplemented:
    """The error for a missing part of ONNX Runtime."""
    return kind("TW6040", f"{name} does not exist in tilewright.ort", help=help)


class Absent:
    """A placeholder for a missing name: it can be imported, and any use raises the error."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise absent(self.__name__)

    def __getattr__(self, member: str) -> NoReturn:
        if member.startswith("__"):  # looked up by Python itself
            raise AttributeError(member)
        raise absent(f"{self.__name__}.{member}", kind=AbsentMember)
