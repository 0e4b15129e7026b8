"""reverse_compute_inline: inline an elementwise consumer into its producer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright import sym
from tilewright.base.loc import fuse
from tilewright.sym import TRUE, ZERO, Const, Context, Expr, FloorDiv, FloorMod, Var
from tilewright.tensor.ir import SPATIAL, Block, Buffer, For, Function, Iter, Load, Seq, Store
from tilewright.tensor.regions import access_regions
from tilewright.tensor.schedule.analysis.index_map import IndexMap
from tilewright.tensor.schedule.analysis.intervals import bindings_of
from tilewright.tensor.schedule.analysis.movable import (
    check_inputs_there,
    check_intermediate,
    check_outputs_there,
    check_runs_once,
    own_axes,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.sites import Scope, Site, put, scope_context, scope_of
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    find_block,
    reads_of,
    with_body,
    writes_of,
)
from tilewright.tensor.schedule.compute_inline import check_loads_only, check_single_store
from tilewright.tensor.schedule.transform_layout import Moved, check_movable, everything_known
from tilewright.tensor.visit import blocks, loads, without_prefetches


def reverse_compute_inline(fn: Function, name: str) -> Function:
    """
    Before: block B: B[i] = A[i] + 1      block C: C[i] = B[i] * 2
    After:  block B: C[i] = (A[i] + 1) * 2

    The producer keeps its name and loops, and writes the consumer's results. An iterator of the
    consumer may correspond to two of the producer's: C[i] = B[i // 8, i % 8].

    A consumer that copies the whole of a buffer, perhaps with its dimensions in another order, may
    have several producers, which may read what they wrote (a scan): all of them then use its
    output as that buffer.

    Before: B[0, i] = ...     B[t, i] = B[t - 1, i] + A[i, t]     C[i, t] = B[t, i]
    After:  C[i, 0] = ...     C[i, t] = C[i, t - 1] + A[i, t]
    """
    path, block = path_to_block(fn, name, "inline")
    copied = _try_written_there(fn, path, block)
    if copied is not None:
        return copied
    scope = scope_of(path)
    what = f"inline @{name} into its producer"
    store = check_single_store(fn, scope, block, what)
    producer, buffer = _producer(fn, scope, block)
    check_intermediate(fn, buffer, producer.block.name, what)
    check_loads_only(fn, block, buffer, what)
    made = check_single_store(fn, scope, producer.block, what)
    axes = own_axes(producer.block)
    if axes is None:
        raise refuse(
            fn,
            "TW2122",
            f"cannot {what}: @{producer.block.name} does not write at its spatial iterators, one "
            "per dimension",
            producer.block.name,
        )
    index = _index(fn, block, buffer)
    _check_order(fn, scope, block, producer)
    check_runs_once(fn, scope, producer, (), block, what)
    ctx = scope_context(fn, scope, ())
    moved = _fused(fn, producer.block, block, store, made, index, axes, ctx)
    known = [b for b in reads_of(producer.block) if b not in reads_of(block)]
    check_inputs_there(fn, scope, moved, (), producer.path, path, what, known)
    check_outputs_there(fn, scope, moved, (), producer.path, what)
    body = put(path, None)
    assert body is not None
    new = with_body(fn, body)
    where = find_block(new, producer.block.name)
    assert where is not None
    new = with_body(new, put(where, moved))
    body = without_prefetches(new.body, buffer)
    return replace(new, body=body, allocs=tuple([b for b in new.allocs if b is not buffer]))


def _try_written_there(fn: Function, path: Path, block: Block) -> Function | None:
    """The function without a block that copies a buffer of several writers, which write the copy
    instead; None if it is no such copy."""
    *loops, _ = path
    store = block.body
    if not isinstance(store, Store) or not isinstance(store.value, Load):
        return None
    old, new, index = store.value.buffer, store.buffer, store.value.index
    extents = {it.var: it.extent for it in block.iters if it.kind == SPATIAL}
    nests = [stmt for stmt in loops if isinstance(stmt, For)]
    is_whole = (
        block.predicate is TRUE
        and len(extents) == len(block.iters) == new.rank == old.rank
        and {*store.index} == {*index} == {*extents}
        and [extents[at] for at in store.index if isinstance(at, Var)] == [*new.shape]
        and [extents[at] for at in index if isinstance(at, Var)] == [*old.shape]
        and {loop.var: (loop.start, loop.extent) for loop in nests}
        == {at: (ZERO, it.extent) for at, it in zip(block.bindings, block.iters, strict=True)}
        and all(isinstance(stmt, (For, Seq)) for stmt in loops)
    )
    if not is_whole or old not in fn.allocs or (old.dtype, old.scope) != (new.dtype, new.scope):
        return None
    others = [each for each in blocks(fn.body) if each is not block]
    writers = [each for each in others if old in writes_of(each)]
    used = any(new in {**reads_of(each), **writes_of(each)} for each in others)
    if len(writers) < 2 or used or _index_of_last(fn, writers) >= _index_of_last(fn, [block]):
        return None
    check_movable(fn, block.name, old)
    names = {at: sym.size(f"i{k}") for k, at in enumerate(index)}
    order = IndexMap(tuple(names.values()), tuple([names[at] for at in store.index]))
    body = put(path, None)
    assert body is not None
    without = with_body(fn, body)
    moved = Moved(old, new, order, everything_known(without)).stmt(without.body)
    return replace(
        with_body(without, moved), allocs=tuple([each for each in fn.allocs if each is not old])
    )


def _index_of_last(fn: Function, found: Collection[Block]) -> int:
    """The last statement of the function, of those in sequence, that contains one of the blocks."""
    whole = fn.body.stmts if isinstance(fn.body, Seq) else (fn.body,)
    names = {each.name for each in found}
    return max(at for at, stmt in enumerate(whole) if any(b.name in names for b in blocks(stmt)))


def _producer(fn: Function, scope: Scope, block: Block) -> tuple[Site, Buffer]:
    """The only producer of what the block reads, and the buffer between them."""
    found = [
        (site, buffer)
        for buffer in reads_of(block)
        if buffer not in fn.buffers
        for site in scope.writers(buffer, but=block)
    ]
    alone = [
        (site, buffer)
        for site, buffer in found
        if all(other.block is block for other in scope.readers(buffer, but=site.block))
    ]
    if not alone:
        reason = "nothing computes what it reads"
        at = block.name
        if found:
            site, buffer = found[0]
            others = [s for s in scope.readers(buffer, but=site.block) if s.block is not block]
            reason = f"@{others[0].block.name} reads %{buffer.name} as well"
            at = others[0].block.name
        raise refuse(fn, "TW2137", f"cannot inline @{block.name} into its producer: {reason}", at)
    if len(alone) > 1:
        raise refuse(
            fn,
            "TW2137",
            f"cannot inline @{block.name} into its producer: @{alone[0][0].block.name} and "
            f"@{alone[1][0].block.name} both compute what it reads",
            block.name,
            help="compute_inline one of them first",
        )
    return alone[0]


def _index(fn: Function, block: Block, buffer: Buffer) -> tuple[Expr, ...]:
    """The consumer's read index: its own iterators, each of them once."""
    found = {load.index for load in loads(*block.body.exprs()) if load.buffer is buffer}
    index = next(iter(found))
    spatial = {it.var: it for it in block.iters}
    digits = _digits(index, spatial)
    used = [at for at in index if isinstance(at, Var) and at in spatial]
    used += dict.fromkeys(digits.values())
    plain = all(
        (isinstance(at, Var) and at in spatial) or isinstance(at, Const) or at in digits
        for at in index
    )
    missing = [it for v, it in spatial.items() if v not in used and not _is_one(it)]
    if len(found) > 1 or not plain or len(set(used)) != len(used) or missing:
        raise refuse(
            fn,
            "TW2138",
            f"cannot inline @{block.name} into its producer: it does not read %{buffer.name} "
            "element by element, at its own iterators",
            block.name,
            help="reverse_compute_at can move it next to the producer",
        )
    return index


