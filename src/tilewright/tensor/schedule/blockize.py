"""blockize: turn the nest under a loop into an outer block around a smaller one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.sym import ONE, ZERO, Context, Expr, Var
from tilewright.tensor.ir import REDUCE, Block, For, Function, Iter, Region, Stmt
from tilewright.tensor.regions import access_regions, region_over, substitute_region
from tilewright.tensor.schedule.analysis.nests import copy_nest, is_unit, perfect_chain, roles_of
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import (
    fresh_block_name,
    loop_context,
    loop_ranges,
    loops_on,
    nest,
    replace_at,
    with_body,
)
from tilewright.tensor.visit import fresh_copy


@dataclass(frozen=True, slots=True)
class _Part:
    """A split iterator of the block: its value is outer * tile + inner."""

    it: Iter
    tile: Expr  # extent of the inner iterator
    outer: Expr  # over the loops around
    inner: Expr  # over the loops inside
    outer_iter: Iter | None  # None: constant outside

    @property
    def binding(self) -> Expr:
        """Its value inside the outer block."""
        if self.outer_iter is None:
            return self.inner
        return self.outer_iter.var * self.tile + self.inner


def blockize(fn: Function, var: Var) -> tuple[Function, str]:
    """
    Before: for io { for ii in 0..8 { block B(vi = io * 8 + ii) { B[vi] = ... } } }
    After:  for io { block B_o(vio = io) {
              for ii in 0..8 { block B(vi = vio * 8 + ii) { B[vi] = ... } } } }

    If a reduction continues outside, its init becomes a nest in the outer block's init.
    """
    made, name, inner, chain = divided(fn, var)
    path, outer = path_to_block(made, name, "blockize")
    whole = replace(
        outer,
        reads=_over(inner.reads, inner, chain, outer.iters),
        writes=_over(inner.writes, inner, chain, outer.iters),
    )
    return with_body(made, replace_at(path, whole)), name


def divided(fn: Function, var: Var) -> tuple[Function, str, Block, Sequence[For]]:
    """The result of `blockize`, before the regions of the outer block are computed.

    Returns the new function, the name of the outer block, the inner block and the loops around it.
    """
    path, loop = path_to_loop(fn, var, "blockize")
    chain, block = perfect_chain(loop)
    if not isinstance(block, Block):
        raise refuse(
            fn,
            "TW2160",
            f"cannot blockize loop %{var.name}: it does not hold one block in a perfect nest",
            var,
        )
    around = loops_on(path)[:-1]
    _check_chain(fn, chain, block)
    outside, inside = loop_context(fn, around), loop_context(fn, (*around, *chain))
    parts = [
        _part(fn, block, it, binding, chain, outside, inside)
        for it, binding in zip(block.iters, block.bindings, strict=True)
    ]
    outer_predicate, inner_predicate = _predicates(fn, block, chain)
    name = fresh_block_name(fn, f"{block.name}_o")
    bindings = tuple([part.binding for part in parts])
    inner = replace(block, bindings=bindings, predicate=inner_predicate)
    init: Stmt | None = None
    if block.init is not None and any(
        part.it.kind == REDUCE and part.outer_iter is not None for part in parts
    ):
        init = _outer_init(fn, block, parts, chain, inner_predicate)
        inner = replace(inner, init=None)
    outer_iters = tuple([part.outer_iter for part in parts if part.outer_iter is not None])
    made = Block(
        name,
        outer_iters,
        tuple([part.outer for part in parts if part.outer_iter is not None]),
        (),
        (),
        nest(chain, inner),
        init,
        outer_predicate,
        (),
        block.loc,
    )
    return with_body(fn, replace_at(path, made)), name, inner, chain


def _outer_init(
    fn: Function, block: Block, parts: Sequence[_Part], chain: Sequence[For], predicate: Expr
) -> Stmt:
    """The init of all elements the outer block computes, in copies of the inner spatial loops."""
    roles = roles_of(block)
    at_start = {loop.var: loop.start for loop in chain if loop.var in roles.reduce}
    renamed: dict[Var, Expr] = dict(at_start)
    loops = copy_nest([loop for loop in chain if loop.var not in at_start], renamed)
    kept = [part for part in parts if part.it.kind != REDUCE]
    iters = tuple([part.it for part in kept])
    assert block.init is not None
    reads, writes = access_regions(block.init, None, iters)
    made = Block(
        fresh_block_name(fn, f"{block.name}_init"),
        iters,
        tuple([sym.substitute(part.binding, renamed) for part in kept]),
        reads,
        writes,
        block.init,
        None,
        sym.simplify(sym.substitute(predicate, renamed)),
        (),
        block.loc,
    )
    return nest(loops, fresh_copy(made))


def _over(
    regions: Sequence[Region], inner: Block, chain: Sequence[For], outer: Sequence[Iter]
) -> tuple[Region, ...]:
    """The regions that the inner block touches over its loops."""
    bound = {it.var: value for it, value in zip(inner.iters, inner.bindings, strict=True)}
    ctx = sym.EMPTY.bind_all({it.var: (ZERO, it.extent) for it in outer})
    return tuple(
        [
            region_over(substitute_region(region, bound), loop_ranges(chain), ctx)
            for region in regions
        ]
    )


# --------------------------------------------------------------------------- division


def _part(
    fn: Function,
    block: Block,
    it: Iter,
    binding: Expr,
    chain: Sequence[For],
    outside: Context,
    ctx: Context,
) -> _Part:
    inside = loop_ranges(chain)

    def no(reason: str) -> Exception:
        return refuse(
            fn,
            "TW2161",
            f"cannot divide @{block.name} at loop %{chain[0].var.name}: %{it.var.name} = "
            f"{binding} {reason}",
            block.name,
            help="split loops by factors that divide their extents, and keep the parts unfused",
        )

    parts = sym.split_terms(binding, inside)
    if parts is None:
        parts = sym.split_terms(sym.simplify(binding, ctx), inside)
    if parts is None:
        raise no("mixes loops inside with loops outside")
    outer, inner = parts
    if inner is ZERO:
        return _Part(it, ONE, outer, ZERO, Iter(sym.var(f"{it.var.name}_o"), it.extent, it.kind))
    bounds = sym.symbolic_bounds(inner, inside, outside)
    if bounds is None or not sym.equal(bounds[0], 0, ctx):
        raise no("does not start from 0 inside")
    tile = sym.simplify(bounds[1] + 1, outside)
    if sym.equal(outer, 0, ctx):
        if not sym.equal(tile, it.extent, ctx):
            raise no(f"runs over {tile} inside, of {it.extent} in all")
        return _Part(it, tile, ZERO, inner, None)
    quotient = sym.simplify(sym.floordiv(outer, tile), ctx)
    extent = sym.simplify(sym.floordiv(it.extent, tile), ctx)
    if not sym.equal(quotient * tile, outer, ctx):
        raise no(f"does not step by its inner extent {tile} outside")
    if not sym.equal(extent * tile, it.extent, ctx):
        raise no(f"has extent {it.extent}, not a multiple of {tile}")
    made = Iter(sym.var(f"{it.var.name}_o"), extent, it.kind)
    return _Part(it, tile, quotient, inner, made)


def _predicates(fn: Function, block: Block, chain: Sequence[For]) -> tuple[Expr, Expr]:
    """The conditions on outer loops, and those on inner loops."""
    inside = {loop.var for loop in chain}
    outer: list[Expr] = []
    inner: list[Expr] = []
    for cond in sym.conjuncts(block.predicate):
        if not sym.uses_var(cond, inside):
            outer.append(cond)
        elif all(v in inside or isinstance(v, sym.Size) for v in sym.free_vars(cond)):
            inner.append(cond)
        else:
            raise refuse(
                fn,
                "TW2162",
                f"cannot divide @{block.name} at loop %{chain[0].var.name}: its condition {cond} "
                "ties loops inside to loops outside",
                block.name,
                help="split loops by factors that divide their extents, or pad the block first",
            )
    return sym.all_of(*outer), sym.all_of(*inner)


def _check_chain(fn: Function, chain: Sequence[For], block: Block) -> None:
    inside = {loop.var for loop in chain}
    roles = roles_of(block)
    for loop in chain:
        reason = ""
        if any(
            v not in inside and not isinstance(v, sym.Size)
            for v in sym.free_vars(loop.start, loop.stop)
        ):
            reason = f"its range {loop.start}..{loop.stop} depends on loops outside"
        elif roles.is_idle(loop.var) and not is_unit(loop):
            reason = f"it drives no iterator of @{block.name}"
        elif block.init is not None and roles.is_mixed(loop.var):
            reason = "it drives both spatial and reduce iterators"
        elif loop.var in roles.scan:
            reason = f"it drives a scan of @{block.name}"
        if reason:
            raise refuse(
                fn,
                "TW2160",
                f"cannot blockize loop %{chain[0].var.name}: loop %{loop.var.name} cannot go into "
                f"a block, {reason}",
                loop.var,
            )
