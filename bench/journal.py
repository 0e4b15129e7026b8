"""A journal of outcomes, by which a long run can be resumed.

    journal = Journal.of(options)            # --journal FILE --stop-after SECONDS
    jobs = [job for job in jobs if name(job) not in journal.found]
    for job, end in journal.limited(run_jobs(...)):
        journal.add(name(job), status=end.status, message=end.message)

A file of JSON lines, one for each case by its name. Without a file nothing is kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Journal:
    """What became of each case, of this run and of those before it."""

    def __init__(self, path: Path | None = None, seconds: float = 0.0) -> None:
        self.path, self.seconds = path, seconds
        self.begun = time.monotonic()
        self.found: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                record = json.loads(line)
                self.found[record["name"]] = record

    @classmethod
    def of(cls, options: argparse.Namespace) -> Journal:
        return cls(options.journal, options.stop_after)

    def add(self, name: str, **said: Any) -> None:
        """Keep the outcome of a case."""
        self.found[name] = {"name": name, **said}
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(self.found[name]) + "\n")

    def limited(self, ends: Iterable[T]) -> Iterator[T]:
        """What ends before the time is over; 0 means that there is always time."""
        for end in ends:
            yield end
            if self.seconds and time.monotonic() - self.begun > self.seconds:
                return


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--journal", type=Path, help="a file of outcomes; what it has is not run")
    parser.add_argument("--stop-after", type=float, default=0.0, help="seconds; 0: run to the end")
