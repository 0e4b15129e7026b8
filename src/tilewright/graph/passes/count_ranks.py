"""The best of a line by counting, where threads are many and each is slow.

    top_k(%x, %k)  becomes  top_k(%x, %k) {piece = 1024}

How many elements of its piece come before an element is its rank there: all ranks are counted at
once. The best of all pieces are ranked once more. Pieces are as long as makes the comparisons
fewest; lines whose length only a run tells stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node, attributes
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.sym import Const


def count_ranks(module: Module, ctx: PassContext) -> Module:
    return rewrite_matches(module, (counted,))


def counted(node: Node, scope: Scope) -> Replacement:
    """A selection among elements whose number is known."""
    if node.op != "top_k" or node.get("piece") or node.inputs[0] is None:
        return None
    sizes = [(shape_of(value) or ())[node["axis"]] for value in (node.inputs[0], node.outputs[0])]
    length, count = (int(dim.value) if isinstance(dim, Const) else 0 for dim in sizes)
    if not length or not count:
        return None
    chosen = {**dict(node.attributes), "piece": piece_of(length, count)}
    return [replace(node, attributes=attributes(**chosen))]


def piece_of(length: int, count: int) -> int:
    """The elements of a piece, a power of two or all: those of a piece are compared with each
    other, then the best of all pieces."""

    def comparisons(piece: int) -> int:
        pieces = -(-length // piece)
        return pieces * piece**2 + ((pieces * count) ** 2 if pieces > 1 else 0)

    powers = [1 << bits for bits in range(length.bit_length())]
    return min([piece for piece in powers if piece >= count] + [length], key=comparisons)
