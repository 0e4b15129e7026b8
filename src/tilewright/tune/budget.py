"""The time budget of tuning.

Budget(minutes=5)     Budget.parse("90s")     Budget.parse("1h")
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

from tilewright.base.errors import UserError

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[smh])\s*")
_HELP = "say how long tuning may take: 90s, 5m or 1h"


@dataclass(frozen=True)
class Budget:
    """Wall-clock time that tuning a model may take, building and checking included.

    Examples:
        >>> from tilewright.tune import Budget
        >>> Budget(minutes=5) == Budget.parse("5m")
        True
        >>> Budget.parse("90s").seconds
        90.0
    """

    minutes: float

    def __post_init__(self) -> None:
        given: object = self.minutes
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not math.isfinite(self.minutes) or self.minutes <= 0:
            raise UserError("TW5001", f"a budget of {self.minutes!r} minutes", help=_HELP)

    @property
    def seconds(self) -> float:
        return self.minutes * 60.0

    @staticmethod
    def parse(text: str) -> Budget:
        """From `90s`, `5m` or `1h`."""
        found = _DURATION.fullmatch(text)
        if found is None:
            raise UserError("TW5001", f"{text!r} is no duration", help=_HELP)
        seconds = float(found["number"]) * _UNITS_S[found["unit"]]
        if seconds <= 0:
            raise UserError("TW5001", f"a budget of {text!r} is not positive", help=_HELP)
        return Budget(seconds / 60.0)


class Late(Exception):
    """The deadline has passed."""


@dataclass(frozen=True)
class Deadline:
    """A point in time, by the monotonic clock."""

    at: float

    @staticmethod
    def after(seconds: float) -> Deadline:
        return Deadline(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds remaining; negative after the deadline."""
        return self.at - time.monotonic()

    def check(self) -> None:
        if self.left < 0.0:
            raise Late
