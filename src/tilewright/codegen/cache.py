"""Compiled objects on disk, found by everything that went into them.

An entry is a file named by the hash of its key; it also holds the whole key, which is compared, and
a checksum, so that a collision, a truncated or a damaged file is a miss and never wrong code. Files
appear by renaming: any number of processes may share the folder.

`TILEWRIGHT_CACHE_DIR` names the folder; set it to nothing to keep no cache. Entries beyond
`TILEWRIGHT_CACHE_MB` (2048) go, the longest unused first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import struct
import tempfile
from functools import cache
from pathlib import Path

from tilewright.base.errors import UserError
from tilewright.base.host import cache_root

_MAGIC = b"TILEWRIGHT OBJECT 1\n"
_LENGTHS = struct.Struct("<QQ")  # of the key, of the payload
_CHECKSUM_BYTES = 32
LIMIT_VARIABLE, DEFAULT_LIMIT_MB = "TILEWRIGHT_CACHE_MB", 2048
_PRUNINGS = 64  # while as much is written as the cache may hold
_chance = random.SystemRandom()  # that of users stays as it is; processes differ


def cache_folder() -> Path | None:
    """Where compiled objects are kept; None when they are not."""
    root = cache_root()
    return None if root is None else root / "objects"


def try_read(key: str) -> bytes | None:
    """The object stored under exactly this key."""
    path = _path(key)
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    payload = _unpack(data, key.encode())
    if payload is None:
        with contextlib.suppress(OSError):
            path.unlink()  # damaged, or another key's: it would be in the way forever
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used just now
    return payload


def write(key: str, payload: bytes) -> None:
    """Store an object. That it cannot be stored is no error."""
    path = _path(key)
    if path is None:
        return
    data = _pack(payload, key.encode())
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, data)
    if is_pruning_due(len(data)):
        prune()


def is_pruning_due(written: int) -> bool:
    """Whether it is time to look at all entries: by chance, in proportion to what was written.

    So no process needs to know what others write, and many short ones prune as often as a long one.
    """
    return _chance.random() * allowed_bytes() <= written * _PRUNINGS


def allowed_bytes() -> int:
    """How much the cache may hold."""
    told = os.environ.get(LIMIT_VARIABLE, "")
    if told and not told.isdecimal():
        raise UserError(
            "TW3034",
            f"{LIMIT_VARIABLE}={told} is not a number of megabytes",
            help=f"set it to a number, or unset it: {DEFAULT_LIMIT_MB}",
        )
    return int(told or DEFAULT_LIMIT_MB) << 20


def prune(limit_bytes: int | None = None) -> None:
    """Remove the longest unused entries until the rest fits."""
    folder = cache_folder()
    if folder is None:
        return
    if limit_bytes is None:
        limit_bytes = allowed_bytes()
    entries = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                stat = path.stat()
                entries.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit_bytes:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size


def write_atomically(path: Path, data: bytes) -> None:
    """The file is there whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _path(key: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / hashlib.sha256(key.encode()).hexdigest()[:40]


def _pack(payload: bytes, key: bytes) -> bytes:
    body = _LENGTHS.pack(len(key), len(payload)) + key + payload
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(data: bytes, key: bytes) -> bytes | None:
    """The payload, if the file is whole and its key is this one."""
    start = len(_MAGIC) + _CHECKSUM_BYTES
    body = data[start:]
    if not data.startswith(_MAGIC) or len(body) < _LENGTHS.size:
        return None
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        return None
    key_size, payload_size = _LENGTHS.unpack_from(body)
    if len(body) != _LENGTHS.size + key_size + payload_size:
        return None
    if body[_LENGTHS.size : _LENGTHS.size + key_size] != key:
        return None
    return body[_LENGTHS.size + key_size :]


def compiler_fingerprint() -> str:
    """What turns tensor functions into code: editing it empties the cache."""
    return fingerprint(("base", "sym", "tensor", "intrin", "codegen"))


@cache
def fingerprint(parts: tuple[str, ...]) -> str:
    """A hash of the sources of parts of the package."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for part in parts:
        for path in sorted((root / part).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
