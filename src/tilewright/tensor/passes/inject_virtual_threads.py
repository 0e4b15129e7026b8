"""Interleave virtual threads statement by statement, to hide the latency of one behind another.

    for v in vthread 0..2 { S(v); for k { T(v, k) } }
    S(0); S(1); for k { T(0, k); T(1, k) }

Statements that depend on the virtual thread are replicated; others run once. A buffer allocated
inside whose contents depend on it gets a leading dimension over virtual threads. With the option
`nests`, loops around a single statement are replicated as a whole, for units that take a nest as
one instruction.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.base.passes import PassContext
from tilewright.sym import Const, Expr, Var, const
from tilewright.tensor.ir import (
    SERIAL,
    UNROLL,
    VTHREAD,
    Address,
    Alloc,
    Buffer,
    ExternCall,
    For,
    Function,
    If,
    Let,
    Load,
    MaskedLoad,
    Range,
    Region,
    Seq,
    Stmt,
    Store,
    TensorCall,
    seq,
)
from tilewright.tensor.regions import called_regions
from tilewright.tensor.visit import fresh_copy, rewrite, walk


def inject_virtual_threads(fn: Function, ctx: PassContext) -> Function:
    nests = ctx.option("inject_virtual_threads.nests", False)

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.kind != VTHREAD:
            return stmt
        extent = sym.simplify(stmt.extent)
        if not isinstance(extent, Const):
            raise Unsupported(
                "TW2203",
                f"virtual thread %{stmt.var.name} has extent {extent}, which is not a constant",
                stmt.loc,
                help="split the loop by a constant and bind the constant part",
            )
        return _Interleave(stmt, int(extent.value), nests).loop() if extent.value else None

    body = rewrite(fn.body, rule)
    return fn if body is fn.body else replace(fn, body=body)


class _Interleave:
    def __init__(self, loop: For, count: int, nests: bool) -> None:
        self.source = loop
        self.nests = nests
        self.var = loop.var
        self.count = count
        self.touched = _touched(loop)

    def loop(self) -> Stmt:
        private = {
            stmt.buffer: replace(
                stmt.buffer,
                shape=(const(self.count), *stmt.buffer.shape),
                align=tuple([(a if a < 0 else a + 1, f, o) for a, f, o in stmt.buffer.align]),
            )
            for stmt in walk(self.source.body)
            if isinstance(stmt, Alloc) and stmt.buffer in self.touched
        }
        slot = sym.sub(self.var, self.source.start)
        return self.stmt(add_leading_index(self.source.body, private, slot))

    def depends(self, *exprs: Expr) -> bool:
        return any(sym.uses_var(expr, {self.var}) for expr in exprs)

    def stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Seq):
            return seq(*[self.stmt(child) for child in stmt.stmts])
        if isinstance(stmt, Alloc):
            return Alloc(stmt.buffer, self.stmt(stmt.body), stmt.loc)
        if not _uses(stmt, self.var):
            return stmt
        if isinstance(stmt, For) and stmt.kind in (SERIAL, UNROLL):
            whole = self.nests and _is_nest(stmt)
            if not whole and not self.depends(stmt.start, stmt.stop):
                return replace(stmt, body=self.stmt(stmt.body))
        elif isinstance(stmt, If) and not self.depends(stmt.cond):
            otherwise = None if stmt.otherwise is None else self.stmt(stmt.otherwise)
            return replace(stmt, then=self.stmt(stmt.then), otherwise=otherwise)
        elif isinstance(stmt, Let) and not self.depends(stmt.value):
            return replace(stmt, body=self.stmt(stmt.body))
        steps = [sym.add(self.source.start, const(k)) for k in range(self.count)]
        return seq(*[fresh_copy(stmt, {self.var: at}) for at in steps])


def _is_nest(stmt: Stmt) -> bool:
    """Whether loops and conditions enclose one statement, or one and its alternative."""
    while isinstance(stmt, (For, If)):
        if isinstance(stmt, If) and stmt.otherwise is not None:
            return not isinstance(stmt.then, (Seq, Alloc, For))
        stmt = stmt.body if isinstance(stmt, For) else stmt.then
    return not isinstance(stmt, (Seq, Alloc, Let))


def _touched(loop: For) -> set[Buffer]:
    """The buffers allocated inside whose contents depend on the virtual thread."""
    private = {stmt.buffer for stmt in walk(loop.body) if isinstance(stmt, Alloc)}
    touched: set[Buffer] = set()
    variables: set[Var] = {loop.var}

    def depends(*exprs: Expr) -> bool:
        return any(
            (isinstance(node, Var) and node in variables)
            or (isinstance(node, (Load, MaskedLoad, Address)) and node.buffer in touched)
            for node in sym.walk(*exprs)
        )

    changed = True
    while changed:
        changed = False
        stack: list[tuple[Stmt, bool]] = [(loop.body, False)]
        while stack:
            stmt, inherited = stack.pop()
            here = inherited or depends(*stmt.exprs())
            written: list[Buffer] = []
            if isinstance(stmt, Store):
                written = [stmt.buffer]
            elif isinstance(stmt, (TensorCall, ExternCall)):
                written = [region.buffer for region in called_regions(stmt)[1]]
                here = here or any(region.buffer in touched for region in stmt.regions)
            if here:
                new = [b for b in written if b in private and b not in touched]
                if isinstance(stmt, (For, Let)) and stmt.var not in variables:
                    variables.add(stmt.var)
                    changed = True
                touched.update(new)
                changed = changed or bool(new)
            inside = here and isinstance(stmt, (For, If))
            stack.extend((child, inherited or inside) for child in stmt.children())
    return touched


def _uses(root: Stmt, variable: Var) -> bool:
    """Whether anything depends on the virtual thread, private buffers aside."""
    return any(sym.uses_var(expr, {variable}) for stmt in walk(root) for expr in stmt.exprs())


def add_leading_index(root: Stmt, buffers: dict[Buffer, Buffer], at: Expr) -> Stmt:
    """Redirects accesses to buffers with one more dimension in front, indexed by `at`."""
    if not buffers:
        return root

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, (Load, Address)) and expr.buffer in buffers:
            return type(expr)(buffers[expr.buffer], (at, *expr.index))
        if isinstance(expr, MaskedLoad) and expr.buffer in buffers:
            return MaskedLoad(buffers[expr.buffer], (at, *expr.index), expr.mask)
        return expr

    def region_rule(region: Region) -> Region:
        made = buffers.get(region.buffer)
        if made is None:
            return region
        return Region(made, (Range(at, sym.ONE), *region.ranges))

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer in buffers:
            return replace(stmt, buffer=buffers[stmt.buffer], index=(at, *stmt.index))
        if isinstance(stmt, (TensorCall, ExternCall)):
            return replace(stmt, regions=tuple([region_rule(r) for r in stmt.regions]))
        if isinstance(stmt, Alloc) and stmt.buffer in buffers:
            return replace(stmt, buffer=buffers[stmt.buffer])
        return stmt

    return rewrite(root, rule, expr_rule)
