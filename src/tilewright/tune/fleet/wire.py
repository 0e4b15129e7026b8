"""What travels between a fleet and its workers: text and numbers, one JSON object per line.

    -> {"hello": 1, "version": "0.2.0", "token": ""}
    <- {"hello": 1, "version": "0.2.0", "tags": ["aarch64"], "cores": 4}
    -> {"task": "7", "kind": "measure", "function": "func @f ...", "trace": "...", ...}
    <- {"task": "7", "value": {"ns": [81234.0, 80911.0]}}       or  {"task": "7", "error": "..."}

Nothing that is received is executed, imported or unpickled: a worker builds the program that a text
describes, and a program that does not verify is refused. Either end checks that the other speaks
the same protocol and has the same version: a choice means what the code that made it says.
"""

from __future__ import annotations

import hmac
import json
import os
import select
import time
from collections.abc import Mapping
from typing import IO, Any

from tilewright.base.errors import UserError
from tilewright.base.version import VERSION

PROTOCOL = 1
TOKEN_VARIABLE = "TILEWRIGHT_FLEET_TOKEN"
MAX_BYTES = 64 << 20  # of one message
CHUNK_BYTES = 1 << 16

Message = Mapping[str, Any]


class Lost(Exception):
    """The other end is gone, silent for too long, or speaks another language."""


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":"), allow_nan=True).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line; Lost where it is none."""
    try:
        message = json.loads(line)
    except (ValueError, UnicodeDecodeError):
        raise Lost(f"not a message: {line[:60]!r}") from None
    if not isinstance(message, dict):
        raise Lost(f"not a message: {line[:60]!r}")
    return message


class Lines:
    """Messages over a pipe, with deadlines."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source, self._sink = source, sink
        self._rest = b""

    def send(self, message: Message, deadline: float) -> None:
        data = memoryview(encode(message))
        try:
            while data:
                self._wait(deadline, write=True)
                data = data[os.write(self._sink.fileno(), data[:CHUNK_BYTES]) :]
        except (OSError, ValueError):
            raise Lost("it is gone") from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message, if it comes in time."""
        parts = [self._rest]
        total = len(self._rest)
        while b"\n" not in parts[-1]:
            self._wait(deadline)
            try:
                part = os.read(self._source.fileno(), CHUNK_BYTES)
            except (OSError, ValueError):
                raise Lost("it is gone") from None
            total += len(part)
            if not part:
                raise Lost("it is gone")
            if total > MAX_BYTES:
                raise Lost("its message is too long")
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return decode(line)

    def _wait(self, deadline: float, *, write: bool = False) -> None:
        left = deadline - time.monotonic()
        reads = [] if write else [self._source]
        writes = [self._sink] if write else []
        if left <= 0 or not any(select.select(reads, writes, [], left)):
            raise Lost("no answer in time")


# --------------------------------------------------------------------------- handshake


def greeting(token: str = "") -> Message:
    """What a fleet says first."""
    return {"hello": PROTOCOL, "version": VERSION, "token": token}


def objection(message: Message, token: str = "") -> str:
    """Why a worker does not serve the one who says this; "" where it does."""
    if message.get("hello") != PROTOCOL:
        return f"protocol {message.get('hello')!r}, this one speaks {PROTOCOL}"
    if message.get("version") != VERSION:
        return f"version {message.get('version')!r}, this one is {VERSION}"
    given = message.get("token")
    if token and not hmac.compare_digest(str(given or "").encode(), token.encode()):
        return "a token that is not the one asked for" if given else "no token, and one is needed"
    return ""


def check_welcome(message: Message, name: str) -> tuple[tuple[str, ...], int]:
    """Tags and cores of a worker that serves; an error where it does not, or is another version."""
    if "refused" in message:
        raise UserError(
            "TW5202",
            f"worker {name} refuses: {message['refused']}",
            help="start it with the same version and token as this process",
        )
    reason = objection({**message, "token": ""})
    if reason:
        raise UserError(
            "TW5202",
            f"worker {name} answers with {reason}",
            help="install the same version of tilewright on both ends",
        )
    tags, cores = message.get("tags"), message.get("cores")
    if not isinstance(tags, list) or not isinstance(cores, int):
        raise UserError("TW5202", f"worker {name} does not say what it is")
    return tuple(str(tag) for tag in tags), cores
