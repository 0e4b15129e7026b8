"""Choosing a buffer of a block and a memory for it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import UserError
from tilewright.tensor.ir import Block, Function, Region
from tilewright.tensor.schedule.analysis.refusal import refuse
from tilewright.tensor.scopes import known_scopes, memory_of


def chosen(
    fn: Function, block: Block, regions: Sequence[Region], index: int, what: str, verb: str
) -> Region:
    """The region at a position among a block's reads or writes."""
    if not 0 <= index < len(regions):
        names = ", ".join(f"{at}: %{region.buffer.name}" for at, region in enumerate(regions))
        raise refuse(
            fn,
            "TW2141",
            f"cannot {verb} of @{block.name}: it has no {what} number {index}",
            block.name,
            help=f"its {what}s are {names}" if names else f"it has no {what}s",
        )
    return regions[index]


def check_memory(fn: Function, scope: str, at: str, verb: str) -> str:
    """The memory is a declared one; its text in the form that buffers have."""
    try:
        return memory_of(scope).reference
    except UserError as error:
        raise refuse(
            fn,
            "TW2139",
            f"cannot {verb} of @{at}: {scope!r} is not the name of a memory",
            at,
            help=f"{error.message}; use {', '.join(known_scopes())}",
        ) from None
