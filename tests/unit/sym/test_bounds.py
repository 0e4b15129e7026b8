"""Constant and symbolic bounds."""

import itertools

import pytest

from tilewright.sym import (
    EMPTY,
    Context,
    Expr,
    FloorDiv,
    FloorMod,
    Interval,
    bounds,
    cast,
    const,
    eq,
    evaluate,
    logical_and,
    lt,
    maximum,
    minimum,
    ne,
    select,
    share_where,
    size,
    symbolic_bounds,
    upper_bound,
    var,
)

i, j, io, ii, f, x, y = (var(name) for name in ("i", "j", "io", "ii", "f", "x", "y"))
n, m = size("n"), size("m")


def span(expr: Expr, ctx: Context = EMPTY) -> tuple[int | None, int | None]:
    found = bounds(expr, ctx)
    return found.lower, found.upper


def test_sums_and_products_of_loops() -> None:
    ctx = EMPTY.bind(i, 0, 4).bind(ii, 0, 8)
    assert span(i * 8 + ii, ctx) == (0, 31)
    assert span(i * 8 - ii, ctx) == (-7, 24)
    assert span(i * ii, ctx) == (0, 21)
    assert span(i - i, ctx) == (0, 0)
    assert span((i - 2) * (i - 2), ctx) == (0, 4)


def test_sizes_have_a_lower_bound_only() -> None:
    assert span(n) == (0, None)
    assert span(n * m + 3) == (3, None)
    assert span(0 - n) == (None, 0)
    assert span(i) == (None, None)


def test_symbolic_ranges_give_what_they_can() -> None:
    assert span(i, EMPTY.bind(i, 0, n)) == (0, None)
    assert span(i, EMPTY.bind(i, 0, n).assume(n <= 16)) == (0, 15)
    assert span(i, EMPTY.bind(i, n, n + 4)) == (0, None)
    assert span(i, EMPTY.bind(i, j, 10).bind(j, 2, 5)) == (2, 9)


def test_ranges_that_refer_to_each_other_end() -> None:
    ctx = EMPTY.bind(i, 0, j).bind(j, 0, i)
    assert bounds(i, ctx).lower == 0


def test_assumed_facts_narrow() -> None:
    assert span(n, EMPTY.assume(n >= 16)) == (16, None)
    assert span(n, EMPTY.assume(ne(n, 0))) == (1, None)
    assert span(n, EMPTY.assume(logical_and(n >= 2, n < 9))) == (2, 8)
    assert span(n, EMPTY.assume(eq(n, 12))) == (12, 12)
    assert span(n * 2, EMPTY.assume(n * 3 <= 10)) == (0, 6)


def test_extremes_and_selects() -> None:
    ctx = EMPTY.bind(i, 0, 4).bind(j, 2, 9)
    assert span(minimum(i, j), ctx) == (0, 3)
    assert span(maximum(i, j), ctx) == (2, 8)
    assert span(minimum(n, 8)) == (0, 8)
    assert span(maximum(n, 8)) == (8, None)
    assert span(select(x < 0, i, j), ctx) == (0, 8)
    assert span(select(i < 4, i, 100), ctx) == (0, 3)


def test_wrapping_types_are_bounded_by_their_type() -> None:
    a = var("a", "u8")
    assert span(a) == (0, 255)
    assert span(a + 1) == (0, 255)
    assert span(cast(a, "index") + 1) == (1, 256)
    assert span(cast(i, "i32"), EMPTY.bind(i, 0, 4)) == (0, 3)
    assert span(cast(i, "i8"), EMPTY.bind(i, 0, 400)) == (-128, 127)
    assert span(cast(i < 3, "index")) == (0, 1)


def test_conditions_are_zero_or_one() -> None:
    ctx = EMPTY.bind(i, 0, 4)
    assert span(i < 4, ctx) == (1, 1)
    assert span(lt(4, i), ctx) == (0, 0)
    assert span(i < 2, ctx) == (0, 1)
    assert span(eq(i, 7), ctx) == (0, 0)
    assert span(logical_and(i < 4, i < 2), ctx) == (0, 1)


RANGES = [(-7, -5), (-5, 3), (-2, 2), (0, 4), (3, 9), (6, 7)]


@pytest.mark.parametrize("node", [FloorDiv, FloorMod])
@pytest.mark.parametrize("dividend", RANGES)
@pytest.mark.parametrize("divisor", RANGES)
def test_floor_division_and_remainder_of_every_sign(
    node: type[FloorDiv | FloorMod], dividend: tuple[int, int], divisor: tuple[int, int]
) -> None:
    ctx = EMPTY.bind(i, *dividend).bind(j, *divisor)
    pairs = itertools.product(range(*dividend), range(*divisor))
    values = [evaluate(node(i, j), {i: a, j: b}) for a, b in pairs if b]
    found = bounds(node(i, j), ctx)
    assert all(value in found for value in values)
    if node is FloorDiv:
        assert found == Interval(min(values), max(values))


