"""compute_inline: inline a producer into its consumers."""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.sym import Expr, Var
from tilewright.tensor.ir import (
    Address,
    Block,
    Buffer,
    ExternCall,
    For,
    Function,
    Load,
    MaskedLoad,
    Stmt,
    Store,
    TensorCall,
)
from tilewright.tensor.schedule.analysis.movable import (
    check_finished,
    check_inputs_late,
    check_intermediate,
    check_repeatable,
    check_seen,
    memory_at,
    own_axes,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.sites import (
    Scope,
    Site,
    put,
    scope_of,
    shared_loops,
    with_regions,
)
from tilewright.tensor.schedule.analysis.tree import find_block, reads_of, with_body
from tilewright.tensor.visit import exprs, map_exprs, rewrite, walk, without_prefetches


def compute_inline(fn: Function, name: str) -> Function:
    """
    Before: for i { B[i] = A[i] + 1 }  for i { C[i] = B[i] * B[i] }
    After:  for i { C[i] = (A[i] + 1) * (A[i] + 1) }

    Every load of the buffer is replaced by the expression stored to that element.
    """
    path, block = path_to_block(fn, name, "inline")
    scope = scope_of(path)
    store = check_single_store(fn, scope, block, f"inline @{name}")
    check_intermediate(fn, store.buffer, name, f"inline @{name}")
    axes = own_axes(block)
    if axes is None:
        raise refuse(
            fn,
            "TW2122",
            f"cannot inline @{name}: it does not write at its spatial iterators, one per dimension",
            name,
            help="which instance computed an element cannot be determined from its index",
        )
    readers = scope.readers(store.buffer, but=block)
    if not readers:
        raise refuse(fn, "TW2123", f"cannot inline @{name}: nothing reads its results", name)
    for reader in readers:
        check_loads_only(fn, reader.block, store.buffer, f"inline @{name}")
    _check_inputs(fn, scope, scope.site(name), readers)

    body = put(path, None)
    assert body is not None
    made = with_body(fn, body)
    for reader in readers:
        where = find_block(made, reader.block.name)
        assert where is not None
        made = with_body(made, put(where, _with_values(reader.block, store, axes)))
    body = without_prefetches(made.body, store.buffer)
    allocs = tuple([b for b in made.allocs if b is not store.buffer])
    return replace(made, body=body, allocs=allocs)


def check_single_store(fn: Function, scope: Scope, block: Block, what: str) -> Store:
    """The block consists of a single store."""
    if block.init is not None:
        raise refuse(
            fn,
            "TW2135",
            f"cannot {what}: @{block.name} is a reduction, whose value is not one expression",
            block.name,
            help="compute_at moves a reduction next to its consumers",
        )
    if not isinstance(block.body, Store):
        raise refuse(
            fn,
            "TW2135",
            f"cannot {what}: @{block.name} does more than store one value",
            block.name,
        )
    check_repeatable(fn, scope, block, what)
    return block.body


def check_loads_only(fn: Function, block: Block, buffer: Buffer, what: str) -> None:
    """The block accesses the buffer by plain loads only."""
    opaque = any(
        region.buffer is buffer
        for stmt in walk(block)
        if isinstance(stmt, (TensorCall, ExternCall))
        for region in stmt.regions
    ) or any(
        isinstance(node, (Address, MaskedLoad)) and node.buffer is buffer for node in exprs(block)
    )
    if opaque:
        raise refuse(
            fn,
            "TW2136",
            f"cannot {what}: @{block.name} hands %{buffer.name} to an instruction or an external "
            "kernel",
            block.name,
            help="there it must exist in memory",
        )


def _check_inputs(fn: Function, scope: Scope, site: Site, readers: list[Site]) -> None:
    """The inlined expression's inputs are available and unchanged at the consumers."""
    block = site.block
    for reader in readers:
        check_inputs_late(
            fn,
            scope,
            block,
            site,
            reader.order,
            reader.path,
            f"inline @{block.name} into @{reader.block.name}",
        )
        for buffer in reads_of(block):
            for writer in scope.writers(buffer):
                memory = memory_at(fn, scope, buffer, block.name, reader.path)
                check_seen(fn, buffer, memory, writer.path, reader.path, f"inline @{block.name}")
                shared = shared_loops(writer.path, site.path)
                check_finished(fn, writer, shared, f"inline @{block.name}")
                apart = [loop for loop in shared if loop not in reader.loops]
                if apart and buffer not in fn.buffers:
                    _refuse_apart(fn, block, buffer, writer, apart[0], reader)


def _refuse_apart(
    fn: Function, block: Block, buffer: Buffer, writer: Site, loop: For, reader: Site
) -> None:
    raise refuse(
        fn,
        "TW2126",
        f"cannot inline @{block.name}: it reads %{buffer.name}, which @{writer.block.name} "
        f"computes inside loop %{loop.var.name}, and @{reader.block.name} is outside",
        loop.var,
        help=f"inline @{writer.block.name} first, or move it out of %{loop.var.name}",
    )


def _with_values(block: Block, store: Store, axes: dict[int, Var]) -> Stmt:
    """The block with loads replaced by the stored expression, its regions recomputed."""
    ctx = sym.EMPTY.bind_all({it.var: (sym.ZERO, it.extent) for it in block.iters})

    def expr_rule(expr: Expr) -> Expr:
        if not isinstance(expr, Load) or expr.buffer is not store.buffer:
            return expr
        mapping: dict[Var, Expr] = {axes[axis]: expr.index[axis] for axis in axes}
        value = sym.substitute(store.value, mapping)
        is_plain = all(isinstance(at, (Var, sym.Const)) for at in expr.index)
        return value if is_plain else sym.simplify(value, ctx)

    def rule(stmt: Stmt) -> Stmt:
        return with_regions(stmt) if isinstance(stmt, Block) else map_exprs(stmt, expr_rule, memo)

    memo: dict[Expr, Expr] = {}
    return rewrite(block, rule)
