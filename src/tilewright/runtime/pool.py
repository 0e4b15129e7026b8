"""The default number of threads of compiled code."""

from __future__ import annotations

import operator

from tilewright.base.errors import UserError, UserTypeError
from tilewright.runtime import _native


def threads() -> int:
    """The default number of threads: as set, else `TILEWRIGHT_NUM_THREADS`, else the number of
    cores."""
    return _native.threads()


def set_threads(count: int) -> None:
    """Set the default number of threads of this process; 0 restores the initial default.

    Examples:
        >>> import tilewright as tw
        >>> tw.set_threads(2)
        >>> tw.set_threads(0)  # as many as there are cores
    """
    _native.set_threads(checked_threads(count))


def checked_threads(count: object) -> int:
    """Check a number of threads and convert it to an int."""
    try:
        number = operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        raise UserTypeError(
            "TW4018",
            f"a number of threads is an integer, got a {type(count).__name__}",
            help="pass a positive number, or 0 for the default",
        ) from None
    if not 0 <= number < 1 << 16:
        raise UserError(
            "TW4016",
            f"cannot run on {number} threads",
            help="pass a positive number, or 0 for the number of cores",
        )
    return number