@pytest.mark.parametrize("divisor", [-5, -2, -1, 1, 3, 8])
@pytest.mark.parametrize("dividend", RANGES)
def test_remainder_by_a_constant(dividend: tuple[int, int], divisor: int) -> None:
    found = bounds(FloorMod(i, const(divisor)), EMPTY.bind(i, *dividend))
    values = [a % divisor for a in range(*dividend)]
    assert all(value in found for value in values)
    assert found.lower is not None
    assert found.upper is not None
    assert abs(found.lower) < abs(divisor)
    assert abs(found.upper) < abs(divisor)


def test_unbounded_operands_of_division() -> None:
    assert span(n // 8) == (0, None)
    assert span(i // 8) == (None, None)
    assert span(i % 8) == (0, 7)
    assert span(i % n) == (0, None)
    assert span(const(5) // n) == (0, 5)
    assert span(const(-5) // n) == (-5, -1)


# ---- symbolic


def check(
    expr: Expr,
    ranges: dict[object, tuple[Expr | int, Expr | int]],
    low: Expr | int,
    high: Expr | int,
    ctx: Context = EMPTY,
) -> None:
    found = symbolic_bounds(expr, ranges, ctx)  # type: ignore[arg-type]
    assert found is not None
    wanted = tuple(const(end) if isinstance(end, int) else end for end in (low, high))
    assert found == wanted, f"{found} is not {wanted}"


def test_inner_loop_of_a_split() -> None:
    check(io * 8 + ii, {ii: (0, 8)}, io * 8, io * 8 + 7)
    check(io * 8 + ii, {io: (0, n), ii: (0, 8)}, 0, n * 8 - 1)
    check(io * 8 - ii, {ii: (0, 8)}, io * 8 - 7, io * 8)
    check(n - 1 - i, {i: (0, n)}, 0, n - 1)


def test_symbolic_slopes() -> None:
    check(i * m + j, {j: (0, m)}, i * m, i * m + m - 1)
    check(i * m + j, {i: (0, n), j: (0, m)}, 0, n * m - 1)


def test_windows_of_a_convolution() -> None:
    check(i * 2 + j - 1, {j: (0, 3)}, i * 2 - 1, i * 2 + 1)
    check((io * 8 + ii) * 2 + j, {ii: (0, 8), j: (0, 3)}, io * 16, io * 16 + 16)


def test_ranges_may_refer_to_earlier_variables() -> None:
    check(j, {i: (0, n), j: (i, i + 4)}, 0, n + 2)


def test_fused_loops_per_dimension() -> None:
    check(f // m, {f: (0, n * m)}, 0, n - 1)
    check(f % m, {f: (0, n * m)}, 0, m - 1)
    check((io * 8 + ii) // 8, {ii: (0, 8)}, io, io)
    check((io * 8 + ii) % 16, {ii: (0, 8)}, io % 2 * 8, io % 2 * 8 + 7)
    check((f + i) // 8, {i: (0, 8)}, f // 8, (f + 7) // 8)


def test_monotone_nodes() -> None:
    check(minimum(i + j, n), {j: (0, 4)}, minimum(i, n), minimum(i + 3, n))
    check(maximum(i - j, 0), {j: (0, 4)}, maximum(i - 3, 0), maximum(i, 0))
    check(select(j < 2, i, i + 5), {j: (0, 4)}, i, i + 5)


def test_no_bound_where_none_can_be_told() -> None:
    assert symbolic_bounds(i * j, {j: (0, n)}) is None
    assert symbolic_bounds(x // j, {j: (1, n)}) is None
    assert symbolic_bounds(cast(var("t", "i32"), "index") * j, {j: (0, n)}) is None


def test_what_does_not_move_stays() -> None:
    check(io * 8 + n, {ii: (0, 8)}, io * 8 + n, io * 8 + n)


def test_an_upper_bound_takes_minima_and_quotients_apart() -> None:
    ctx = EMPTY.bind(i, 0, n)
    assert span(i + 4 - maximum(0, i - 9), ctx)[1] is None
    assert upper_bound(i + 4 - maximum(0, i - 9), ctx) == 13
    assert upper_bound(minimum(i, i - 3) - i, ctx) == -3
    assert upper_bound(i // 2 * 2 - i, ctx) == 0
    assert upper_bound(i - i // 8 * 8, ctx) == 7
    assert upper_bound(i // 2 * 64 + 64 - minimum(maximum(0, i - 4) * 32, i * 32), ctx) == 192
    assert upper_bound(i + 4 - minimum(0, i - 9), ctx) is None
    assert upper_bound(i - maximum(0, 2 * i), ctx) == 0


def test_an_upper_bound_is_never_below_a_value() -> None:
    ctx = EMPTY.bind(i, 0, 40)
    for expr in (
        i - i // 3 * 3 + maximum(i, 7) - minimum(i, 9),
        i * 5 - maximum(i // 4 * 8, minimum(i, 6) * 4),
        minimum(i * 2, 30) - (i + 5) // 7 * 14,
    ):
        limit = upper_bound(expr, ctx)
        assert limit is not None
        assert limit >= max(int(evaluate(expr, {i: at})) for at in range(40))


def test_how_often_a_condition_holds_is_sampled() -> None:
    assert share_where(lt(i, j), {i: 4096, j: 4096}, {}) == pytest.approx(0.5, abs=0.02)
    assert share_where(lt(i, n), {i: 8}, {n: 2}) == 0.25
