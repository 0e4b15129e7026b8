"""bind: map a loop's iterations to threads of a GPU, or to virtual threads."""

from __future__ import annotations

from dataclasses import replace

from tilewright.sym import Var
from tilewright.tensor.ir import THREAD, THREAD_AXES, VTHREAD, For, Function
from tilewright.tensor.schedule.analysis.concurrency import (
    check_concurrent,
    check_constant_extent,
    check_nesting,
    check_serial,
    check_threads,
)
from tilewright.tensor.schedule.analysis.kernels import describe_unequal, unequal_loops
from tilewright.tensor.schedule.analysis.refusal import path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import Path, replace_at, with_body

VTHREAD_AXES = ("vthread", "vthread.x", "vthread.y", "vthread.z")


def bind(fn: Function, var: Var, thread: str) -> Function:
    """
    Before: for i in 0..128
    After:  for i in thread(threadIdx.x) 0..128

    All loops bound to one axis inside of a kernel share its threads: they must have equal extents,
    and a nested one runs the iteration of the current thread.
    """
    path, loop = path_to_loop(fn, var, "bind")
    check_serial(fn, loop, "bind")
    if thread in VTHREAD_AXES:
        check_constant_extent(fn, loop, "bind")
        check_concurrent(fn, path, loop, "bind")
        made = replace(loop, kind=VTHREAD)
        check_nesting(fn, path, made, "bind")
        return with_body(fn, replace_at(path, made))
    if thread not in THREAD_AXES:
        known = ", ".join((*THREAD_AXES, "vthread"))
        raise refuse(
            fn, "TW2110", f"cannot bind loop %{var.name} to {thread!r}", var, help=f"use {known}"
        )
    made = replace(loop, kind=THREAD, thread=thread)
    check_nesting(fn, path, made, "bind")
    _check_one_extent(fn, path, made)
    check_threads(fn, path, loop, thread)
    return with_body(fn, replace_at(path, made))


def _check_one_extent(fn: Function, path: Path, made: For) -> None:
    """Loops bound to one axis have equal extents, also those that `made` merges into one kernel."""
    kernel = next((s for s in path[:-1] if isinstance(s, For) and s.kind == THREAD), made)
    unequal = unequal_loops(kernel, made)
    if unequal is None:
        return
    one, other = unequal
    why = f"its extent {made.extent} differs from that of %{other.var.name}, {other.extent}"
    raise refuse(
        fn,
        "TW2110",
        f"cannot bind loop %{made.var.name} to {made.thread}: "
        f"{why if one is made else describe_unequal(one, other)}",
        made.var,
        help="split one of them so that the extents agree",
    )
