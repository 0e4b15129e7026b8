"""Tuning results in one SQLite file.

    with Database("records.sqlite") as database:
        database.add(key, trial)              on disk when it returns
        database.keep(key, Winner(...))       what `tw.compile` uses from then on
        database.winner(key)
        database.measured(key)                seconds of one call in place, None where unknown

Several tuners and compilers may share a file (WAL mode, short transactions), several threads one
`Database`. A task is found by its digest and compared in full. A file that is damaged, locked, of a
newer schema or read-only raises one typed error; `Records` falls back to memory instead, and tells.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tilewright.base.closing import Closing
from tilewright.base.errors import UserError
from tilewright.base.host import cache_root
from tilewright.base.version import VERSION
from tilewright.tune.record import Line, TaskKey, Time, Trial, Variant, Winner

T = TypeVar("T")
FORM = 3  # schema version; 1 lacks times and variants, 2 lacks variants
BUSY_S = 10.0  # how long to wait for another writer

_TABLES = """
CREATE TABLE IF NOT EXISTS tasks (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL, text TEXT NOT NULL, target TEXT NOT NULL,
    threads INTEGER NOT NULL, version TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS tasks_by_digest ON tasks (digest);
CREATE TABLE IF NOT EXISTS trials (
    task INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE, space TEXT NOT NULL,
    choice TEXT NOT NULL, ns REAL NOT NULL, incumbent_ns REAL NOT NULL, estimate_ns REAL NOT NULL,
    error TEXT NOT NULL, features BLOB NOT NULL, names TEXT NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (task, space, choice));
CREATE TABLE IF NOT EXISTS winners (
    task INTEGER PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE, choices TEXT NOT NULL,
    gain REAL NOT NULL, label TEXT NOT NULL, created REAL NOT NULL, variants TEXT DEFAULT '[]');
CREATE TABLE IF NOT EXISTS times (
    task INTEGER PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE, ns REAL NOT NULL,
    created REAL NOT NULL);
"""
_TASK = "digest = ? AND text = ? AND target = ? AND threads = ? AND version = ?"


def default_path() -> Path | None:
    """The user's database: `TILEWRIGHT_TUNING_DB`, else beside the cache; None where there is none.

    Set the variable to nothing to use no records.
    """
    chosen = os.environ.get("TILEWRIGHT_TUNING_DB")
    if chosen is not None:
        return Path(chosen) if chosen else None
    root = cache_root()
    return None if root is None else root / "tuning.sqlite"


@dataclass(frozen=True)
class Taken:
    """Counts of records read from another source."""

    records: int = 0
    other_version: int = 0  # of another code version: skipped
    unreadable: int = 0  # not a record: skipped
    unknown_fields: int = 0  # ignored fields of accepted records


class Database(Closing):
    """Trials and winners by task. Writes are on disk when a method returns.

    Examples:
        >>> from tilewright.tune import Database, TaskKey, Winner
        >>> key = TaskKey("the text of a kernel", "cpu", threads=2)
        >>> with Database() as records:  # in memory; a path makes a file
        ...     records.keep(key, Winner({"C": "gemm mr=6 nr=3"}, gain=1.2))
        ...     records.winner(key).gain
        1.2
    """

    def __init__(self, path: str | Path = ":memory:", *, busy_s: float = BUSY_S) -> None:
        self.path, self._is_writer = str(path), False
        self._lock = threading.RLock()  # one connection serves all threads
        if self.path != ":memory:":
            with _typed(self.path):
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        with _typed(self.path):
            self._sql = sqlite3.connect(
                self.path, timeout=busy_s, isolation_level=None, check_same_thread=False
            )
        # One that nobody closes is closed with its last reference.
        self._close = weakref.finalize(self, self._sql.close)
        try:
            with _typed(self.path):
                self._prepare()
        except UserError:
            self._close()
            raise

    def _prepare(self) -> None:
        (form,) = self._sql.execute("PRAGMA user_version").fetchone()
        if form > FORM:
            raise UserError(
                "TW5004",
                f"{self.path} was written by a newer version (form {form}, known: {FORM})",
                help="use another file with --db, or a newer Tilewright",
            )
        if form == FORM:
            return
        self._sql.execute("PRAGMA journal_mode = WAL")
        with self._transaction():
            for statement in _TABLES.split(";"):
                self._sql.execute(statement)
            columns = [row[1] for row in self._sql.execute("PRAGMA table_info(winners)")]
            if "variants" not in columns:
                self._sql.execute("ALTER TABLE winners ADD COLUMN variants TEXT DEFAULT '[]'")
            self._sql.execute(f"PRAGMA user_version = {FORM}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if not self._is_writer:  # most compilations only read
            self._sql.execute("PRAGMA foreign_keys = ON")
            self._sql.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing
            self._is_writer = True
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise
        self._sql.execute("COMMIT")

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Use of the connection by one thread, with typed errors."""
        with self._lock, _typed(self.path):
            yield

    def close(self) -> None:
        with self._lock:
            self._close()

    # ------------------------------------------------------------------ writing

    def add(self, key: TaskKey, *trials: Trial) -> None:
        """Store the outcomes of some candidates; the newest outcome per choice is kept."""
        with self._used(), self._transaction():
            task = self._task(key)
            for each in trials:
                self._sql.execute(
                    "INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        task,
                        each.space,
                        each.choice,
                        each.ns,
                        each.incumbent_ns,
                        each.estimate_ns,
                        each.error,
                        np.asarray(each.features, "<f4").tobytes(),
                        json.dumps(each.names),
                        time.time(),
                    ),
                )

    def keep(self, key: TaskKey, winner: Winner) -> None:
        """Store the choices that the task is compiled with from now on."""
        with self._used(), self._transaction():
            self._sql.execute(
                "INSERT OR REPLACE INTO winners VALUES (?, ?, ?, ?, ?, ?)",
                (
                    self._task(key),
                    json.dumps(dict(winner.choices)),
                    winner.gain,
                    winner.label,
                    time.time(),
                    json.dumps([asdict(each) for each in winner.variants]),
                ),
            )

    def time(self, key: TaskKey, time_of_call: Time) -> None:
        """Store the time of one call inside a model, with the kept choices."""
        with self._used(), self._transaction():
            self._sql.execute(
                "INSERT OR REPLACE INTO times VALUES (?, ?, ?)",
                (self._task(key), time_of_call.ns, time.time()),
            )

    def forget(self, key: TaskKey) -> None:
        """Remove a task's winner, not its trials."""
        with self._used(), self._transaction():
            self._sql.execute("DELETE FROM winners WHERE task = ?", (self._task(key),))

    def _task(self, key: TaskKey) -> int:
        """The id of a task, inserted if new. Inside a transaction."""
        found = self._find(key)
        if found is not None:
            return found
        made = self._sql.execute(
            "INSERT INTO tasks (digest, text, target, threads, version) VALUES (?, ?, ?, ?, ?)",
            _values(key),
        )
        assert made.lastrowid is not None
        return made.lastrowid

    def _find(self, key: TaskKey) -> int | None:
        row = self._sql.execute(f"SELECT id FROM tasks WHERE {_TASK}", _values(key)).fetchone()
        return None if row is None else int(row[0])

    # ------------------------------------------------------------------ reading

    def winner(self, key: TaskKey) -> Winner | None:
        return self.winners([key]).get(key)

    def winners(self, keys: Sequence[TaskKey]) -> dict[TaskKey, Winner]:
        """The winners of those tasks that have one."""
        found = {}
        with self._used():
            for key in keys:
                row = self._sql.execute(
                    f"SELECT {_WINNER} FROM winners JOIN tasks ON task = id WHERE {_TASK}",
                    _values(key),
                ).fetchone()
                if row is not None:
                    found[key] = _winner(row)
        return found

    def measured(self, key: TaskKey) -> float | None:
        """Seconds that one call takes inside a model; None where nobody measured it.

        Examples:
            >>> from tilewright.tune import Database, TaskKey
            >>> Database().measured(TaskKey("graph @f", "cpu", 2)) is None
            True
        """
        with self._used():
            row = self._sql.execute(
                f"SELECT ns FROM times JOIN tasks ON task = id WHERE {_TASK}", _values(key)
            ).fetchone()
        return None if row is None else float(row[0]) / 1e9

    def timed(self) -> frozenset[str]:
        """Digests of the tasks with a measured time: others need not be looked up."""
        with self._used():
            rows = self._sql.execute(
                # A cross join fixes the join order: scanning tasks would read long texts.
                "SELECT digest FROM times CROSS JOIN tasks ON task = id WHERE version = ?",
                (VERSION,),
            ).fetchall()
        return frozenset(digest for (digest,) in rows)

    def trials(self, key: TaskKey) -> list[Trial]:
        """All trials of a task, in order."""
        with self._used():
            task = self._find(key)
            rows = self._sql.execute(
                f"SELECT {_TRIAL} FROM trials WHERE task = ? ORDER BY created, rowid", (task,)
            ).fetchall()
        return [_trial(row) for row in rows]

    def query(self, *, target: str = "", version: str = VERSION) -> Iterator[Line]:
        """All records of a target (of any where none is named), trials first."""
        where, given = "version = ?", [version]
        if target:
            where, given = f"{where} AND target = ?", [version, target]
        with self._used():
            trials, winners, times = (
                self._sql.execute(
                    f"SELECT {_KEY}, {columns} FROM {table} JOIN tasks ON task = id"
                    f" WHERE {where} ORDER BY created",
                    given,
                ).fetchall()
                for columns, table in ((_TRIAL, "trials"), (_WINNER, "winners"), ("ns", "times"))
            )
        for row in trials:
            yield Line(TaskKey(*row[:4]), _trial(row[4:]))
        for row in winners:
            yield Line(TaskKey(*row[:4]), _winner(row[4:]))
        for row in times:
            yield Line(TaskKey(*row[:4]), Time(row[4]))

    @property
    def versions(self) -> dict[str, int]:
        """How many trials there are of each version of the code."""
        with self._used():
            rows = self._sql.execute(
                "SELECT version, COUNT(*) FROM trials JOIN tasks ON task = id GROUP BY version"
            ).fetchall()
        return dict(rows)

    # ------------------------------------------------------------------ whole files

    def export(self, path: str | Path) -> int:
        """Write all records of this version as JSON lines; how many there are."""
        count = 0
        try:
            with open(path, "w", encoding="utf-8") as out:
                for line in self.query():
                    out.write(json.dumps(line.told()) + "\n")
                    count += 1
        except OSError as error:
            raise UserError("TW5005", f"cannot write {path}: {error}") from error
        return count

    def load(self, path: str | Path) -> Taken:
        """Import records from JSON lines; unusable ones are skipped and counted."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError("TW5003", f"cannot read records from {path}: {error}") from error
        told: list[object] = []
        for line in filter(str.strip, text.splitlines()):
            try:
                told.append(json.loads(line))
            except ValueError:
                told.append(None)
        lines = [Line.parse(each) if isinstance(each, dict) else None for each in told]
        good = [each for each in lines if each is not None]
        taken = self._take(line for line, _ in good)
        return Taken(
            taken.records,
            taken.other_version,
            len(lines) - len(good),
            sum(unknown for _, unknown in good),
        )

    def merge(self, other: Database) -> Taken:
        """Import all records of another database made by this code version."""
        here = self._take(other.query())
        apart = sum(count for version, count in other.versions.items() if version != VERSION)
        return Taken(here.records, apart)

    def _take(self, lines: Iterable[Line]) -> Taken:
        count = other = 0
        trials: dict[TaskKey, list[Trial]] = {}
        for line in lines:
            if line.key.version != VERSION:
                other += 1
                continue
            count += 1
            if isinstance(line.record, Trial):
                trials.setdefault(line.key, []).append(line.record)
                continue
            if isinstance(line.record, Time):
                if self.measured(line.key) is None:
                    self.time(line.key, line.record)
                continue
            known = self.winner(line.key)
            if known is None or known.gain < line.record.gain:
                self.keep(line.key, line.record)
        for key, some in trials.items():
            self.add(key, *some)
        return Taken(count, other)

    def prune(self, *, version: str = VERSION) -> int:
        """Remove records of other code versions; returns the number of tasks removed."""
        with self._used(), self._transaction():
            gone = self._sql.execute("DELETE FROM tasks WHERE version <> ?", (version,))
        return gone.rowcount


_KEY = "text, target, threads, version"
_WINNER = "choices, gain, label, variants"
_TRIAL = "space, choice, ns, incumbent_ns, estimate_ns, error, features, names"


def _values(key: TaskKey) -> tuple[str, str, str, int, str]:
    return key.digest, key.text, key.target, key.threads, key.version


def _winner(row: Sequence[Any]) -> Winner:
    choices, gain, label, variants = row
    made = tuple(Variant(**each) for each in json.loads(variants))
    return Winner(json.loads(choices), gain, label, made)


def _trial(row: Sequence[object]) -> Trial:
    space, choice, ns, incumbent_ns, estimate_ns, error, features, names = row
    assert isinstance(features, bytes)
    return Trial(
        str(space),
        str(choice),
        float(str(ns)),
        float(str(incumbent_ns)),
        float(str(estimate_ns)),
        str(error),
        tuple(np.frombuffer(features, "<f4").tolist()),
        tuple(json.loads(str(names))),
    )


@contextlib.contextmanager
def _typed(path: str) -> Iterator[None]:
    """Convert errors of SQLite and of files into typed ones."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            raise UserError(
                "TW5002",
                f"the tuning database {path} is locked: {text}",
                help="another program holds it for long; end it, or use another file with --db",
            ) from error
        if "no such" in text:
            raise _damaged(path, text) from error
        raise UserError(
            "TW5005",
            f"the tuning database {path} cannot be used: {text}",
            help="make room on the disk, or use another file with --db",
        ) from error
    except sqlite3.ProgrammingError as error:
        raise UserError(
            "TW5005",
            f"the tuning database {path} cannot be used: {error}",
            help="open it again",
        ) from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise UserError(
            "TW5005",
            f"the tuning database {path} cannot be used: {error}",
            help="use another file with --db",
        ) from error


