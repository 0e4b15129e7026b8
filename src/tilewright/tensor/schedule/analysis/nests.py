"""The loops around a block: what each of them drives, and copies of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.sym import Const, Expr, Var
from tilewright.tensor.injectivity import determined_vars, is_injective
from tilewright.tensor.ir import (
    INDEPENDENT,
    REDUCE,
    SCAN,
    SPATIAL,
    THREAD,
    Block,
    For,
    Function,
    Stmt,
    annotation,
)
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    loop_context,
    loop_ranges,
    loops_on,
    vars_of_kind,
)


@dataclass(frozen=True, slots=True)
class Roles:
    """The loops around a block, by the iterators that they drive."""

    spatial: dict[Var, None]
    reduce: dict[Var, None]
    scan: dict[Var, None]

    def is_mixed(self, var: Var) -> bool:
        """Whether the loop drives iterators of more than one kind."""
        return sum(var in kind for kind in (self.spatial, self.reduce, self.scan)) > 1

    def is_idle(self, var: Var) -> bool:
        """Whether the loop drives no iterator: the block runs once per iteration all the same."""
        return not any(var in kind for kind in (self.spatial, self.reduce, self.scan))


def roles_of(block: Block) -> Roles:
    """What the loops around `block` drive."""
    return Roles(
        vars_of_kind(block, SPATIAL), vars_of_kind(block, REDUCE), vars_of_kind(block, SCAN)
    )


def is_unit(loop: For) -> bool:
    """Whether the loop certainly runs just once."""
    return isinstance(loop.extent, Const) and loop.extent.value == 1


def copy_nest(loops: Sequence[For], mapping: dict[Var, Expr]) -> list[For]:
    """Loops with variables of their own, outermost first; `mapping` learns the new variables."""
    copies = []
    for loop in loops:
        fresh = sym.var(loop.var.name)
        start, stop = (sym.substitute(end, mapping) for end in (loop.start, loop.stop))
        mapping[loop.var] = fresh
        copies.append(replace(loop, var=fresh, start=start, stop=stop))
    return copies


def perfect_chain(loop: For) -> tuple[list[For], Stmt]:
    """The loops that nest perfectly from `loop` on, and what stands inside the last."""
    chain = [loop]
    while isinstance(chain[-1].body, For):
        chain.append(chain[-1].body)
    return chain, chain[-1].body


def visits_once(fn: Function, path: Path, block: Block, inside: Sequence[For]) -> bool:
    """Whether no two iterations of the loops `inside` meet one instance of the block.

    `path` leads to the block; the loops around `inside` are taken as they stand.
    """
    around = [loop for loop in loops_on(path) if all(loop is not other for other in inside)]
    return is_injective(block.bindings, loop_ranges(inside), loop_context(fn, around))


def is_kernel_edge(path: Path, at: int) -> bool:
    """Whether a statement put beside `path[at]` would stand outside the threads that run it."""
    outside = any(isinstance(stmt, For) and stmt.kind == THREAD for stmt in path[:at])
    inside = any(isinstance(stmt, For) and stmt.kind == THREAD for stmt in path[at:])
    return inside and not outside


def writes_apart(block: Block) -> bool:
    """Whether instances that differ in a spatial iterator certainly write different elements."""
    if annotation(block, INDEPENDENT) is not None:
        return True
    spatial = {it.var: (sym.ZERO, it.extent) for it in block.iters if it.kind == SPATIAL}
    ctx = sym.EMPTY.bind_all(
        {it.var: (sym.ZERO, it.extent) for it in block.iters if it.kind != SPATIAL}
    )
    for region in block.writes:
        ranges = dict(spatial)
        known: list[Expr] = []
        for r in region.ranges:
            if r.extent is sym.ONE:
                known.append(r.start)
                continue
            offset = sym.var("offset")
            ranges[offset] = (sym.ZERO, r.extent)
            known.append(sym.add(r.start, offset))
        if all(var in known for var in spatial):
            continue
        found = determined_vars(known, ranges, ctx)
        if not all(v in found or _is_unit_range(spatial[v], ctx) for v in spatial):
            return False
    return True


def _is_unit_range(span: tuple[Expr, Expr], ctx: sym.Context) -> bool:
    return sym.prove(sym.le(sym.sub(span[1], span[0]), 1), ctx)
