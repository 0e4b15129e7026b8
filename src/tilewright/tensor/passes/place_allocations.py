"""Puts each intermediate buffer where it lives: around the innermost code that holds all its uses.

    alloc %T; for i { T[i] = ..; C[i] = T[i] }      for i { alloc %T; T[i] = ..; C[i] = T[i] }

A buffer whose values pass from one iteration of a loop to the next lives outside that loop. That
is so unless every read finds what it reads written earlier in the same iteration. Iterations of a
parallel loop cannot talk to each other, so a buffer used only inside one is private to it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, ZERO, Const, Context, Expr, Var
from tilewright.sym.poly import Poly, poly_of
from tilewright.tensor.ir import (
    PARALLEL,
    THREAD,
    Alloc,
    Buffer,
    For,
    Function,
    Seq,
    Stmt,
    seq,
)
from tilewright.tensor.passes.accesses import (
    Access,
    Place,
    collect,
    common,
    conditions_between,
    context_at,
)
from tilewright.tensor.passes.rewriter import Rewriter


def place_allocations(fn: Function, ctx: PassContext) -> Function:
    if not fn.allocs:
        return fn
    accesses = collect(fn.body, fn.allocs)
    around: dict[Stmt, list[Buffer]] = defaultdict(list)
    spans: dict[Stmt, list[tuple[int, int, Buffer]]] = defaultdict(list)
    for buffer in fn.allocs:
        found = accesses[buffer]
        if not any(not access.is_write for access in found) and not found:
            continue
        place = _place(found)
        if isinstance(place.stmt, Seq):
            positions = [access.place.below(place)[0].position for access in found]
            spans[place.stmt].append((min(positions), max(positions), buffer))
        else:
            around[place.stmt].append(buffer)
    body = _Insert(around, spans)(fn.body)
    assert body is not None
    return replace(fn, body=body, allocs=())


def _place(accesses: list[Access]) -> Place:
    """The innermost place around all accesses, moved out of loops that carry values."""
    place = accesses[0].place
    for access in accesses[1:]:
        place = common(place, access.place)
    loops = []  # those that might carry values, innermost first
    for around in place.ancestors():
        loop = around.stmt
        if isinstance(loop, For) and around is not place:
            if loop.kind in (PARALLEL, THREAD):
                break
            loops.append(around)
    if loops and not _all_covered(accesses):
        return loops[-1]
    return place


def _all_covered(accesses: list[Access]) -> bool:
    writes: list[Access] = []
    for access in accesses:
        if access.is_write:
            writes.append(access)
        elif access.is_opaque or not any(_covers(write, access) for write in reversed(writes)):
            return False
    return True


def _covers(write: Access, read: Access) -> bool:
    """Whether the write, done earlier, has certainly stored all that is read.

    It looks for the iteration of the write's own loops that stores the element read: each index
    must be a sum of its own variables in a mixed radix, which division and remainder take apart.
    """
    if len(write.ranges) != len(read.ranges) or write.guards:
        return False
    top = common(write.place, read.place)
    path = write.place.below(top)
    own = {p.stmt.var: p.stmt for p in path[:-1] if isinstance(p.stmt, For)}
    ctx = context_at(read)
    solution: dict[Var, Expr] = {}
    for target, source in zip(read.ranges, write.ranges, strict=True):
        solved = _solve(source.start, source.extent, target.start, target.extent, own, ctx)
        if solved is None or any(v in solution for v in solved):
            return False
        solution.update(solved)
    for variable, loop in own.items():
        if variable not in solution:
            if not sym.prove(sym.lt(loop.start, loop.stop), ctx):
                return False
            solution[variable] = loop.start
    conditions = conditions_between([top, *path])
    return all(sym.prove(sym.substitute(cond, solution), ctx) for cond in conditions)


def _solve(
    index: Expr, width: Expr, target: Expr, target_width: Expr, own: dict[Var, For], ctx: Context
) -> dict[Var, Expr] | None:
    """Values of `own` variables that give `index` the value `target`, if there always are some."""
    if target_width is not ONE:
        if target_width is width and index is target:
            return {} if not sym.uses_var(index, own) else None
        offset = sym.var("x")
        ctx = ctx.bind(offset, ZERO, target_width)
        target = sym.add(target, offset)
    poly = poly_of(index)
    digits: list[tuple[int, Var | None, Expr, Expr]] = []  # weight, variable, start, extent
    rest: dict[object, int] = {}
    for monomial, coefficient in poly.terms.items():
        if isinstance(monomial, Var) and monomial in own:
            loop = own[monomial]
            if sym.uses_var(loop.start, own) or sym.uses_var(loop.stop, own) or coefficient < 1:
                return None
            digits.append((coefficient, monomial, loop.start, loop.extent))
        else:
            rest[monomial] = coefficient
    fixed = Poly(rest, poly.const).expr()  # type: ignore[arg-type]
    if sym.uses_var(fixed, own):
        return None
    if width is not ONE:
        digits.append((1, None, ZERO, width))
    digits.sort(key=lambda digit: digit[0])
    left = sym.sub(target, fixed)
    for weight, _, start, _ in digits:
        left = sym.sub(left, sym.mul(start, weight))
    left = sym.simplify(left, ctx)
    if not sym.prove(sym.le(0, left), ctx):
        return None
    solution: dict[Var, Expr] = {}
    weight = 1
    for at, (coefficient, variable, start, extent) in enumerate(digits):
        if coefficient != weight:
            return None
        is_last = at == len(digits) - 1
        value = sym.floordiv(left, weight)
        if not is_last:
            if not isinstance(extent, Const):
                return None
            value = sym.floormod(value, extent)
            weight *= int(extent.value)
        elif not sym.prove(sym.lt(value, extent), ctx):
            return None
        if variable is not None:
            solution[variable] = sym.simplify(sym.add(start, value), ctx)
    if not digits and not sym.prove(sym.eq(left, 0), ctx):
        return None
    return solution


class _Insert(Rewriter):
    """Wraps the chosen statements. Ranges are of no interest, so contexts stay empty."""

    def __init__(
        self,
        around: dict[Stmt, list[Buffer]],
        spans: dict[Stmt, list[tuple[int, int, Buffer]]],
    ) -> None:
        super().__init__()
        self.around = around
        self.spans = spans

    def __call__(self, stmt: Stmt) -> Stmt | None:
        result = super().__call__(stmt)
        assert result is not None
        for buffer in reversed(self.around.get(stmt, ())):
            result = Alloc(buffer, result)
        return result

    def visit_for(self, loop: For) -> Stmt | None:
        body = self(loop.body)
        assert body is not None
        return loop if body is loop.body else loop.with_children((body,))

    def visit_seq(self, stmt: Seq) -> Stmt | None:
        done: list[Stmt] = []
        for child in stmt.stmts:
            visited = self(child)
            assert visited is not None
            done.append(visited)
        starts: dict[int, list[Buffer]] = defaultdict(list)
        end = 0
        for first, last, buffer in self.spans.get(stmt, ()):
            starts[first].append(buffer)
            end = max(end, last + 1)
        if not starts:
            return seq(*done)
        # Each scope reaches to where the last of them ends, so that they nest.
        body = done[end - 1]
        for position in range(end - 1, -1, -1):
            if position < end - 1:
                body = seq(done[position], body)
            for buffer in reversed(starts.get(position, ())):
                body = Alloc(buffer, body)
        return seq(body, *done[end:])
