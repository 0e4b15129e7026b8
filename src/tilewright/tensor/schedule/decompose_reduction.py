"""decompose_reduction: make the init of a reduction a block of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import sym
from tilewright.sym import Expr, Size, Var
from tilewright.tensor.ir import REDUCE, Block, For, Function, seq
from tilewright.tensor.regions import access_regions
from tilewright.tensor.schedule.analysis.nests import (
    Roles,
    copy_nest,
    is_kernel_edge,
    is_unit,
    roles_of,
    visits_once,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    fresh_block_name,
    loop_context,
    loops_on,
    nest,
    reads_of,
    replace_at,
    scope_blocks,
    with_body,
    writes_of,
)
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import fresh_copy


def decompose_reduction(fn: Function, name: str, var: Var) -> tuple[Function, str]:
    """
    Before: for i { for k { block C(i, k) { init { C[i] = 0 }  C[i] += A[i, k] } } }
    After:  for i { block C_init(i) { C[i] = 0 } }
            for i { for k { block C(i, k) { C[i] += A[i, k] } } }

    The init is placed right before the loop over `var`, in copies of the spatial loops inside of
    it. The block keeps its name, so references to it stay valid.
    """
    path, block = path_to_block(fn, name, "decompose the reduction")
    loop_path, loop = path_to_loop(fn, var, "decompose the reduction")
    loops = loops_on(path)
    if loop not in loops:
        raise refuse(
            fn,
            "TW2150",
            f"cannot decompose @{name} at loop %{var.name}: the loop is not around the block",
            var,
            help="pass one of get_loops(block)",
        )
    at = loops.index(loop)
    roles = roles_of(block)
    _check_block(fn, block)
    _check_loops(fn, block, roles, loops[:at], loops[at:])
    _check_surroundings(fn, block, path, loop_path, loops[at:])
    # The instance with these loops at their start is the one where every reduce iterator is 0.
    at_start = {each.var: each.start for each in loops[at:] if each.var in roles.reduce}
    _check_starts(fn, block, loops, at_start)
    mapping: dict[Var, Expr] = dict(at_start)
    copies = copy_nest([each for each in loops[at:] if each.var not in at_start], mapping)
    init = _init_block(block, fresh_block_name(fn, f"{name}_init"), mapping)
    update = _update_block(block)
    below = replace_at(path[len(loop_path) - 1 :], update)
    assert below is not None
    body = replace_at(loop_path, seq(nest(copies, init), below))
    return with_body(fn, body), init.name


def _init_block(block: Block, name: str, mapping: dict[Var, Expr]) -> Block:
    """The init as a block of its own, for the loops in `mapping`."""
    assert block.init is not None
    kept = [
        (it, binding)
        for it, binding in zip(block.iters, block.bindings, strict=True)
        if it.kind != REDUCE
    ]
    iters = tuple([it for it, _ in kept])
    reads, writes = access_regions(block.init, None, iters)
    made = Block(
        name,
        iters,
        tuple([sym.substitute(binding, mapping) for _, binding in kept]),
        reads,
        writes,
        block.init,
        None,
        sym.simplify(sym.substitute(_limits(block), mapping)),
        (),
        block.loc,
    )
    copied = fresh_copy(made)
    assert isinstance(copied, Block)
    return copied


def _limits(block: Block) -> Expr:
    """The part of the predicate that applies to the init, which also runs for an empty
    reduction."""
    reduce = roles_of(block).reduce

    def is_of_reduction(part: Expr) -> bool:
        variables = [v for v in sym.free_vars(part) if not isinstance(v, Size)]
        return bool(variables) and all(v in reduce for v in variables)

    return sym.all_of(*[p for p in sym.conjuncts(block.predicate) if not is_of_reduction(p)])


def _update_block(block: Block) -> Block:
    reads, _ = access_regions(block.body, None, block.iters)
    used = {region.buffer for region in reads}
    kept = tuple([region for region in block.reads if region.buffer in used])
    return replace(block, init=None, reads=kept)


# --------------------------------------------------------------------------- checks


def _check_block(fn: Function, block: Block) -> None:
    if block.init is None:
        raise refuse(
            fn,
            "TW2151",
            f"cannot decompose @{block.name}: it has no init to take out",
            block.name,
            help="only a reduction that has not been decomposed yet has one",
        )


def _check_loops(
    fn: Function, block: Block, roles: Roles, outer: Sequence[For], inner: Sequence[For]
) -> None:
    for loop in outer:
        if loop.var in roles.reduce and not is_unit(loop):
            raise refuse(
                fn,
                "TW2152",
                f"cannot decompose @{block.name} at loop %{inner[0].var.name}: loop "
                f"%{loop.var.name} around it reduces, so the init would run several times",
                loop.var,
                help=f"decompose at %{loop.var.name} or a loop around it",
            )
    for loop in inner:
        if loop.var in roles.scan:
            raise refuse(
                fn,
                "TW2151",
                f"cannot decompose @{block.name} at loop %{inner[0].var.name}: %{loop.var.name} "
                "scans, and every step starts from the one before",
                loop.var,
                help=f"decompose at a loop inside %{loop.var.name}",
            )
        if roles.is_mixed(loop.var):
            raise refuse(
                fn,
                "TW2152",
                f"cannot decompose @{block.name}: loop %{loop.var.name} drives both spatial and "
                "reduce iterators",
                loop.var,
                help="fuse spatial with spatial and reduce with reduce loops only",
            )
        if roles.is_idle(loop.var) and not is_unit(loop):
            raise refuse(
                fn,
                "TW2152",
                f"cannot decompose @{block.name}: loop %{loop.var.name} repeats the reduction, and "
                "each time starts anew",
                loop.var,
                help="decompose at a loop inside it",
            )


def _check_surroundings(
    fn: Function, block: Block, path: Path, loop_path: Path, inner: Sequence[For]
) -> None:
    var = inner[0].var
    if not visits_once(fn, path, block, inner):
        raise refuse(
            fn,
            "TW2154",
            f"cannot decompose @{block.name} at loop %{var.name}: iterations of the loops from "
            "there on may compute the same element, each time from its init",
            var,
            help="decompose at a loop further inside",
        )
    made = writes_of(block)
    for other in scope_blocks(inner[0].body):
        if other is block:
            continue
        # A caller's buffer holds something before the init, which a reader may be after.
        touched = [buffer for buffer in writes_of(other) if buffer in made]
        touched += [b for b in reads_of(other) if b in made and b in fn.buffers]
        if touched:
            raise refuse(
                fn,
                "TW2154",
                f"cannot decompose @{block.name} at loop %{var.name}: @{other.name} inside it uses "
                f"%{touched[0].name} as well",
                other.name,
                help="decompose at a loop further inside",
            )
    far = [buffer for buffer in made if buffer.memory.owner is not Owner.DEVICE]
    if far and is_kernel_edge(path, len(loop_path) - 1):
        raise refuse(
            fn,
            "TW2154",
            f"cannot decompose @{block.name} at loop %{var.name}: the init would run outside of "
            f"the threads that own %{far[0].name} in {far[0].scope} memory",
            var,
            help="decompose at a loop inside the thread loops",
        )


def _check_starts(
    fn: Function, block: Block, loops: Sequence[For], at_start: dict[Var, Expr]
) -> None:
    ctx = loop_context(fn, [loop for loop in loops if loop.var not in at_start])
    for it, binding in zip(block.iters, block.bindings, strict=True):
        if it.kind != REDUCE:
            continue
        first = sym.simplify(sym.substitute(binding, at_start), ctx)
        if not sym.equal(first, 0, ctx):
            raise refuse(
                fn,
                "TW2153",
                f"cannot decompose @{block.name}: %{it.var.name} starts from {first}, not from 0",
                block.name,
            )
