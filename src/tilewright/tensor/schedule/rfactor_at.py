"""rfactor_at: fuse a full reduction into the loops that produce its operand, as partial
reductions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.sym import TRUE, ZERO, Expr, Var
from tilewright.tensor.ir import (
    PARALLEL,
    REDUCE,
    SERIAL,
    SPATIAL,
    THREAD,
    VECTOR,
    VTHREAD,
    Block,
    Buffer,
    For,
    Function,
    Iter,
    Load,
    Stmt,
    Store,
    Update,
)
from tilewright.tensor.regions import access_regions
from tilewright.tensor.schedule.analysis.nests import copy_nest, is_unit, visits_once
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.analysis.sites import put_beside
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    find_block,
    find_path,
    fresh_block_name,
    insert_after,
    is_complete,
    loops_on,
    nest,
    replace_at,
    scope_blocks,
    scope_root,
    with_body,
    writes_of,
)
from tilewright.tensor.schedule.rfactor import stores_of
from tilewright.tensor.visit import exprs, fresh_copy


@dataclass(frozen=True, slots=True)
class _Factoring:
    """The reduction, the producer of its operand, and the loops around that."""

    top: Path  # to the outermost loop of the reduction
    block: Block
    update: Update
    producer: Block
    made: Store
    outer: tuple[For, ...]  # around producer and partial reduction
    inner: tuple[For, ...]  # around the producer alone

    @property
    def loops(self) -> tuple[For, ...]:
        return tuple([loop for loop in (*self.outer, *self.inner) if not is_unit(loop)])

    @property
    def parts(self) -> list[For]:
        """The loops with a partial result per iteration, since their iterations are concurrent."""
        threads = [at for at, loop in enumerate(self.loops) if loop.kind == PARALLEL]
        count = threads[-1] + 1 if threads else 0
        lanes = [loop for loop in self.loops[count:] if loop.kind in (VECTOR, VTHREAD)]
        return [*self.loops[:count], *lanes]


def rfactor_at(fn: Function, name: str, var: Var) -> tuple[Function, str]:
    """
    Before: for y { for x in 0..8 { B[y * 8 + x] = A[y * 8 + x] } }  for i { S max= B[i] }
    After:  for y { for x in 0..8 { B[y * 8 + x] = A[y * 8 + x] }
                    for x in 0..8 { S_rf[y] max= B[y * 8 + x] } }
            for y { S max= S_rf[y] }
            by rfactor_at(S, y), where y is parallel

    The loops under `y` are those of B's producer. Concurrent iterations have partial results of
    their own: those of parallel loops and loops around them, vector lanes, and virtual threads.
    """
    found = _check(fn, name, var)
    parts = tuple([_part_buffer(found, buffer) for buffer in found.update.buffers])
    mapping: dict[Var, Expr] = {}
    copies = copy_nest([replace(loop, annotations=()) for loop in found.inner], mapping)
    partial = _partial_block(fn, found, parts, mapping)
    around = _final_nest(found, parts)
    made = with_body(fn, replace_at(found.top, around))
    made = put_beside(made, var, found.producer, nest(copies, partial), insert_after)
    return replace(made, allocs=(*made.allocs, *parts)), partial.name


def _part_buffer(found: _Factoring, buffer: Buffer) -> Buffer:
    shape = tuple([sym.simplify(loop.extent) for loop in found.parts])
    return Buffer(f"{buffer.name}_rf", (*buffer.shape, *shape), buffer.dtype, buffer.scope)


def _partial_block(
    fn: Function, found: _Factoring, parts: tuple[Buffer, ...], mapping: dict[Var, Expr]
) -> Block:
    """The block that reduces what one iteration produced, in the producer's loops."""
    parted = found.parts
    loops = [*parted, *[loop for loop in found.loops if loop not in parted]]
    iters = tuple([_iter(loop, SPATIAL if loop in parted else REDUCE) for loop in loops])
    bindings = [sym.sub(loop.var, loop.start) for loop in loops]
    told: dict[Var, Expr] = {
        loop.var: sym.add(loop.start, it.var) for loop, it in zip(loops, iters, strict=True)
    }
    told |= {loop.var: loop.start for loop in (*found.outer, *found.inner) if is_unit(loop)}
    ctx = sym.EMPTY.bind_all({it.var: (ZERO, it.extent) for it in iters})
    producer, update = found.producer, found.update
    here: dict[Var, Expr] = {
        it.var: sym.simplify(sym.substitute(binding, told), ctx)
        for it, binding in zip(producer.iters, producer.bindings, strict=True)
    }
    inside: dict[Var, Expr] = {
        it: sym.substitute(index, here)
        for it, index in zip(_place(found.block), found.made.index, strict=True)
    }
    condition = sym.substitute(producer.predicate, told)
    values = [
        sym.select(condition, sym.substitute(value, inside), identity)
        for value, identity in zip(update.values, update.reducer.identity, strict=True)
    ]
    at = (*update.index, *[it.var for it in iters[: len(parted)]])
    body: Stmt = Update(update.reducer, parts, at, tuple(values), update.loc)
    init: Stmt | None = stores_of(parts, at, update.reducer.identity)
    if len(iters) == len(parted):  # a single term per part
        body, init = stores_of(parts, at, values), None
    reads, writes = access_regions(body, init, iters)
    name = fresh_block_name(fn, f"{found.block.name}_rf")
    bound = tuple([sym.substitute(binding, mapping) for binding in bindings])
    made = Block(name, iters, bound, reads, writes, body, init, loc=found.block.loc)
    copied = fresh_copy(made)
    assert isinstance(copied, Block)
    return copied


