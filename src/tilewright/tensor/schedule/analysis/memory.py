"""Choosing a buffer of a block and a memory for it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilewright.tensor.ir import Block, Function, Region
from tilewright.tensor.schedule.analysis.refusal import refuse

MEMORIES = ("global", "shared", "local", "warp")
_SPECIAL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


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


def check_memory(fn: Function, scope: str, at: str, verb: str) -> None:
    """The memory is one of those every target has, or bears the name of its unit."""
    known = scope in MEMORIES or (_SPECIAL.fullmatch(scope) is not None)
    if not known:
        raise refuse(
            fn,
            "TW2139",
            f"cannot {verb} of @{at}: {scope!r} is not the name of a memory",
            at,
            help=f"use {', '.join(MEMORIES)}, or a memory of a special unit, with a dot in its "
            "name, such as amx.tile",
        )
