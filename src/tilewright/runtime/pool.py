"""How many threads compiled code uses when a call does not say."""

from __future__ import annotations

from tilewright.base.errors import UserError
from tilewright.runtime import _native


def threads() -> int:
    """The default number of threads: as set, else `TILEWRIGHT_NUM_THREADS`, else the cores."""
    return _native.threads()


def set_threads(count: int) -> None:
    """Set the default number of threads of this process; 0 restores the machine's."""
    if not 0 <= count < 1 << 16:
        raise UserError(
            "TW4016",
            f"cannot run on {count} threads",
            help="pass a positive number, or 0 for the number of cores",
        )
    _native.set_threads(count)
