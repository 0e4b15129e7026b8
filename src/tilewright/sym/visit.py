"""Traversal of expressions: `walk`, `rewrite`, `fold`, without recursion.

All use a stack and visit each distinct node once; `rewrite` returns the same object if nothing
changed, so callers can test `new is old`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from tilewright.sym.expr import TRUE, And, Expr, Var
from tilewright.sym.ops import rebuilt

R = TypeVar("R")


def walk(*roots: Expr) -> Iterator[Expr]:
    """Iterate over the distinct nodes below and including the roots, parents first."""
    seen: set[Expr] = set()
    stack = [*roots[::-1]]
    while stack:
        expr = stack.pop()
        if expr not in seen:
            seen.add(expr)
            yield expr
            children = expr.children()
            if children:
                stack += children[::-1]


def rewrite(root: Expr, rule: Callable[[Expr], Expr], done: dict[Expr, Expr] | None = None) -> Expr:
    """Apply `rule` once to every distinct node, children first. `done` may be kept as a memo."""
    if done is None:
        done = {}
    stack = [root]
    while stack:
        expr = stack[-1]
        if expr in done:
            stack.pop()
            continue
        old = expr.children()
        if old:
            missing = [child for child in old if child not in done]
            if missing:
                stack += missing
                continue
            new = tuple([done[child] for child in old])
            done[expr] = rule(expr if new == old else expr.with_children(new))
        else:
            done[expr] = rule(expr)
        stack.pop()
    return done[root]


def fold(
    root: Expr, fn: Callable[[Expr, tuple[R, ...]], R], done: dict[Expr, R] | None = None
) -> R:
    """Compute a value bottom up: `fn(node, values of its children)`, once per distinct node.
    `done` may be kept as a memo."""
    if done is None:
        done = {}
    stack = [root]
    while stack:
        expr = stack[-1]
        if expr in done:
            stack.pop()
            continue
        children = expr.children()
        missing = [child for child in children if child not in done]
        if missing:
            stack += missing
            continue
        stack.pop()
        done[expr] = fn(expr, tuple([done[child] for child in children]))
    return done[root]


def folded(fn: Callable[[Expr, tuple[R, ...]], R]) -> Callable[[Expr], R]:
    """A fold that keeps the value of every node below the expressions it was called with.

    depth = folded(lambda node, below: 1 + max(below, default=0))
    """
    known: dict[Expr, R] = {}

    def value(root: Expr) -> R:
        nonlocal known
        found = known.get(root)
        if found is None:
            if len(known) > _KEEP:
                known = {}  # another thread may still use the other one
            found = fold(root, fn, known)
        return found

    return value


def holds(test: Callable[[Expr], bool]) -> Callable[[Expr], bool]:
    """Whether an expression contains a node that a test is true of.

    has_division = holds(lambda node: isinstance(node, FloorDiv))
    """
    return folded(lambda node, below: True in below or test(node))


def substitute(root: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    """Substitute variables, folding constants."""
    if not mapping:
        return root
    return replaced(root, dict(mapping.items()))


def replaced(root: Expr, done: dict[Expr, Expr]) -> Expr:
    """Substitute nodes by the mapping `done`, folding constants; `done` is also the memo.

    Subexpressions without substitutions are returned unchanged.
    """
    stack = [root]
    while stack:
        expr = stack[-1]
        if expr in done:
            stack.pop()
            continue
        old = expr.children()
        if not old:
            done[stack.pop()] = expr
            continue
        missing = [child for child in old if child not in done]
        if missing:
            stack += missing
            continue
        stack.pop()
        new = tuple([done[child] for child in old])
        done[expr] = expr if new == old else rebuilt(expr, new)
    return done[root]


def above(leaf: Expr, roots: Iterable[Expr]) -> list[Expr]:
    """The distinct nodes that contain a leaf, children first."""
    found: dict[Expr, bool] = {leaf: True}
    order: list[Expr] = []
    stack = list(roots)
    while stack:
        expr = stack[-1]
        if expr in found:
            stack.pop()
            continue
        children = expr.children()
        missing = [child for child in children if child not in found]
        if missing:
            stack += missing
            continue
        found[stack.pop()] = is_above = any(found[child] for child in children)
        if is_above:
            order.append(expr)
    return order


_KEEP = 1 << 16
_free: dict[Expr, tuple[Var, ...]] = {}


def _free_vars(root: Expr) -> tuple[Var, ...]:
    """The variables of one expression, in order of first appearance; cached."""
    found = _free.get(root)
    if found is None:
        if len(_free) > _KEEP:
            _free.clear()
        found = tuple([node for node in walk(root) if isinstance(node, Var)])
        _free[root] = found
    return found


def free_vars(*roots: Expr) -> dict[Var, None]:
    """The variables of expressions, in order of first appearance."""
    if len(roots) == 1:
        return dict.fromkeys(_free_vars(roots[0]))
    return {var: None for root in roots for var in _free_vars(root)}


def uses_var(root: Expr, variables: Mapping[Var, object] | set[Var]) -> bool:
    """Whether any of the variables occurs."""
    for var in _free_vars(root):  # noqa: SIM110  a generator would cost more than the search
        if var in variables:
            return True
    return False


def conjuncts(cond: Expr) -> list[Expr]:
    """The conjuncts of a condition, in order; none for `true`."""
    found: list[Expr] = []
    stack = [cond]
    while stack:
        one = stack.pop()
        if isinstance(one, And):
            stack += [one.b, one.a]
        elif one is not TRUE:
            found.append(one)
    return found
