"""When iterations of a loop may run at the same time."""

from __future__ import annotations

from tilewright.sym import Const
from tilewright.tensor.ir import SERIAL, For, Function
from tilewright.tensor.schedule.refusal import refuse
from tilewright.tensor.schedule.tree import ordered_vars, scope_blocks


def check_serial(fn: Function, loop: For, primitive: str) -> None:
    """A loop gets a kind once."""
    if loop.kind != SERIAL:
        raise refuse(
            fn,
            "TW2103",
            f"cannot {primitive} loop %{loop.var.name}: it is {loop.kind} already",
            loop.var,
        )


def check_concurrent(fn: Function, loop: For, primitive: str) -> None:
    """No block below may accumulate or scan along the loop: its iterations are independent."""
    for block in scope_blocks(loop.body):
        if loop.var in ordered_vars(block):
            raise refuse(
                fn,
                "TW2108",
                f"cannot {primitive} loop %{loop.var.name}: @{block.name} carries values from one "
                "iteration to the next",
                loop.var,
                help="use a loop over spatial iterators only, or rfactor the reduction first",
            )


def check_constant_extent(fn: Function, loop: For, primitive: str) -> None:
    """Vectors and unrolled code have a size known now."""
    if not isinstance(loop.extent, Const):
        raise refuse(
            fn,
            "TW2109",
            f"cannot {primitive} loop %{loop.var.name}: its extent {loop.extent} is not a constant",
            loop.var,
            help="split it by a constant factor and use the inner loop",
        )
