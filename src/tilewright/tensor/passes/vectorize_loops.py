"""Turn the iterations of vector loops into lanes.

    for j in vector 0..16 { C[i * n + j] = A[j] * x }
    C[ramp(i * n, 1, 16)] = A[ramp(0, 1, 16)] * broadcast(x, 16)

- An index linear in the loop variable becomes a ramp, any other one a vector of indices (a gather).
- A condition on the variable becomes a mask on the stores and loads under it; loads that are safe
  for every lane are hoisted and unmasked.
- What has no vector form (calls, accumulation into one element, loops whose bounds differ between
  lanes) is repeated per lane, in an unrolled loop.
- A buffer allocated inside is private to an iteration: each lane gets its own element of it.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.base.passes import PassContext
from tilewright.sym import (
    ONE,
    TRUE,
    And,
    Cast,
    Const,
    Context,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Or,
    Select,
    Size,
    Var,
    const,
    var,
)
from tilewright.tensor.ir import (
    SERIAL,
    UNROLL,
    VECTOR,
    Address,
    Alloc,
    Broadcast,
    Buffer,
    Call,
    Eval,
    For,
    Function,
    If,
    Let,
    Load,
    MaskedLoad,
    Ramp,
    Seq,
    Stmt,
    Store,
    seq,
)
from tilewright.tensor.passes.facts import lasting
from tilewright.tensor.passes.sure_stores import Interval, StoreFinder, Stores, copied, intervals
from tilewright.tensor.visit import fresh_copy, loads, rewrite, walk


def vectorize_loops(fn: Function, ctx: PassContext) -> Function:
    body = _FindLoops()(fn.body)
    return fn if body is fn.body or body is None else replace(fn, body=body)


class _FindLoops(StoreFinder):
    def __init__(self) -> None:
        super().__init__(sym.EMPTY, {})

    def visit_for(self, loop: For) -> Stmt | None:
        if loop.kind != VECTOR:
            return super().visit_for(loop)
        before = copied(self.stores)
        inner = super().visit_for(loop)
        assert isinstance(inner, For)
        extent = sym.simplify(inner.extent)
        if not isinstance(extent, Const) or _has_vectors(inner.body):
            return replace(inner, kind=UNROLL if isinstance(extent, Const) else SERIAL)
        lanes = int(extent.value)
        if lanes == 1:
            return fresh_copy(inner.body, {inner.var: inner.start})
        return _Lanes(inner, lanes, self.ctx, before, self.loops).loop()


def _has_vectors(root: Stmt) -> bool:
    return any(
        expr.dtype.is_vector
        for stmt in walk(root)
        for top in stmt.exprs()
        for expr in sym.walk(top)
    )


# When a load is done: by all lanes, by those that choose it, or by all or none.
ALWAYS, BY_LANE, BY_BRANCH = "always", "by lane", "by branch"


class _NoVectorForm(Exception):
    """The statement has to be repeated per lane."""


class _Lanes:
    """One vector loop being vectorized."""

    def __init__(
        self, loop: For, lanes: int, ctx: Context, stores: Stores, around: tuple[For, ...]
    ) -> None:
        self.source = loop
        self.body = _private_buffers(loop, lanes)
        self.stores = stores  # before the loop
        self.around = around
        self.allocated = {*stores, *(s.buffer for s in walk(self.body) if isinstance(s, Alloc))}
        # With the lane's variable in range.
        self.lane_ctx = ctx.bind(loop.var, loop.start, loop.stop)
        self.var = loop.var
        self.start = loop.start
        self.lanes = lanes
        self.ctx = ctx
        self.named: dict[Expr, Expr] = {}  # lets and their vector forms
        self.mask: Expr | None = None  # of the active lanes, unless all are
        self.some_lane_runs = True  # whether at least one lane is known to be active
        self.memo: dict[Expr, Expr] = {}
        self.asked: dict[Stmt, list[Load]] = {}  # per store, the loads that all lanes execute

    def loop(self) -> Stmt:
        return self.stmt(self.body)

    # ------------------------------------------------------------------ statements

    def stmt(self, stmt: Stmt) -> Stmt:
        """The vector form, or the statement repeated per lane."""
        try:
            return self._vector_form(stmt)
        except _NoVectorForm:
            return self._repeated(stmt)

    def _vector_form(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Seq):
            return seq(*[self.stmt(child) for child in stmt.stmts]) if stmt.stmts else stmt
        if isinstance(stmt, Store):
            return self._store(stmt)
        if isinstance(stmt, For):
            return self._for(stmt)
        if isinstance(stmt, If):
            return self._if(stmt)
        if isinstance(stmt, Let):
            return self._let(stmt)
        if isinstance(stmt, Alloc):
            return Alloc(stmt.buffer, self.stmt(stmt.body), stmt.loc)
        if isinstance(stmt, Eval) and self.mask is None and not _has_effect(stmt.value):
            value = self.expr(stmt.value)
            if not value.dtype.is_vector:
                return Eval(value, stmt.loc)
        raise _NoVectorForm

    def _store(self, stmt: Store) -> Stmt:
        if stmt.mask is not None:
            raise _NoVectorForm
        (index,) = (self.expr(at) for at in stmt.index)
        accumulates = any(load.buffer is stmt.buffer for load in loads(stmt.value))
        if accumulates and not _is_injective(index):
            raise _NoVectorForm  # lanes read what earlier lanes store
        anyway = self._unmasked_loads(stmt)
        if anyway:
            names = [(load, var(load.buffer.name, load.dtype)) for load in anyway]
            body: Stmt = replace(stmt, value=sym.replaced(stmt.value, dict[Expr, Expr](names)))
            self.asked[body] = []
            for load, name in names:
                body = Let(name, load, body, stmt.loc)
            return self._vector_form(body)
        if not index.dtype.is_vector:
            value = self.expr(stmt.value)
            if value.dtype.is_vector or self.mask is not None:
                raise _NoVectorForm
            return Store(stmt.buffer, (index,), value, None, stmt.loc)
        value = self.widened(self.expr(stmt.value))
        return Store(stmt.buffer, (index,), value, self.mask, stmt.loc)

    def _for(self, loop: For) -> Stmt:
        start, stop = self.expr(loop.start), self.expr(loop.stop)
        if start.dtype.is_vector or stop.dtype.is_vector:
            raise _NoVectorForm
        outer, self.ctx = self.ctx, self.ctx.bind(loop.var, start, stop)
        try:
            body = self.stmt(loop.body)
        finally:
            self.ctx = outer
        return replace(loop, start=start, stop=stop, body=body)

    def _if(self, stmt: If) -> Stmt:
        cond = self.expr(stmt.cond)
        if not cond.dtype.is_vector:
            otherwise = None if stmt.otherwise is None else self.stmt(stmt.otherwise)
            return If(cond, self.stmt(stmt.then), otherwise, stmt.loc)
        if not lasting((stmt.cond,), stmt):
            raise _NoVectorForm  # masks are recomputed at their uses, which may follow stores
        if stmt.otherwise is None:
            # Uniform conditions stay branches.
            agreed: list[Expr] = []
            differing: list[Expr] = []
            for part in sym.conjuncts(stmt.cond):
                (differing if self.expr(part).dtype.is_vector else agreed).append(part)
            mask = sym.all_of(*differing)
            body = self._masked(mask, self.expr(mask), stmt.then)
            return If(sym.all_of(*agreed), body, None, stmt.loc) if agreed else body
        negated = sym.logical_not(stmt.cond)
        return seq(
            self._masked(stmt.cond, cond, stmt.then),
            self._masked(negated, self.expr(negated), stmt.otherwise),
        )

    def _masked(self, scalar: Expr, cond: Expr, body: Stmt) -> Stmt:
        """The body for the lanes where `cond` holds."""
        saved = (self.mask, self.some_lane_runs, self.memo)
        witness = self._witness(scalar) if self.mask is None else None
        guard: Expr = TRUE
        if witness is not None:
            guard = sym.simplify(witness, self.ctx)
            if self._all_agree(scalar, guard):
                return If(guard, self.stmt(body), None, body.loc)
        self.mask = cond if self.mask is None else sym.And(self.mask, cond)
        self.some_lane_runs = self.some_lane_runs and witness is not None
        self.memo = dict(self.named)
        try:
            done = self.stmt(body)
        finally:
            self.mask, self.some_lane_runs, self.memo = saved
        return done if guard is TRUE else If(guard, done, None, body.loc)

    def _witness(self, cond: Expr) -> Expr | None:
        """A scalar condition that is implied by `cond` in any lane: that of the first or last
        lane."""
        rising = falling = True
        for part in sym.conjuncts(cond):
            if not isinstance(part, (Lt, Le)) or part.a.dtype is not INDEX:
                return None
            found = sym.linear(sym.sub(part.b, part.a), (self.var,))
            slope = None if found is None else found[0].get(self.var, sym.ZERO)
            if slope is None:
                return None
            rising = rising and sym.prove(sym.le(0, slope), self.ctx)
            falling = falling and sym.prove(sym.le(slope, 0), self.ctx)
        # Where the gap grows with the lane, the last lane is active if any is.
        if falling:
            return sym.substitute(cond, {self.var: self.start})
        if rising:
            return sym.substitute(cond, {self.var: sym.add(self.start, self.lanes - 1)})
        return None

    def _of_all_lanes(self, cond: Expr) -> Expr | None:
        """A scalar condition that holds where the condition does, in any lane; None if lanes may
        differ."""
        parts = []
        for part in sym.conjuncts(cond):
            if not self.expr(part).dtype.is_vector:
                parts.append(part)
                continue
            witness = self._witness(part)
            if witness is None or not self._all_agree(part, sym.simplify(witness, self.ctx)):
                return None
            parts.append(sym.simplify(witness, self.ctx))
        return sym.all_of(*parts)

    def _all_agree(self, cond: Expr, guard: Expr) -> bool:
        """Whether a condition that holds for some lane holds for all, as for aligned vectors with
        an aligned bound."""
        ends = (self.start, sym.add(self.start, self.lanes - 1))
        inside = self.ctx.assume(guard)
        return all(sym.prove(sym.substitute(cond, {self.var: end}), inside) for end in ends)

    def _let(self, stmt: Let) -> Stmt:
        value = self.expr(stmt.value)
        if not value.dtype.is_vector:
            return Let(stmt.var, value, self.stmt(stmt.body), stmt.loc)
        name = var(stmt.var.name, value.dtype)
        self.named[stmt.var] = self.memo[stmt.var] = name
        try:
            return Let(name, value, self.stmt(stmt.body), stmt.loc)
        finally:
            del self.named[stmt.var]

    def _repeated(self, stmt: Stmt) -> Stmt:
        used = sym.free_vars(*(x for inner in walk(stmt) for x in inner.exprs()))
        if self.mask is not None or any(name in used for name in self.named):
            raise _NoVectorForm  # repeat the enclosing statement too
        name = var(self.var.name)
        body = fresh_copy(stmt, {self.var: name})
        return replace(self.source, var=name, body=body, kind=UNROLL)

    # ------------------------------------------------------------------ guarded loads

    def _unmasked_loads(self, store: Store) -> list[Load]:
        """Loads in divergent select arms that all lanes may execute without a mask.

        They are executed anyway, as by the condition, or are provably in bounds.
        """
        if store in self.asked:
            return self.asked[store]
        found: dict[str, dict[Load, None]] = {ALWAYS: {}, BY_LANE: {}, BY_BRANCH: {}}
        stack, seen = [(store.value, ALWAYS)], set()
        while stack:
            node, when = stack.pop()
            if (node, when) in seen:
                continue
            seen.add((node, when))
            if isinstance(node, Load):
                found[when][node] = None
            if isinstance(node, (Select, And, Or)):
                test, *arms = node.children()
                stack.append((test, when))
                guard = BY_LANE if self._differs(test) and when != BY_BRANCH else BY_BRANCH
                stack += [(arm, guard) for arm in arms]
            else:
                stack += [(child, when) for child in node.children()]
        always = found[ALWAYS]
        return [load for load in found[BY_LANE] if load in always or self._is_inside(load, store)]

    def _differs(self, test: Expr) -> bool:
        """Whether a condition may diverge between lanes."""
        return any(name is self.var or name in self.named for name in sym.free_vars(test))

    def _is_inside(self, load: Load, store: Store) -> bool:
        """Whether every lane's index is in bounds, whichever arm it selects."""
        (at,) = load.index
        if _loads_any(at) or _divides(at):  # a divisor may be 0 where no lane reads
            return False
        if any(name in self.named for name in sym.free_vars(at)):
            return False
        ctx = self.ctx.bind(self.var, self.start, sym.add(self.start, self.lanes))
        return any(
            sym.prove(sym.le(first, at), ctx) and sym.prove(sym.lt(at, end), ctx)
            for first, end in self._readable(load.buffer, store)
        )

    def _readable(self, buffer: Buffer, store: Store) -> list[Interval]:
        """The initialized elements of a buffer: all, or of a local allocation those certainly
        stored before `store` in every lane."""
        if buffer not in self.allocated:
            size: Expr = ONE
            for extent in buffer.shape:
                size = sym.mul(size, extent)
            return [(sym.ZERO, size)]
        before = StoreFinder(self.lane_ctx, copied(self.stores), store)
        before.loops = (*self.around, self.source)
        before(self.body)
        assert before.is_over
        around = {loop.var for loop in before.loops_at_end} - {self.var}
        return intervals(before.stores[buffer], around, self.lane_ctx)

    # ------------------------------------------------------------------ expressions

    def widened(self, expr: Expr) -> Expr:
        return expr if expr.dtype.is_vector else Broadcast(expr, self.lanes)

    def expr(self, expr: Expr) -> Expr:
        """A scalar if uniform, else a vector."""
        done = self.memo
        stack = [(expr, False)]
        while stack:
            node, ready = stack.pop()
            if node in done:
                continue
            made = self._at_once(node)
            if made is not None:
                done[node] = made
                continue
            children = node.children()
            if not ready:
                stack.append((node, True))
                stack.extend((child, False) for child in children)
                continue
            done[node] = self._node(node, tuple([done[child] for child in children]))
        return done[expr]

    def _at_once(self, node: Expr) -> Expr | None:
        """The vector form of nodes whose operands need not be visited."""
        if isinstance(node, Var):
            return Ramp(self.start, const(1), self.lanes) if node is self.var else node
        if isinstance(node, Const):
            return node
        if isinstance(node, Select):
            return self._select(node)
        if node.dtype is INDEX:
            found = sym.linear(node, (self.var,))
            if found is not None and not any(name in sym.free_vars(node) for name in self.named):
                slopes, _ = found
                slope = slopes.get(self.var)
                if slope is None:
                    return None if isinstance(node, Load) else self._without_lanes(node)
                base = sym.substitute(node, {self.var: self.start})
                if not _loads_any(base, slope):
                    return Ramp(sym.simplify(base, self.ctx), slope, self.lanes)
        return None

    def _without_lanes(self, node: Expr) -> Expr | None:
        return None if _loads_any(node) else node

    def _node(self, node: Expr, children: tuple[Expr, ...]) -> Expr:
        lanes = self.lanes
        if isinstance(node, Load):
            return self._load(node.buffer, children)
        if isinstance(node, (MaskedLoad, Address)):
            raise _NoVectorForm
        if not any(child.dtype.is_vector for child in children):
            same = all(a is b for a, b in zip(node.children(), children, strict=True))
            return node if same else node.with_children(children)
        divides = isinstance(node, (FloorDiv, FloorMod)) and not isinstance(node.b, Const)
        if divides and self.mask is not None:
            raise _NoVectorForm  # an inactive lane might divide by zero
        wide = tuple([self.widened(child) for child in children])
        if isinstance(node, Select) and not children[0].dtype.is_vector:
            return Select(children[0], *wide[1:])  # uniform: only the chosen arm is evaluated
        if isinstance(node, Cast):
            return Cast(wide[0], node.dtype.with_lanes(lanes))
        if isinstance(node, Call):
            return Call(node.op, wide, node.dtype.with_lanes(lanes))
        return node.with_children(wide)

    def _load(self, buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
        (at,) = index
        if self.mask is None:
            return Load(buffer, index)
        if at.dtype.is_vector:
            return MaskedLoad(buffer, index, self.mask)
        if self.some_lane_runs:
            return Load(buffer, index)
        return MaskedLoad(buffer, (self.widened(at),), self.mask)

    def _select(self, node: Select) -> Expr | None:
        cond = self.expr(node.cond)
        if not cond.dtype.is_vector:
            return None
        if not _loads_any(node.a, node.b) and not _divides(node):
            return None
        same = self._of_all_lanes(node.cond)
        if same is not None:
            return Select(same, self.widened(self.expr(node.a)), self.widened(self.expr(node.b)))
        # Both arms are evaluated, so what each loads is masked by its own condition.
        return Select(cond, self._arm(cond, node.a), self._arm(self._negated(node.cond), node.b))

    def _negated(self, cond: Expr) -> Expr:
        return self.widened(self.expr(sym.logical_not(cond)))

    def _arm(self, cond: Expr, value: Expr) -> Expr:
        saved = (self.mask, self.some_lane_runs, self.memo)
        self.mask = cond if self.mask is None else sym.And(self.mask, cond)
        self.some_lane_runs = False
        self.memo = dict(self.named)
        try:
            return self.widened(self.expr(value))
        finally:
            self.mask, self.some_lane_runs, self.memo = saved


def _has_effect(expr: Expr) -> bool:
    return any(isinstance(node, (Call, Address)) for node in sym.walk(expr))


def _loads_any(*exprs: Expr) -> bool:
    return next(loads(*exprs), None) is not None


def _divides(expr: Expr) -> bool:
    return any(
        isinstance(node, (FloorDiv, FloorMod)) and not isinstance(node.b, Const)
        for node in sym.walk(expr)
    )


def _is_injective(index: Expr) -> bool:
    """Whether no two lanes address the same element."""
    if not isinstance(index, Ramp):
        return False
    stride = index.stride
    if isinstance(stride, Const):
        return stride.value != 0
    # A product of sizes is zero only if there are no elements.
    factors = [node for node in sym.walk(stride) if not isinstance(node, sym.Mul)]
    return all(isinstance(f, Size) or (isinstance(f, Const) and f.value != 0) for f in factors)


def _private_buffers(loop: For, lanes: int) -> Stmt:
    """The body, with an element per lane in the buffers allocated there."""
    bigger: dict[Buffer, Buffer] = {}
    for stmt in walk(loop.body):
        if isinstance(stmt, Alloc):
            (size,) = stmt.buffer.shape
            bigger[stmt.buffer] = replace(stmt.buffer, shape=(sym.mul(size, lanes),))
    if not bigger:
        return loop.body
    lane = sym.sub(loop.var, loop.start)

    def own(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (sym.add(sym.mul(index[0], lanes), lane),)

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, (Load, Address)) and expr.buffer in bigger:
            return type(expr)(bigger[expr.buffer], own(expr.index))
        return expr

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer in bigger:
            return replace(stmt, buffer=bigger[stmt.buffer], index=own(stmt.index))
        if isinstance(stmt, Alloc):
            return replace(stmt, buffer=bigger[stmt.buffer])
        return stmt

    return rewrite(loop.body, rule, expr_rule)
