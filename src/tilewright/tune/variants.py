"""Which kernel runs at which sizes: at most three of them, by comparing one size.

    partition(times)                  of every candidate at every set of sizes: who runs where
    split(values)                     where one set of sizes ends and the next begins
    winner_of(choices, limits, ...)   what records say of it

Sets of sizes are in order: small ones first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from tilewright.tune.record import Variant, Winner

MAX_VARIANTS = 3
WORTH = 0.01  # of its time: what a further variant must gain, for its code and its weights


def partition(times: Sequence[Sequence[float]], most: int = MAX_VARIANTS) -> list[int]:
    """The candidate of each set of sizes: at most `most` runs of equal ones, the least time in all.

    `times[candidate][set]`; each set counts alike, whatever it takes.
    """
    sets = len(times[0])
    best = [min(each[at] for each in times) for at in range(sets)]
    costs = [[row[at] / best[at] for at in range(sets)] for row in times]

    def cheapest(first: int, last: int) -> tuple[float, int]:
        return min((sum(row[first:last]), who) for who, row in enumerate(costs))

    # found[end]: cost and candidates of the sets before `end`, with one variant more each round.
    found: list[tuple[float, list[int]]] = [(math.inf, []) for _ in range(sets + 1)]
    found[0] = (0.0, [])
    answer = (math.inf, [0] * sets)
    for count in range(min(most, sets)):
        longer: list[tuple[float, list[int]]] = [(math.inf, []) for _ in range(sets + 1)]
        for end in range(1, sets + 1):
            for begin in range(end):
                cost, who = cheapest(begin, end)
                total = found[begin][0] + cost
                if total < longer[end][0]:
                    longer[end] = (total, [*found[begin][1], *[who] * (end - begin)])
        found = longer
        total = found[sets][0] + WORTH * sets * count
        if total < answer[0]:
            answer = (total, found[sets][1])
    return answer[1]


def split(values: Sequence[Sequence[int]]) -> list[int] | None:
    """The largest number that belongs to each set but the last; None where sets overlap.

    `values` are those of a size in each set, one per call of the kernel. Halfway between two sets
    means the geometric middle: twice as many rows is as far as half as many.
    """
    limits = []
    for small, large in itertools.pairwise(values):
        if not small or not large or max(small) >= min(large):
            return None
        low, high = max(small), min(large)
        limits.append(min(high - 1, max(low, math.isqrt(max(low, 1) * high))))
    return limits


def winner_of(
    choices: Sequence[Mapping[str, str]],
    gains: Sequence[float],
    size: int,
    limits: Sequence[int],
    label: str = "",
) -> Winner:
    """The record of a kernel with choices for each set of sizes, neighbours that agree as one."""
    variants: list[Variant] = []
    for at, most in enumerate(limits):
        if choices[at] != choices[at + 1]:
            variants.append(Variant(size, most, choices[at]))
    gain = math.exp(sum(map(math.log, gains)) / len(gains))
    return Winner(choices[-1], gain, label, tuple(variants))
