"""A cached read-only view of the database, for compilations.

    with Reader("records.sqlite") as records:
        records.winners(keys), records.timed(), records.measured(key)

Opening a file in WAL mode creates and removes two more files, which takes longer than all queries
of a compilation. Answers are cached for as long as the file is unchanged: a writer changes the size
or time of the file, or of its log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from tilewright.base.closing import Closing
from tilewright.base.errors import UserError
from tilewright.tune.database import Database
from tilewright.tune.record import TaskKey, Winner

STATES = 4  # file states whose answers are cached

Stamp = tuple[tuple[int, int, int] | None, ...]  # (inode, bytes, time) of a file and its log


@dataclass
class Answers:
    """Cached answers for one state of a file, by task digest; None: no record."""

    winners: dict[str, Winner | None] = field(default_factory=dict)
    seconds: dict[str, float | None] = field(default_factory=dict)
    timed: frozenset[str] | None = None


class Reader(Closing):
    """Winners and times of a file, as `Database` tells them.

    A file that cannot be read is the same typed error, when it is asked.

    Examples:
        >>> import tempfile, pathlib
        >>> from tilewright.tune import Database, TaskKey, Winner
        >>> from tilewright.tune.reader import Reader
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "records.sqlite"
        >>> key = TaskKey("the text of a kernel", "cpu", threads=2)
        >>> with Database(path) as database:
        ...     database.keep(key, Winner({"C": "gemm mr=6 nr=3"}, gain=1.2))
        >>> with Reader(path) as records:
        ...     records.winners([key])[key].gain
        1.2
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: Database | None = None
        self._failed: UserError | None = None
        self._answers = _answers(path, _stamp(path))

    def winners(self, keys: Sequence[TaskKey]) -> dict[TaskKey, Winner]:
        """The winners of those tasks that have one."""
        remembered, digests = self._answers.winners, {key: key.digest for key in keys}
        unknown = [key for key, digest in digests.items() if digest not in remembered]
        if unknown:
            told = self._database().winners(unknown)
            remembered.update({digests[key]: told.get(key) for key in unknown})
        known = {key: remembered[digest] for key, digest in digests.items()}
        return {key: winner for key, winner in known.items() if winner is not None}

    def measured(self, key: TaskKey) -> float | None:
        """Seconds that one call takes inside a model; None where nobody measured it."""
        remembered, digest = self._answers.seconds, key.digest
        if digest not in remembered:
            remembered[digest] = self._database().measured(key)
        return remembered[digest]

    def timed(self) -> frozenset[str]:
        """Digests of the tasks that `measured` tells a time of."""
        if self._answers.timed is None:
            self._answers.timed = self._database().timed()
        return self._answers.timed

    def _database(self) -> Database:
        if self._failed is not None:  # do not wait for a lock again
            raise self._failed
        if self._opened is None:
            try:
                self._opened = Database(self._path)
            except UserError as error:
                self._failed = error
                raise
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


@lru_cache(maxsize=STATES)
def _answers(path: Path, stamp: Stamp) -> Answers:
    return Answers()


def _stamp(path: Path) -> Stamp:
    """What identifies a state of the file; None for a missing file."""
    log = path.with_name(f"{path.name}-wal")
    return tuple(_file_stamp(each) for each in (path, log))


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
