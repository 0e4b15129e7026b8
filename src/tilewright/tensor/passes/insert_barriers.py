"""Insert barriers where threads of a block exchange values through shared memory.

    S[t] = A[t]                 S[t] = A[t]
    B[t] = S[63 - t]            eval barrier.shared()
                                B[t] = S[63 - t]

Two accesses of a shared buffer, at least one of them a write, need a barrier between them unless
every thread accesses only elements that no other thread does. Loop-carried conflicts count too: the
next iteration must not overwrite what a slower thread still reads. Barriers are placed only in
uniform control flow: code under a divergent condition stays whole, or is split in two under the
same condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.base.errors import Unsupported
from tilewright.base.passes import PassContext
from tilewright.sym import Const, Context, Expr, FloorMod, Var
from tilewright.tensor.injectivity import determined_vars
from tilewright.tensor.ir import (
    THREAD,
    THREAD_LEVEL,
    Alloc,
    Buffer,
    Call,
    Eval,
    For,
    Function,
    If,
    Let,
    Range,
    Seq,
    Stmt,
    seq,
)
from tilewright.tensor.passes.accesses import reads_of, writes_of
from tilewright.tensor.passes.rewriter import rewrite_kernels
from tilewright.tensor.regions import is_data_dependent
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import walk

BARRIER = Call("barrier.shared", (), BOOL)
_LOOKBACK = 4  # iteration distances checked exactly; rings of more slots are rare


def insert_barriers(fn: Function, ctx: PassContext) -> Function:
    body = rewrite_kernels(fn.body, _synchronized)
    return fn if body is fn.body else replace(fn, body=body)


def _synchronized(kernel: For) -> Stmt:
    threads: dict[Var, Expr] = {}
    nest: list[For] = []
    body: Stmt = kernel
    while isinstance(body, For) and body.kind == THREAD:
        nest.append(body)
        if body.level == THREAD_LEVEL:
            threads[body.var] = body.extent
        body = body.body
    body = _Sync(threads, body).stmt(body)
    for around in reversed(nest):
        body = replace(around, body=body)
    return body


def _exchanged(kernel: Stmt) -> set[Buffer]:
    """The buffers through which threads may communicate: read and written, not thread-private."""
    written: set[Buffer] = set()
    read: set[Buffer] = set()
    for stmt in walk(kernel):
        written.update(buffer for buffer, _ in writes_of(stmt))
        read.update(buffer for buffer, _, _, _ in reads_of(stmt))
    return {b for b in written & read if b.memory.owner in (Owner.DEVICE, Owner.BLOCK)}


def _starts_with_barrier(stmt: Stmt) -> bool:
    while isinstance(stmt, (Seq, Alloc)):
        stmt = stmt.children()[0]
    return isinstance(stmt, Eval) and stmt.value is BARRIER


@dataclass(eq=False, slots=True)
class _Touch:
    """An access of memory that threads share."""

    buffer: Buffer
    ranges: tuple[Range, ...]
    is_write: bool
    stmt: Stmt
    only: Mapping[Var, int]  # indices of the single thread that enclosing conditions select

    def at(self, variable: Var, value: Expr) -> _Touch:
        """The same access seen when the variable has another value."""
        moved = {variable: value}
        if not any(sym.uses_var(x, moved) for r in self.ranges for x in (r.start, r.extent)):
            return self
        ranges = [
            Range(sym.substitute(r.start, moved), sym.substitute(r.extent, moved))
            for r in self.ranges
        ]
        return replace(self, ranges=tuple(ranges))


class _Sync:
    """Walks a kernel's body in execution order; `open` holds the accesses since the last
    barrier."""

    def __init__(self, threads: dict[Var, Expr], body: Stmt) -> None:
        self.threads = threads
        self.varying: set[Var] = set(threads)  # divergent variables
        self.ctx = Context()  # the ranges of all loops; their variables are distinct
        for variable, extent in threads.items():
            self.ctx = self.ctx.bind(variable, 0, extent)
        for stmt in walk(body):
            if isinstance(stmt, For):
                self.ctx = self.ctx.bind(stmt.var, stmt.start, stmt.stop)
        self.moving = {stmt.var for stmt in walk(body) if isinstance(stmt, For)}
        self.exchanged = _exchanged(body)
        self.open: list[_Touch] = []
        self.touched: dict[Stmt, list[_Touch]] = {}
        self.conflicts: dict[tuple[_Touch, _Touch], bool] = {}

    def stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Seq):
            return seq(*[self.stmt(child) for child in stmt.stmts])
        if isinstance(stmt, Alloc):
            return replace(stmt, body=self.stmt(stmt.body))
        if isinstance(stmt, Let):
            if self.differs(stmt.value):
                self.varying.add(stmt.var)
            return replace(stmt, body=self.stmt(stmt.body))
        if isinstance(stmt, Eval) and stmt.value is BARRIER:
            self.open = []
            return stmt
        touches = self.touches(stmt)
        if not touches:
            return stmt
        # Place the barrier outside of as many loops as possible.
        before = self.open
        needed = any(self.conflict(old, new) for old in before for new in touches)
        if needed:
            self.open = []
        done = self._inside(stmt, touches)
        if not needed:
            return done
        if isinstance(done, For) and _starts_with_barrier(done.body):
            self.open = self._after(done, before)
            return done
        return seq(Eval(BARRIER, stmt.loc), done)

    def _inside(self, stmt: Stmt, touches: list[_Touch]) -> Stmt:
        """The statement with the barriers that it needs inside."""
        is_settled = not any(touch.is_write for touch in touches) or len(touches) == 1
        if isinstance(stmt, For) and not is_settled and not self.differs(stmt.start, stmt.stop):
            return self._loop(stmt)
        if isinstance(stmt, If) and not is_settled:
            if not self.differs(stmt.cond):
                return self._branch(stmt)
            inner = stmt.then
            if isinstance(inner, Alloc) and stmt.otherwise is None and self._exchange(touches):
                return replace(inner, body=self.stmt(replace(stmt, then=inner.body)))
            if isinstance(inner, Seq) and stmt.otherwise is None and self._exchange(touches):
                parts = [If(stmt.cond, part, None, stmt.loc) for part in inner.stmts]
                return seq(*[self.stmt(part) for part in parts])
        exchanged = self._exchange(touches) if isinstance(stmt, (For, If)) else None
        if exchanged is not None and not is_settled:
            raise Unsupported(
                "TW2205",
                f"threads exchange values through %{exchanged.name} inside code that "
                "not all of them run, where no barrier can stand",
                stmt.loc,
                help="move the condition or the uneven loop inside the two statements",
            )
        self.open = self.open + touches
        return stmt

    def differs(self, *exprs: Expr) -> bool:
        return any(sym.uses_var(expr, self.varying) for expr in exprs)

    def _after(self, loop: For, before: list[_Touch]) -> list[_Touch]:
        """The open accesses after a loop, including those before it, as it may run no iteration."""
        if sym.prove(sym.lt(loop.start, loop.stop), self.ctx):
            return self.open
        return list(dict.fromkeys((*before, *self.open)))

    def _loop(self, loop: For) -> Stmt:
        before = self.open
        body = self.stmt(loop.body)
        touches = self.touches(loop.body)
        # Later iterations may conflict with what this one leaves open.
        for distance in range(1, _LOOKBACK + 1):
            earlier = [touch.at(loop.var, sym.sub(loop.var, distance)) for touch in self.open]
            if any(self.conflict(old, new) for old in earlier for new in touches):
                self.open = earlier
                body = self.stmt(body)
                break
        else:  # larger distances; write-write conflicts are not checked there
            self._forget(loop)
            if any(
                old.is_write != new.is_write and self.conflict(old, new)
                for old in self.open
                for new in touches
            ):
                body = self.stmt(body)
        self._forget(loop)
        self.open = self._after(loop, before)
        return replace(loop, body=body)

    def _forget(self, loop: For) -> None:
        """Drop the loop variable from open accesses: their iteration is no longer known."""
        some = sym.var(loop.var.name)
        self.moving.add(some)
        self.ctx = self.ctx.bind(some, loop.start, loop.stop)
        self.open = [touch.at(loop.var, some) for touch in self.open]

    def _branch(self, stmt: If) -> Stmt:
        before = self.open
        then = self.stmt(stmt.then)
        after_then, self.open = self.open, before
        otherwise = None if stmt.otherwise is None else self.stmt(stmt.otherwise)
        self.open = list(dict.fromkeys((*after_then, *self.open)))
        return replace(stmt, then=then, otherwise=otherwise)

    # ------------------------------------------------------------------ accesses

    def touches(self, root: Stmt, only: Mapping[Var, int] = MappingProxyType({})) -> list[_Touch]:
        """The shared-memory accesses at and below a statement, which all threads execute, or the
        one in `only`."""
        found = self.touched.get(root)
        if found is None:
            found = [
                _Touch(buffer, ranges, False, root, only)
                for buffer, ranges, _, _ in reads_of(root)
                if buffer in self.exchanged
            ]
            found += [
                _Touch(buffer, ranges, True, root, only)
                for buffer, ranges in writes_of(root)
                if buffer in self.exchanged
            ]
            for child in root.children():
                inside = only
                if isinstance(root, If) and child is root.then:
                    inside = {**only, **self._left_by(root.cond)}
                found += self.touches(child, inside)
            self.touched[root] = found
        return found

    def _left_by(self, cond: Expr) -> dict[Var, int]:
        """Thread indices that a condition restricts to one value."""
        if not self.differs(cond):
            return {}
        ctx = self.ctx.assume(cond)
        left = {thread: sym.bounds(thread, ctx).value for thread in self.threads}
        return {thread: number for thread, number in left.items() if number is not None}

    def _exchange(self, touches: list[_Touch]) -> Buffer | None:
        """A buffer through which threads communicate within these accesses."""
        for at, later in enumerate(touches):
            for earlier in touches[:at]:
                if earlier.stmt is not later.stmt and self.conflict(earlier, later):
                    return later.buffer
        return None

    def conflict(self, old: _Touch, new: _Touch) -> bool:
        """Whether different threads may access the same element, one of them writing."""
        if old.buffer is not new.buffer or not (old.is_write or new.is_write):
            return False
        if old.stmt is new.stmt and old.is_write and new.is_write:
            return False  # threads of a race-free program write different elements
        found = self.conflicts.get((old, new))
        if found is None:
            found = self.conflicts[old, new] = self._meet(old, new)
        return found

    def _meet(self, old: _Touch, new: _Touch) -> bool:
        pairs = list(zip(old.ranges, new.ranges, strict=True))
        if any(self._apart(a, b) for a, b in pairs):
            return False
        own = {thread for a, b in pairs for thread in self._told_apart(a, b)}
        own |= self._told_together(pairs)
        own |= {thread for thread, number in old.only.items() if new.only.get(thread) == number}
        return any(
            thread not in own and not (isinstance(extent, Const) and extent.value == 1)
            for thread, extent in self.threads.items()
        )

    def _told_together(self, pairs: list[tuple[Range, Range]]) -> set[Var]:
        """Threads that equal indices determine jointly, as digits of a mixed-radix number."""
        same = [
            a.start
            for a, b in pairs
            if a.extent is sym.ONE and b.extent is sym.ONE and a.start is b.start
        ]
        # A let-bound value may cancel a thread's contribution.
        unknown = self.moving | (self.varying - set(self.threads))
        known = [
            start
            for start in same
            if not sym.uses_var(start, unknown) and not is_data_dependent(start)
        ]
        if not known or not self.differs(*known):
            return set()
        ranges = {thread: (sym.ZERO, extent) for thread, extent in self.threads.items()}
        return determined_vars(known, ranges, Context())

    def _told_apart(self, a: Range, b: Range) -> list[Var]:
        """Threads that this dimension determines: equal indices imply equal threads.

        Both indices must be sum(weight * thread) + rest with the same weights, each weight at
        least what the threads of lesser weight and the rest can add up to.
        """
        if a.extent is not sym.ONE or b.extent is not sym.ONE:
            return []
        left = sym.linear(a.start, self.threads)
        right = sym.linear(b.start, self.threads)
        if left is None or right is None or not left[0] or left[0] != right[0]:
            return []
        if self.differs(left[1], right[1]):
            return []
        reach = self._reach(left[1], right[1])
        if reach is None:
            return []
        found: list[Var] = []
        weights = sorted(left[0].items(), key=lambda item: getattr(item[1], "value", 0))
        for thread, weight in weights:
            extent = self.threads[thread]
            if not isinstance(weight, Const) or not isinstance(extent, Const):
                return found
            if weight.value <= reach:
                return []
            found.append(thread)
            reach += int(weight.value) * (int(extent.value) - 1)
        return found

    def _reach(self, a: Expr, b: Expr) -> int | None:
        """The largest possible difference of two expressions; loop-uniform terms cancel."""
        a_split, b_split = sym.split_terms(a, self.moving), sym.split_terms(b, self.moving)
        if a_split is None or b_split is None:
            return None
        gap = sym.simplify(sym.sub(a_split[0], b_split[0]))
        x, y = sym.bounds(a_split[1], self.ctx), sym.bounds(b_split[1], self.ctx)
        if not isinstance(gap, Const) or None in (x.lower, x.upper, y.lower, y.upper):
            return None
        first = int(gap.value) + x.upper - y.lower  # type: ignore[operator]
        second = y.upper - x.lower - int(gap.value)  # type: ignore[operator]
        return max(first, second, 0)

    def _apart(self, a: Range, b: Range) -> bool:
        """Whether the two ranges are disjoint for any two threads."""
        if self.differs(a.start, a.extent, b.start, b.extent):
            return False
        x, y = a.start, b.start
        one = a.extent is sym.ONE and b.extent is sym.ONE
        if one and isinstance(x, FloorMod) and isinstance(y, FloorMod) and x.b is y.b:
            gap = sym.simplify(sym.sub(x.a, y.a))
            if isinstance(gap, Const) and isinstance(x.b, Const):
                return gap.value % x.b.value != 0  # different slots of a ring buffer
        gap = sym.simplify(sym.sub(x, y))
        if not isinstance(gap, Const):
            return False
        extents = [r.extent.value if isinstance(r.extent, Const) else None for r in (a, b)]
        # Extent of the range that starts first.
        lower = extents[1] if gap.value >= 0 else extents[0]
        return lower is not None and abs(gap.value) >= lower
