"""pad: run a computation over rounded-up extents, on zero-padded copies of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from tilewright import sym
from tilewright.sym import TRUE, ZERO, Const, Context, Expr, Var
from tilewright.tensor.ir import (
    REDUCE,
    SPATIAL,
    Block,
    Buffer,
    Call,
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
from tilewright.tensor.reducers import builtin
from tilewright.tensor.regions import access_regions, is_data_dependent
from tilewright.tensor.schedule.analysis.movable import fills
from tilewright.tensor.schedule.analysis.nests import perfect_chain
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.sites import scope_of
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    fresh_block_name,
    is_complete,
    is_reduction,
    loops_on,
    nest,
    replace_at,
    scope_root,
    with_body,
)
from tilewright.tensor.visit import replace_buffers, walk


@dataclass(frozen=True, slots=True)
class _Input:
    """A zero-padded copy: elements at or beyond the limits of their dimensions are 0."""

    source: Buffer
    copy: Buffer
    limits: tuple[Expr | None, ...]
    zeroed: frozenset[Var]  # iterators beyond whose old extents only zeros are read


@dataclass(frozen=True, slots=True)
class _Padding:
    """A block and the new extents of its iterators."""

    fn: Function
    path: Path
    block: Block
    loops: tuple[For, ...]
    extents: dict[Var, Expr]  # of the iterators that grow, by their variables

    def grows(self, expr: Expr) -> bool:
        return sym.uses_var(expr, self.extents)

    def refusal(self, code: str, reason: str, help: str = "") -> Exception:
        name = self.block.name
        return refuse(self.fn, code, f"cannot pad @{name}: {reason}", name, help)


def pad(fn: Function, name: str, multiples: Sequence[int], clamp: bool = False) -> Function:
    """
    Before: for i in 0..13 { for k in 0..30 { block C(i, k) {
              init { C[i] = 0 }  C[i] += A[i, k] } } }
    After:  for x in 0..16 { for y in 0..32 { block A_pad(x, y) {
              A_pad[x, y] = select(x < 13 and y < 30, A[x, y], 0) } } }
            for i in 0..16 { for k in 0..32 { block C(i, k) {
              init { C_pad[i] = 0 }  C_pad[i] += A_pad[i, k] } } }
            for i in 0..13 { block C_crop(i) { C[i] = C_pad[i] } }

    `multiples` has a number per iterator of the block; 1 leaves the iterator as it is. With
    `clamp`, instances beyond the old extents repeat the last one inside, reading the inputs in
    place: C_pad[i] += A[min(i, 12), k]. Only for spatial iterators.
    """
    found = _check(fn, name, multiples)
    if not found.extents:
        return fn
    if clamp:
        found = _clamped(found)
    inputs = [] if clamp else _inputs(found)
    if not clamp:
        _check_values(found, inputs)
    outputs = _outputs(found)
    parts: list[Stmt] = [_copy(fn, one) for one in inputs]
    parts.append(_grown(found, inputs, outputs))
    if outputs:
        parts.append(_crop(found, outputs))
    at = found.path.index(found.loops[0])
    body = replace_at(found.path[: at + 1], seq(*parts))
    copies = [one.copy for one in inputs]
    return replace(with_body(fn, body), allocs=(*fn.allocs, *copies, *outputs.values()))


# --------------------------------------------------------------------------- building


def _copy(fn: Function, one: _Input) -> Stmt:
    """The nest that computes a padded copy."""
    loops: list[For] = []
    iters: list[Iter] = []
    for axis, dim in enumerate(one.copy.shape):
        var = sym.var(f"x{axis}")
        loops.append(For(var, ZERO, dim, Seq(())))
        iters.append(Iter(sym.var(f"v{var.name}"), dim, SPATIAL))
    index = tuple([it.var for it in iters])
    inside = sym.all_of(
        *[
            sym.lt(at, limit)
            for at, limit in zip(index, one.limits, strict=True)
            if limit is not None
        ]
    )
    zero = sym.const(0, one.source.dtype)
    body = Store(one.copy, index, sym.select(inside, Load(one.source, index), zero))
    reads, writes = access_regions(body, None, iters)
    bindings = tuple([loop.var for loop in loops])
    name = fresh_block_name(fn, one.copy.name)
    return nest(loops, Block(name, tuple(iters), bindings, reads, writes, body))


def _grown(found: _Padding, inputs: Sequence[_Input], outputs: dict[Buffer, Buffer]) -> Stmt:
    """The computation over the padded domain."""
    block = found.block
    mapping = {one.source: one.copy for one in inputs} | outputs
    body = replace_buffers(block.body, mapping)
    init = None if block.init is None else replace_buffers(block.init, mapping)
    iters = tuple([replace(it, extent=found.extents.get(it.var, it.extent)) for it in block.iters])
    reads, writes = access_regions(body, init, iters)
    stops = {
        binding: found.extents[it.var]
        for it, binding in zip(block.iters, block.bindings, strict=True)
        if it.var in found.extents
    }
    loops = [replace(loop, stop=stops.get(loop.var, loop.stop)) for loop in found.loops]
    return nest(
        loops, replace(block, iters=iters, reads=reads, writes=writes, body=body, init=init)
    )


def _clamped(found: _Padding) -> _Padding:
    """The same block, with iterators clamped to their last value in expressions."""
    block = found.block
    last: dict[Var, Expr] = {
        it.var: sym.minimum(it.var, sym.sub(it.extent, 1))
        for it in block.iters
        if it.var in found.extents
    }
    if any(it.kind == REDUCE and it.var in last for it in block.iters):
        raise found.refusal(
            "TW2179",
            "the last step of its reduction would count several times",
            help="give 1 for its reduce iterators",
        )
    if block.init is not None and any(found.grows(e) for e in _values(block.init)):
        raise found.refusal("TW2179", "its init depends on an iterator that grows")
    body = block.body
    if isinstance(body, Update):
        values = tuple([sym.substitute(value, last) for value in body.values])
        return replace(found, block=replace(block, body=replace(body, values=values)))
    assert isinstance(body, Store)
    value = sym.substitute(body.value, last)
    return replace(found, block=replace(block, body=replace(body, value=value)))


def _values(init: Stmt) -> list[Expr]:
    """The values an init stores."""
    return [stmt.value for stmt in walk(init) if isinstance(stmt, Store)]


def _crop(found: _Padding, outputs: dict[Buffer, Buffer]) -> Stmt:
    """The nest that copies the original results out of the padded ones."""
    loops: list[For] = []
    iters: list[Iter] = []
    mapping: dict[Var, Expr] = {}
    for it in found.block.iters:
        if it.kind == SPATIAL:
            var = sym.var(f"c{len(loops)}")
            loops.append(For(var, ZERO, it.extent, Seq(())))
            iters.append(Iter(sym.var(it.var.name), it.extent, SPATIAL))
            mapping[it.var] = iters[-1].var
    _, targets, index = _stored(found.block)
    place = tuple([sym.substitute(at, mapping) for at in index])
    body = seq(*[Store(target, place, Load(outputs[target], place)) for target in targets])
    reads, writes = access_regions(body, None, iters)
    bindings = tuple([loop.var for loop in loops])
    name = fresh_block_name(found.fn, f"{found.block.name}_crop")
    return nest(loops, Block(name, tuple(iters), bindings, reads, writes, body))


def _stored(block: Block) -> tuple[tuple[Expr, ...], tuple[Buffer, ...], tuple[Expr, ...]]:
    """The values a block computes, their buffers, and indices."""
    body = block.body
    if isinstance(body, Update):
        return body.values, body.buffers, body.index
    assert isinstance(body, Store)
    return (body.value,), (body.buffer,), body.index


def _inputs(found: _Padding) -> list[_Input]:
    """The copies of inputs that are read beyond their old extents."""
    block = found.block
    ctx = _requirements(found.fn)
    ranges: dict[Var, tuple[Expr, Expr]] = {
        it.var: (ZERO, found.extents.get(it.var, it.extent)) for it in block.iters
    }
    old = {it.var: it.extent for it in block.iters}
    exprs = (*block.body.exprs(), *(() if block.init is None else _exprs(block.init)))
    loads: dict[Buffer, list[Load]] = {}
    for node in sym.walk(*exprs):
        if isinstance(node, Load):
            loads.setdefault(node.buffer, []).append(node)
    made: list[_Input] = []
    for buffer, accesses in loads.items():
        _check_filled(found, buffer, accesses)
        shape: list[Expr] = []
        limits: list[Expr | None] = []
        zeroed: set[Var] = set()
        for axis, dim in enumerate(buffer.shape):
            indices = list(dict.fromkeys(load.index[axis] for load in accesses))
            if not any(found.grows(at) for at in indices):
                shape.append(dim)
                limits.append(None)
                continue
            only = indices[0]
            if len(indices) == 1 and isinstance(only, Var):
                shape.append(found.extents[only])
                limits.append(sym.simplify(sym.minimum(old[only], dim), ctx))
                zeroed.add(only)
                continue
            grown = _reach(found, buffer, indices, ranges, ctx)
            fits = sym.prove(sym.le(grown, dim), ctx)
            shape.append(dim if fits else sym.simplify(sym.maximum(dim, grown), ctx))
            limits.append(None if fits else dim)
            zeroed.update(v for v in indices if isinstance(v, Var) and sym.equal(old[v], dim, ctx))
        if any(limit is not None for limit in limits):
            copy = Buffer(f"{buffer.name}_pad", tuple(shape), buffer.dtype, buffer.scope)
            made.append(_Input(buffer, copy, tuple(limits), frozenset(zeroed)))
    return made


def _check_filled(found: _Padding, buffer: Buffer, accesses: Sequence[Load]) -> None:
    """Elements of an input that are newly read are initialized."""
    indices = [at for load in accesses for at in load.index]
    if buffer not in found.fn.allocs or not any(found.grows(at) for at in indices):
        return
    if all(isinstance(at, Var) for at in indices):
        return  # its layout is unchanged, without gaps
    scope = scope_of(found.path)
    if not any(fills(found.fn, scope, writer, buffer) for writer in scope.writers(buffer)):
        raise found.refusal(
            "TW2178",
            f"it is not certain that all of %{buffer.name}, which it would read, is computed",
            help="pad first, then transform layouts",
        )


def _reach(
    found: _Padding,
    buffer: Buffer,
    indices: Sequence[Expr],
    ranges: dict[Var, tuple[Expr, Expr]],
    ctx: Context,
) -> Expr:
    """One past the greatest index over the padded domain."""
    reach: Expr = ZERO
    for at in indices:
        bounds = None if is_data_dependent(at) else sym.symbolic_bounds(at, ranges, ctx)
        if bounds is None or not sym.prove(sym.le(0, bounds[0]), ctx):
            raise found.refusal(
                "TW2178", f"index {at} of %{buffer.name} cannot be proved to stay above zero"
            )
        reach = sym.simplify(sym.maximum(reach, bounds[1] + 1), ctx)
    return reach


def _outputs(found: _Padding) -> dict[Buffer, Buffer]:
    """Buffers for padded results; none if the results keep their size."""
    _, targets, index = _stored(found.block)
    growing = [it.var for it in found.block.iters if it.kind == SPATIAL and it.var in found.extents]
    for at in index:
        if found.grows(at) and not isinstance(at, Var):
            raise found.refusal("TW2178", f"it writes at index {at}, not at an iterator alone")
    for var in growing:
        if var not in index:
            raise found.refusal("TW2178", f"where it writes does not depend on %{var.name}")
    if not growing:
        return {}
    made: dict[Buffer, Buffer] = {}
    for target in targets:
        shape = [
            found.extents[at] if isinstance(at, Var) and at in found.extents else dim
            for at, dim in zip(index, target.shape, strict=True)
        ]
        made[target] = Buffer(f"{target.name}_pad", tuple(shape), target.dtype, target.scope)
    return made


# --------------------------------------------------------------------------- checks


def _check(fn: Function, name: str, multiples: Sequence[int]) -> _Padding:
    path, block = path_to_block(fn, name, "pad")
    found = _Padding(fn, path, block, loops_on(path), {})
    given: list[Any] = list(multiples)
    if len(given) != len(block.iters) or any(not isinstance(m, int) or m < 1 for m in given):
        shown = ", ".join(f"%{it.var.name}" for it in block.iters)
        raise found.refusal(
            "TW2176",
            f"{given} is not a positive number for each of its iterators ({shown})",
        )
    loops = found.loops
    scope = scope_root(fn, path)
    if any(isinstance(stmt, Block) for stmt in path[:-1]):
        raise found.refusal("TW2177", "it is inside another block", help="pad before blockize")
    if not loops or perfect_chain(loops[0])[1] is not block:
        raise found.refusal("TW2177", "it does not stand alone in a nest of loops")
    if not (is_complete(scope, block) or is_reduction(scope, block)):
        raise found.refusal("TW2177", "it is neither elementwise nor a reduction from its own init")
    if not isinstance(block.body, (Store, Update)) or block.predicate is not TRUE:
        raise found.refusal(
            "TW2177",
            "it is not a single store or reduction step without condition",
            help="pad before split and blockize",
        )
    ctx = _requirements(fn)
    extents: dict[Var, Expr] = {}
    for it, binding, multiple in zip(block.iters, block.bindings, given, strict=True):
        extent = sym.simplify(sym.ceildiv(it.extent, multiple) * multiple, ctx)
        if sym.equal(extent, it.extent, ctx):
            continue
        loop = next((loop for loop in loops if loop.var is binding), None)
        others = [value for value in block.bindings if value is not binding]
        if (
            loop is None
            or loop.start is not ZERO
            or not sym.equal(loop.stop, it.extent, ctx)
            or any(sym.uses_var(value, {loop.var}) for value in others)
            or any(sym.uses_var(end, {loop.var}) for each in loops for end in each.exprs())
        ):
            raise found.refusal(
                "TW2177",
                f"%{it.var.name} = {binding} is not a loop of its own",
                help="pad before the loops are split or fused",
            )
        extents[it.var] = extent
    return replace(found, extents=extents)


def _check_values(found: _Padding, inputs: Sequence[_Input]) -> None:
    """Values computed beyond the old domain have no effect on results."""
    block = found.block
    values, targets, _ = _stored(block)
    for node in sym.walk(*values, *(() if block.init is None else _exprs(block.init))):
        divides = isinstance(node, (sym.FloorDiv, sym.FloorMod)) or (
            isinstance(node, Call) and node.op in ("truncdiv", "truncmod")
        )
        if divides and not isinstance(node.children()[1], Const):
            raise found.refusal("TW2179", f"it divides by {node.children()[1]}, which may become 0")
        if isinstance(node, Load) and any(is_data_dependent(at) for at in node.index):
            raise found.refusal("TW2178", f"it reads {node}, at an index that is read from memory")
    zeroed = {one.source: one.zeroed for one in inputs}
    for it in block.iters:
        if it.kind != REDUCE or it.var not in found.extents:
            continue
        assert isinstance(block.body, Update)
        of = targets[0].dtype
        if len(targets) > 1 or block.body.reducer is not builtin("sum", of):
            raise found.refusal(
                "TW2179",
                f"zeros along %{it.var.name} would count in a reduction by "
                f"{block.body.reducer.name}",
                help="give 1 for its reduce iterators",
            )
        if not _starts_from_zero(block):
            raise found.refusal("TW2179", "its init is not zero")
        if not _vanishes(values[0], it.var, zeroed):
            raise found.refusal(
                "TW2179",
                f"{values[0]} may not be zero where its inputs are padded along %{it.var.name}",
                help="only sums of products whose factors all run along the iterator are padded",
            )


def _starts_from_zero(block: Block) -> bool:
    init = block.init
    return (
        isinstance(init, Store)
        and isinstance(init.value, Const)
        and init.value is sym.const(0, init.value.dtype)
    )


def _vanishes(root: Expr, var: Var, zeroed: dict[Buffer, frozenset[Var]]) -> bool:
    """Whether a value is zero (of either sign) where `var` is beyond its old extent.

    A float product needs both factors to be zero there: 0 * inf is not.
    """

    def known(node: Expr, children: tuple[bool, ...]) -> bool:
        if isinstance(node, Load):
            return var in node.index and var in zeroed.get(node.buffer, frozenset())
        if isinstance(node, Const):
            return node.value == 0
        if isinstance(node, sym.Mul):
            if not node.dtype.is_float:
                return any(children)
            return all(
                zero or (isinstance(child, Const) and isfinite(child.value))
                for zero, child in zip(children, node.children(), strict=True)
            ) and any(children)
        rounds = isinstance(node, Call) and node.op == "round_tf32"
        if rounds or isinstance(node, (sym.Add, sym.Sub, sym.Cast, sym.Min, sym.Max)):
            return all(children)
        if isinstance(node, sym.Select):
            return children[1] and children[2]
        return False

    return sym.fold(root, known)


def _exprs(stmt: Stmt) -> tuple[Expr, ...]:
    stmts = stmt.stmts if isinstance(stmt, Seq) else (stmt,)
    return tuple([expr for each in stmts for expr in each.exprs()])


def _requirements(fn: Function) -> Context:
    ctx = sym.EMPTY
    for cond in fn.requires:
        ctx = ctx.assume(cond)
    return ctx