def _damaged(path: str, text: str) -> UserError:
    return UserError(
        "TW5003",
        f"{path} is no tuning database, or a damaged one: {text}",
        help="use another file with --db, or remove this one",
    )


class Records:
    """A tuner's view of its database, which falls back to memory when writing fails."""

    def __init__(self, database: Database) -> None:
        self._disk: Database | None = database
        self._memory = Database()
        self.notes: list[str] = []

    @staticmethod
    def open(path: str | Path | None) -> Records:
        """The records of a file; in memory where it cannot be opened, or none is given."""
        if path is None:
            return Records(Database())
        try:
            return Records(Database(path))
        except UserError as error:
            records = Records(Database())
            records._lost(error)
            return records

    def add(self, key: TaskKey, *trials: Trial) -> None:
        self._memory.add(key, *trials)
        self._write(lambda disk: disk.add(key, *trials))

    def keep(self, key: TaskKey, winner: Winner) -> None:
        self._memory.keep(key, winner)
        self._write(lambda disk: disk.keep(key, winner))

    def time(self, key: TaskKey, time_of_call: Time) -> None:
        self._memory.time(key, time_of_call)
        self._write(lambda disk: disk.time(key, time_of_call))

    def forget(self, key: TaskKey) -> None:
        self._memory.forget(key)
        self._write(lambda disk: disk.forget(key))

    def trials(self, key: TaskKey) -> list[Trial]:
        """What was tried before this tuner and by it."""
        known = {(each.space, each.choice): each for each in self._read(lambda d: d.trials(key))}
        known |= {(each.space, each.choice): each for each in self._memory.trials(key)}
        return list(known.values())

    def query(self, target: str) -> list[Line]:
        """All records of a target, of any task."""
        return [*self._read(lambda disk: list(disk.query(target=target)))]

    def winners(self, keys: Sequence[TaskKey]) -> Mapping[TaskKey, Winner]:
        stored = dict(self._read(lambda disk: list(disk.winners(keys).items())))
        return stored | self._memory.winners(keys)

    def _write(self, write: Callable[[Database], None]) -> None:
        if self._disk is None:
            return
        try:
            write(self._disk)
        except UserError as error:
            self._lost(error)

    def _read(self, read: Callable[[Database], list[T]]) -> list[T]:
        if self._disk is None:
            return []
        try:
            return read(self._disk)
        except UserError as error:
            self._lost(error)
            return []

    def _lost(self, error: UserError) -> None:
        self._disk = None
        self.notes.append(f"tuning goes on in memory: error[{error.code}]: {error.message}")

    def close(self, *, keep: bool = False) -> None:
        """Close; with `keep`, leave the database to its owner."""
        self._memory.close()
        if self._disk is not None and not keep:
            self._disk.close()
