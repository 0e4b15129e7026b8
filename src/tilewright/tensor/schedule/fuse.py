"""fuse: turn a perfect nest of loops into one loop."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym
from tilewright.base.errors import ScheduleError
from tilewright.sym import ONE, ZERO, Expr, Var
from tilewright.tensor.ir import REDUCE, SERIAL, Block, For, Function
from tilewright.tensor.schedule.analysis.nests import roles_of
from tilewright.tensor.schedule.analysis.refusal import path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    loop_context,
    loops_on,
    replace_at,
    scope_blocks,
    with_body,
)
from tilewright.tensor.visit import substitute


def fuse(fn: Function, variables: Sequence[Var]) -> tuple[Function, Var]:
    """
    Before: for i in 0..n { for j in 0..m { body(i, j) } }
    After:  for i_j in 0..n*m { body(i_j // m, i_j % m) }
    """
    if len(variables) < 2:
        raise refuse(fn, "TW2105", f"cannot fuse {len(variables)} loops: give two or more")
    path, outer = path_to_loop(fn, variables[0], "fuse")
    loops = [outer]
    for var in variables[1:]:
        inner = loops[-1].body
        path_to_loop(fn, var, "fuse")
        if not isinstance(inner, For) or inner.var is not var:
            raise refuse(
                fn,
                "TW2105",
                f"cannot fuse: loop %{var.name} is not directly inside %{loops[-1].var.name}",
                var,
                help="reorder the loops so that they nest perfectly, outermost first",
            )
        loops.append(inner)
    for loop in loops:
        if loop.kind != SERIAL:
            raise refuse(
                fn, "TW2103", f"cannot fuse loop %{loop.var.name}: it is {loop.kind}", loop.var
            )
        if any(sym.uses_var(end, set(variables)) for end in (loop.start, loop.stop)):
            raise refuse(
                fn,
                "TW2105",
                f"cannot fuse loop %{loop.var.name}: its range {loop.start}..{loop.stop} varies "
                "with the rest",
                loop.var,
            )
    _check_empty(fn, path, loops)
    fused = sym.var("_".join(loop.var.name for loop in loops))
    # With at most one iteration, the loop variables are their starts.
    mapping: dict[Var, Expr] = {loop.var: loop.start for loop in loops}
    first, *others = [loop for loop in loops if loop.extent not in (ZERO, ONE)] or [outer]
    rest: Expr = fused
    for loop in reversed(others):
        mapping[loop.var] = loop.start + sym.floormod(rest, loop.extent)
        rest = sym.floordiv(rest, loop.extent)
    mapping[first.var] = first.start + rest
    extent: Expr = ONE
    for loop in loops:
        extent = extent * loop.extent
    body = substitute(loops[-1].body, mapping)
    made = For(fused, ZERO, sym.simplify(extent), body, SERIAL, "", (), outer.loc)
    return with_body(fn, replace_at(path, made)), fused


def _check_empty(fn: Function, path: Path, loops: Sequence[For]) -> None:
    """An empty reduction still runs its init per spatial instance, which one fused, empty loop
    would not."""
    ctx = loop_context(fn, loops_on(path[:-1]))  # inside of the loops, they would not be empty
    around = {loop.var for loop in loops_on(path[:-1])}
    for block in scope_blocks(loops[-1].body):
        roles = roles_of(block)
        others = [loop for loop in loops if loop.var in roles.spatial or loop.var in roles.scan]
        reducing = [loop for loop in loops if loop.var in roles.reduce]
        if block.init is None or not others or not reducing:
            continue
        for loop in reducing:
            if not sym.prove(sym.le(1, loop.extent), ctx):
                raise _skips_init(fn, loop, others[0], block, f"it, and its extent {loop.extent}")
        for it, binding in zip(block.iters, block.bindings, strict=True):
            # Inside of an empty loop the init does not run either.
            if it.kind != REDUCE or not sym.uses_var(binding, around):
                continue
            if not sym.prove(sym.le(1, it.extent), loop_context(fn, ())):
                told = f"%{it.var.name} too, and its extent {it.extent}"
                raise _skips_init(fn, reducing[0], others[0], block, told)


def _skips_init(fn: Function, loop: For, other: For, block: Block, reduced: str) -> ScheduleError:
    return refuse(
        fn,
        "TW2116",
        f"cannot fuse loop %{loop.var.name} with %{other.var.name}: @{block.name} reduces over "
        f"{reduced} may be 0, when only the init is to run",
        loop.var,
        help="call decompose_reduction first, or fuse spatial with spatial and reduce with reduce "
        "loops only",
    )
