"""parallelize_sorts: top_k and sorting by counting or merging, for targets with many threads.

    top_k(%x, %k)  becomes  top_k(%x, %k) {pieces = (16, 16)}  or  {runs = (32, 16, 8)}

The rank of an element is the number of elements before it in the order; all ranks are counted in
parallel. To find the k best of a long row, it is cut into pieces: only the k pieces with the best
maxima can contain them, and those pieces are found in the same way. The number and size of pieces
minimize kernels and comparisons.

If k is large or dynamic, the whole row is sorted: runs by rank counting, then several runs are
merged at a time, where each element finds its position in the other runs by binary search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from tilewright.base.dtype import I32, I64
from tilewright.base.multiprocessor import Multiprocessor, multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node, attributes
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, Const, Expr


def parallelize_sorts(module: Module, ctx: PassContext) -> Module:
    if ctx.target is None:
        return module
    rules = (first, counted, distinct, suppressed, listed)
    return rewrite_matches(module, tuple([partial(rule, ctx.target) for rule in rules]))


def first(target: Target, node: Node, scope: Scope) -> Replacement:
    """argmax of a few long rows as top_k with k = 1: one thread block per row would leave most
    multiprocessors idle."""
    (x,) = node.inputs[:1] if node.op == "arg_max" else (None,)
    if x is None or node.get("last"):
        return None
    shape, axis = shape_of(x), node["axis"]
    sizes = [_known(dim) for dim in shape or ()]
    if not shape or not all(sizes) or x.tensor.dtype.is_bool:
        return None
    axis %= len(shape)
    sm, length = multiprocessor_of(target), sizes[axis] or 0
    lines = prod(size or 1 for size in sizes) // length
    if lines > sm.count // 2 or length < sm.block_threads * sm.warp:
        return None
    count = scope.new_constant(np.ones(1, np.int64), "one", node)
    dims = (*shape[:axis], ONE, *shape[axis + 1 :])
    made = make_node(
        "top_k",
        (x, count.output),
        {"axis": axis, "pieces": pieces_of(lines, length, 1, sm)},
        node.loc,
        hints=("best", node.output.name),
        types=(TensorType(x.tensor.dtype, dims), TensorType(I64, dims)),
    )
    shaped = scope.new("reshape", made.outputs[1], like=node, shape=node.output.tensor.shape)
    return [count, made, replace(shaped, outputs=node.outputs)]


def counted(target: Target, node: Node, scope: Scope) -> Replacement:
    """top_k, with the sizes of pieces or runs."""
    if node.op != "top_k" or node.get("pieces") or node.get("runs") or node.inputs[0] is None:
        return None
    shape, best = (shape_of(value) for value in (node.inputs[0], node.outputs[0]))
    if not shape or not best or any(_known(dim) == 0 for dim in (*shape, *best)):
        return None
    axis, sm = node["axis"], multiprocessor_of(target)
    count, length = _known(best[axis]), _known(shape[axis])
    lines = prod(_known(dim) or 1 for at, dim in enumerate(shape) if at != axis % len(shape))
    runs, merging = runs_of(lines if length else 1, length, sm)
    how: dict[str, tuple[int, ...]] = {"runs": runs}
    if count is not None:
        # A dynamic length is assumed to be long enough for pieces.
        likely = length or count * sm.warp**2
        pieces = pieces_of(lines, likely, count, sm)
        if length is None or cycles(lines, likely, count, pieces, sm) < merging:
            how = {"pieces": pieces}
    return [replace(node, attributes=attributes(**dict(node.attributes), **how))]


def suppressed(target: Target, node: Node, scope: Scope) -> Replacement:
    """non_max_suppression: the boxes of all classes, sorted by score."""
    if node.op != "suppress_boxes" or node.get("runs") or node.inputs[2] is None:
        return None
    scores = node.inputs[1]
    shape = None if scores is None else shape_of(scores)
    if not shape or any(_known(dim) == 0 for dim in shape):
        return None
    *lines, length = (_known(dim) for dim in shape)
    many = prod(size or 1 for size in lines) if length else 1
    runs, _ = runs_of(many, length, multiprocessor_of(target))
    return [replace(node, attributes=attributes(**dict(node.attributes), runs=runs))]


def listed(target: Target, node: Node, scope: Scope) -> Replacement:
    """Compaction of the boxes of all classes into rows."""
    if node.op != "list_boxes" or node.get("side_by_side"):
        return None
    return [replace(node, attributes=attributes(**dict(node.attributes), side_by_side=True))]


def distinct(target: Target, node: Node, scope: Scope) -> Replacement:
    """unique, by sorting; not of whole rows, which are compared sequentially."""
    if node.op != "unique" or node.get("runs") or node.inputs[0] is None:
        return None
    shape = shape_of(node.inputs[0])
    if not shape or any(_known(dim) == 0 for dim in shape):
        return None
    if node.get("axis") is not None and len(shape) > 1:
        return None
    sizes = [_known(dim) for dim in shape]
    length = prod(size or 1 for size in sizes) if all(sizes) else None
    runs, _ = runs_of(1, length, multiprocessor_of(target))
    return [replace(node, attributes=attributes(**dict(node.attributes), runs=runs))]


def _known(dim: Expr) -> int | None:
    return int(dim.value) if isinstance(dim, Const) else None


def pieces_of(lines: int, length: int, count: int, sm: Multiprocessor) -> tuple[int, ...]:
    """The sizes of pieces, powers of two, for one or more levels."""
    choices: list[tuple[int, ...]] = [(1,)]
    for bits in range(1, length.bit_length()):
        left, times = -(-length >> bits), 1
        while left > count:
            choices.append((1 << bits,) * times)
            left, times = -(-left >> bits), times + 1
    return min(choices, key=lambda pieces: cycles(lines, length, count, pieces, sm))


def cycles(lines: int, length: int, count: int, pieces: Sequence[int], sm: Multiprocessor) -> float:
    """The cycles of a top_k: per level, kernels for maxima, keys, ranks and indices of pieces, and
    the comparisons of all candidates."""
    cut = [piece for piece in pieces if piece > 1]
    extents = [length]
    for piece in cut:
        extents.append(-(-extents[-1] // piece))
    many, steps = extents[-1], sum(extents[:-1])
    for extent, piece in zip(extents[::-1], (*cut[::-1], 0), strict=True):
        kept = min(count, extent)
        steps += many * (many + kept)
        many = kept * piece
    kernels = len(cut) + 3 * len(extents)
    work = 3 * lines * steps  # a load, a comparison and an add each
    return kernels * sm.kernel_cycles + work / (sm.count * sm.warp)


def runs_of(lines: int, length: int | None, sm: Multiprocessor) -> tuple[tuple[int, ...], float]:
    """How many runs to merge at each level, powers of two, and the cycles. Dynamic lengths need
    enough levels for any index, most of which then have nothing to do."""
    likely = length or sm.warp**3
    elements = lines * likely
    waves = max(1.0, elements / (sm.count * sm.threads))
    bits = (likely - 1).bit_length() if length else I32.bits - 1
    least = [0.0] + [float("inf")] * bits
    chosen: list[tuple[int, ...]] = [()] * (bits + 1)
    for end in range(1, bits + 1):
        for begin in range(end):
            if length is None and (1 << (end - begin)) < sm.warp // 2:
                continue
            # Binary search in every other run: a load, a comparison and an add per step. A thread
            # interleaves the searches in several runs, and waits once for all.
            ways, halves = 1 << (end - begin), begin + 1
            work = 3 * elements * (ways - 1) * halves / (sm.count * sm.warp)
            waits = halves * max(1.0, ways / sm.searches) * sm.l2_latency_cycles
            took = sm.kernel_cycles + max(work, waves * waits)
            if least[begin] + took < least[end]:
                least[end] = least[begin] + took
                chosen[end] = (*chosen[begin], 1 << (end - begin))
    return chosen[bits] or (1,), least[bits] + 2 * sm.kernel_cycles  # of keys, and of what is taken
