"""transform_layout: change the layout of an intermediate buffer by an index map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import sym
from tilewright.sym import ONE, ZERO, Context, Expr, Var
from tilewright.tensor.injectivity import is_injective
from tilewright.tensor.ir import (
    Address,
    Block,
    Buffer,
    ExternCall,
    For,
    Function,
    Load,
    MaskedLoad,
    Range,
    Region,
    Stmt,
    Store,
    TensorCall,
    Update,
)
from tilewright.tensor.regions import stop_of
from tilewright.tensor.schedule.analysis.index_map import IndexMap
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.tree import with_body
from tilewright.tensor.visit import rewrite, walk


def transform_layout(
    fn: Function, name: str, buffer: tuple[str, int] | str, index_map: IndexMap
) -> Function:
    """
    Before: alloc X: f32[n, 32]          X[i, c] = ...        ... = X[i, c]
    After:  alloc X: f32[n, 2, 16]       X[i, c // 16, c % 16] = ...
            for the map (i, c) -> (i, c // 16, c % 16)

    The map is injective. Elements that it leaves out, as in panels of 48 columns of a matrix of
    512, are never accessed.
    """
    old = find_buffer(fn, name, buffer)
    check_movable(fn, name, old)
    shape = _new_shape(fn, name, old, index_map)
    new = Buffer(old.name, shape, old.dtype, old.scope)
    ctx = everything_known(fn)
    body = Moved(old, new, index_map, ctx).stmt(fn.body)
    allocs = tuple([new if alloc is old else alloc for alloc in fn.allocs])
    return replace(with_body(fn, body), allocs=allocs)


def find_buffer(fn: Function, name: str, buffer: tuple[str, int] | str) -> Buffer:
    """The buffer a block reads or writes: ("read", 0), ("write", 0) or its name."""
    _, block = path_to_block(fn, name, "transform a layout")
    touched = [region.buffer for region in (*block.reads, *block.writes)]
    if isinstance(buffer, str):
        named = [each for each in touched if each.name == buffer]
        if named:
            return named[0]
        shown = ", ".join(f"%{each.name}" for each in touched)
        raise refuse(
            fn,
            "TW2172",
            f"cannot transform a layout: @{name} does not touch a buffer %{buffer}",
            name,
            help=f"it touches {shown}",
        )
    kind, index = buffer
    regions = {"read": block.reads, "write": block.writes}.get(kind)
    if regions is None or not 0 <= index < len(regions):
        count = 0 if regions is None else len(regions)
        raise refuse(
            fn,
            "TW2172",
            f"cannot transform a layout: @{name} has no {kind} region {index}",
            name,
            help=f"use ('read', i) for its {len(block.reads)} reads, ('write', i) for its "
            f"{len(block.writes)} writes"
            if regions is None
            else f"it has {count}",
        )
    return regions[index].buffer


def everything_known(fn: Function) -> Context:
    """The ranges of all variables of a function: each is bound once, so one context serves."""
    ctx = sym.EMPTY
    for cond in fn.requires:
        ctx = ctx.assume(cond)
    for stmt in walk(fn.body):
        if isinstance(stmt, For):
            ctx = ctx.bind(stmt.var, stmt.start, stmt.stop)
        elif isinstance(stmt, Block):
            ctx = ctx.bind_all({it.var: (ZERO, it.extent) for it in stmt.iters})
    return ctx


class Moved:
    """Rewrites every access of one buffer."""

    def __init__(self, old: Buffer, new: Buffer, index_map: IndexMap, ctx: Context) -> None:
        self.old = old
        self.new = new
        self.map = index_map
        self.ctx = ctx

    def stmt(self, root: Stmt) -> Stmt:
        return rewrite(root, self._stmt, self._expr)

    def _index(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple([sym.simplify(at, self.ctx) for at in self.map(index)])

    def _expr(self, expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer is self.old:
            return Load(self.new, self._index(expr.index))
        return expr

    def _stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer is self.old:
            return replace(stmt, buffer=self.new, index=self._index(stmt.index))
        if isinstance(stmt, Update) and self.old in stmt.buffers:
            return replace(stmt, buffers=(self.new,), index=self._index(stmt.index))
        if isinstance(stmt, Block):
            regions = (*stmt.reads, *stmt.writes)
            if any(region.buffer is self.old for region in regions):
                iters = {it.var for it in stmt.iters}
                return replace(
                    stmt,
                    reads=tuple([self._region(region, iters) for region in stmt.reads]),
                    writes=tuple([self._region(region, iters) for region in stmt.writes]),
                )
        return stmt

    def _region(self, region: Region, iters: set[Var]) -> Region:
        if region.buffer is not self.old:
            return region
        if all(r.extent is ONE for r in region.ranges):
            index = self._index([r.start for r in region.ranges])
            return Region(self.new, tuple([Range(at, ONE) for at in index]))
        ranges: dict[Var, tuple[Expr, Expr]] = {
            v: (r.start, stop_of(r)) for v, r in zip(self.map.inputs, region.ranges, strict=True)
        }
        return Region(
            self.new,
            tuple(
                [
                    self._range(output, dim, ranges, iters)
                    for output, dim in zip(self.map.outputs, self.new.shape, strict=True)
                ]
            ),
        )

    def _range(
        self, output: Expr, dim: Expr, ranges: dict[Var, tuple[Expr, Expr]], iters: set[Var]
    ) -> Range:
        """The range of an index while the old indices run over a box."""
        found = sym.symbolic_bounds(output, ranges, self.ctx)
        if found is None:
            return Range(ZERO, dim)
        extent = sym.simplify(found[1] - found[0] + 1, self.ctx)
        if sym.uses_var(extent, iters):
            return Range(ZERO, dim)
        return Range(found[0], extent)


# --------------------------------------------------------------------------- checks


def check_movable(fn: Function, name: str, buffer: Buffer) -> None:
    def no(reason: str, help: str = "") -> Exception:
        return refuse(
            fn, "TW2173", f"cannot transform the layout of %{buffer.name}: {reason}", name, help
        )

    if buffer not in fn.allocs:
        raise no(
            "it belongs to the caller",
            "cache_read or cache_write it first, and transform the cache",
        )
    if buffer.align:
        raise no("storage_align has fixed how it lies", "transform first, then align")
    for stmt in walk(fn.body):
        if isinstance(stmt, (TensorCall, ExternCall)):
            if any(region.buffer is buffer for region in stmt.regions):
                raise no("an intrinsic or external call takes regions of it as they lie")
        elif isinstance(stmt, Update) and buffer in stmt.buffers and len(stmt.buffers) > 1:
            raise no("a reduction over several buffers indexes them all alike")
        for node in sym.walk(*stmt.exprs()):
            if isinstance(node, (Address, MaskedLoad)) and node.buffer is buffer:
                raise no("an instruction takes an address in it")


def _new_shape(fn: Function, name: str, buffer: Buffer, index_map: IndexMap) -> tuple[Expr, ...]:
    """The smallest box that contains the map's image, or a refusal."""
    if len(index_map.inputs) != buffer.rank:
        raise refuse(
            fn,
            "TW2174",
            f"cannot transform the layout of %{buffer.name}: it has {buffer.rank} dimensions, the "
            f"map {index_map} takes {len(index_map.inputs)}",
            name,
        )
    ctx = sym.EMPTY
    for cond in fn.requires:
        ctx = ctx.assume(cond)
    ranges: dict[Var, tuple[Expr, Expr]] = {
        v: (ZERO, dim) for v, dim in zip(index_map.inputs, buffer.shape, strict=True)
    }
    shape: list[Expr] = []
    for output in index_map.outputs:
        found = sym.symbolic_bounds(output, ranges, ctx)
        if found is None or not sym.prove(sym.le(0, found[0]), ctx):
            raise refuse(
                fn,
                "TW2174",
                f"cannot transform the layout of %{buffer.name}: the range of {output} in the map "
                f"{index_map} cannot be determined",
                name,
            )
        shape.append(sym.simplify(found[1] + 1, ctx))
    dims = ", ".join(str(dim) for dim in buffer.shape)
    if not is_injective(index_map.outputs, ranges, ctx):
        raise refuse(
            fn,
            "TW2175",
            f"cannot transform the layout of %{buffer.name}: the map {index_map} may put two "
            f"elements of [{dims}] in one place",
            name,
        )
    return tuple(shape)
