"""rfactor: factor a reduction into partial reductions along one of its loops, and a final one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.sym import ZERO, Expr, Var
from tilewright.tensor.ir import (
    REDUCE,
    SCAN,
    SPATIAL,
    Block,
    Buffer,
    For,
    Function,
    Iter,
    Load,
    Seq,
    Stmt,
    Store,
    Update,
    seq,
)
from tilewright.tensor.regions import access_regions
from tilewright.tensor.schedule.analysis.nests import (
    Roles,
    copy_nest,
    is_kernel_edge,
    is_unit,
    roles_of,
    visits_once,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    find_path,
    fresh_block_name,
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


@dataclass(frozen=True, slots=True)
class _Factoring:
    """The reduction to factor: its block, the loops around it, and the loop to factor along."""

    path: Path  # to the block
    block: Block
    update: Update
    loops: tuple[For, ...]
    roles: Roles
    loop: For
    axis: int  # of the new buffers
    top: int  # the outermost of `loops` that is copied for the final reduction

    @property
    def reducing(self) -> list[For]:
        """The other reduction loops."""
        return [
            loop for loop in self.loops if loop.var in self.roles.reduce and loop is not self.loop
        ]

    def index(self, part: Expr) -> tuple[Expr, ...]:
        """The index of a partial result in the new buffers."""
        index = self.update.index
        return (*index[: self.axis], part, *index[self.axis :])


def rfactor(fn: Function, var: Var, factor_axis: int) -> tuple[Function, str]:
    """
    Before: for i { for ko { for ki { block B(i, ko * 8 + ki) {
              init { B[i] = 0 }  B[i] += A[i, ko * 8 + ki] } } } }
    After:  for i { for ko { for ki { block B_rf(ki, i, ko) {
              init { B_rf[ki, i] = 0 }  B_rf[ki, i] += A[i, ko * 8 + ki] } } } }
            for i { for ki { block B(i, ki) {
              init { B[i] = 0 }  B[i] += B_rf[ki, i] } } }

    The loop becomes dimension `factor_axis` of `B_rf`. A condition on reduction loops moves into
    the value: select(condition, value, identity).
    """
    found = _check(fn, var, factor_axis)
    parts = tuple([_part_buffer(found, buffer) for buffer in found.update.buffers])
    partial = _partial_block(fn, found, parts)
    mapping: dict[Var, Expr] = {}
    copied = [
        loop
        for loop in found.loops[found.top :]
        if loop is found.loop or loop.var not in found.roles.reduce
    ]
    copies = copy_nest(copied, mapping)
    final = _final_block(found, parts, mapping)
    top_loop = found.loops[found.top]
    at = found.path.index(top_loop)
    below = replace_at(found.path[at:], partial)
    assert below is not None
    body = replace_at(found.path[: at + 1], seq(below, nest(copies, final)))
    made = replace(with_body(fn, body), allocs=(*fn.allocs, *parts))
    return made, partial.name


def _part_buffer(found: _Factoring, buffer: Buffer) -> Buffer:
    shape = (
        *buffer.shape[: found.axis],
        sym.simplify(found.loop.extent),
        *buffer.shape[found.axis :],
    )
    return Buffer(f"{buffer.name}_rf", shape, buffer.dtype, buffer.scope)


def _partial_block(fn: Function, found: _Factoring, parts: tuple[Buffer, ...]) -> Block:
    """The block that computes the partial reductions."""
    block, update = found.block, found.update
    part = _iter(found.loop, SPATIAL)
    reducing = [_iter(loop, REDUCE) for loop in found.reducing]
    around = [found.loop, *found.reducing]
    spatial = [
        (it, binding)
        for it, binding in zip(block.iters, block.bindings, strict=True)
        if it.kind == SPATIAL
    ]
    iters = (part, *[it for it, _ in spatial], *reducing)
    bindings = (
        sym.sub(found.loop.var, found.loop.start),
        *[binding for _, binding in spatial],
        *[sym.sub(loop.var, loop.start) for loop in found.reducing],
    )
    # The loops' values, as functions of the new block's iterators.
    told: dict[Var, Expr] = {
        loop.var: sym.add(loop.start, it.var)
        for loop, it in zip(around, (part, *reducing), strict=True)
    }
    ctx = sym.EMPTY.bind_all({it.var: (ZERO, it.extent) for it in iters})
    inside: dict[Var, Expr] = {
        it.var: sym.simplify(sym.substitute(binding, told), ctx)
        for it, binding in zip(block.iters, block.bindings, strict=True)
        if it.kind == REDUCE
    }
    kept, folded = _conditions(fn, found)
    plain = {binding: it.var for it, binding in spatial if isinstance(binding, Var)}
    values: list[Expr] = []
    condition = sym.all_of(*[sym.substitute(cond, {**plain, **told}) for cond in folded])
    for value, identity in zip(update.values, update.reducer.identity, strict=True):
        moved = sym.substitute(value, inside)
        values.append(sym.select(condition, moved, identity))
    index = found.index(part.var)
    init: Stmt | None = None
    if reducing:
        body: Stmt = Update(update.reducer, parts, index, tuple(values), update.loc)
        init = stores_of(parts, index, update.reducer.identity)
    else:  # a single term per part
        body = stores_of(parts, index, values)
    reads, writes = access_regions(body, init, iters)
    name = fresh_block_name(fn, f"{block.name}_rf")
    predicate = sym.all_of(*kept)
    made = Block(name, iters, bindings, reads, writes, body, init, predicate, (), block.loc)
    copied = fresh_copy(made)
    assert isinstance(copied, Block)
    return copied


def stores_of(buffers: Sequence[Buffer], index: tuple[Expr, ...], values: Sequence[Expr]) -> Stmt:
    """Store one value to each buffer, at the same index."""
    return seq(*[Store(b, index, value) for b, value in zip(buffers, values, strict=True)])


def _final_block(found: _Factoring, parts: tuple[Buffer, ...], mapping: dict[Var, Expr]) -> Block:
    """The block that combines the partial results, under the old name and with the old init."""
    block, update = found.block, found.update
    part = _iter(found.loop, REDUCE)
    spatial = [
        (it, binding)
        for it, binding in zip(block.iters, block.bindings, strict=True)
        if it.kind == SPATIAL
    ]
    iters = (*[it for it, _ in spatial], part)
    bindings = (*[binding for _, binding in spatial], found.loop.var - found.loop.start)
    values = tuple([Load(buffer, found.index(part.var)) for buffer in parts])
    body = Update(update.reducer, update.buffers, update.index, values, update.loc)
    reads, writes = access_regions(body, block.init, iters)
    reduced = {loop.var for loop in (found.loop, *found.reducing)}
    predicate = sym.all_of(
        *[cond for cond in sym.conjuncts(block.predicate) if not sym.uses_var(cond, reduced)]
    )
    return replace(
        block,
        iters=iters,
        bindings=tuple([sym.substitute(binding, mapping) for binding in bindings]),
        reads=reads,
        writes=writes,
        body=body,
        predicate=sym.substitute(predicate, mapping),
    )


def _iter(loop: For, kind: str) -> Iter:
    return Iter(sym.var(f"v{loop.var.name}"), sym.simplify(loop.extent), kind)


def _conditions(fn: Function, found: _Factoring) -> tuple[list[Expr], list[Expr]]:
    """The conjuncts that can stay in the predicate, and those that must move into the value.

    A predicate only masks instances outside of the iterators' extents. A condition on the new
    iterators cannot stay: every partial result is computed, with masked terms as the identity.
    """
    reduced = {found.loop.var, *(loop.var for loop in found.reducing)}
    kept: list[Expr] = []
    folded: list[Expr] = []
    for cond in sym.conjuncts(found.block.predicate):
        (folded if sym.uses_var(cond, reduced) else kept).append(cond)
    known = {
        *reduced,
        *(binding for binding in found.block.bindings if isinstance(binding, Var)),
    }
    for cond in folded:
        for var in sym.free_vars(cond):
            if any(var is loop.var for loop in found.loops) and var not in known:
                raise refuse(
                    fn,
                    "TW2157",
                    f"cannot rfactor loop %{found.loop.var.name}: the condition {cond} of "
                    f"@{found.block.name} ties it to loop %{var.name}",
                    found.block.name,
                )
    return kept, folded


# --------------------------------------------------------------------------- checks


def _check(fn: Function, var: Var, factor_axis: int) -> _Factoring:
    _, loop = path_to_loop(fn, var, "rfactor")
    path, block = _the_reduction(fn, loop)
    loops = loops_on(path)
    roles = roles_of(block)
    update = _check_block(fn, block, loop)
    rank = len(update.index)
    if not -rank - 1 <= factor_axis <= rank:
        raise refuse(
            fn,
            "TW2158",
            f"cannot rfactor loop %{var.name} into axis {factor_axis}: @{block.name} writes "
            f"{rank} dimensions",
            block.name,
            help=f"use an axis from 0 to {rank}",
        )
    first = next(at for at, each in enumerate(loops) if each.var in roles.reduce)
    _check_loops(fn, block, loop, roles, loops, loops[first:])
    made = writes_of(block)
    for other in scope_blocks(loops[first].body):
        touched = [b for b in (*reads_of(other), *writes_of(other)) if b in made]
        if other is not block and touched:
            raise refuse(
                fn,
                "TW2159",
                f"cannot rfactor loop %{var.name}: @{other.name} uses %{touched[0].name} while "
                f"@{block.name} reduces it",
                other.name,
            )
    top = _top(path, loops, first, roles, made)
    if not visits_once(fn, path, block, loops[top:]):
        raise refuse(
            fn,
            "TW2159",
            f"cannot rfactor loop %{var.name}: iterations of the loops around may compute the same "
            f"element in @{block.name}",
            block.name,
        )
    axis = factor_axis if factor_axis >= 0 else factor_axis + rank + 1
    return _Factoring(path, block, update, loops, roles, loop, axis, top)


def _the_reduction(fn: Function, loop: For) -> tuple[Path, Block]:
    """The block that reduces along the loop, and the path to it."""
    name = f"%{loop.var.name}"
    blocks = [b for b in scope_blocks(loop.body) if loop.var in roles_of(b).reduce]
    if not blocks:
        raise refuse(
            fn,
            "TW2155",
            f"cannot rfactor loop {name}: no block reduces along it",
            loop.var,
            help="pass a loop that drives a reduce iterator alone",
        )
    if len(blocks) > 1:
        shown = ", ".join(f"@{block.name}" for block in blocks)
        raise refuse(
            fn, "TW2155", f"cannot rfactor loop {name}: {shown} all reduce along it", loop.var
        )
    path = find_path(fn.body, blocks[0])
    assert path is not None
    outside = [stmt.name for stmt in path[:-1] if isinstance(stmt, Block)]
    if outside:
        raise refuse(
            fn,
            "TW2155",
            f"cannot rfactor loop {name}: it is inside @{outside[-1]}, which declares what it uses",
            loop.var,
            help="rfactor before blockize",
        )
    return path, blocks[0]


def _check_block(fn: Function, block: Block, loop: For) -> Update:
    """The block folds one value into its result by a reducer with an order-independent init."""
    reason = ""
    if block.init is None:
        reason = "it has no init; rfactor before decompose_reduction"
    elif any(it.kind == SCAN for it in block.iters):
        reason = "it scans"
    elif not isinstance(block.body, Update):
        reason = "its body is not one step of a reduction, such as sum="
    else:
        reduced = {it.var for it in block.iters if it.kind == REDUCE}
        stmts = block.init.stmts if isinstance(block.init, Seq) else (block.init,)
        exprs = [expr for stmt in stmts for expr in stmt.exprs()]
        if any(sym.uses_var(expr, reduced) for expr in (*exprs, *block.body.index)):
            reason = "where it stores depends on the order it reduces in"
        elif not all(_stores_to(stmt, block.body) for stmt in stmts):
            reason = "its init is not a store to each of its results"
    if reason:
        raise refuse(
            fn,
            "TW2156",
            f"cannot rfactor loop %{loop.var.name} of @{block.name}: {reason}",
            block.name,
        )
    assert isinstance(block.body, Update)
    return block.body


def _stores_to(stmt: Stmt, update: Update) -> bool:
    return isinstance(stmt, Store) and stmt.buffer in update.buffers and stmt.index == update.index


def _check_loops(
    fn: Function,
    block: Block,
    loop: For,
    roles: Roles,
    loops: Sequence[For],
    inner: Sequence[For],
) -> None:
    variables = {each.var for each in loops}
    for each in loops:
        reason = ""
        if each.var in roles.reduce and roles.is_mixed(each.var):
            reason = "drives both spatial and reduce iterators"
        elif each in inner and roles.is_idle(each.var) and not is_unit(each):
            reason = "repeats the reduction"
        elif each.var in roles.reduce and any(
            sym.uses_var(end, variables) for end in (each.start, each.stop)
        ):
            reason = "has a range that depends on other loops"
        if reason:
            raise refuse(
                fn,
                "TW2156",
                f"cannot rfactor loop %{loop.var.name} of @{block.name}: loop %{each.var.name} "
                f"{reason}",
                each.var,
            )


def _top(
    path: Path,
    loops: Sequence[For],
    first: int,
    roles: Roles,
    made: dict[Buffer, None],
) -> int:
    """The index of the outermost loop to copy for the final reduction: it contains nothing else;
    results that belong to threads are combined by the same threads."""
    local = any(buffer.memory.owner is not Owner.DEVICE for buffer in made)
    top = first
    while top > 0:
        at = path.index(loops[top])
        parent = path[at - 1]
        if parent is not loops[top - 1] or loops[top - 1].var not in roles.spatial:
            break
        if local and is_kernel_edge(path, at - 1):
            break
        top -= 1
    return top
