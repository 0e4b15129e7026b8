"""reorder: permute loops of one perfect nest."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym
from tilewright.sym import Var
from tilewright.tensor.ir import Block, For, Function
from tilewright.tensor.schedule.analysis.concurrency import check_nesting, context_at
from tilewright.tensor.schedule.analysis.flow import conflict
from tilewright.tensor.schedule.analysis.nests import roles_of, visits_once, writes_apart
from tilewright.tensor.schedule.analysis.refusal import path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    find_path,
    nest,
    replace_at,
    scope_blocks,
    with_body,
)


def reorder(fn: Function, variables: Sequence[Var]) -> Function:
    """
    Before: for i { for j { for k { body } } }
    After:  reorder(k, i) gives for k { for j { for i { body } } }

    The named loops are permuted into the given order; loops between them stay.
    """
    if len(set(variables)) != len(variables):
        raise refuse(fn, "TW2106", "cannot reorder: a loop is named twice")
    if not variables:
        return fn
    path, chain = _chain(fn, variables)
    wanted = iter(variables)
    by_var = {loop.var: loop for loop in chain}
    order = [by_var[next(wanted)] if loop.var in variables else loop for loop in chain]
    moved = [at for at, (a, b) in enumerate(zip(chain, order, strict=True)) if a is not b]
    if not moved:
        return fn
    # Loops outside of the moved ones run as before, whatever they are.
    path = (*path, *chain[1 : moved[0] + 1])
    chain, order = chain[moved[0] : moved[-1] + 1], order[moved[0] : moved[-1] + 1]
    _check_ranges(fn, order)
    blocks = scope_blocks(chain[-1].body)
    for block in blocks:
        _check_block(fn, block, chain, order)
    _check_between_blocks(fn, path, blocks, chain)
    made = nest(order, chain[-1].body)
    check_nesting(fn, path, made, "reorder")
    return with_body(fn, replace_at(path, made))


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


def _check_ranges(fn: Function, order: Sequence[For]) -> None:
    for at, loop in enumerate(order):
        inner = {other.var for other in order[at:]}
        if any(sym.uses_var(end, inner) for end in (loop.start, loop.stop)):
            raise refuse(
                fn,
                "TW2106",
                f"cannot reorder: the range of %{loop.var.name}, {loop.start}..{loop.stop}, "
                "would come before the loops it depends on",
                loop.var,
            )


def _check_block(fn: Function, block: Block, chain: Sequence[For], order: Sequence[For]) -> None:
    """The block's result does not depend on the order of its instances that changes."""
    roles = roles_of(block)
    for loop in chain:
        if roles.is_mixed(loop.var):
            # The first instance of each element must be the one that runs the init.
            raise refuse(
                fn,
                "TW2107",
                f"cannot reorder: loop %{loop.var.name} drives both what @{block.name} computes "
                "and the order it is computed in",
                loop.var,
                help="fuse spatial with spatial and reduce with reduce loops only",
            )
    before = [loop.var for loop in chain if loop.var in roles.scan]
    after = [loop.var for loop in order if loop.var in roles.scan]
    if before != after:
        raise refuse(
            fn,
            "TW2107",
            f"cannot reorder: @{block.name} scans along %{before[0].name}, whose order is fixed",
            before[0],
        )
    if any(loop.var in roles.reduce for loop in chain) and block.init is not None:
        path = find_path(chain[0], block)
        assert path is not None
        inside = [stmt for stmt in path if isinstance(stmt, For)]
        if not visits_once(fn, path, block, inside):
            raise refuse(
                fn,
                "TW2107",
                f"cannot reorder: iterations of the nest may compute the same element in "
                f"@{block.name}, each time from its init",
                chain[0].var,
            )
    elif not writes_apart(block):
        raise refuse(
            fn,
            "TW2107",
            f"cannot reorder: instances of @{block.name} may write the same element, and the last "
            "one counts",
            chain[0].var,
        )


def _check_between_blocks(
    fn: Function, path: Path, blocks: Sequence[Block], chain: Sequence[For]
) -> None:
    """No values are carried between iterations, except along scans, whose order is kept."""
    scans = {var for block in blocks for var in roles_of(block).scan}
    moving = [loop for loop in chain if loop.var not in scans]
    kept = [loop for loop in chain if loop.var in scans]
    if len(blocks) < 2 and not kept:
        return
    found = conflict(moving, context_at(fn, path), body=chain[-1].body, inside=kept)
    if found is not None:
        raise refuse(
            fn,
            "TW2107",
            f"cannot reorder: @{found.other.name} may use elements of %{found.buffer.name} that "
            f"other iterations write in @{found.writer.name}",
            chain[0].var,
        )
