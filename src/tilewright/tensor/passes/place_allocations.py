"""Place each intermediate buffer's allocation around the innermost code that holds all its uses.

    alloc %T; for i { T[i] = ..; C[i] = T[i] }      for i { alloc %T; T[i] = ..; C[i] = T[i] }

A buffer with loop-carried values is allocated outside of that loop. It has none if every read is
preceded by a write of the same elements in the same iteration. Iterations of a parallel loop cannot
communicate, so a buffer used only inside of one is private to each.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, ZERO, Const, Context, Expr, FloorDiv, FloorMod, Var
from tilewright.sym.poly import Monomial, Poly, poly_of
from tilewright.tensor.ir import (
    SERIAL,
    UNROLL,
    Alloc,
    Buffer,
    For,
    Function,
    If,
    Region,
    Seq,
    Stmt,
    annotated,
    annotation,
    seq,
)
from tilewright.tensor.ownership import is_shared_between
from tilewright.tensor.passes.accesses import (
    Access,
    Place,
    collect,
    common,
    conditions_between,
    context_at,
)
from tilewright.tensor.passes.pipeline_loops import ORDER, STAGE
from tilewright.tensor.passes.rewriter import Rewriter
from tilewright.tensor.regions import region_over
from tilewright.tensor.visit import prefetched, walk


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
    if body is not None and any(prefetched(stmt) in accesses for stmt in walk(body)):
        body = _DropStalePrefetches(fn)(body)
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
            if loop.kind not in (SERIAL, UNROLL):
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
        elif access.is_opaque or not any(
            _covers(write, access, writes) for write in reversed(writes)
        ):
            return False
    return True


def _in_both_arms(write: Access, choice: Place, others: list[Access]) -> bool:
    """Whether the other arm of a branch writes the same elements, so that its condition does not
    matter.

        if c { call load(A[i], T[i, 0 +: 16]) } else { for j in 0..16 { T[i, j] = 0 } }
    """
    for other in others:
        path = other.place.below(choice)
        if not path or path[0].parent is not choice or other.place in write.place.ancestors():
            continue
        if path[0].position == write.place.below(choice)[0].position:
            continue
        inside = {p.stmt.var: (p.stmt.start, p.stmt.stop) for p in path if isinstance(p.stmt, For)}
        if any(isinstance(p.stmt, If) for p in path):
            continue
        filled = region_over(Region(other.buffer, other.ranges), inside, sym.EMPTY)
        if all(
            sym.equal(a.start, b.start) and sym.equal(a.extent, b.extent)
            for a, b in zip(filled.ranges, write.ranges, strict=True)
        ):
            return True
    return False


def _covers(write: Access, read: Access, writes: list[Access]) -> bool:
    """Whether an earlier write has certainly stored all that is read.

    Looks for the iteration of the write's own loops that stores the element read. For a buffer that
    threads share, the writing thread is an unknown as well.
    """
    if len(write.ranges) != len(read.ranges) or write.guards:
        return False
    top = common(write.place, read.place)
    path = write.place.below(top)
    own = [p.stmt for p in path[:-1] if isinstance(p.stmt, For)]
    renamed: dict[Var, Expr] = {}
    for place in top.ancestors():
        loop = place.stmt
        if isinstance(loop, For) and is_shared_between(write.buffer.memory, loop):
            other = replace(loop, var=sym.var(loop.var.name))
            renamed[loop.var] = other.var
            own.append(other)
    ctx = context_at(read)
    inside = ctx.bind_all({loop.var: (loop.start, loop.stop) for loop in own})
    starts = [sym.substitute(source.start, renamed) for source in write.ranges]
    settled = {p for p in path if isinstance(p.stmt, If) and _in_both_arms(write, p, writes)}
    steps = [step for step in pairwise([top, *path]) if step[0] not in settled]
    conditions = [
        sym.substitute(c, renamed) for step in steps for c in conditions_between(list(step))
    ]
    # At the write, the index equals that of the read, in conditions too.
    points = [
        (start, r.start)
        for start, w, r in zip(starts, write.ranges, read.ranges, strict=True)
        if w.extent is ONE and r.extent is ONE
    ]
    known = dict(points)
    conditions = [sym.rewrite(cond, lambda node: known.get(node, node)) for cond in conditions]
    # An index may be a digit of one variable when simplified, of several together as written.
    for indices in ([sym.simplify(start, inside) for start in starts], starts):
        equation = _Equation({loop.var: loop for loop in own}, ctx)
        pairs = zip(indices, write.ranges, read.ranges, strict=True)
        if not all(equation.add(i, w.extent, r.start, r.extent) for i, w, r in pairs):
            continue
        solution = equation.solution()
        if solution is None:
            continue
        if all(sym.prove(sym.substitute(cond, solution), equation.ctx) for cond in conditions):
            return True
    return False


class _Equation:
    """Solves for values of the `own` variables for which given indices take given values.

    Each index must be a sum of mixed-radix digits plus something fixed; a digit is a variable or
    one of its own digits, (v // low) % count. Division and remainder extract it. Loops that came
    from one split count as one variable again where `outer * 8 + inner` is divided.
    """

    def __init__(self, own: dict[Var, For], ctx: Context) -> None:
        self.own = dict(own)
        self.ctx = ctx
        self.whole: dict[Expr, Var] = {}  # sums of variables that are treated as one
        self.parts: dict[Var, list[tuple[Var, int, int]]] = {}  # of each: variable, low, count
        self.digits: dict[Var, dict[int, tuple[int | None, Expr]]] = {v: {} for v in own}

    def add(self, index: Expr, width: Expr, target: Expr, target_width: Expr) -> bool:
        """Require index <= target < index + width, for every element of the target's range."""
        if target_width is not ONE:
            offset = sym.var("x")
            self.ctx = self.ctx.bind(offset, ZERO, target_width)
            target = sym.add(target, offset)
        poly = poly_of(index)
        found: list[tuple[int, _Digit | None, Expr]] = []  # weight, digit, extent
        rest: dict[Monomial, int] = {}
        for monomial, coefficient in poly.terms.items():
            digit = self._digit(monomial) if isinstance(monomial, Expr) else None
            if digit is None:
                rest[monomial] = coefficient
            elif coefficient < 1:
                return False
            else:
                found.append((coefficient, digit, digit.extent))
        fixed = Poly(rest, poly.const).expr()
        if sym.uses_var(fixed, self.own):
            return False
        if width is not ONE:
            found.append((1, None, width))
        found.sort(key=lambda part: part[0])
        left = sym.simplify(sym.sub(target, fixed), self.ctx)
        if not sym.prove(sym.le(0, left), self.ctx):
            return False
        if not found:
            return sym.prove(sym.eq(left, 0), self.ctx)
        return self._take_apart(left, found)

    def _take_apart(self, left: Expr, found: list[tuple[int, _Digit | None, Expr]]) -> bool:
        weight = 1
        for at, (coefficient, digit, extent) in enumerate(found):
            if coefficient != weight:
                return False
            value = sym.floordiv(left, weight)
            if at < len(found) - 1:
                if not isinstance(extent, Const):
                    return False
                value = sym.floormod(value, extent)
                weight *= int(extent.value)
            elif not self._is_below(left, extent, weight):
                return False
            if digit is not None:
                if digit.low in self.digits[digit.var]:
                    return False
                self.digits[digit.var][digit.low] = (digit.count, value)
        return True

    def _is_below(self, left: Expr, extent: Expr, weight: int) -> bool:
        """Whether left // weight < extent, tested without the division."""
        if sym.prove(sym.lt(left, sym.mul(extent, weight)), self.ctx):
            return True
        if not isinstance(extent, FloorDiv) or extent.b is not sym.const(weight):
            return False
        # (n + 7) // 8 * 8 >= n holds for any n.
        least = sym.simplify(sym.sub(extent.a, weight - 1), self.ctx)
        return sym.prove(sym.lt(left, least), self.ctx)

    def _digit(self, atom: Expr) -> _Digit | None:
        """(v // low) % count of an own variable that starts at 0."""
        count: int | None = None
        low = 1
        inner: Expr = atom
        if isinstance(inner, FloorMod) and isinstance(inner.b, Const):
            count = int(inner.b.value)
            inner = inner.a
        while isinstance(inner, FloorDiv) and isinstance(inner.b, Const):
            low *= int(inner.b.value)
            inner = inner.a
        if low <= 0 or (count is not None and count <= 0):
            return None
        variable = inner if isinstance(inner, Var) else self._whole(inner)
        loop = None if variable is None else self.own.get(variable)
        if loop is None or sym.uses_var(loop.stop, self.own) or loop.start is not ZERO:
            return None
        extent = loop.stop if low == 1 else sym.simplify(sym.ceildiv(loop.stop, low))
        if count is not None:
            whole = isinstance(loop.stop, Const) and int(loop.stop.value) % (low * count) == 0
            if not whole and loop.var not in self.parts:
                return None
            extent = sym.const(count)
        return _Digit(loop.var, low, count, extent)

    def _whole(self, inner: Expr) -> Var | None:
        """The variable for a sum of own variables that are all the digits of a mixed radix."""
        if inner in self.whole:
            return self.whole[inner]
        poly = poly_of(inner)
        if poly.const or not all(isinstance(each, Var) for each in poly.terms):
            return None
        low, parts = 1, []
        for each, coefficient in sorted(poly.terms.items(), key=lambda term: term[1]):
            loop = self.own.get(each) if isinstance(each, Var) else None
            if loop is None or loop.start is not ZERO or not isinstance(loop.stop, Const):
                return None
            if coefficient != low or loop.var in self.parts:
                return None
            parts.append((loop.var, low, int(loop.stop.value)))
            low *= int(loop.stop.value)
        if any(part[0] in {var for of in self.parts.values() for var, *_ in of} for part in parts):
            return None
        made = sym.var("whole")
        self.own[made] = For(made, ZERO, sym.const(low), seq())
        self.whole[inner], self.parts[made], self.digits[made] = made, parts, {}
        return made

    def solution(self) -> dict[Var, Expr] | None:
        """Values of all own variables; one that no index depends on takes its first value."""
        taken = {var for parts in self.parts.values() for var, *_ in parts}
        if any(self.digits[var] for var in taken):
            return None  # used both alone and in a sum
        values: dict[Var, Expr] = {}
        for variable, digits in self.digits.items():
            if variable in taken:
                continue
            loop = self.own[variable]
            total: Expr = ZERO
            reached: int | None = 1
            for low, (count, value) in sorted(digits.items(), key=lambda item: item[0]):
                if reached is None or low % reached != 0:
                    return None  # the digits overlap
                total = sym.add(total, sym.mul(value, low))
                reached = None if count is None else low * count
            if not digits:
                if not sym.prove(sym.lt(loop.start, loop.stop), self.ctx):
                    return None
                total = loop.start
            value = sym.simplify(total, self.ctx)
            several = len(digits) > 1 or variable in self.parts
            if several and not sym.prove(sym.lt(value, loop.stop), self.ctx):
                return None
            values[variable] = value
            for part, low, count in self.parts.get(variable, ()):
                digit = sym.floormod(sym.floordiv(value, low), count)
                values[part] = sym.simplify(digit, self.ctx)
        return values


@dataclass(frozen=True, slots=True)
class _Digit:
    var: Var
    low: int
    count: int | None  # None: the rest above `low`
    extent: Expr


class _DropStalePrefetches(Rewriter):
    """Drops prefetches of a buffer outside of its allocation: they are hints."""

    tracks = False

    def __init__(self, fn: Function) -> None:
        super().__init__()
        self.alive: set[Buffer] = set(fn.buffers)

    def visit_alloc(self, stmt: Alloc) -> Stmt | None:
        self.alive.add(stmt.buffer)
        done = super().visit_alloc(stmt)
        self.alive.discard(stmt.buffer)
        return done

    def visit_for(self, loop: For) -> Stmt | None:
        """A pipelined loop's plan covers only the statements that remain."""
        done = super().visit_for(loop)
        if not isinstance(done, For) or annotation(loop, STAGE) is None:
            return done
        kept = self._kept(loop.body)
        if all(kept):
            return done
        annotations = done.annotations
        for key in (STAGE, ORDER):
            plan = annotation(loop, key)
            if plan is not None:
                rest = tuple(place for place, stays in zip(plan, kept, strict=True) if stays)
                if key == ORDER:
                    rest = tuple(sorted(rest).index(place) for place in rest)
                annotations = annotated(annotations, key, rest)
        return replace(done, annotations=annotations)

    def _kept(self, stmt: Stmt) -> list[bool]:
        """For every statement of a loop's body, whether anything of it remains."""
        if isinstance(stmt, Seq):
            return [stays for each in stmt.stmts for stays in self._kept(each)]
        if isinstance(stmt, Alloc):
            self.alive.add(stmt.buffer)
            found = self._kept(stmt.body)
            self.alive.discard(stmt.buffer)
            return found
        return [self(stmt) is not None]

    def visit_leaf(self, stmt: Stmt) -> Stmt | None:
        buffer = prefetched(stmt)
        return stmt if buffer is None or buffer in self.alive else None


class _Insert(Rewriter):
    """Wraps the chosen statements."""

    tracks = False

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
        # Extend each scope to the end of the last, so that they nest.
        body = done[end - 1]
        for position in range(end - 1, -1, -1):
            if position < end - 1:
                body = seq(done[position], body)
            for buffer in reversed(starts.get(position, ())):
                body = Alloc(buffer, body)
        return seq(body, *done[end:])
