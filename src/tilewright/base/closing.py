"""A base class of context managers that call `close` on exit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A resource that its `with` block closes, also on an exception."""

    @abstractmethod
    def close(self) -> None:
        """Release the resource."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
