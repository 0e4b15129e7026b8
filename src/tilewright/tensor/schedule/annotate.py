"""annotate, unannotate: attach hints for later passes to a loop or block."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tilewright.sym import Var
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import ALTERNATING, Block, For, Function, Value, annotated
from tilewright.tensor.passes.interleave_loops import GUEST, HOST, INTERLEAVE
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import Path, replace_at, with_body

_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def annotate(fn: Function, at: Var | str, key: Any, value: Any) -> Function:
    """
    Before: for i in 0..n
    After:  for i in 0..n [key = value]
    """
    path, holder = _holder(fn, at, "annotate")
    if not isinstance(key, str) or _KEY.fullmatch(key) is None:
        raise refuse(
            fn,
            "TW2117",
            f"cannot annotate: the key {key!r} is not a name",
            at,
            help="a key is made of words joined by dots, such as unroll or gpu.stage",
        )
    value = _plain(fn, at, value)
    wanted = _wanted(key, value)
    if wanted:
        raise refuse(fn, "TW2117", f"cannot annotate: {key!r} is {wanted}, {value!r} is not", at)
    new = replace(holder, annotations=annotated(holder.annotations, key, value))
    return with_body(fn, replace_at(path, new))


def unannotate(fn: Function, at: Var | str, key: str) -> Function:
    """
    Before: for i in 0..n [key = value]
    After:  for i in 0..n
    """
    path, holder = _holder(fn, at, "unannotate")
    if all(name != key for name, _ in holder.annotations):
        raise refuse(fn, "TW2111", f"cannot unannotate: there is no annotation {key!r}", at)
    new = replace(holder, annotations=annotated(holder.annotations, key, None))
    return with_body(fn, replace_at(path, new))


def _wanted(key: str, value: Value) -> str:
    """What the value of an annotation that passes or code generators read has to be, if it is not;
    else ""."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if key == "unroll" and number < 1:
        return "a number of iterations, at least 1"
    if key == "threads" and number < 0:
        return "a number of threads, or 0 for all"
    if key in (TAILS, ALTERNATING, CONSTANT) and not isinstance(value, bool):
        return "true or false"
    if key == INTERLEAVE and value not in (HOST, GUEST):
        return f"{HOST!r} or {GUEST!r}"
    return ""


def _plain(fn: Function, at: Var | str, value: Any) -> Value:
    """The value in types that a program's text can express, or a refusal."""
    if isinstance(value, tuple):
        return tuple([_plain(fn, at, item) for item in value])
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise refuse(
        fn,
        "TW2117",
        f"cannot annotate: {value!r} is not a number, a string or a tuple of such",
        at,
        help="unannotate removes an annotation" if value is None else "",
    )


def _holder(fn: Function, at: Var | str, primitive: str) -> tuple[Path, For | Block]:
    if isinstance(at, Var):
        return path_to_loop(fn, at, primitive)
    return path_to_block(fn, at, primitive)
