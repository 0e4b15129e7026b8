"""Minimum cuts against all cuts of small networks."""

import itertools
import random

import pytest

from tilewright.graph.min_cut import INFINITE, Network


def cost(edges, side):
    return sum(c for a, b, c in edges if a in side and b not in side)


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_is_cheaper(seed):
    pick = random.Random(seed)
    count = pick.randint(2, 7)
    edges = [
        (a, b, pick.choice([0.0, 1.0, 2.5, 7.0, 100.0]))
        for a, b in itertools.permutations(range(count), 2)
        if pick.random() < 0.5
    ]
    network = Network()
    for _ in range(count):
        network.node()
    for edge in edges:
        network.edge(*edge)
    side = network.cut(0, 1)
    assert 0 in side
    assert 1 not in side
    others = [node for node in range(count) if node > 1]
    least = min(
        cost(edges, {0, *chosen})
        for size in range(len(others) + 1)
        for chosen in itertools.combinations(others, size)
    )
    assert cost(edges, side) == pytest.approx(least)


def test_what_cannot_be_cut_is_refused():
    network = Network()
    a, b = network.node(), network.node()
    network.edge(a, b, INFINITE)
    with pytest.raises(ValueError, match="cannot be cut"):
        network.cut(a, b)
