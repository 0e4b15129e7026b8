"""The order of factors in products."""

from itertools import pairwise

from tilewright.sym import floordiv, floormod, maximum, size, var
from tilewright.sym.poly import monomial_of, rank


def shared(depth, of):
    """An expression whose text doubles with each step."""
    n, made = size("n"), of
    for step in range(depth):
        made = maximum(floordiv(made, n), floormod(made, n + step))
    return made


def test_a_rank_is_short_where_the_text_is_not():
    made = rank(shared(200, var("i")))
    assert len(str(made)) < 1000


def test_long_expressions_are_ranked_apart_and_alike_in_any_order():
    i = var("i")
    parts = [floordiv(shared(60, i), k) for k in range(2, 12)]
    assert len({rank(part) for part in parts}) == len(parts)
    for a, b in pairwise(parts):
        assert monomial_of((a, b)) == monomial_of((b, a))


def test_ranks_of_long_expressions_do_not_depend_on_what_was_made_before():
    ranks = [rank(shared(60, var("i")))[-1] for _ in range(2)]
    assert ranks[0] == ranks[1]
