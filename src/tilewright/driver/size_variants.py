"""Kernel variants for small values of a dynamic size, chosen at run time.

    matmul of b x 128 rows by weights:  planned for b = 1, 4, 16, 64, and for any b
    attention of t queries on a CPU:    for t = 1, for t up to two vectors, and for any t

One plan cannot serve both ends. On a GPU, few rows leave most multiprocessors idle unless tiles are
small and k is split, which takes twice as long or more when rows are many. On a CPU the lanes of
vectors are queries; a single query, as in decoding, needs lanes along keys and features instead.
Variants are selected by one size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.base.extents import ASSUMED, likely_extent
from tilewright.base.target import CPU, CUDA
from tilewright.driver.kernels import Job, Kernel
from tilewright.graph.ir import Graph
from tilewright.graph.op import REDUCTION
from tilewright.graph.ops import OPS
from tilewright.graph.visit import walk
from tilewright.lower.graph import sizes_of
from tilewright.sym import Size, free_vars

PRODUCTS = ("matmul", "conv")  # attention parallelizes over keys by itself where rows are few
LIMIT_RATIO = 4  # ratio of consecutive limits


@dataclass(frozen=True)
class Limit:
    """The condition of a variant: the size at position `size` is at most `most`."""

    size: int
    most: int


def variants_of(job: Job) -> Iterator[tuple[Limit, Job]]:
    """The same kernel for bounded sizes, smallest bound first, each planned for a range."""
    if not job.setting.schedule or job.choices or not isinstance(job.source, Graph):
        return
    if job.setting.target.kind == CUDA:
        yield from _few_rows(job, job.source)
    elif job.setting.target.kind == CPU:
        yield from _few_queries(job, job.source)


def _operand_sizes(source: Graph) -> list[tuple[int, Size]]:
    """The dynamic sizes of operands, with their positions among all sizes."""
    of_operands = free_vars(*[dim for value in source.params for dim in value.tensor.shape or ()])
    return [(at, size) for at, size in enumerate(sizes_of(source)) if size in of_operands]


def _few_queries(job: Job, source: Graph) -> Iterator[tuple[Limit, Job]]:
    """Variants for attention of one query, and of at most two vectors of queries, if the number of
    queries is a size of its own. No query at all uses the general kernel."""
    first = {node.inputs[0] for node in walk(source) if node.op == "attention"}
    queries = {(value.tensor.shape or ())[2] for value in first if value is not None}
    ranges = {size: (low, high) for _, size, low, high in job.ranges}
    for at, size in _operand_sizes(source):
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
    """A job for a range of values of one size."""
    others = tuple([each for each in job.setting.ranges if each[0] is not size])
    return replace(job, setting=replace(job.setting, ranges=(*others, (size, low, high))))


def _few_rows(job: Job, source: Graph) -> Iterator[tuple[Limit, Job]]:
    """Variants for matmuls, convolutions and reductions of few rows, up to the size that the
    general kernel is planned for.

    Rules plan for the geometric middle of a range, so each variant gets a range whose middle is its
    upper limit: that plan is not slower for fewer rows, whereas a plan for fewer rows might leave a
    last wave of few blocks at the limit.
    """
    reductions = {name for name, op in OPS.items() if op.pattern == REDUCTION}
    if not any(node.op in PRODUCTS or node.op in reductions for node in walk(source)):
        return
    found = _operand_sizes(source)
    if len(found) != 1:
        return
    ((at, size),) = found
    ranges = {of: (low, high) for _, of, low, high in job.ranges}
    low, high = ranges.get(size, (0, 0))
    least = max(1, low)
    planned = likely_extent(least, high) if high else ASSUMED.elements
    if 2 * least < planned:
        yield Limit(at, 2 * least), _within(job, size, low, 2 * least)
    most = LIMIT_RATIO * least
    while most < planned:
        yield Limit(at, most), _within(job, size, least, most**2 // least)
        most *= LIMIT_RATIO


def has_other_plan(variant: Kernel, kernel: Kernel) -> bool:
    """Whether a variant has another plan than the general kernel, and so is worth its code."""

    def plans(of: Kernel) -> list[tuple[str, str, str]]:
        return [(each.block, each.rule, each.plan) for each in of.decisions]

    return plans(variant) != plans(kernel)
