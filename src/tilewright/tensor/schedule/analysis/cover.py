"""Loop nests over a box, one loop `ax0`, `ax1`, ... per dimension.

A box derived from consumers may exceed the domain 0..limit: at padding, or in a partial tile. Then

- the box is clipped to the domain, if its extent stays the same in every iteration of the loops
  around; or, where touching more than the box is harmless, it becomes the whole domain;
- otherwise a predicate masks what is outside, and the extent stays simple.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym
from tilewright.base.loc import Loc, Synthetic
from tilewright.sym import ZERO, Const, Context, Expr, Var
from tilewright.tensor.divisors import is_total
from tilewright.tensor.ir import (
    SERIAL,
    SPATIAL,
    Block,
    Buffer,
    For,
    Function,
    Iter,
    Load,
    Range,
    Region,
    Seq,
    Stmt,
    Store,
)
from tilewright.tensor.regions import point, stop_of
from tilewright.tensor.schedule.analysis.intervals import at_most
from tilewright.tensor.schedule.analysis.refusal import refuse
from tilewright.tensor.schedule.analysis.tree import nest
from tilewright.tensor.scopes import memory_of


class Cover:
    """Loops under construction: `values` are the indices as functions of their variables."""

    def __init__(self, ctx: Context, around: set[Var], *, exact: bool = False) -> None:
        self.ctx = ctx
        self.around = around  # variables of the loops around
        self.exact = exact  # only the box may be touched
        self.loops: list[For] = []
        self.values: list[Expr] = []
        self.conditions: list[Expr] = []

    def over(self, r: Range, limit: Expr, step: int = 1) -> None:
        """One more loop, over the part of a range that lies in 0..limit, every `step`th element."""
        r, from_zero, to_limit = _fitted(r, limit, self.ctx, self.around, self.exact)
        variable = sym.var(f"ax{len(self.loops)}")
        count = r.extent if step == 1 else sym.simplify(sym.ceildiv(r.extent, step), self.ctx)
        value = sym.add(r.start, sym.mul(variable, step))
        if not from_zero:
            self.conditions.append(sym.le(0, value))
        if not to_limit:
            self.conditions.append(sym.lt(value, limit))
        elif step != 1:
            self._within(value, variable, count, limit)
        self._add(variable, count, value)

    def all_of(self, extent: Expr) -> None:
        """One more loop, over all of 0..extent."""
        variable = sym.var(f"ax{len(self.loops)}")
        self._add(variable, extent, variable)

    def _within(self, value: Expr, variable: Var, count: Expr, limit: Expr) -> None:
        inner = self.ctx.bind(variable, ZERO, count)
        if not sym.prove(sym.lt(value, limit), inner):
            self.conditions.append(sym.lt(value, limit))

    def _add(self, variable: Var, extent: Expr, value: Expr) -> None:
        self.loops.append(For(variable, ZERO, extent, Seq(()), SERIAL))  # `nest` fills it
        self.values.append(value)

    @property
    def predicate(self) -> Expr:
        return sym.all_of(*self.conditions)

    def around_stmt(self, body: Stmt) -> Stmt:
        return nest(self.loops, body)


def check_total(fn: Function, cover: Cover, name: str, what: str) -> None:
    """Loops and indices are well-defined: nothing divides by a size that may be 0."""
    ctx, is_fine = cover.ctx, True
    for loop in cover.loops:
        is_fine = is_fine and is_total(loop.extent, ctx)
        ctx = ctx.bind(loop.var, loop.start, loop.stop)
    if not is_fine or not all(is_total(x, ctx) for x in (*cover.values, *cover.conditions)):
        raise refuse(
            fn,
            "TW2131",
            f"cannot {what}: how much that takes cannot be determined where a dimension is empty",
            name,
            help="choose a loop further in or out; split loops before fusing them",
        )


def _fitted(
    r: Range, limit: Expr, ctx: Context, around: set[Var], exact: bool
) -> tuple[Range, bool, bool]:
    """The range, and whether its ends are certainly inside of 0..limit."""
    stop = stop_of(r)
    from_zero = at_most(ZERO, r.start, ctx)
    to_limit = at_most(stop, limit, ctx)
    if from_zero and to_limit:
        return r, True, True
    if not exact and _is_as_large(r.extent, limit, ctx):
        return Range(ZERO, limit), True, True
    if not sym.uses_var(r.start, around) and not sym.uses_var(r.extent, around):
        start = sym.simplify(sym.maximum(r.start, 0), ctx)
        stop = sym.simplify(sym.minimum(stop, limit), ctx)
        return Range(start, sym.simplify(sym.sub(stop, start), ctx)), True, True
    return r, from_zero, to_limit


def _is_as_large(extent: Expr, limit: Expr, ctx: Context) -> bool:
    """Whether a range holds as many elements as there are; a constant against a size may not."""
    if isinstance(extent, Const):
        return isinstance(limit, Const) and limit.value <= extent.value
    return sym.prove(sym.le(limit, extent), ctx)


def copy_nest(
    fn: Function,
    user: str,
    name: str,
    source: Buffer,
    target: Buffer,
    box: Region,
    ctx: Context,
    around: Sequence[For],
    primitive: str,
    *,
    exact: bool = False,
) -> Stmt:
    """Loops around a block that copies a box of one buffer to the same indices of another, for a
    user. With `exact`, elements outside of the box may be uninitialized."""
    loc: Loc = Synthetic(primitive)
    cover = Cover(ctx, {loop.var for loop in around}, exact=exact)
    for r, dim in zip(box.ranges, source.shape, strict=True):
        cover.over(r, dim)
    check_total(fn, cover, user, f"copy %{source.name} for @{user}")
    iters = tuple(
        [Iter(sym.var(f"v{axis}"), dim, SPATIAL) for axis, dim in enumerate(source.shape)]
    )
    index = tuple([it.var for it in iters])
    block = Block(
        name,
        iters,
        tuple(cover.values),
        (point(source, index),),
        (point(target, index),),
        Store(target, index, Load(source, index), None, loc),
        None,
        cover.predicate,
        (),
        loc,
    )
    return cover.around_stmt(block)


def cache_name(buffer: Buffer, memory: str) -> str:
    """The name of a copy of a buffer in another memory, and of the block that copies."""
    return f"{buffer.name}_{memory_of(memory).name}"
