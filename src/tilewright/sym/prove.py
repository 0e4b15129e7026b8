"""`prove` and `equal`: sound but incomplete."""

from __future__ import annotations

from tilewright.base.dtype import INDEX
from tilewright.sym.context import EMPTY, Context
from tilewright.sym.deduce import THOROUGH, nonnegative
from tilewright.sym.expr import TRUE, Add, And, Eq, Expr, Le, Lt, Max, Min, Or, Sub, Var
from tilewright.sym.ops import ExprLike, as_expr, logical_not, sub
from tilewright.sym.poly import Poly, factors, poly_of, rank
from tilewright.sym.simplify import simplify
from tilewright.sym.visit import rewrite


def prove(cond: Expr, ctx: Context = EMPTY) -> bool:
    """Whether `cond` provably holds for every assignment that satisfies `ctx`; False if unknown."""
    goal = simplify(cond, ctx)
    if goal is TRUE:
        return True
    if isinstance(goal, And):
        return prove(goal.a, ctx) and prove(goal.b, ctx)
    if isinstance(goal, Or):
        return prove(goal.b, ctx.assume(logical_not(goal.a)))
    if isinstance(goal, Eq) and goal.a.dtype is INDEX:
        return equal(goal.a, goal.b, ctx)
    if isinstance(goal, (Lt, Le)):
        return _prove_apart(goal, ctx)
    return False


def _prove_apart(goal: Lt | Le, ctx: Context) -> bool:
    """Split max and min: max(x, y) < z if x < z and y < z; min(x, y) < z if x < z or y < z;
    likewise on the right."""
    test, a, b = type(goal), goal.a, goal.b
    if isinstance(a, Max):
        return prove(test(a.a, b), ctx) and prove(test(a.b, b), ctx)
    if isinstance(b, Min):
        return prove(test(a, b.a), ctx) and prove(test(a, b.b), ctx)
    if isinstance(a, Min):
        return prove(test(a.a, b), ctx) or prove(test(a.b, b), ctx)
    if isinstance(b, Max):
        return prove(test(a, b.a), ctx) or prove(test(a, b.b), ctx)
    return False


def equal(a: ExprLike, b: ExprLike, ctx: Context = EMPTY) -> bool:
    """Whether `a` and `b` provably have the same value wherever `ctx` holds; False if unknown."""
    x, y = as_expr(a), as_expr(b)
    if x is y:
        return True
    if x.dtype is not INDEX or y.dtype is not INDEX:
        return simplify(x, ctx) is simplify(y, ctx)
    gap = poly_of(simplify(sub(x, y), ctx)).expanded()
    if not all(isinstance(atom, Var) for monomial in gap.terms for atom in factors(monomial)):
        # Atoms may differ only in the order of their terms.
        gap = poly_of(rewrite(gap.expr(), _sorted)).expanded()
    if gap.is_const:
        return gap.const == 0
    return nonnegative(gap, ctx, THOROUGH) and nonnegative(gap.scaled(-1), ctx, THOROUGH)


def _sorted(node: Expr) -> Expr:
    """Sort the terms of a sum and the operands of min and max."""
    if node.dtype is INDEX:
        if isinstance(node, (Add, Sub)):
            poly = poly_of(node).expanded()
            terms = sorted(poly.terms.items(), key=lambda item: [rank(f) for f in factors(item[0])])
            return Poly(dict(terms), poly.const).expr()
        if isinstance(node, (Min, Max)) and rank(node.b) < rank(node.a):
            return type(node)(node.b, node.a)
    return node
