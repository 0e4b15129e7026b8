"""reindex_read: let a block read a copy of its input laid out by the block's own iterators
(im2col)."""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.sym import TRUE, ZERO, Expr, Size, Var
from tilewright.tensor.ir import (
    SERIAL,
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
from tilewright.tensor.schedule.analysis.cover import cache_name
from tilewright.tensor.schedule.analysis.memory import check_memory, chosen
from tilewright.tensor.schedule.analysis.movable import check_straight, fills
from tilewright.tensor.schedule.analysis.nests import perfect_chain
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.sites import put, scope_of
from tilewright.tensor.schedule.analysis.tree import (
    find_block,
    fresh_block_name,
    nest,
    with_body,
    writes_of,
)
from tilewright.tensor.schedule.cache_read import top_place
from tilewright.tensor.visit import exprs, map_exprs


def reindex_read(fn: Function, name: str, index: int, memory: str) -> tuple[Function, str]:
    """
    Before: for i { for r { C[i] sum= A[2 * i + r] } }
    After:  for i { for r { A_local[i, r] = A[2 * i + r] } }  for i { for r { C[i] sum= A_local[i, r] } }

    Overlapping windows are stored separately, so that a tile of the block reads a tile of the copy.
    The block must have its own, unmoved loops.
    """  # noqa: E501
    path, block = path_to_block(fn, name, "reindex a read")
    memory = check_memory(fn, memory, name, "reindex a read")
    buffer = chosen(fn, block, block.reads, index, "read", "reindex a read").buffer
    scope = scope_of(path)
    check_straight(fn, scope, f"reindex a read of @{name}")
    load = _only_load(fn, block, buffer)
    _check_everywhere(fn, block, load)
    top = top_place(scope, path)
    loops = [stmt for stmt in path[top:-1] if isinstance(stmt, For)]
    before = [w for w in scope.writers(buffer) if w.order < scope.site(name).order]
    known = buffer in fn.buffers and not scope.writers(buffer)
    known = known or any(fills(fn, scope, writer, buffer) for writer in before)
    is_own = (
        tuple(loop.var for loop in loops) == block.bindings
        and all(loop.kind == SERIAL and loop.start is ZERO for loop in loops)
        and (not loops or perfect_chain(loops[0])[1] is block)
    )
    if scope.holder is not None or not known or not is_own or block.predicate is not TRUE:
        raise refuse(
            fn,
            "TW2149",
            f"cannot reindex a read of @{name}: it is not a block with loops of its own alone, one "
            f"per iterator, behind whatever computes %{buffer.name}",
            name,
            help="reindex before loops are split or moved",
        )
    used = set(sym.free_vars(*load.index))
    own = [it for it in block.iters if it.var in used]
    cache = replace(
        buffer,
        name=cache_name(buffer, memory),
        shape=tuple([it.extent for it in own]),
        scope=memory,
        align=(),
    )
    copy_name = fresh_block_name(fn, cache.name)
    made_nest = _copy(copy_name, load, cache, own)
    at = tuple([it.var for it in own])

    def rule(expr: Expr) -> Expr:
        return Load(cache, at) if expr is load else expr

    body = map_exprs(block.body, rule)
    reads, writes = access_regions(body, block.init, block.iters)
    made = with_body(fn, put(path, replace(block, body=body, reads=reads, writes=writes)))
    where = find_block(made, name)
    assert where is not None
    made = with_body(made, put(where[: top + 1], seq(made_nest, where[top])))
    return replace(made, allocs=(*made.allocs, cache)), copy_name


def _only_load(fn: Function, block: Block, buffer: Buffer) -> Load:
    """The single load of a buffer that the block does not write."""
    loads = {e for e in exprs(block.body) if isinstance(e, Load) and e.buffer is buffer}
    if len(loads) != 1 or buffer in writes_of(block):
        raise refuse(
            fn,
            "TW2149",
            f"cannot reindex a read of @{block.name}: it reads %{buffer.name} at {len(loads)} "
            "places, or writes it",
            block.name,
        )
    return loads.pop()


def _check_everywhere(fn: Function, block: Block, load: Load) -> None:
    """Every instance of the block may read the element, since the copy does not have the block's
    condition."""
    own = {it.var: (ZERO, it.extent) for it in block.iters}
    reason = ""
    if not all(var in own or isinstance(var, Size) for var in sym.free_vars(*load.index)):
        reason = "inside loops of the block"
    elif any(isinstance(e, Load) and e.buffer in writes_of(block) for e in sym.walk(*load.index)):
        reason = "at an index that the block computes"
    elif load not in _unconditional(block.body):
        ctx = sym.EMPTY
        for cond in fn.requires:
            ctx = ctx.assume(cond)
        ctx = ctx.bind_all(own)
        for at, dim in zip(load.index, load.buffer.shape, strict=True):
            if not sym.prove(sym.all_of(sym.le(0, at), sym.lt(at, dim)), ctx):
                reason = f"where {load} exists, which is not everywhere"
    if reason:
        raise refuse(
            fn,
            "TW2149",
            f"cannot reindex a read of @{block.name}: it reads %{load.buffer.name} {reason}",
            block.name,
        )


def _unconditional(body: Stmt) -> set[Expr]:
    """The expressions that are evaluated unconditionally."""
    if not isinstance(body, (Store, Update)):
        return set()
    found: set[Expr] = set()
    stack = list(body.exprs())
    while stack:
        node = stack.pop()
        found.add(node)
        if isinstance(node, sym.Select):
            stack.append(node.cond)
        elif isinstance(node, (sym.And, sym.Or)):
            stack.append(node.a)
        else:
            stack += node.children()
    return found


def _copy(name: str, load: Load, cache: Buffer, own: list[Iter]) -> For | Block:
    """The nest that computes the copy."""
    loops = [For(sym.var(f"ax{at}"), ZERO, it.extent, Seq(())) for at, it in enumerate(own)]
    iters = tuple([Iter(sym.var(it.var.name), it.extent, SPATIAL) for it in own])
    moved: dict[Var, Expr] = {a.var: b.var for a, b in zip(own, iters, strict=True)}
    index = tuple([sym.substitute(at, moved) for at in load.index])
    body = Store(cache, tuple([it.var for it in iters]), Load(load.buffer, index))
    reads, writes = access_regions(body, None, iters)
    bindings = tuple([loop.var for loop in loops])
    made = nest(loops, Block(name, iters, bindings, reads, writes, body))
    assert isinstance(made, (For, Block))
    return made
