"""The user's source location, and valid names for program text."""

from __future__ import annotations

import os
import re
import sys

from tilewright.base.errors import UserError, UserTypeError
from tilewright.base.loc import UNKNOWN, File, Loc
from tilewright.tensor.ir import LOOP_KINDS

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Keywords, which cannot name a size.
_RESERVED = frozenset(("true", "false", "inf", "nan", "and", "or", "not", *LOOP_KINDS))


def user_loc() -> Loc:
    """The line of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return UNKNOWN
        frame = frame.f_back
    path = frame.f_code.co_filename
    here = os.getcwd() + os.sep
    return File(path.removeprefix(here), frame.f_lineno)


def value_error(code: str, message: str, *, loc: Loc | None = None, help: str = "") -> UserError:
    """Make an error about a value, at the user's source line by default."""
    return UserError(code, message, user_loc() if loc is None else loc, help=help)


def type_error(code: str, message: str, *, loc: Loc | None = None, help: str = "") -> UserTypeError:
    """Make an error about a type, at the user's source line by default."""
    return UserTypeError(code, message, user_loc() if loc is None else loc, help=help)


def clean_name(name: object) -> str:
    """The name with invalid characters replaced by underscores."""
    if not isinstance(name, str) or not name:
        raise type_error("TW2401", f"a name must be a non-empty string, got {name!r}")
    text = re.sub(r"[^A-Za-z0-9_.]", "_", name).rstrip(".")
    if not re.match(r"[A-Za-z_]", text):
        text = "_" + text
    return text


def clean_size_name(name: object) -> str:
    """The same for a size, which is printed without a sigil."""
    text = clean_name(name).replace(".", "_")
    return f"{text}_" if text in _RESERVED else text
