"""The worker's side of the wire: a handshake, then tasks until the other end closes."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from tilewright.base.errors import TilewrightError
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
        hello = lines.receive(_later())
        reason = objection(hello, token)
        if reason:
            lines.send({"refused": reason}, _later())
            return
        known = [platform.machine(), *tags]
        cores = os.cpu_count() or 1
        lines.send({"hello": PROTOCOL, "version": VERSION, "tags": known, "cores": cores}, _later())
        while True:
            lines.send(_answer(lines.receive(_later()), handlers), _later())
    except Lost:
        return


def _answer(message: Message, handlers: Mapping[str, Handler]) -> Message:
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
