"""reorder: loops of one perfect nest change places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import sym
from tilewright.sym import Var
from tilewright.tensor.ir import REDUCE, SCAN, SPATIAL, Block, For, Function
from tilewright.tensor.schedule.refusal import path_to_loop, refuse
from tilewright.tensor.schedule.tree import (
    Path,
    replace_at,
    scope_blocks,
    vars_of_kind,
    with_body,
)
from tilewright.tensor.visit import loads


def reorder(fn: Function, variables: Sequence[Var]) -> Function:
    """
    Before: for i { for j { for k { body } } }
    After:  reorder(k, i) gives for k { for j { for i { body } } }

    The named loops take each other's places in the order given; loops between them stay.
    """
    if len(set(variables)) != len(variables):
        raise refuse(fn, "TW2106", "cannot reorder: a loop is named twice")
    chain_path, chain = _chain(fn, variables)
    if len(variables) < 2:
        return fn
    wanted = iter(variables)
    by_var = {loop.var: loop for loop in chain}
    order = [by_var[next(wanted)] if loop.var in variables else loop for loop in chain]
    if all(a is b for a, b in zip(chain, order, strict=True)):
        return fn
    _check_extents(fn, order)
    for block in scope_blocks(chain[-1].body):
        _check_block(fn, block, chain, order)
    blocks_below = scope_blocks(chain[-1].body)
    if len(blocks_below) > 1:
        _check_shared_nest(fn, blocks_below, order)
    body = chain[-1].body
    for loop in reversed(order):
        body = replace(loop, body=body)
    return with_body(fn, replace_at(chain_path, body))


def _chain(fn: Function, variables: Sequence[Var]) -> tuple[Path, list[For]]:
    """The loops from the outermost named one to the innermost, which must nest perfectly."""
    paths = [path_to_loop(fn, var, "reorder")[0] for var in variables]
    top = min(paths, key=len)
    bottom = max(paths, key=len)
    chain = [stmt for stmt in bottom[len(top) - 1 :] if isinstance(stmt, For)]
    for path, var in zip(paths, variables, strict=True):
        if path[-1] not in bottom:
            raise refuse(
                fn,
                "TW2106",
                f"cannot reorder: loop %{var.name} is not in one nest with %{chain[-1].var.name}",
                var,
            )
    for stmt in bottom[len(top) - 1 : -1]:
        if not isinstance(stmt, For):
            what = "a block" if isinstance(stmt, Block) else "more than one statement"
            raise refuse(
                fn,
                "TW2106",
                f"cannot reorder: there is {what} between %{chain[0].var.name} "
                f"and %{chain[-1].var.name}",
                chain[-1].var,
                help="only loops that nest perfectly can change places",
            )
    return top, chain


def _check_extents(fn: Function, order: Sequence[For]) -> None:
    for at, loop in enumerate(order):
        inner = {other.var for other in order[at:]}
        if sym.uses_var(loop.extent, inner):
            raise refuse(
                fn,
                "TW2106",
                f"cannot reorder: the extent of %{loop.var.name}, {loop.extent}, "
                "would come before the loops it depends on",
                loop.var,
            )


def _check_block(fn: Function, block: Block, chain: Sequence[For], order: Sequence[For]) -> None:
    reduce, scan = vars_of_kind(block, REDUCE), vars_of_kind(block, SCAN)
    spatial = vars_of_kind(block, SPATIAL)
    mixed = [
        loop for loop in chain if loop.var in spatial and (loop.var in reduce or loop.var in scan)
    ]
    if mixed:
        # The first visit of an element must be the one that initialises it.
        raise refuse(
            fn,
            "TW2107",
            f"cannot reorder: loop %{mixed[0].var.name} drives both what @{block.name} computes "
            "and the order it is computed in",
            mixed[0].var,
            help="fuse spatial with spatial and reduce with reduce loops only",
        )
    before = [loop.var for loop in chain if loop.var in scan]
    after = [loop.var for loop in order if loop.var in scan]
    if before != after:
        raise refuse(
            fn,
            "TW2107",
            f"cannot reorder: @{block.name} scans along %{before[0].name}, whose order is fixed",
            before[0],
        )
    if before and _crosses_scan(chain, order, scan) and not _lanes_are_independent(block):
        raise refuse(
            fn,
            "TW2107",
            f"cannot reorder: a step of @{block.name} reads what other iterations of the step "
            "before have written",
            before[0],
            help="keep the loops over the state inside the loop over time",
        )


def _crosses_scan(chain: Sequence[For], order: Sequence[For], scan: dict[Var, None]) -> bool:
    """Whether a loop changes from inside to outside of a scan loop."""

    def outside(loops: Sequence[For]) -> set[tuple[Var, Var]]:
        return {
            (a.var, b.var)
            for at, a in enumerate(loops)
            for b in loops[at + 1 :]
            if b.var in scan and a.var not in scan
        }

    return bool(outside(order) - outside(chain))


def _lanes_are_independent(block: Block) -> bool:
    """Whether each instance reads of its own outputs only its own spatial place."""
    spatial = {it.var for it in block.iters if it.kind == SPATIAL}
    own = {region.buffer: region for region in block.writes}
    for stmt in (block.body,):
        for load in loads(*stmt.exprs()):
            region = own.get(load.buffer)
            if region is None:
                continue
            for mine, theirs in zip(region.ranges, load.index, strict=True):
                uses_spatial = sym.uses_var(mine.start, spatial) or sym.uses_var(theirs, spatial)
                if uses_spatial and mine.start is not theirs:
                    return False
    return True


def _check_shared_nest(fn: Function, blocks_below: Sequence[Block], order: Sequence[For]) -> None:
    """Several blocks under one nest: none may carry a value from one iteration to another."""
    for block in blocks_below:
        ordered = {**vars_of_kind(block, REDUCE), **vars_of_kind(block, SCAN)}
        for loop in order:
            if loop.var in ordered:
                raise refuse(
                    fn,
                    "TW2107",
                    f"cannot reorder: @{block.name} accumulates along %{loop.var.name} "
                    "beside other blocks in the same nest",
                    loop.var,
                )
