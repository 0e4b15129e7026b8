"""annotate, unannotate: hints to later passes, kept with a loop or block."""

from __future__ import annotations

from dataclasses import replace

from tilewright.sym import Var
from tilewright.tensor.ir import Block, For, Function, Value, annotated
from tilewright.tensor.schedule.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.tree import Path, replace_at, with_body


def annotate(fn: Function, at: Var | str, key: str, value: Value) -> Function:
    """
    Before: for i in 0..n
    After:  for i in 0..n [key = value]
    """
    path, holder = _holder(fn, at, "annotate")
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


def _holder(fn: Function, at: Var | str, primitive: str) -> tuple[Path, For | Block]:
    if isinstance(at, Var):
        return path_to_loop(fn, at, primitive)
    return path_to_block(fn, at, primitive)
