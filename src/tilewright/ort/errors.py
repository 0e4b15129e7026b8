"""ONNX Runtime's exceptions by their names. Each is one of ours too: code, message, help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from tilewright.base.errors import CompilerBug, TilewrightError, Unsupported, UserError


class Fail(TilewrightError, RuntimeError):
    """A failure with no better name."""


class InvalidArgument(UserError):
    """An input, a name or an option is not what the model takes."""


class NoSuchFile(UserError, FileNotFoundError):
    """There is no such model file."""


class NoModel(UserError):
    """What was given holds no model."""


class EngineError(TilewrightError, RuntimeError):
    """Never raised here."""


class RuntimeException(TilewrightError, RuntimeError):
    """A run went wrong, or something asked for was never set."""


class InvalidProtobuf(UserError):
    """The file is not an ONNX model, or it is damaged."""


class ModelLoaded(TilewrightError, RuntimeError):
    """Never raised here."""


class NotImplemented(Unsupported):
    """What does not exist here, by its name."""


class AbsentModule(NotImplemented, ImportError):
    """A module that does not exist here: programs that can do without one go on."""


class AbsentMember(NotImplemented, AttributeError):
    """A member that does not exist here: `hasattr` says so."""


class InvalidGraph(UserError):
    """The model breaks the rules of ONNX."""


class EPFail(TilewrightError, RuntimeError):
    """Never raised here: there is one execution provider."""


class ModelLoadCanceled(TilewrightError, RuntimeError):
    """Loading was called off before it began."""


class ModelRequiresCompilation(TilewrightError, RuntimeError):
    """Never raised here: every model is compiled."""


class NotFound(UserError, LookupError):
    """There is nothing by that name."""


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
    """What ONNX Runtime would raise where a model cannot be loaded."""
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
    """What ONNX Runtime would raise where a run fails."""
    if isinstance(error, (CompilerBug, *NAMES)):
        return error
    return _again(InvalidArgument, error)


def _again(kind: type[TilewrightError], error: TilewrightError) -> TilewrightError:
    return kind(error.code, error.message, error.loc, context=error.context, help=error.help)


@contextmanager
def loading() -> Iterator[None]:
    """Errors inside are those of loading a model."""
    try:
        yield
    except TilewrightError as error:
        raise as_loading(error) from error


def absent(
    name: str, help: str = "", kind: type[NotImplemented] = NotImplemented
) -> NotImplemented:
    """The error for a part of ONNX Runtime that does not exist here."""
    return kind("TW6040", f"{name} does not exist in tilewright.ort", help=help)


class Absent:
    """A name that can be imported; whatever is done with it raises the error."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise absent(self.__name__)

    def __getattr__(self, member: str) -> NoReturn:
        if member.startswith("__"):  # what Python itself looks for
            raise AttributeError(member)
        raise absent(f"{self.__name__}.{member}", kind=AbsentMember)
