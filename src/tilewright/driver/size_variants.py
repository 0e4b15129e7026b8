"""Kernels for a few sizes and for many, where a call tells how many: one plan does not serve both.

    matmul of b x 128 rows by weights:  planned for b = 1, for b = 7, and for any b

On a GPU few rows leave most multiprocessors idle unless tiles are small and sums are split, which
takes twice as long and more where rows are many. Variants are told from each other by one size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.base.target import CUDA
from tilewright.driver.kernels import Job, Kernel
from tilewright.graph.ir import Graph
from tilewright.graph.rates import NOMINAL
from tilewright.graph.visit import walk
from tilewright.lower.graph import sizes_of
from tilewright.sym import Size, free_vars

PRODUCTS = ("matmul", "conv")  # attention shares out keys where rows are few
APART = 8  # times as many, that are worth another plan


@dataclass(frozen=True)
class Limit:
    """Sizes that a variant of a kernel is for: the one at this position is at most so large."""

    size: int
    most: int


def variants_of(job: Job) -> Iterator[tuple[Limit, Job]]:
    """The same kernel for sizes below those that it is planned for, smallest first; each for
    several sizes, as rules expect of one that is not known."""
    if job.setting.target.kind != CUDA or not job.setting.schedule or job.choices:
        return
    source = job.source
    if not isinstance(source, Graph) or not any(node.op in PRODUCTS for node in walk(source)):
        return
    dims = [dim for value in source.params for dim in value.tensor.shape or ()]
    told = free_vars(*dims)
    found = [(at, size) for at, size in enumerate(sizes_of(source)) if size in told]
    if len(found) != 1 or not isinstance(found[0][1], Size):
        return
    ((at, size),) = found
    ranges = {of: (low, high) for _, of, low, high in job.ranges}
    low, high = ranges.get(size, (0, 0))
    least = max(1, low)
    limits = [(math.isqrt(least * high) if high else NOMINAL) // APART]
    while limits[-1] // APART > least:
        limits.append(limits[-1] // APART)
    for most in sorted(most for most in limits if most > least):
        others = tuple([each for each in job.setting.ranges if each[0] is not size])
        setting = replace(job.setting, ranges=(*others, (size, low, most)))
        yield Limit(at, most), replace(job, setting=setting)
        low = most + 1


def is_another(variant: Kernel, kernel: Kernel) -> bool:
    """Whether a variant is planned otherwise, and so worth its code."""

    def plans(of: Kernel) -> list[tuple[str, str, str]]:
        return [(each.block, each.rule, each.plan) for each in of.decisions]

    return plans(variant) != plans(kernel)
