"""What `simplify` makes of the expressions that schedules and shapes are made of."""

import pickle

import pytest

from tilewright.base.errors import CompilerBug
from tilewright.sym import (
    EMPTY,
    FALSE,
    TRUE,
    Add,
    Cast,
    Const,
    Context,
    Expr,
    FloorDiv,
    FloorMod,
    Lt,
    Mul,
    all_of,
    cast,
    ceildiv,
    const,
    eq,
    floordiv,
    floormod,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    ne,
    select,
    simplify,
    size,
    var,
)

i, j, k, io, ii, f, x, y = (var(name) for name in ("i", "j", "k", "io", "ii", "f", "x", "y"))
n, m, p = size("n"), size("m"), size("p")
TILES = EMPTY.bind(io, 0, n).bind(ii, 0, 8).bind(x, 0, 64).bind(y, 0, m).bind(k, 0, p)


def check(given: Expr, wanted: Expr | int, ctx: Context = EMPTY) -> None:
    found = simplify(given, ctx)
    expected = const(wanted) if isinstance(wanted, int) else wanted
    assert found is expected, f"{given} became {found}, not {expected}"
    assert simplify(found, ctx) is found


# ---- sums


@pytest.mark.parametrize(
    "expr",
    [
        const(3),
        i,
        n,
        io * 8 + ii,
        ii + io * 8,
        io * 64 + ii * 8 + k + 3,
        n - i - 1,
        i * m + j,
        (io * 8 + ii) * m + y,
        8 - i,
        ceildiv(n, 8) * 8,
        n // 8 * 8,
        minimum(8, n - io * 8),
        i < n,
        i * 8 + j < n,
        i >= 1,
        eq(i, 0),
    ],
    ids=str,
)
def test_what_is_simple_stays_as_it_was_written(expr: Expr) -> None:
    assert simplify(expr) is expr


def test_sums_collect_terms_in_the_order_of_first_appearance() -> None:
    check(i + j + i, i * 2 + j)
    check(j + 1 + i + 2 - j, i + 3)
    check(i - i, 0)
    check((io * 8 + ii) * 2 + k - 1, io * 16 + ii * 2 + k - 1)
    check(1 + i, i + 1)
    check(0 - i + n, n - i)
    check(i * 0 + j, j)


def test_products_of_sizes_are_compared_in_any_order() -> None:
    check(i * m - m * i, 0)
    check(n * m * p - p * n * m, 0)
    check((i + 1) * m - i * m, m)
    check((i + 1) * (m + 1) - i * (m + 1), m + 1)


def test_products_of_sums_stay_factored_unless_that_is_longer() -> None:
    check(i * (m + 1) + j, i * (m + 1) + j)
    check((n + 1) * (m + 1), (n + 1) * (m + 1))


# ---- floor division and remainder


