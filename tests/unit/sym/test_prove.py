"""What can be proved, and that nothing else is."""

import pytest

from tilewright.sym import (
    EMPTY,
    Context,
    Expr,
    ceildiv,
    eq,
    equal,
    le,
    logical_and,
    logical_or,
    lt,
    maximum,
    minimum,
    ne,
    prove,
    select,
    size,
    var,
)

i, j, k, io, ii, f = (var(name) for name in ("i", "j", "k", "io", "ii", "f"))
n, m, p = size("n"), size("m"), size("p")
ROWS = EMPTY.bind(i, 0, n).bind(j, 0, m)
TAIL = EMPTY.bind(io, 0, ceildiv(n, 8)).bind(ii, 0, 8)
CUT = EMPTY.bind(io, 0, ceildiv(n, 8)).bind(ii, 0, minimum(8, n - io * 8))

PROVABLE = [
    # products
    (lt(0, n * m), EMPTY.assume(lt(0, n * m))),
    (le(1, m), EMPTY.assume(lt(3, n * m * 4))),
    # splits
    (io * 8 + ii < n, EMPTY.bind(io, 0, n // 8).bind(ii, 0, 8)),
    (io * 8 + ii < n, EMPTY.assume(eq(n % 8, 0)).bind(io, 0, n // 8).bind(ii, 0, 8)),
    (io * 8 + ii < ceildiv(n, 8) * 8, TAIL),
    (io * 8 + ii < n + 7, TAIL),
    (io * 8 < n, TAIL),
    # quotients of a whole number of parts
    (
        i // 8 * 64 + ii < ceildiv(n, 128) * 128,
        EMPTY.bind(i, 0, ceildiv(n, 128) * 16).bind(ii, 0, 64),
    ),
    (i // 4 < n + 1, EMPTY.bind(i, 0, n * 4 + 3)),
    # splits of a layer that has a part of an image's positions
    (le((n + 3) // 24, (n + 23) // 24), EMPTY),
    (le(6, (n + 3) // 4 - io * 6), EMPTY.bind(io, 0, (n + 3) // 24)),
    (lt((n + 3) // 4 - io * 6, 6), EMPTY.bind(io, (n + 3) // 24, (n + 23) // 24)),
    (lt(0, (n + 3) // 4 - io * 6), EMPTY.bind(io, (n + 3) // 24, (n + 23) // 24)),
    (io * 8 + ii < n, CUT),
    (n <= ceildiv(n, 8) * 8, EMPTY),
    (ceildiv(n, 8) * 8 < n + 8, EMPTY),
    (io * m + ii < n + m - 1, EMPTY.bind(io, 0, ceildiv(n, m)).bind(ii, 0, m)),
    (io * m < n, EMPTY.bind(io, 0, ceildiv(n, m)).bind(ii, 0, m)),
    # products of sizes
    (i * m + j < n * m, ROWS),
    (i * m + j >= 0, ROWS),
    (i * j < n * m, ROWS),
    (i + j < n + m - 1, ROWS),
    (n * m > 0, ROWS),
    (i * m * p + j * p + k < n * m * p, ROWS.bind(k, 0, p)),
    # fused loops
    (f // m < n, EMPTY.bind(f, 0, n * m)),
    (f % m < m, EMPTY.bind(f, 0, n * m)),
    (f // m >= 0, EMPTY.bind(f, 0, n * m)),
    (f // m * m <= f, EMPTY.bind(f, 0, n * m)),
    (f // (m * p) < n, EMPTY.bind(f, 0, n * m * p)),
    (f // p % m < m, EMPTY.bind(f, 0, n * m * p)),
    (i // m < n, ROWS),
    # facts
    (i < p, ROWS.assume(logical_and(i < m, m <= p))),
    (n >= 1, ROWS),
    (n >= 16, EMPTY.bind(i, 0, n // 16)),
    (i < m, ROWS.assume(eq(n, m))),
    (eq(n, m), EMPTY.assume(n <= m).assume(m <= n)),
    (ne(n, m), EMPTY.assume(n < m)),
    (n >= 3, EMPTY.bind(i, 1, n - 1)),
    # min, max, select
    (minimum(i, n - 1) >= 0, ROWS),
    (maximum(i - 3, 0) < n, ROWS),
    (minimum(i, j) <= i, EMPTY),
    (select(i < 3, i, i - 3) < n, ROWS),
    (select(i >= 1, i - 1, 0) >= 0, ROWS),
    # windows
    (i * 2 + k < n + 2, EMPTY.assume(n >= 3).bind(i, 0, (n - 1) // 2 + 1).bind(k, 0, 3)),
    # dependent loops
    (j >= 0, EMPTY.bind(i, 0, n).bind(j, i, n)),
    (j - i < n, EMPTY.bind(i, 0, n).bind(j, i, n)),
    # disjunctions
    (logical_or(i < m, m <= i), EMPTY),
    (logical_or(i < n, m < i), EMPTY.assume(m < n)),
]


@pytest.mark.parametrize(("cond", "ctx"), PROVABLE, ids=[str(cond) for cond, _ in PROVABLE])
def test_provable(cond: Expr, ctx: Context) -> None:
    assert prove(cond, ctx)


UNPROVABLE = [
    (io * 8 + ii < n, TAIL),
    (i // 4 < n, EMPTY.bind(i, 0, n * 4 + 3)),
    (i < m, ROWS),
    (m >= 1, EMPTY),
    (n >= 1, EMPTY.bind(i, 0, m)),
    (n <= n // 8 * 8, EMPTY),
    (eq(n, m), EMPTY),
    (n * m <= n, EMPTY),
    (i >= 0, EMPTY),
    (le((n + 4) // 24, (n + 3) // 24), EMPTY),
    (lt((n + 3) // 4 - io * 6, 5), EMPTY.bind(io, (n + 3) // 24, (n + 23) // 24)),
    (lt(1, (n + 3) // 4 - io * 6), EMPTY.bind(io, (n + 3) // 24, (n + 23) // 24)),
    (lt(i // m, i), EMPTY),
    (le(1, m), EMPTY.bind(i, 0, n // m)),
    (select(m > 0, i // m, m - 1) >= 0, EMPTY.bind(i, 0, n)),
]


@pytest.mark.parametrize(("cond", "ctx"), UNPROVABLE, ids=[str(cond) for cond, _ in UNPROVABLE])
def test_unprovable(cond: Expr, ctx: Context) -> None:
    assert not prove(cond, ctx)


def test_equality_beyond_the_normal_form() -> None:
    assert equal(i * m + j, j + m * i)
    assert equal((i + 1) * (m + 1), i * m + i + m + 1)
    assert equal(i - i % 8, i // 8 * 8)
    assert equal(n, m, EMPTY.assume(eq(n, m)))
    assert equal(n, m, EMPTY.assume(n <= m).assume(m <= n))
    assert equal(ceildiv(n, 8) * 8, n, EMPTY.assume(eq(n % 8, 0)))
    assert equal(8, n, EMPTY.assume(eq(n, 8)))
    assert equal((i + j) // 8, (j + i) // 8)
    assert equal(minimum(i + j, n) % 3, minimum(n, j + i) % 3)
    assert not equal(n, m)
    assert not equal(n // 8 * 8, n)
