"""Traversal: what is remembered of the nodes below an expression."""

from tilewright import sym
from tilewright.sym import visit


def test_holds_asks_about_each_node_once():
    n, m = sym.size("n"), sym.size("m")
    asked = []

    def is_division(node):
        asked.append(node)
        return isinstance(node, sym.FloorDiv)

    holds = sym.holds(is_division)
    part = sym.floordiv(n, 8)
    assert holds(sym.add(sym.mul(part, 4), m))
    assert holds(part)
    assert not holds(m)
    assert not holds(n)
    assert len(asked) == len(set(asked))


def test_folded_forgets_beyond_its_limit(monkeypatch):
    monkeypatch.setattr(visit, "_KEEP", 2)
    n, asked = sym.size("n"), []

    def count(node, below):
        asked.append(node)
        return 1 + sum(below)

    nodes = sym.folded(count)
    total = sym.add(n, 1)
    assert nodes(total) == 3
    assert nodes(total) == 3
    assert len(asked) == 3
    assert nodes(sym.mul(n, 2)) == 3  # starts anew
    assert nodes(total) == 3
    assert len(asked) > 6


def test_fold_keeps_what_it_computed():
    n = sym.size("n")
    known = {}
    sums = sym.add(n, 1)
    assert sym.fold(sums, lambda node, below: 1 + sum(below), known) == 3
    assert known[n] == 1
    assert sym.fold(sym.mul(sums, n), lambda node, below: 1 + sum(below), known) == 5
