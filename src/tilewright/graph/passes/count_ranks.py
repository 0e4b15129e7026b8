"""The best of a line by counting, where threads are many and each is slow.

    top_k(%x, %k)  becomes  top_k(%x, %k) {piece = 1024}

How many elements of its piece come before an element is its rank there: all ranks are counted at
once. The best of all pieces are ranked once more. Pieces are as long as makes the comparisons
fewest. Sorting a line takes one thread fewer comparisons: where lines are enough to keep all
threads busy, or sizes are known to a run alone, they stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Module, Node, attributes
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.sym import Const


def count_ranks(module: Module, ctx: PassContext) -> Module:
    if ctx.target is None:
        return module
    return rewrite_matches(module, (partial(counted, ctx.target),))


def counted(target: Target, node: Node, scope: Scope) -> Replacement:
    """A selection among elements whose number is known, if it takes less time to count."""
    if node.op != "top_k" or node.get("piece") or node.inputs[0] is None:
        return None
    shape, best = (shape_of(value) or () for value in (node.inputs[0], node.outputs[0]))
    sizes = [int(dim.value) for dim in (*shape, best[node["axis"]]) if isinstance(dim, Const)]
    if len(sizes) <= len(shape) or not all(sizes):
        return None
    length, count = sizes[node["axis"]], sizes[-1]
    lines, piece = prod(sizes[:-1]) // length, piece_of(length, count)
    sm = multiprocessor_of(target)
    threads = sm.count * sm.warp * sm.warps_issued_per_cycle
    sorting = lines * length * length.bit_length() / min(lines, threads)
    if lines * comparisons(length, count, piece) > threads * sorting:
        return None
    chosen = {**dict(node.attributes), "piece": piece}
    return [replace(node, attributes=attributes(**chosen))]


def piece_of(length: int, count: int) -> int:
    """The elements of a piece, a power of two or all: those of a piece are compared with each
    other, then the best of all pieces."""
    powers = [1 << bits for bits in range(length.bit_length())]
    pieces = [piece for piece in powers if piece >= count] + [length]
    return min(pieces, key=partial(comparisons, length, count))


def comparisons(length: int, count: int, piece: int) -> int:
    """Of one line, in pieces and of their best."""
    pieces = -(-length // piece)
    return pieces * piece**2 + ((pieces * count) ** 2 if pieces > 1 else 0)
