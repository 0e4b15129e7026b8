"""The user's place in Python, and names that the program text can carry."""

from __future__ import annotations

import os
import re
import sys

from tilewright.base.errors import UserError, UserTypeError
from tilewright.base.loc import UNKNOWN, File, Loc
from tilewright.tensor.ir import LOOP_KINDS

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Words that would not read back as the name of a size.
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
    """A refused value, located at the user's line unless told otherwise."""
    return UserError(code, message, user_loc() if loc is None else loc, help=help)


def type_error(code: str, message: str, *, loc: Loc | None = None, help: str = "") -> UserTypeError:
    """A refused kind of thing, located at the user's line unless told otherwise."""
    return UserTypeError(code, message, user_loc() if loc is None else loc, help=help)


def clean_name(name: object) -> str:
    """The name with what program text cannot hold replaced by underscores."""
    if not isinstance(name, str) or not name:
        raise type_error("TW2401", f"a name must be a non-empty string, got {name!r}")
    text = re.sub(r"[^A-Za-z0-9_.]", "_", name).rstrip(".")
    if not re.match(r"[A-Za-z_]", text):
        text = "_" + text
    return text


def clean_size_name(name: object) -> str:
    """The same for a size, which stands bare in the text."""
    text = clean_name(name).replace(".", "_")
    return f"{text}_" if text in _RESERVED else text