def _final_nest(found: _Factoring, parts: tuple[Buffer, ...]) -> Stmt:
    """The nest that combines the partial results, under the old name and with the old init."""
    block, update = found.block, found.update
    plain = [replace(loop, kind=SERIAL, annotations=()) for loop in found.parts]
    loops = copy_nest(plain, {})
    iters = tuple([_iter(loop, REDUCE) for loop in loops])
    at = (*update.index, *[it.var for it in iters])
    values = tuple([Load(buffer, at) for buffer in parts])
    body = Update(update.reducer, update.buffers, update.index, values, update.loc)
    reads, writes = access_regions(body, block.init, iters)
    made = replace(
        block,
        iters=iters,
        bindings=tuple([sym.sub(loop.var, loop.start) for loop in loops]),
        reads=reads,
        writes=writes,
        body=body,
    )
    return nest(loops, made)


def _iter(loop: For, kind: str) -> Iter:
    return Iter(sym.var(f"v{loop.var.name}"), sym.simplify(loop.extent), kind)


# --------------------------------------------------------------------------- checks


def _check(fn: Function, name: str, var: Var) -> _Factoring:
    path, block = path_to_block(fn, name, "rfactor at a loop")
    _, loop = path_to_loop(fn, var, "rfactor at the loop")
    what = f"cannot rfactor @{name} at %{var.name}"
    root = scope_root(fn, path)
    update = _check_block(fn, what, path, block)
    producers = [
        b for b in scope_blocks(root) if any(r.buffer in writes_of(b) for r in block.reads)
    ]
    near = [b for b in producers if find_path(loop.body, b) is not None]
    if len(producers) != 1 or not near:
        raise refuse(
            fn,
            "TW2130",
            f"{what}: not one block under that loop makes all that it reads",
            loop.var,
            help="choose a loop around the one of get_producers(block)",
        )
    (producer,) = near
    inner_path = find_block(fn, producer.name)
    assert inner_path is not None
    loops = loops_on(inner_path)
    made = producer.body
    if not isinstance(made, Store) or not is_complete(root, producer):
        raise refuse(fn, "TW2159", f"{what}: @{producer.name} is not one store", producer.name)
    if not visits_once(fn, inner_path, producer, loops):
        raise refuse(
            fn,
            "TW2159",
            f"{what}: iterations of the loops around may compute the same element in "
            f"@{producer.name}",
            producer.name,
        )
    inner = tuple([each for each in loops if find_path(loop.body, each) is not None])
    outer = tuple([each for each in loops if each not in inner])
    variables = {each.var for each in loops}
    for each in loops:
        depends = any(sym.uses_var(end, variables) for end in (each.start, each.stop))
        if depends or each.kind == THREAD or (each in inner and each.kind == PARALLEL):
            raise refuse(
                fn,
                "TW2156",
                f"{what}: loop %{each.var.name} of @{producer.name} has a range that depends on "
                "other loops, or runs in threads",
                each.var,
            )
    first = loops_on(path)[0]
    return _Factoring(path[: path.index(first) + 1], block, update, producer, made, outer, inner)


def _check_block(fn: Function, what: str, path: Path, block: Block) -> Update:
    """The block reduces a whole buffer to one value."""
    reason, body, loops = "", block.body, loops_on(path)
    if block.init is None or not isinstance(body, Update):
        reason = "it is not one step of a reduction with an init"
    elif not loops or any(it.kind != REDUCE for it in block.iters) or len(block.reads) != 1:
        reason = "it does not reduce all of one buffer"
    elif block.predicate is not TRUE or len(scope_blocks(loops[0])) != 1:
        reason = "its loops hold more, or cut it off"
    elif not _is_whole(block):
        reason = "it does not read each element once"
    if reason:
        raise refuse(fn, "TW2156", f"{what}: {reason}", block.name)
    assert isinstance(body, Update)
    return body


def _is_whole(block: Block) -> bool:
    """Whether a block reads each element of its one operand in exactly one instance."""
    (read,) = block.reads
    places = {load.index for load in exprs(block.body) if isinstance(load, Load)}
    extents: dict[Expr, Expr] = {it.var: it.extent for it in block.iters}
    if len(places) != 1:
        return False
    (place,) = places
    shape = tuple([extents.get(at) for at in place])
    return len(set(place)) == len(block.iters) and shape == read.buffer.shape


def _place(block: Block) -> list[Var]:
    """The iterators that index the block's one operand."""
    load = next(expr for expr in exprs(block.body) if isinstance(expr, Load))
    return [at for at in load.index if isinstance(at, Var)]
