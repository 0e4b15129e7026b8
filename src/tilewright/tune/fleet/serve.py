"""The worker's side of the wire: a handshake, then tasks until the other end closes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from tilewright.base.errors import TilewrightError
from tilewright.base.host import host_cores
from tilewright.base.version import VERSION
from tilewright.tune.fleet.wire import PROTOCOL, Lines, Lost, Message, objection

Handler = Callable[[Message], Mapping[str, Any]]  # a value, or {"error": reason}
FOREVER_S = 3e7


def serve(
    source: IO[bytes],
    sink: IO[bytes],
    handlers: Mapping[str, Handler],
    *,
    tags: Sequence[str] = (),
    token: str = "",
) -> None:
    """Answer until the other end closes."""
    lines = Lines(source, sink)
    try:
        said = welcome(lines.receive(_later()), tags=tags, token=token)
        lines.send(said, _later())
        if "refused" in said:
            return
        while True:
            lines.send(answer(lines.receive(_later()), handlers), _later())
    except Lost:
        return


def welcome(message: Message, *, tags: Sequence[str] = (), token: str = "") -> Message:
    """What a worker says to a greeting: what it is, or why it does not serve."""
    reason = objection(message, token)
    if reason:
        return {"refused": reason}
    known = [platform.machine(), *tags]
    return {"hello": PROTOCOL, "version": VERSION, "tags": known, "cores": host_cores()}


def answer(message: Message, handlers: Mapping[str, Handler]) -> Message:
    """What came of a task."""
    name = message.get("task")
    handler = handlers.get(str(message.get("kind")))
    if handler is None:
        return {"task": name, "error": f"no task of kind {message.get('kind')!r} is known here"}
    try:
        value = handler(message)
    except TilewrightError as error:
        return {"task": name, "error": f"refused: error[{error.code}]: {error.message}"}
    except MemoryError:
        return {"task": name, "error": "ran out of memory"}
    except (KeyError, ValueError, TypeError) as error:
        return {"task": name, "error": f"a bad task: {type(error).__name__}: {error}"}
    if "error" in value:
        return {"task": name, "error": str(value["error"])}
    return {"task": name, "value": dict(value)}


def _later() -> float:
    return time.monotonic() + FOREVER_S
