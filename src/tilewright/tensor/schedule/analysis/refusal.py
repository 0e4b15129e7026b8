"""Refusing a request: the reason, the current program, a caret, a way out."""

from __future__ import annotations

from tilewright.base.errors import Excerpt, ScheduleError
from tilewright.sym import Var
from tilewright.tensor.ir import Block, For, Function
from tilewright.tensor.printer import format_with_spans
from tilewright.tensor.schedule.analysis.tree import Path, find_block, find_loop


def refuse(
    fn: Function, code: str, message: str, at: Var | str | None = None, help: str = ""
) -> ScheduleError:
    """The error to raise; `at` is a loop variable or a block name of `fn` to point at."""

    def excerpt() -> Excerpt | None:
        text, spans = format_with_spans(fn)
        if at is None or at not in spans:
            return None
        return Excerpt(tuple(text.rstrip("\n").split("\n")), *spans[at])

    return ScheduleError(code, message, fn.loc, context=f"@{fn.name}", excerpt=excerpt, help=help)


def path_to_loop(fn: Function, var: Var, primitive: str) -> tuple[Path, For]:
    """The loop over `var` and the way to it, or a refusal."""
    path = find_loop(fn, var)
    if path is None:
        raise refuse(
            fn,
            "TW2101",
            f"cannot {primitive}: loop %{var.name} is not in the program any more",
            help="get_loops(block) gives the loops as they are now",
        )
    loop = path[-1]
    assert isinstance(loop, For)
    return path, loop


def path_to_block(fn: Function, name: str, primitive: str) -> tuple[Path, Block]:
    """The block `name` and the way to it, or a refusal."""
    path = find_block(fn, name)
    if path is None:
        raise refuse(
            fn,
            "TW2102",
            f"cannot {primitive}: there is no block @{name} in the program",
            help="print(schedule.function) shows the blocks",
        )
    block = path[-1]
    assert isinstance(block, Block)
    return path, block
