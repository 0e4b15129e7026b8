"""Loop nests around one call in numeric form, from which tasks are folded.

A nest is analysed once: ranges of loops, conditions and addresses are linear in its loops, with a
remainder that depends on outer loops. `at(env)` gives the numbers for one iteration of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright import sym
from tilewright.sym import Expr, Var
from tilewright.tensor.ir import For, If, Stmt, Store, TensorCall

Env = Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class Linear:
    """sum(slopes * loops) + remainder"""

    slopes: tuple[int, ...]
    rest: Expr
    outside: tuple[Var, ...]  # the variables of the remainder
    run: Callable[..., int]  # computes the remainder from their values

    def at(self, env: Env) -> int:
        return self.run(*[env[variable] for variable in self.outside])


@dataclass(frozen=True, slots=True)
class Box:
    """First and last + 1 of every loop."""

    ranges: tuple[tuple[int, int], ...]
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class Nest:
    loops: tuple[For, ...]
    ranges: tuple[tuple[Linear, Linear], ...] | None  # None: one depends on another loop
    limits: tuple[Linear, ...]  # >= 0 where the call executes
    call: TensorCall
    inside: tuple[Linear, ...]  # >= 0 where a transfer reads memory instead of padding
    value: int | None  # the padding value

    def box(self, env: Env) -> Box | None:
        """The box in which the call executes; None if that is no box."""
        if self.ranges is None:
            return None
        whole = [(low.at(env), high.at(env)) for low, high in self.ranges]
        return narrowed(Box(tuple(whole)), self.limits, env)


def narrowed(box: Box, limits: tuple[Linear, ...], env: Env) -> Box | None:
    """The part of a box in which conditions hold; None if that is no box, or not recognized."""
    made = list(box.ranges)
    for limit in limits:
        rest = limit.at(env)
        used = [at for at, slope in enumerate(limit.slopes) if slope]
        if not used:
            if rest < 0:
                return Box(box.ranges, is_empty=True)
            continue
        least = rest + sum(
            slope * (low if slope > 0 else high - 1)
            for slope, (low, high) in zip(limit.slopes, box.ranges, strict=True)
        )
        if least >= 0:
            continue
        if len(used) > 1:
            return None
        (at,) = used
        slope, (low, high) = limit.slopes[at], made[at]
        if slope > 0:
            made[at] = (min(high, max(low, -(rest // slope))), high)
        else:
            made[at] = (low, max(low, min(high, rest // -slope + 1)))
    return Box(tuple(made), any(low >= high for low, high in made))


def nest_of(stmt: Stmt) -> Nest | None:
    """Analyse a statement as a nest; None if it is something else."""
    loops: list[For] = []
    conditions: list[Expr] = []
    while True:
        if isinstance(stmt, For):
            loops.append(stmt)
            stmt = stmt.body
        elif isinstance(stmt, If) and stmt.otherwise is None:
            conditions += sym.conjuncts(stmt.cond)
            stmt = stmt.then
        else:
            break
    inside: list[Expr] = []
    value: int | None = None
    if isinstance(stmt, If) and isinstance(stmt.then, TensorCall):
        inside = list(sym.conjuncts(stmt.cond))
        value = filled(stmt.otherwise)
        stmt = stmt.then
        if value is None:
            return None
    if not isinstance(stmt, TensorCall):
        return None
    variables = tuple([loop.var for loop in loops])
    limits = _limits(conditions, variables)
    reads = _limits(inside, variables)
    if limits is None or reads is None:
        return None
    return Nest(tuple(loops), _ranges(loops), limits, stmt, reads, value)


def _ranges(loops: list[For]) -> tuple[tuple[Linear, Linear], ...] | None:
    """First and last + 1 of loops, in terms of the outer loops."""
    own = {loop.var for loop in loops}
    ends = [end for loop in loops for end in (loop.start, loop.stop)]
    forms = [None if sym.uses_var(end, own) else linear(end, ()) for end in ends]
    found = [form for form in forms if form is not None]
    whole = len(found) == len(ends)
    return tuple(zip(found[::2], found[1::2], strict=True)) if whole else None


def filled(stmt: Stmt | None) -> int | None:
    """The constant that an entry is set to."""
    while isinstance(stmt, For):
        stmt = stmt.body
    if isinstance(stmt, Store) and isinstance(stmt.value, sym.Const):
        return int(stmt.value.value)
    return None


def _limits(conditions: list[Expr], variables: tuple[Var, ...]) -> tuple[Linear, ...] | None:
    """Conditions as linear forms that are >= 0; None if one is not linear."""
    found: list[Linear] = []
    for condition in conditions:
        if condition is sym.TRUE:
            continue
        if isinstance(condition, sym.Lt):
            forms = [condition.b - condition.a - 1]
        elif isinstance(condition, sym.Le):
            forms = [condition.b - condition.a]
        elif isinstance(condition, sym.Eq):
            forms = [condition.b - condition.a, condition.a - condition.b]
        else:
            return None
        for form in forms:
            made = linear(form, variables)
            if made is None:
                return None
            found.append(made)
    return tuple(found)


def linear(expr: Expr, variables: tuple[Var, ...]) -> Linear | None:
    """An expression with constant slopes; None if it is not linear."""
    parts = sym.linear(sym.simplify(expr), variables)
    if parts is None or not all(isinstance(slope, sym.Const) for slope in parts[0].values()):
        return None
    slopes = [parts[0].get(variable, sym.ZERO) for variable in variables]
    rest = parts[1]
    outside = tuple(sym.free_vars(rest))
    numbers = tuple([int(s.value) for s in slopes if isinstance(s, sym.Const)])
    return Linear(numbers, rest, outside, compiled(rest, outside))


_SIGNS: dict[type[Expr], str] = {
    sym.Add: "+", sym.Sub: "-", sym.Mul: "*", sym.FloorDiv: "//", sym.FloorMod: "%"
}  # fmt: skip


def compiled(expr: Expr, variables: tuple[Var, ...]) -> Callable[..., int]:
    """Compile an expression to a function, since it is evaluated for every task."""
    names = {variable: f"v{at}" for at, variable in enumerate(variables)}

    def text(node: Expr) -> str:
        if isinstance(node, sym.Const):
            return f"({int(node.value)})"
        if isinstance(node, Var):
            return names[node]
        if type(node) in _SIGNS:
            a, b = node.children()
            return f"({text(a)} {_SIGNS[type(node)]} {text(b)})"
        if isinstance(node, (sym.Min, sym.Max)):
            name = "min" if isinstance(node, sym.Min) else "max"
            return f"{name}({', '.join(text(child) for child in node.children())})"
        raise KeyError

    try:
        source = f"lambda {', '.join(names.values())}: {text(expr)}"
    except KeyError:
        return lambda *values: int(sym.evaluate(expr, dict(zip(variables, values, strict=True))))
    made: Callable[..., int] = eval(source, {"min": min, "max": max})
    return made
