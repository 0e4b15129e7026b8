"""Observers of sessions and their runs, for the report of `tilewright ort`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol


class Observer(Protocol):
    """Receives the events of all sessions of the process, from any thread."""

    def loaded(self, session: Any, seconds: float) -> None:
        """A session was created."""

    def refused(self, source: Any, error: Exception) -> None:
        """Creating a session failed."""

    def ran(self, session: Any, feed: Mapping[str, Any], seconds: float) -> None:
        """A run succeeded."""


observers: list[Observer] = []


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Register an observer for the block."""
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)