def _digits(index: tuple[Expr, ...], iterators: Collection[Var]) -> dict[Expr, Var]:
    """Quotients and remainders of an iterator by one number, and that iterator, where the index
    uses it in no other way."""
    found: dict[Expr, Var] = {}
    for var in iterators:
        parts = [at for at in index if sym.uses_var(at, {var})]
        high = [at for at in parts if isinstance(at, FloorDiv) and at.a is var]
        low = [at for at in parts if isinstance(at, FloorMod) and at.a is var]
        if len(parts) == 2 and len(high) == len(low) == 1 and high[0].b is low[0].b:
            found.update(dict.fromkeys(parts, var))
    return found


def _is_one(it: Iter) -> bool:
    return isinstance(it.extent, Const) and it.extent.value == 1


def _check_order(fn: Function, scope: Scope, block: Block, producer: Site) -> None:
    """The consumer's other inputs are available early enough, and nothing needs its output's old
    value."""
    site = scope.site(block.name)
    for buffer in reads_of(block):
        for writer in scope.writers(buffer, but=block):
            if writer.block is not producer.block and writer.order > producer.order:
                raise refuse(
                    fn,
                    "TW2125",
                    f"cannot inline @{block.name} into @{producer.block.name}: it reads "
                    f"%{buffer.name}, which @{writer.block.name} computes later",
                    writer.block.name,
                )
    for region in block.writes:
        for other in scope.readers(region.buffer, but=block):
            if other.order < site.order:
                raise refuse(
                    fn,
                    "TW2125",
                    f"cannot inline @{block.name} into @{producer.block.name}: "
                    f"@{other.block.name} before it reads %{region.buffer.name}, which it "
                    "overwrites",
                    other.block.name,
                )