def test_split_index_divided_by_its_factor_is_the_outer_loop() -> None:
    check((io * 8 + ii) // 8, io, TILES)
    check((io * 8 + ii) % 8, ii, TILES)
    check((ii + io * 8) % 8, ii, TILES)


def test_division_by_part_of_a_factor_takes_the_multiple_out() -> None:
    check((io * 8 + ii) // 4, io * 2 + ii // 4, TILES)
    check((io * 8 + ii) % 4, ii % 4, TILES)
    check((io * 8 + ii) // 16, io // 2, TILES)
    check((io * 8 + ii) % 16, io % 2 * 8 + ii, TILES)


def test_quotient_and_remainder_join_again() -> None:
    check((i // 8) * 8 + i % 8, i)
    check((f // m) * m + f % m, f)
    check(f % m + m * (f // m), f)
    check((f // (m * p)) * m * p + (f // p % m) * p + f % p, f, EMPTY.assume(p >= 1))
    check((i // 8) * 16 + i % 8 * 2 + j, i * 2 + j)


def test_what_a_quotient_leaves_is_the_remainder() -> None:
    check(i - (i // 8) * 8, i % 8)
    check(i - (i // m) * m, i % m)


def test_index_of_a_fused_nest_comes_apart() -> None:
    rows = EMPTY.bind(i, 0, n).bind(j, 0, m)
    check((i * m + j) // m, i, rows)
    check((i * m + j) % m, j, rows)
    cube = (io * m * p + y * p + k, TILES)
    check(cube[0] // (m * p), io, cube[1])
    check(cube[0] // p % m, y, cube[1])
    check(cube[0] % p, k, cube[1])


def test_sums_as_divisors() -> None:
    check((i * (m + 1) + j) // (m + 1), i, EMPTY.bind(j, 0, m + 1))
    check((i * (m + 1) + j) % (m + 1), j, EMPTY.bind(j, 0, m + 1))
    check((n + 1 + i) // (n + 1), 1, EMPTY.bind(i, 0, n + 1))


def test_tiles_of_a_factored_row_index_come_apart() -> None:
    flat = (io * 8 + ii) * m + y
    check(flat // m, io * 8 + ii, TILES)
    check(flat % m, y, TILES)
    check(flat // (m * 8), io, TILES)
    check(flat % (m * 8), ii * m + y, TILES)


def test_nested_divisions_become_one() -> None:
    check((i // 3) // 5, i // 15)
    check((i // m) // n, i // (n * m))
    check((i // 8 + 1) // 2, (i + 8) // 16)
    check((i % 32) // 8, i // 8 % 4)
    check(i % 32 % 8, i % 8)
    check((i % 32 + j) % 8, (i + j) % 8)


def test_common_factors_cancel() -> None:
    check(n * 8 // 8, n)
    check(n * m // m, n)
    check(i * 6 // 4, i * 3 // 2)
    check((i * 4 + 2) // 4, i)
    check((i * 4 + 1) % 8, i % 2 * 4 + 1)
    check((i * 8) % 4, 0)


def test_constants_are_taken_out_of_quotients() -> None:
    check((i + 9) // 8, (i + 1) // 8 + 1)
    check((n - 1) // 8 + 1, (n + 7) // 8)
    check((i + 9) % 8, (i + 1) % 8)
    check((i - 1) % 8, (i + 7) % 8)


def test_bounds_decide_quotients() -> None:
    check(x // 64, 0, TILES)
    check(x % 64, x, TILES)
    check((x + 64) // 64, 1, TILES)
    check((x - 64) // 64, -1, TILES)
    check((x - 64) % 64, x, TILES)
    check((7 - ii) // 8, 0, TILES)
    check(x // 8 % 8, x // 8, TILES)


def test_negative_divisors_become_positive() -> None:
    check(floordiv(i, -8), (i * -1) // 8)
    check(floormod(i, -8), (i * -1) % 8 * -1)


def test_division_by_zero_is_left_alone() -> None:
    node = FloorDiv(i, const(0))
    assert simplify(node) is node
    zero = EMPTY.assume(eq(m, 0))
    assert simplify(i // m, zero) is FloorDiv(i, const(0))
    assert simplify(FloorMod(i, const(0)) * 2, zero) is FloorMod(i, const(0)) * 2


# ---- facts


def test_divisibility_makes_rounding_disappear() -> None:
    ctx = EMPTY.assume(eq(n % 8, 0))
    check((n + 7) // 8, n // 8, ctx)
    check(n // 8 * 8, n, ctx)
    check((n + 3) // 4, n // 4, ctx)
    check(n % 4, 0, ctx)
    check(n // 4 % 2, 0, ctx)
    check((n + j) // 8, n // 8, ctx.bind(j, 0, 8))
    check((n + j) % 8, j, ctx.bind(j, 0, 8))
    check((n - 1) // 8, n // 8 - 1, ctx)
    check((n * m) % 8, 0, ctx)


def test_known_remainders_are_used() -> None:
    ctx = EMPTY.assume(eq(n % 4, 1))
    check(n % 4, 1, ctx)
    check(n % 2, 1, ctx)
    check((n + 3) % 4, 0, ctx)
    check((n + 3) // 4 * 4, n + 3, ctx)


def test_equal_sizes_are_one() -> None:
    ctx = EMPTY.assume(eq(n, m))
    check(n - m, 0, ctx)
    check(i * n - m * i, 0, ctx)
    check(eq(n, m), TRUE, ctx)
    check((n + 7) // 8, 16, EMPTY.assume(eq(n, 128)))


def test_loops_of_one_step_have_a_value() -> None:
    check(i * 8 + j, j, EMPTY.bind(i, 0, 1))
    check(i * 8 + j, n * 8 + j, EMPTY.bind(i, n, n + 1))


def test_sizes_are_never_negative() -> None:
    check(maximum(n, 0), n)
    check(n >= 0, TRUE)
    check(n < 0, FALSE)


# ---- min, max, comparisons, conditions


def test_ordered_extremes() -> None:
    check(minimum(x, 63), x, TILES)
    check(maximum(x, 0), x, TILES)
    check(minimum(i, n), i, EMPTY.bind(i, 0, n))
    check(minimum(minimum(x, n), x + 1), minimum(x, n))
    check(maximum(minimum(x, y), x), x)
    check(minimum(minimum(x, 5), 3), minimum(x, 3))
    check(maximum(maximum(x, 5), 3), maximum(x, 5))


def test_comparisons_known_by_bounds() -> None:
    check(io * 8 + ii < n * 8, TRUE, TILES)
    check(x < 64, TRUE, TILES)
    check(x < 0, FALSE, TILES)
    check(eq(x, 64), FALSE, TILES)
    check(ne(x, 64), TRUE, TILES)


def test_comparisons_lose_what_both_sides_share() -> None:
    check(i + j < j + n, i < n)
    check(i * 2 < 10, i < 5)
    check(i * 2 <= 9, i < 5)
    check(i * 3 - 4 >= 0, i >= 2)
    check(eq(i + 3, j + 3), eq(i, j))
    check(eq(i * 2, 8), eq(i, 4))
    check(eq(i * 2, 7), FALSE)
    check(n - i < 0, n < i)
    check(i - 1 < n, i <= n)


def test_conditions_that_follow_are_dropped() -> None:
    check(logical_and(i < n, i < n + 1), i < n)
    check(logical_and(i < n + 1, i < n), i < n)
    check(logical_or(i < n, i < n + 1), i <= n)
    check(logical_and(i < n, n <= i), FALSE)
    check(logical_or(i < n, n <= i), TRUE)
    check(all_of(i >= 0, i < n, i < m), logical_and(i < n, i < m), EMPTY.bind(i, 0, 8))


def test_boolean_identities() -> None:
    a, b = var("a", "bool"), var("b", "bool")
    check(logical_and(logical_and(a, b), a), logical_and(a, b))
    check(logical_and(logical_or(a, b), b), b)
    check(logical_or(logical_and(a, b), a), a)
    check(logical_and(logical_or(a, b), logical_and(a, b)), logical_and(a, b))
    check(logical_and(a, logical_not(a)), FALSE)
    check(logical_or(logical_not(a), a), TRUE)
    check(logical_not(i < n), n <= i)
    check(logical_not(eq(i, n)), ne(i, n))


def test_select_with_known_condition() -> None:
    check(select(x < 64, x, 0), x, TILES)
    check(select(x < 0, x, 5), 5, TILES)
    check(select(i < n, select(i < n, 1, 2), 3), select(i < n, 1, 3))
    a = var("a", "bool")
    check(select(logical_not(a), i, j), select(a, j, i))


# ---- other types


def test_floats_are_not_reassociated() -> None:
    a, b = var("a", "f32"), var("b", "f32")
    for expr in ((a + b) + a, a - a, a * 0.0, a + 0.0, logical_not(a < b)):
        assert simplify(expr) is expr


def test_integers_inside_floats_are_simplified() -> None:
    a = var("a", "f32")
    assert simplify(a + cast(i + 0 * j + i, "f32")) is a + cast(i * 2, "f32")


def test_wrapping_integers_are_not_reordered() -> None:
    a = var("a", "i32")
    assert simplify(a + 1 - 1) is a + 1 - 1
    assert simplify(lt(a + 1, a)) is Lt(Add(a, const(1, "i32")), a)
    assert simplify(lt(a, cast(const(1 << 40), "i32"))) is lt(a, const(0, "i32"))


def test_casts_of_conditions_and_bounds() -> None:
    wide = cast(var("b", "u8"), "index")
    check(wide < 256, TRUE)
    check(wide // 256, 0)


def test_nodes_of_other_layers_are_opaque_but_entered() -> None:
    inner = Cast(Add(i, Mul(i, const(2))), const(0, "i64").dtype)
    assert simplify(inner) is Cast(i * 3, const(0, "i64").dtype)


# ---- the machinery


def test_results_are_kept_and_survive_pickling() -> None:
    expr = (io * 8 + ii) // 8
    assert simplify(expr, TILES) is simplify(expr, TILES)
    assert pickle.loads(pickle.dumps(simplify(i + j + i))) is i * 2 + j


def test_deep_sums_do_not_recurse() -> None:
    expr: Expr = const(0)
    for _ in range(5000):
        expr = Add(expr, i)
    assert simplify(expr) is i * 5000
    flat: Expr = var("a", "f32")
    for _ in range(5000):
        flat = Add(flat, var("b", "f32"))
    assert simplify(flat) is flat


def test_endless_rewriting_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.sym import match, rules

    swap = rules.Rule("swap_min", minimum(rules.x, rules.y), minimum(rules.y, rules.x))
    module = __import__("sys").modules["tilewright.sym.simplify"]
    handlers = {**module._HANDLERS, **module._LOGIC}
    table = {**module._COMPILED, type(swap.lhs): tuple(match.compile_rule(swap, handlers))}
    monkeypatch.setattr(module, "_COMPILED", table)
    monkeypatch.setattr(module, "_BUDGET", 50)
    with pytest.raises(CompilerBug, match="does not end: the last rules were swap_min") as caught:
        simplify(minimum(var("a"), var("b")))
    assert caught.value.code == "TW0107"


def test_constants_of_the_same_value_stay_apart_by_type() -> None:
    assert isinstance(simplify(const(1, "i32")), Const)
    assert simplify(const(1, "i32")) is not simplify(const(1))
