"""External data: tensors in files beside a model, restricted to the model's folder.

Models are untrusted, and name these files. So a name is relative, without `..`; no component is a
symbolic link; the file is regular and has one hard link (another may refer to a file elsewhere);
offsets are checked against the size of the file before reading.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

from tilewright.base.errors import UserError

REPEATS = 2  # limit of bytes read, as a multiple of the file's size


@dataclass
class ExternalData:
    """The external files of a model."""

    folder: Path | None  # None: the model is not from a file
    files: Mapping[str, bytes] = field(default_factory=dict)  # contents that the caller gave
    _total: dict[str, int] = field(default_factory=dict)  # bytes read per file

    def read(self, tensor: str, entries: Mapping[str, str], expected: int) -> bytes:
        """Read the bytes of a tensor; `expected` is their number by its shape and element type."""
        name = entries.get("location", "")
        if name in self.files:
            return self._from_contents(tensor, name, entries, expected)
        if self.folder is None:
            raise UserError(
                "TW1115",
                f"tensor {tensor!r} is stored in {name!r}, beside a model that is not a file",
                help="give the path of the model",
            )
        path = self._checked(tensor, name)
        offset = _count(tensor, entries, "offset", 0)
        length = _count(tensor, entries, "length", expected)
        if length != expected:
            raise UserError(
                "TW1116",
                f"tensor {tensor!r} needs {expected} bytes, {name!r} is said to hold {length}",
            )
        with _open(path, tensor, name) as file:
            size = os.fstat(file.fileno()).st_size
            if offset + length > size:
                raise UserError(
                    "TW1116",
                    f"tensor {tensor!r} ends at byte {offset + length} of {name!r}, past {size}",
                    help="download the file again: it looks cut off",
                )
            self._total[name] = self._total.get(name, 0) + length
            if self._total[name] > REPEATS * size:
                raise UserError(
                    "TW1117", f"the tensors in {name!r} take more than {REPEATS} times its size"
                )
            file.seek(offset)
            data = file.read(length)
        if len(data) != length:
            raise UserError("TW1116", f"{name!r} ended while tensor {tensor!r} was read")
        return data

    def _from_contents(
        self, tensor: str, name: str, entries: Mapping[str, str], expected: int
    ) -> bytes:
        """The bytes of a tensor in contents that the caller gave."""
        offset = _count(tensor, entries, "offset", 0)
        data = self.files[name][offset : offset + expected]
        if len(data) != expected:
            raise UserError("TW1116", f"tensor {tensor!r} ends past the contents given of {name!r}")
        return data

    def _checked(self, tensor: str, name: str) -> Path:
        """The path of a file, after checking that it may be opened."""
        assert self.folder is not None
        parts = PurePosixPath(name).parts
        foreign = PureWindowsPath(name)
        if (
            not parts
            or "\0" in name
            or PurePosixPath(name).is_absolute()
            or foreign.is_absolute()
            or foreign.drive
            or ".." in parts
            or ".." in foreign.parts
        ):
            raise _refused(tensor, name, "the name leads out of the model's folder")
        folder = Path(os.path.realpath(self.folder))
        path = folder.joinpath(*parts)
        at = folder
        for part in parts:
            at = at / part
            if at.is_symlink():
                raise _refused(tensor, name, "it is reached through a symbolic link")
        if Path(os.path.realpath(path)) != path:
            raise _refused(tensor, name, "the name leads out of the model's folder")
        return path


def _open(path: Path, tensor: str, name: str) -> io.FileIO:
    """Open a file without following links, and check that it is regular with a single hard link."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise UserError(
            "TW1116",
            f"tensor {tensor!r} is stored in {name!r}, which cannot be opened: {error.strerror}",
        ) from error
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return io.FileIO(descriptor, "rb")
    os.close(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise _refused(tensor, name, "it is not a regular file")
    raise _refused(tensor, name, "it has several hard links")


def _refused(tensor: str, name: str, why: str) -> UserError:
    return UserError(
        "TW1115",
        f"tensor {tensor!r} is stored in {name!r}, which is not read: {why}",
        help="copy the file itself into the folder of the model",
    )


def _count(tensor: str, entries: Mapping[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise UserError("TW1116", f"tensor {tensor!r} has the {key} {text!r}")
    return int(text)