def _elsewhere(fn: Function, block: Block, producer: Block) -> Exception:
    return refuse(
        fn,
        "TW2138",
        f"cannot inline @{block.name} into its producer: it does not run over the elements that "
        f"@{producer.name} computes",
        block.name,
    )


def _fused(
    fn: Function,
    producer: Block,
    block: Block,
    store: Store,
    inner: Store,
    index: tuple[Expr, ...],
    axes: dict[int, Var],
    ctx: Context,
) -> Block:
    """The producer, storing the consumer's value at the consumer's index."""
    consumed = {it.var: it.extent for it in block.iters}
    extents = {it.var: it.extent for it in producer.iters}
    mapping: dict[Var, Expr] = dict.fromkeys(consumed, ZERO)  # those of extent 1
    limits: dict[Var, Expr] = {}
    digits = _digits(index, consumed)
    for axis, at in enumerate(index):
        own = axes.get(axis, inner.index[axis])
        if isinstance(at, Var):
            mapping[at] = own
        elif at in digits:
            var = digits[at]
            assert isinstance(at, (FloorDiv, FloorMod))
            high = isinstance(at, FloorDiv)
            whole = sym.simplify(sym.floordiv(consumed[var], at.b)) if high else at.b
            of = extents[own] if isinstance(own, Var) else None
            if (
                of is None
                or not sym.equal(of, whole, ctx)
                or not sym.equal(
                    sym.mul(sym.floordiv(consumed[var], at.b), at.b), consumed[var], ctx
                )
            ):
                raise _elsewhere(fn, block, producer)
            mapping[var] = sym.add(mapping[var], sym.mul(own, at.b) if high else own)
            continue
        wanted = consumed[at] if isinstance(at, Var) else sym.add(at, 1)
        made = extents[own] if isinstance(own, Var) else sym.add(own, 1)
        single = isinstance(at, Var) or sym.equal(made, 1, ctx)
        if not sym.prove(sym.le(wanted, made), ctx) or not single:
            raise _elsewhere(fn, block, producer)
        if isinstance(own, Var) and not sym.equal(wanted, made, ctx):
            limits[own] = wanted

    def value_rule(expr: Expr) -> Expr:
        loaded = isinstance(expr, Load) and expr.buffer is inner.buffer
        return inner.value if loaded else sym.rebuild(expr)

    memo: dict[Expr, Expr] = dict(mapping.items())
    value = sym.rewrite(store.value, value_rule, memo)
    at_index = tuple([sym.substitute(at, mapping) for at in store.index])
    body = Store(store.buffer, at_index, value, None, fuse(inner.loc, store.loc))
    iters = tuple([replace(it, extent=limits.get(it.var, it.extent)) for it in producer.iters])
    reads, writes = access_regions(body, None, iters)
    values = bindings_of(producer)
    within = [sym.lt(values[v], limit) for v, limit in limits.items()]
    return replace(
        producer,
        iters=iters,
        reads=reads,
        writes=writes,
        body=body,
        predicate=sym.all_of(producer.predicate, *within),
        loc=fuse(producer.loc, block.loc),
    )
