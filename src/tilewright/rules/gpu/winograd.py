"""Winograd convolution on a GPU, channels first: three kernels.

    for tile, c in threads   { V[i, j, c, tile] = transform of a tile of the image, in registers }
    for i, j                 { M[i, j] = U[i, j]^T V[i, j], a batched GEMM on shared tiles }
    for tile, o in threads   { result = epilogue(inverse transform of M[:, :, o, tile]) }

A single image has few tiles, but a GEMM per tile position: together they occupy the GPU. Where even
they are few, k is split into `split_k` parts, which the last kernel adds up as it reads them.
Weights are transformed before the first call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.base.multiprocessor import USUAL_THREADS, multiprocessor_of
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu import gemm
from tilewright.rules.gpu.parts import ceildiv, copied_by, depth_of, parts_along
from tilewright.rules.gpu.threads import bind_flat
from tilewright.rules.match.contraction import contraction
from tilewright.rules.match.nest import nest_of
from tilewright.rules.match.winograd import Parts, followed, number, parts_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, preferring
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class Plan(gemm.Plan):
    """The tiling of the GEMMs, and threads per block of the transforms."""

    transform_threads: int = USUAL_THREADS


@dataclass(frozen=True)
class Found:
    """The stages of a Winograd convolution, and the sizes of its GEMMs."""

    parts: Parts
    products: gemm.Found
    results: int  # tiles times output channels


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """All stages of a channels-first Winograd convolution of static sizes, from its GEMM."""
    parts = parts_of(sch, reference, context)
    if parts is None or parts.is_last or parts.product.is_dynamic(list(parts.product.loops)):
        return None
    if not parts.is_constant:
        return None
    found, columns = contraction(parts.product), nest_of(sch, parts.columns)
    if found is None or columns is None or not gemm.has_rows(found):
        return None
    *tiles, _, _ = columns.spatial
    products = gemm.Found(reference, gemm.problem_of(found))
    return Found(parts, products, prod(columns.guess(at) for at in tiles))


def plans(found: Found, context: RuleContext) -> Space[Plan]:
    """The plans of the GEMMs. Tiles, and blocks of transforming threads, divide evenly: a predicate
    in the innermost loop costs more than the method saves."""
    sm, tiles = multiprocessor_of(context.target), gemm.plans(found.products, context)
    problem = found.products.problem

    def legal(c: Columns) -> Column:
        assert tiles.legal is not None
        threads = c["transform_threads"]
        whole = (problem.x * problem.k % threads == 0) & (found.results % threads == 0)
        whole &= (problem.x % c["block_x"] == 0) & (problem.m % c["block_m"] == 0)
        result: Column = tiles.legal(c) & whole
        return result

    sizes = preferring(2 * sm.warp, doublings(USUAL_THREADS, sm.warp))
    return Space(
        Plan,
        {**tiles.candidates, "transform_threads": sizes},
        legal,
        stages=(*tiles.stages, ("transform_threads", "split_k")),
    )


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """The cost of the GEMMs, without a kernel to add up their parts, and of the transforms: memory,
    kernel launches, and the load latency of each wave of threads."""
    problem, sm = found.products.problem, multiprocessor_of(context.target)
    whole = gemm.cost(found.products, c, context)
    tiles, threads, split = problem.x, c["transform_threads"], c["split_k"]
    a, m = found.parts.size, found.parts.tile
    size = problem.element_bytes
    image = size * tiles * problem.k * (a * a + m * m)
    result = size * tiles * problem.m * (split * a * a + m * m)
    operations = 2 * a * found.parts.image_operations, (a + m) * found.parts.result_operations
    waiting = sm.global_latency_cycles * (2.0 + split)
    steps: Column = np.zeros_like(1.0 * threads)
    for count, each in zip((problem.k, problem.m), operations, strict=True):
        blocks = ceildiv(tiles * count, threads)
        busy = ceildiv(blocks, sm.count) * threads / sm.warp / sm.warps_issued_per_cycle
        steps = steps + busy * (each + 2 * a * a)
    return Cost.of(
        arithmetic=whole.terms["arithmetic"],
        fetch=whole.terms["fetch"],
        launches=2.0 * sm.launch_cycles,
        transforms=steps + waiting,
        memory=(image + result) / sm.memory_bytes_per_cycle,
    )


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    parts = followed(sch, found.parts)
    for reference in parts.weights:
        sch.annotate(reference, CONSTANT, True)
    product = BlockRef(parts.product.name)
    done: list[BlockRef] = [*parts.weights, parts.image, parts.half, parts.padded]
    _transform_image(sch, parts, plan)
    summed = None
    if plan.split_k > 1:
        k = parts.product.loops[parts.product.reduce[0]]
        depth = number(parts.product.extent(parts.product.reduce[0]))
        part, _ = sch.split(k, [plan.split_k, ceildiv(depth, plan.split_k)])
        summed, product = product, parts_along(sch, part)
    words = multiprocessor_of(context.target).access_words
    done += gemm.tiled(sch, product, replace(plan, split_k=1), words, copied_by)
    return (*done, *_transform_result(sch, parts, plan, summed))


def _transform_image(sch: Schedule, parts: Parts, plan: Plan) -> None:
    """One tile of one channel per thread: pixels and both transforms stay in registers."""
    i, j, c, tile = sch.get_loops(parts.image)
    sch.reorder(c, tile, i, j)
    for stage in (parts.half, parts.padded):
        _place_in_registers(sch, stage, tile)
    for loop in (i, j):
        sch.unroll(loop)
    bind_flat(sch, [c, tile], plan.transform_threads)


def _transform_result(
    sch: Schedule, parts: Parts, plan: Plan, summed: BlockRef | None
) -> list[BlockRef]:
    """One tile of one output channel per thread."""
    m = parts.tile
    nest = nest_of(sch, parts.result)
    assert nest is not None
    *outer, y, x = [nest.loops[at] for at in nest.spatial]
    ty, yi = sch.split(y, [None, m])
    tx, xi = sch.split(x, [None, m])
    sch.reorder(*outer, ty, tx, yi, xi)
    stages = [parts.columns] if summed is None else [parts.columns, summed]
    for stage in stages:
        _place_in_registers(sch, stage, tx)
    for loop in (yi, xi):
        sch.unroll(loop)
    bind_flat(sch, [*outer, ty, tx], plan.transform_threads)
    return [*stages, parts.result]


def _place_in_registers(sch: Schedule, stage: BlockRef, thread: LoopRef) -> None:
    """Compute a stage of a thread's tile in registers."""
    sch.set_scope(stage, 0, "local")
    sch.compute_at(stage, thread)
    for loop in sch.get_loops(stage)[depth_of(sch, stage, thread) :]:
        sch.unroll(loop)


WINOGRAD = Rule("winograd", Plan, match, plans, cost, apply)
