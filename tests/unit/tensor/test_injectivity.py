"""What indices tell: by example, and against enumeration."""

import itertools
import random

import pytest

from tilewright import sym
from tilewright.sym import EMPTY, ZERO, Expr, Var, const
from tilewright.sym.evaluate import evaluate
from tilewright.tensor.injectivity import determined_vars, is_injective

a, b, c, f = (sym.var(name) for name in "abcf")
n, m = sym.size("n"), sym.size("m")


def ranges(**extents: Expr | int) -> dict[Var, tuple[Expr, Expr]]:
    by_name = {v.name: v for v in (a, b, c, f)}
    return {by_name[name]: (ZERO, sym.as_expr(stop)) for name, stop in extents.items()}


@pytest.mark.parametrize(
    ("known", "over", "found"),
    [
        ((a,), ranges(a=n), {a}),
        ((a * 8 + b,), ranges(a=n, b=8), {a, b}),
        ((a * 8 + b,), ranges(a=n, b=5), {a, b}),
        ((a * 8 + b,), ranges(a=n, b=9), set()),
        ((a * 8 - b,), ranges(a=n, b=8), {a, b}),
        ((a * n + b,), ranges(a=m, b=n), {a, b}),
        ((a * n + b,), ranges(a=m, b=m), set()),
        ((a + b, b), ranges(a=n, b=n), {a, b}),
        ((a + b,), ranges(a=n), {a}),  # b is given
        ((f // m, f % m), ranges(f=n * m), {f}),
        ((f // m,), ranges(f=n * m), set()),
        ((f % 16,), ranges(f=12), {f}),
        ((f % 8,), ranges(f=12), set()),
        ((f // 12, f // 4 % 3, f % 4), ranges(f=n), {f}),
        ((f // 12, f % 4), ranges(f=n), set()),
        (((a * 8 + b) // 6, (a * 8 + b) % 6), ranges(a=5, b=8), {a, b}),
        ((a * b,), ranges(a=n, b=n), set()),
        ((a * 4 + b * 2 + c,), ranges(a=3, b=2, c=2), {a, b, c}),
        ((a * 4 + b * 2 + c,), ranges(a=3, b=3, c=2), set()),
    ],
    ids=lambda value: "",  # sets have no order that test workers agree on
)
def test_what_is_told(
    known: tuple[Expr, ...], over: dict[Var, tuple[Expr, Expr]], found: set[Var]
) -> None:
    assert determined_vars(known, over, EMPTY) == found


def random_index(rng: random.Random, variables: list[Var], depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(variables)
    x = random_index(rng, variables, depth - 1)
    k = rng.randint(1, 9)
    kind = rng.randint(0, 5)
    if kind == 0:
        return x * k + random_index(rng, variables, depth - 1)
    if kind == 1:
        return x * k - random_index(rng, variables, depth - 1)
    if kind == 2:
        return x + k
    return x // k if kind < 5 and kind == 3 else x % k


@pytest.mark.parametrize("first", range(0, 4000, 500))
def test_injective_only_where_it_is_so(first: int) -> None:
    said = 0
    for seed in range(first, first + 500):
        rng = random.Random(seed)
        variables = [a, b, c][: rng.randint(1, 3)]
        extents = {v: rng.randint(1, 6) for v in variables}
        indices = [random_index(rng, variables, 3) for _ in range(rng.randint(1, 3))]
        over = {v: (ZERO, const(extents[v])) for v in variables}
        if not is_injective(indices, over, EMPTY):
            continue
        said += 1
        met: dict[tuple[int, ...], tuple[int, ...]] = {}
        for point in itertools.product(*[range(extents[v]) for v in variables]):
            values = dict(zip(variables, point, strict=True))
            place = tuple(evaluate(index, values) for index in indices)
            assert met.setdefault(place, point) == point, (seed, indices, extents)
    assert said > 20


def test_digits_of_the_greatest_term_are_digits_of_the_sum() -> None:
    """Of 8 x 56 x 28 x 12 elements by blocks of 128: (a * 128 + b) // 18816 is a // 147."""
    flat = a * 128 + b
    indices = [a // 147, flat // 336 % 56, flat // 12 % 28, flat % 12]
    assert is_injective(indices, {a: (ZERO, const(1176)), b: (ZERO, const(128))}, EMPTY)
    # What is added may reach the next of the greatest term.
    assert not is_injective(indices, {a: (ZERO, const(1176)), b: (ZERO, const(129))}, EMPTY)
    assert not is_injective(indices[1:], {a: (ZERO, const(1176)), b: (ZERO, const(128))}, EMPTY)
