"""Variants: which kernel runs at which sizes, at most three, selected by comparing one size.

    partition(times)                  from the times of every candidate at every set of sizes
    split(values)                     the boundaries between sets of sizes
    winner_of(choices, limits, ...)   the record of the result

Sets of sizes are in ascending order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from tilewright.tune.record import Variant, Winner

MAX_VARIANTS = 3
WORTH = 0.01  # the gain that another variant needs, to pay for its code and weights


def partition(times: Sequence[Sequence[float]], most: int = MAX_VARIANTS) -> list[int]:
    """The candidate of each set of sizes: at most `most` runs of equal ones, of least total time.

    `times[candidate][set]`; each set has equal weight, whatever it takes.
    """
    sets = len(times[0])
    best = [min(each[at] for each in times) for at in range(sets)]
    costs = [[row[at] / best[at] for at in range(sets)] for row in times]

    def cheapest(first: int, last: int) -> tuple[float, int]:
        return min((sum(row[first:last]), who) for who, row in enumerate(costs))

    # found[end]: cost and candidates of the sets before `end`; each round adds a variant.
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
    """The upper bound of each set but the last; None where sets overlap.

    `values` are those of a size in each set, one per call of the kernel. The boundary between two
    sets is their geometric mean.
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
    """The record of a kernel with choices per set of sizes, merging neighbours that agree."""
    variants: list[Variant] = []
    for at, most in enumerate(limits):
        if choices[at] != choices[at + 1]:
            variants.append(Variant(size, most, choices[at]))
    gain = math.exp(sum(map(math.log, gains)) / len(gains))
    return Winner(choices[-1], gain, label, tuple(variants))
