"""Who wants to know of sessions and of their runs: `tilewright ort`, for its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol


class Observer(Protocol):
    """Told of every session of the process, from whichever thread."""

    def loaded(self, session: Any, seconds: float) -> None:
        """A session is ready."""

    def refused(self, source: Any, error: Exception) -> None:
        """A session could not be made."""

    def ran(self, session: Any, feed: Mapping[str, Any], seconds: float) -> None:
        """A run has ended well."""


observers: list[Observer] = []


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Tell an observer of what happens inside."""
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)
