"""Budgets of the integer layer, with room for a busy machine."""

import time

from tilewright.sym import EMPTY, Context, Expr, simplify, size, var

n, m = size("n"), size("m")
io, ii, jo, ji, k = (var(name) for name in ("io", "ii", "jo", "ji", "k"))
LOOPS = EMPTY.bind(io, 0, 16).bind(ii, 0, 8).bind(jo, 0, m // 8).bind(ji, 0, 8).bind(k, 0, n)


def fastest(expr: Expr, ctx: Context) -> tuple[float, float]:
    """Seconds of the first and of a repeated simplification: the best of many."""
    first, again = [], []
    for _ in range(50):
        own = ctx.bind(var("t"), 0, 4)
        start = time.perf_counter()
        simplify(expr, own)
        middle = time.perf_counter()
        simplify(expr, own)
        first.append(middle - start)
        again.append(time.perf_counter() - middle)
    return min(first), min(again)


def test_typical_indices_simplify_quickly() -> None:
    for expr in (io * 64 + jo * 8 + ii * 4 + ji + 3, (io * 8 + ii) // 8, (io * 8 + ii) * 2 + k - 1):
        first, again = fastest(expr, LOOPS)
        assert first < 300e-6, f"{expr}: {first * 1e6:.0f} us"
        assert again < 6e-6, f"{expr}: {again * 1e6:.1f} us"
