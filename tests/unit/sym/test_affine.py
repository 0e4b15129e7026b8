"""Linear parts, splitting for blocks, bijections."""

from collections.abc import Sequence

import pytest

from tilewright.sym import (
    EMPTY,
    Expr,
    Var,
    ceildiv,
    const,
    eq,
    is_bijective,
    linear,
    minimum,
    size,
    split_terms,
    var,
)

a, b, c, f, io, ii = (var(name) for name in ("a", "b", "c", "f", "io", "ii"))
n, m, k = size("n"), size("m"), size("k")


def test_linear_takes_coefficients_and_rest() -> None:
    assert linear(io * 8 + ii + n, (io, ii)) == ({io: const(8), ii: const(1)}, n)
    assert linear(io * m + ii - 3, (ii, io)) == ({ii: const(1), io: m}, const(-3))
    assert linear((a + 1) * m, (a,)) == ({a: m}, m)
    assert linear(a - a + b, (a, b)) == ({b: const(1)}, const(0))
    assert linear(n // 8, (a,)) == ({}, n // 8)


def test_linear_refuses_other_uses() -> None:
    for expr in (a * b, a * a, a // 2, (a + b) % 4, minimum(a, n), a * (b + 1)):
        assert linear(expr, (a, b)) is None


def test_linear_takes_other_variables_as_coefficients() -> None:
    assert linear(a * b + b, (a,)) == ({a: b}, b)


def test_split_terms_parts_inner_from_outer() -> None:
    assert split_terms(io * 8 + ii, {ii}) == (io * 8, ii)
    assert split_terms(io * 8 + ii + 3, {ii}) == (io * 8 + 3, ii)
    assert split_terms(io * 8, {ii}) == (io * 8, const(0))
    assert split_terms(ii * m + io * n, {ii}) == (io * n, ii * m)
    assert split_terms((io + ii) * m, {ii}) == (io * m, ii * m)
    assert split_terms(ii // 2 + io % 4, {ii}) == (io % 4, ii // 2)


def test_split_terms_refuses_mixed_terms() -> None:
    assert split_terms(io * ii, {ii}) is None
    assert split_terms((io * 8 + ii) // 3, {ii}) is None


BIJECTIVE: list[tuple[Sequence[Expr], dict[Var, Expr | int]]] = [
    ((a,), {a: n}),
    ((a, b), {a: n, b: m}),
    ((b, a), {a: n, b: m}),
    ((a * 8 + b, c), {a: 4, b: 8, c: n}),
    ((a + b * n,), {a: n, b: m}),
    ((a * 8 + b + 3,), {a: n, b: 8}),
    ((n - 1 - a,), {a: n}),
    ((a * 4 + 3 - b,), {a: n, b: 4}),
    ((a,), {a: n, b: 1}),
    ((f // m, f % m), {f: n * m}),
    ((f // (m * k), f // k % m, f % k), {f: n * m * k}),
    ((a % 2, a // 2 % 4), {a: 8}),
    ((a * 4 + b // 2, b % 2), {a: 3, b: 8}),
    (((a * 8 + b) // 6, (a * 8 + b) % 6), {a: 3, b: 8}),
    (((a * 8 + b) // 12 * 12 + (a * 8 + b) % 12,), {a: 3, b: 8}),
    ((), {a: 1}),
]


@pytest.mark.parametrize(("exprs", "extents"), BIJECTIVE, ids=str)
def test_bijective(exprs: Sequence[Expr], extents: dict[Var, Expr | int]) -> None:
    assert is_bijective(exprs, extents)


NOT_BIJECTIVE: list[tuple[Sequence[Expr], dict[Var, Expr | int]]] = [
    ((a,), {a: n, b: m}),  # b repeats
    ((a, a), {a: n}),  # the diagonal
    ((a * 8 + b,), {a: n, b: 7}),  # holes
    ((a * 8 + b,), {a: n, b: 9}),  # overlaps
    ((a * 2,), {a: n}),
    ((f // m, f % m), {f: n}),  # a ragged last row
    ((a // 2, a % 2), {a: 7}),
    ((a % 4,), {a: 8}),
    ((a // 2,), {a: 8}),
    ((a * b,), {a: n, b: m}),
    ((minimum(a, 3),), {a: 8}),
    ((a // b,), {a: 8, b: 2}),
    (((a + c) // 2, (a + c) % 2), {a: 2}),  # c may be odd
    (((3 - a) // 2, a % 2), {a: 4}),
]


@pytest.mark.parametrize(("exprs", "extents"), NOT_BIJECTIVE, ids=str)
def test_not_bijective(exprs: Sequence[Expr], extents: dict[Var, Expr | int]) -> None:
    assert not is_bijective(exprs, extents)


def test_facts_help_to_see_a_bijection() -> None:
    split = (io * 8 + ii,)
    assert is_bijective((f // 8, f % 8), {f: n}, EMPTY.assume(eq(n % 8, 0)))
    assert not is_bijective((f // 8, f % 8), {f: n})
    assert is_bijective(split, {io: ceildiv(n, 8), ii: 8})
