"""The best of a line by counting, where threads are many and each is slow.

    top_k(%x, %k)  becomes  top_k(%x, %k) {pieces = (16, 16)}

How many elements come before an element is its rank: all ranks are counted at once. What is no best
of its piece is not among the best of a line before that is: so of the pieces as many are looked
into as are asked for, those that have the best elements, which are found in the same way. Pieces
are as long, and taken as often, as makes kernels and comparisons fewest; where nobody knows how
many are asked for, all elements are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from tilewright.base.dtype import I64
from tilewright.base.multiprocessor import Multiprocessor, multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node, attributes
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, Const, Expr


def count_ranks(module: Module, ctx: PassContext) -> Module:
    if ctx.target is None:
        return module
    return rewrite_matches(module, (partial(first, ctx.target), partial(counted, ctx.target)))


def first(target: Target, node: Node, scope: Scope) -> Replacement:
    """The place of the best element of a few long lines is that of a selection of one: blocks of
    threads, one for each line, would leave most multiprocessors idle."""
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
    """A selection, told in which pieces."""
    if node.op != "top_k" or node.get("pieces") or node.inputs[0] is None:
        return None
    shape, best = (shape_of(value) for value in (node.inputs[0], node.outputs[0]))
    if not shape or not best or any(_known(dim) == 0 for dim in (*shape, *best)):
        return None
    axis, sm = node["axis"], multiprocessor_of(target)
    count = _known(best[axis])
    pieces: tuple[int, ...] = (1,)  # of one element: all are compared
    if count is not None:
        # A line of any length is one that is worth pieces, more rather than less.
        length = _known(shape[axis]) or count * sm.warp**2
        lines = prod(_known(dim) or 1 for at, dim in enumerate(shape) if at != axis % len(shape))
        pieces = pieces_of(lines, length, count, sm)
    chosen = {**dict(node.attributes), "pieces": pieces}
    return [replace(node, attributes=attributes(**chosen))]


def _known(dim: Expr) -> int | None:
    return int(dim.value) if isinstance(dim, Const) else None


def pieces_of(lines: int, length: int, count: int, sm: Multiprocessor) -> tuple[int, ...]:
    """The elements of a piece, a power of two, once or several times."""
    choices: list[tuple[int, ...]] = [(1,)]
    for bits in range(1, length.bit_length()):
        left, times = -(-length >> bits), 1
        while left > count:
            choices.append((1 << bits,) * times)
            left, times = -(-left >> bits), times + 1
    return min(choices, key=lambda pieces: cycles(lines, length, count, pieces, sm))


def cycles(lines: int, length: int, count: int, pieces: Sequence[int], sm: Multiprocessor) -> float:
    """What a selection takes: a kernel for the best of pieces, of keys, ranks and places each,
    and comparisons of all candidates with each other and with the places of the best."""
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
    work = 3 * lines * steps  # a load, a comparison, a sum
    # Each kernel waits for the one before it, then for memory.
    return 2 * kernels * sm.launch_cycles + work / (sm.count * sm.warp)
