"""The rewrite rules of `simplify`, as data.

A rule rewrites `lhs` to `rhs` where `when` can be proved. Variables named c, c1, ... match
constants only; p, q, r are conditions; all others match any integer. One property test checks
every rule in the table: the two sides agree wherever `when` holds.

Sums are matched as polynomials: `x * d + y` splits a sum into the part divisible by `d` and the
rest, in any order. A divisor on the left is not 0, since the left side has a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.base.dtype import BOOL
from tilewright.sym import expr as e
from tilewright.sym.expr import FALSE, TRUE, Expr, Var, const, var
from tilewright.sym.ops import (
    all_of,
    eq,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    ne,
    select,
)
from tilewright.sym.visit import free_vars


@dataclass(frozen=True, eq=False)
class Rule:
    """Rewrite `lhs` to `rhs` where `when` holds."""

    name: str
    lhs: Expr
    rhs: Expr
    when: Expr = TRUE
    variables: tuple[Var, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "variables", tuple(free_vars(self.lhs)))
        assert set(free_vars(self.rhs, self.when)) <= set(self.variables), self.name


x, y, z, d, k = (var(name) for name in "xyzdk")
c = var("c")
p, q, r = (var(name, BOOL) for name in "pqr")
ZERO, MINUS_ONE = const(0), const(-1)


def _within(value: Expr, stop: Expr) -> Expr:
    return logical_and(value >= ZERO, value < stop)


FLOORDIV = (
    Rule("div_by_negative", x // c, (-x) // (-c), c < 0),
    Rule("div_of_multiple_plus_rest", (x * d + y) // d, x + y // d, ne(d, 0)),
    Rule("div_below_divisor", x // d, ZERO, _within(x, d)),
    Rule("div_just_below_zero", x // d, MINUS_ONE, logical_and(x < 0, -d <= x)),
    Rule(
        "div_of_scaled_plus_small",
        (x * d + y) // (k * d),
        x // k,
        logical_and(k > 0, _within(y, d)),
    ),
    Rule("div_of_div", (x // d) // k, x // (d * k), logical_and(ne(d, 0), k > 0)),
    Rule(
        "div_of_div_plus_constant",
        (x // d + c) // k,
        (x + d * c) // (d * k),
        logical_and(ne(d, 0), k > 0),
    ),
    Rule("div_of_max_with_constant", maximum(x, c) // k, maximum(x // k, c // k), k > 0),
    Rule(
        "div_of_mod",
        (x % (k * d)) // d,
        (x // d) % k,
        logical_and(d > 0, k > 0),
    ),
)

FLOORMOD = (
    Rule("mod_by_negative", x % c, -((-x) % (-c)), c < 0),
    Rule("mod_of_multiple_plus_rest", (x * d + y) % d, y % d, ne(d, 0)),
    Rule("mod_below_divisor", x % d, x, _within(x, d)),
    Rule("mod_just_below_zero", x % d, x + d, logical_and(x < 0, -d <= x)),
    Rule(
        "mod_of_mod",
        ((x % d) * z + y) % k,
        (x * z + y) % k,
        all_of(ne(d, 0), ne(k, 0), eq((d * z) % k, 0)),
    ),
    Rule(
        "mod_of_scaled_plus_small",
        (x * d + y) % (k * d),
        (x % k) * d + y,
        logical_and(k > 0, _within(y, d)),
    ),
)

ADD = (
    Rule("join_div_and_mod", (x % d) * z + (x // d) * (d * z) + y, x * z + y, ne(d, 0)),
    Rule(
        "undo_exact_div",
        (x // d) * (d * z) + y,
        x * z + y,
        logical_and(ne(d, 0), eq(x % d, 0)),
    ),
    Rule("rest_of_div", (x // d) * (d * z) + x * (-z) + y, (x % d) * (-z) + y, ne(d, 0)),
)

MIN = (
    Rule("min_of_ordered", minimum(x, y), x, x <= y),
    Rule("min_of_min_with_same", minimum(minimum(x, y), x), minimum(x, y)),
    Rule("min_of_max_with_same", minimum(maximum(x, y), x), x),
    Rule("min_of_min_ordered", minimum(minimum(x, y), z), minimum(x, z), z <= y),
    Rule("min_of_min_already", minimum(minimum(x, y), z), minimum(x, y), y <= z),
    Rule("min_of_max_ordered", minimum(maximum(x, y), z), z, z <= y),
)

MAX = (
    Rule("max_of_ordered", maximum(x, y), x, y <= x),
    Rule("max_of_max_with_same", maximum(maximum(x, y), x), maximum(x, y)),
    Rule("max_of_min_with_same", maximum(minimum(x, y), x), x),
    Rule("max_of_max_ordered", maximum(maximum(x, y), z), maximum(x, z), y <= z),
    Rule("max_of_max_already", maximum(maximum(x, y), z), maximum(x, y), z <= y),
    Rule("max_of_min_ordered", maximum(minimum(x, y), z), z, y <= z),
)

NOT = (
    Rule("not_less", logical_not(x < y), y <= x),
    Rule("not_less_or_equal", logical_not(x <= y), y < x),
    Rule("not_equal", logical_not(eq(x, y)), ne(x, y)),
    Rule("not_unequal", logical_not(ne(x, y)), eq(x, y)),
)

AND = (
    Rule("and_of_opposites", e.And(logical_not(p), p), FALSE),
    Rule("and_of_and_with_same", e.And(logical_and(p, q), p), logical_and(p, q)),
    Rule("and_of_or_with_same", e.And(logical_or(p, q), p), p),
)

OR = (
    Rule("or_of_opposites", e.Or(logical_not(p), p), TRUE),
    Rule("or_of_or_with_same", e.Or(logical_or(p, q), p), logical_or(p, q)),
    Rule("or_of_and_with_same", e.Or(logical_and(p, q), p), p),
)

SELECT = (
    Rule("select_of_not", select(logical_not(p), x, y), select(p, y, x)),
    Rule("select_in_first_arm", select(p, select(p, x, y), z), select(p, x, z)),
    Rule("select_in_second_arm", select(p, x, select(p, y, z)), select(p, x, z)),
)

TABLE: dict[type[Expr], tuple[Rule, ...]] = {
    e.FloorDiv: FLOORDIV,
    e.FloorMod: FLOORMOD,
    e.Add: ADD,
    e.Min: MIN,
    e.Max: MAX,
    e.Not: NOT,
    e.And: AND,
    e.Or: OR,
    e.Select: SELECT,
}
RULES: tuple[Rule, ...] = tuple(rule for rules in TABLE.values() for rule in rules)
