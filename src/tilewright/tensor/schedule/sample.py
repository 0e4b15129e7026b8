"""sample_tile, sample_choice: decisions a search may change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import isfinite, prod

from tilewright.sym import Const, Var
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule.analysis.refusal import path_to_loop, refuse


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def sample_tile(
    fn: Function,
    var: Var,
    n: int,
    max_innermost: int,
    rng: random.Random,
    decision: Sequence[int] | None,
) -> list[int]:
    """`n` factors whose product is the loop's extent, the last at most `max_innermost`."""
    _, loop = path_to_loop(fn, var, "sample a tile of")
    extent = loop.extent
    if not isinstance(extent, Const):
        raise refuse(
            fn,
            "TW2112",
            f"cannot sample a tile of loop %{var.name}: its extent {extent} is not a constant",
            var,
        )
    if n < 1 or max_innermost < 1:
        raise refuse(fn, "TW2112", "cannot sample a tile: n and max_innermost are at least 1", var)
    total = int(extent.value)
    if total < 1 or (n == 1 and total > max_innermost):
        raise refuse(
            fn,
            "TW2112",
            f"cannot sample a tile of loop %{var.name}: extent {total} has no {n} factors, the "
            f"last at most {max_innermost}",
            var,
        )
    if decision is not None:
        fits = len(decision) == n and all(factor >= 1 for factor in decision)
        if not fits or prod(decision) != total or decision[-1] > max_innermost:
            raise refuse(
                fn,
                "TW2112",
                f"{list(decision)} is not a tile of loop %{var.name}: {n} factors with product "
                f"{total}, the last at most {max_innermost}",
                var,
            )
        return list(decision)
    if n == 1:
        return [total]
    factors: list[int] = []
    rest = total
    for at in range(n - 1, 0, -1):
        limit = max_innermost if at == n - 1 else rest
        choice = rng.choice([d for d in divisors(rest) if d <= limit])
        factors.append(choice)
        rest //= choice
    return [rest, *reversed(factors)]


def sample_choice(
    fn: Function,
    candidates: Sequence[int],
    weights: Sequence[float] | None,
    rng: random.Random,
    decision: Sequence[int] | None,
) -> int:
    """The position of the chosen candidate."""
    if not candidates:
        raise refuse(fn, "TW2112", "cannot choose: there are no candidates")
    if weights is not None:
        if len(weights) != len(candidates):
            raise refuse(fn, "TW2112", "cannot choose: give one weight per candidate")
        if not all(w >= 0 and isfinite(w) for w in weights) or not any(weights):
            raise refuse(fn, "TW2112", "cannot choose: weights are not negative, and not all 0")
    if decision is not None:
        if len(decision) != 1 or not 0 <= decision[0] < len(candidates):
            raise refuse(
                fn,
                "TW2112",
                f"{list(decision)} is not a position among {len(candidates)} candidates",
            )
        return decision[0]
    return rng.choices(range(len(candidates)), weights)[0]
