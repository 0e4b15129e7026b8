"""add_unit_loop: wrap a loop or block in a loop of one iteration."""

from __future__ import annotations

from tilewright import sym
from tilewright.sym import ONE, ZERO, Var
from tilewright.tensor.ir import SERIAL, Block, For, Function
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop
from tilewright.tensor.schedule.analysis.tree import Path, replace_at, with_body


def add_unit_loop(fn: Function, at: Var | str) -> tuple[Function, Var]:
    """
    Before: block @B()
    After:  for u in 0..1 { block @B() }

    Gives a loop to bind: `bind(u, "blockIdx.x")` makes a kernel of one thread.
    """
    path: Path
    inner: For | Block
    if isinstance(at, Var):
        path, inner = path_to_loop(fn, at, "add a unit loop")
    else:
        path, inner = path_to_block(fn, at, "add a unit loop")
    unit = sym.var("u")
    made = For(unit, ZERO, ONE, inner, SERIAL, "", (), inner.loc)
    return with_body(fn, replace_at(path, made)), unit
