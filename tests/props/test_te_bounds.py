"""Entry checks are sound, and exact where indices are affine.

Random reads with random sizes: whenever `te.function` accepts and its conditions hold, no read is
outside; where nothing guards an affine read and everything runs, the converse holds too.
"""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import sym, te
from tilewright.base.errors import UserError

SIZES = st.integers(0, 5)


@st.composite
def reads(draw):
    """(the sizes, the function's arguments, whether a read at these sizes is outside, exact)"""
    n, m = te.var("n"), te.var("m")
    bound = {n: draw(SIZES), m: draw(SIZES)}
    dims = st.sampled_from([n, m, n + 1, n + m, n * 2, sym.const(3), sym.const(6)])
    shape = (draw(dims), draw(dims))
    source = te.placeholder((draw(dims),), name="A")
    kind = draw(st.sampled_from(["affine", "guarded", "divided", "clamped"]))
    scale = st.integers(-2, 3)
    a, b, c = draw(scale.filter(bool)), draw(scale), draw(st.integers(-3, 3))
    limit = draw(st.sampled_from([n, m, sym.const(2)]))
    style, divisor = draw(st.integers(0, 2)), draw(st.integers(1, 4))

    def index(i, j):
        plain = i * a + j * b + c
        if kind == "divided":
            return [plain // divisor, plain % divisor, plain % (n + 1)][style]
        if kind == "clamped":
            return te.max(te.min(plain, source.shape[0] - 1), 0)
        return plain

    def guard(i, j):
        return te.all(i < limit, index(i, j) >= 0)

    def element(i, j):
        if kind == "guarded":
            return te.if_then_else(guard(i, j), source[index(i, j)], 0.0)
        return source[index(i, j)]

    computed = te.compute(shape, element, name="B")
    extents = [sym.evaluate(dim, bound) for dim in shape]
    length = sym.evaluate(source.shape[0], bound)
    x, y = sym.var("x"), sym.var("y")
    outside = False
    for point in itertools.product(*map(range, extents)):
        env = {**bound, x: point[0], y: point[1]}
        if kind == "guarded" and not sym.evaluate(guard(x, y), env):
            continue
        outside |= not 0 <= sym.evaluate(sym.as_expr(index(x, y)), env) < length
    args = [te.placeholder((n,), name="N"), te.placeholder((m,), name="M"), source, computed]
    runs = all(extent > 0 for extent in extents)
    return bound, args, outside, kind == "affine" and runs


def attempt(args):
    """The function, or the code of the refusal."""
    try:
        return te.function(args), None
    except UserError as refusal:
        return None, refusal.code


@settings(max_examples=100, deadline=None)
@given(reads())
def test_no_accepted_read_is_outside(case):
    bound, args, outside, exact = case
    fn, code = attempt(args)
    if fn is None:
        assert code in ("TW2420", "TW2421")
        # Refused for all sizes: so it is for these, if anything runs.
        assert outside or not exact
    elif all(sym.evaluate(cond, bound) for cond in fn.requires):
        assert not outside
    else:
        assert outside or not exact
