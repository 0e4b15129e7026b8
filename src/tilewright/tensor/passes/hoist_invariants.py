"""Hoist loop-invariant index arithmetic into lets, with common subexpressions shared.

    for i { for k { C[i] = C[i] + A[i * n + k] } }
    for i { let t = i * n; for k { C[i] = C[i] + A[t + k] } }

Only arithmetic worth a name is hoisted: products of variables, divisions, remainders. Loads are
left to LLVM, which knows that buffers do not alias.

No division by zero is introduced. A divisor is known to be nonzero by its lower bound, and inside
of a loop whose extent is a multiple of it, or a number of chunks of such a multiple: for p in 0..n
* m runs only if neither n nor m is zero, so its body may compute p // m.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.base.passes import PassContext
from tilewright.sym import Add, Const, Expr, FloorDiv, FloorMod, Mul, Size, Var, bounds, var
from tilewright.tensor.ir import THREAD, Alloc, Call, For, Function, Let, Load, MaskedLoad, Stmt
from tilewright.tensor.passes.fold_windows import WINDOW
from tilewright.tensor.passes.rewriter import Rewriter
from tilewright.tensor.roles import COPY, MULTICAST, PREFETCH
from tilewright.tensor.visit import walk

_EVERYWHERE, _NOWHERE = 0, 1 << 30
_MAPPED = (COPY, MULTICAST, PREFETCH, WINDOW)


def hoist_invariants(fn: Function, ctx: PassContext) -> Function:
    hoist = _Hoist(fn)
    body = hoist(fn.body)
    assert body is not None
    body = hoist.with_names(0, body)
    return fn if body is fn.body else replace(fn, body=body)


class _Hoist(Rewriter):
    """Depth 0 is the function, depth d the body of the d-th loop around."""

    tracks = False

    def __init__(self, fn: Function) -> None:
        super().__init__()
        self.depth = 0
        self.least = 0  # the outermost depth to hoist to: kernels share no lets
        self.depth_of: dict[Expr, int] = {
            param: _EVERYWHERE for param in fn.params if isinstance(param, Var)
        }
        self.names: list[dict[Expr, Var]] = [{}]
        self.quotients: list[dict[Expr, int]] = [{}]  # per depth: quotient -> depth of its value
        self.nonzero: dict[Expr, int] = {}  # nonzero divisors -> from which depth on
        self.stop: Expr = sym.ZERO  # of the loop being entered
        self.has_candidate = sym.holds(_is_worth_a_name)
        # GPU threads have no registers to spare for quotients by dynamic sizes.
        self.is_for_threads = any(
            isinstance(stmt, For) and stmt.kind == THREAD for stmt in walk(fn.body)
        )

    def __call__(self, stmt: Stmt) -> Stmt | None:
        old = stmt.exprs()
        if isinstance(stmt, For):
            self.stop = stmt.stop
        if old and self.depth > self.least:
            new = tuple([self.expr(expr, self.depth) for expr in old])
            if any(a is not b for a, b in zip(old, new, strict=True)):
                stmt = stmt.with_exprs(new)
        return super().__call__(stmt)

    def visit_for(self, loop: For) -> Stmt | None:
        is_outer_thread = loop.kind == THREAD and _holds_threads(loop.body)
        self.depth_of[loop.var] = self.depth + 1
        outer_nonzero = self.nonzero
        if _is_at_least(loop.start, 0):
            here = dict.fromkeys(_nonzero_factors(self.stop), self.depth + 1)
            self.nonzero = {**here, **outer_nonzero}
        if is_outer_thread:
            body = self(loop.body)
            self.nonzero = outer_nonzero
            return loop if body is loop.body or body is None else replace(loop, body=body)
        outer_least = self.least
        self.depth += 1
        self.names.append({})
        self.quotients.append({})
        if loop.kind == THREAD:
            self.least = self.depth
        body = self(loop.body)
        assert body is not None
        body = self.with_names(self.depth, body)
        self.least, self.nonzero = outer_least, outer_nonzero
        self.names.pop()
        self.quotients.pop()
        self.depth -= 1
        return loop if body is loop.body else replace(loop, body=body)

    def visit_let(self, stmt: Let) -> Stmt | None:
        self.depth_of[stmt.var] = _NOWHERE
        return super().visit_let(stmt)

    def with_names(self, depth: int, body: Stmt) -> Stmt:
        for expr, name in reversed(self.names[depth].items()):
            body = Let(name, self.expr(expr, depth), body)
        return body

    def expr(self, expr: Expr, here: int) -> Expr:
        """The expression with names in place of what is invariant below depth `here`."""
        if not self.has_candidate(expr):
            return expr
        found: dict[Expr, Expr] = {}
        # Tensor maps are built by the host, which knows sizes but no lets.
        least = _EVERYWHERE + 1 if isinstance(expr, Call) and expr.op in _MAPPED else _EVERYWHERE
        seen: set[Expr] = set()  # visit shared subexpressions once
        stack = [expr]
        while stack:
            node = stack.pop()
            if node in seen or not self.has_candidate(node):
                continue
            seen.add(node)
            if _is_worth_a_name(node):
                known = self._known_at(node)
                depth = max(known, self.least)
                if least <= known and depth < here:
                    names = self.names[depth]
                    if node not in names:
                        names[node] = var("t")
                    found[node] = names[node]
                    continue
            stack += node.children()
        if not found:
            return expr
        return sym.rewrite(expr, lambda node: node, found)

    def _known_at(self, expr: Expr) -> int:
        """The depth at which all variables of an expression are defined."""
        depth = self.depth_of.get(expr)
        if depth is None:
            depth = self.quotients[-1].get(expr)
        if depth is None:
            depth, divides = _EVERYWHERE, False
            for node in sym.walk(expr):
                if isinstance(node, (Load, MaskedLoad)):
                    depth = _NOWHERE
                elif isinstance(node, (FloorDiv, FloorMod)) and not isinstance(node.b, Const):
                    depth, divides = max(depth, self._nonzero_at(node.b)), True
                elif isinstance(node, Var) and not isinstance(node, Size):
                    depth = max(depth, self.depth_of.get(node, _NOWHERE))
            (self.quotients[-1] if divides else self.depth_of)[expr] = depth
        return depth

    def _nonzero_at(self, divisor: Expr) -> int:
        """The depth from which on a divisor is known to be nonzero."""
        if self.is_for_threads:
            return _NOWHERE
        if _is_at_least(divisor, 1):
            return _EVERYWHERE
        if any(isinstance(node, Const) and node.value == 0 for node in sym.walk(divisor)):
            return _NOWHERE
        depths = (self.nonzero.get(factor, _NOWHERE) for factor in _factors(divisor))
        return max(depths, default=_NOWHERE)


def _factors(product: Expr) -> list[Expr]:
    """The non-constant factors of a product."""
    found, stack = [], [product]
    while stack:
        node = stack.pop()
        if isinstance(node, Mul):
            stack += (node.a, node.b)
        elif not isinstance(node, Const):
            found.append(node)
    return found


def _nonzero_factors(product: Expr) -> list[Expr]:
    """Expressions that are nonzero if a product is: its factors, and those whose chunks it
    counts."""
    found = _factors(product)
    for factor in found:  # grows while iterating
        match factor:
            case FloorDiv(Add(whole, Const() as more), Const() as chunk):
                if 0 <= more.value < chunk.value:  # zero elements have zero chunks
                    found += _factors(whole)
    return found


def _is_at_least(expr: Expr, number: int) -> bool:
    if isinstance(expr, Const):
        return bool(expr.value >= number)
    low = bounds(expr).lower
    return low is not None and low >= number


def _holds_threads(body: Stmt) -> bool:
    while isinstance(body, Alloc):
        body = body.body
    return isinstance(body, For) and body.kind == THREAD


def _is_worth_a_name(node: Expr) -> bool:
    if not isinstance(node, (FloorDiv, FloorMod, Mul)) or node.dtype is not INDEX:
        return False
    return not isinstance(node, Mul) or not (isinstance(node.a, Const) or isinstance(node.b, Const))
