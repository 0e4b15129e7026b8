"""Kernels for a few sizes and for many, where a call tells how many: one plan does not serve both.

    matmul of b x 128 rows by weights:  planned for b = 1, 4, 16, 64, and for any b
    attention of t queries on a CPU:    for t = 1, for t of a vector or two, and for any t

On a GPU few rows leave most multiprocessors idle unless tiles are small and sums are split, which
takes twice as long and more where rows are many. On a CPU queries are lanes: a single one, as in
decoding, wants lanes along keys and features instead, few of them no wider tiles. Variants are told
from each other by one size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.base.target import CPU, CUDA
from tilewright.driver.kernels import Job, Kernel
from tilewright.graph.ir import Graph
from tilewright.graph.op import REDUCTION
from tilewright.graph.ops import OPS
from tilewright.graph.rates import NOMINAL
from tilewright.graph.visit import walk
from tilewright.lower.graph import sizes_of
from tilewright.sym import Size, free_vars

PRODUCTS = ("matmul", "conv")  # attention shares out keys where rows are few
APART = 4  # times as many, that are worth another plan


@dataclass(frozen=True)
class Limit:
    """Sizes that a variant of a kernel is for: the one at this position is at most so large."""

    size: int
    most: int


def variants_of(job: Job) -> Iterator[tuple[Limit, Job]]:
    """The same kernel for sizes below those that it is planned for, smallest first; each for
    several sizes, as rules expect of one that is not known."""
    if not job.setting.schedule or job.choices or not isinstance(job.source, Graph):
        return
    if job.setting.target.kind == CUDA:
        yield from _of_few_rows(job, job.source)
    elif job.setting.target.kind == CPU:
        yield from _of_few_queries(job, job.source)


def _told(source: Graph) -> list[tuple[int, Size]]:
    """The sizes that operands tell, by where they come among all."""
    told = free_vars(*[dim for value in source.params for dim in value.tensor.shape or ()])
    return [(at, size) for at, size in enumerate(sizes_of(source)) if size in told]


def _of_few_queries(job: Job, source: Graph) -> Iterator[tuple[Limit, Job]]:
    """Attention of one query, and of so few that a vector or two hold them, where their number is a
    size of its own; of none, the kernel itself."""
    first = {node.inputs[0] for node in walk(source) if node.op == "attention"}
    queries = {(value.tensor.shape or ())[2] for value in first if value is not None}
    ranges = {size: (low, high) for _, size, low, high in job.ranges}
    for at, size in _told(source):
        low, high = ranges.get(size, (0, 0))
        few = 2 * max(job.setting.target.lanes(each.tensor.dtype.bits) for each in source.results)
        if {size} != queries:
            continue
        if low == 0 and high != 1:
            yield Limit(at, 0), job
        if low <= 1 and high != 1:
            yield Limit(at, 1), _within(job, size, 1, 1)
        if low <= few // 2 and (not high or high > few):
            yield Limit(at, few), _within(job, size, max(2, low), few)


def _within(job: Job, size: Size, low: int, high: int) -> Job:
    """A job for some values of a size."""
    others = tuple([each for each in job.setting.ranges if each[0] is not size])
    return replace(job, setting=replace(job.setting, ranges=(*others, (size, low, high))))


def _of_few_rows(job: Job, source: Graph) -> Iterator[tuple[Limit, Job]]:
    """Products and rows, up to what the kernel for any size is planned for. A variant is planned
    for the most that it is for, which is the middle of a wider range that it is made for: its plan
    is no slower where there are fewer, but one for fewer may leave the most a wave of few blocks.
    """
    reductions = {name for name, op in OPS.items() if op.pattern == REDUCTION}
    if not any(node.op in PRODUCTS or node.op in reductions for node in walk(source)):
        return
    found = _told(source)
    if len(found) != 1:
        return
    ((at, size),) = found
    ranges = {of: (low, high) for _, of, low, high in job.ranges}
    low, high = ranges.get(size, (0, 0))
    least = max(1, low)
    planned = math.isqrt(least * high) if high else NOMINAL
    if 2 * least < planned:
        yield Limit(at, 2 * least), _within(job, size, low, 2 * least)
    most = APART * least
    while most < planned:
        yield Limit(at, most), _within(job, size, least, most**2 // least)
        most *= APART


def is_another(variant: Kernel, kernel: Kernel) -> bool:
    """Whether a variant is planned otherwise, and so worth its code."""

    def plans(of: Kernel) -> list[tuple[str, str, str]]:
        return [(each.block, each.rule, each.plan) for each in of.decisions]

    return plans(variant) != plans(kernel)
