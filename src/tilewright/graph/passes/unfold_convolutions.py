"""unfold_convolutions: convolutions of bytes become products of matrices.

The machine multiplies bytes by tiles, faster than it can gather them from windows: laid out as rows
they are read in order. Where tiles can be loaded from the image itself, convolutions stay as they
are. See `graph/unfold.py`.
"""

from __future__ import annotations

from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.unfold import (
    fits_tiles,
    flatten_rows,
    foldable_weights,
    matrix_of,
    restored,
    rows_of,
)


def unfold_convolutions(module: Module, ctx: PassContext) -> Module:
    """Before: conv_integer(%x, %w).   After: reshape(matmul_integer(patches(%x), %w2))."""
    return rewrite_matches(module, (unfold, flatten_rows))


def unfold(node: Node, scope: Scope) -> Replacement:
    """A convolution of integers without zero points."""
    if node.op != "conv_integer":
        return None
    x, zeros, bias = node.inputs[0], node.inputs[2:4], (*node.inputs[4:], None)[0]
    weights = foldable_weights(node, scope)
    if x is None or weights is None or any(zeros) or fits_tiles(node, weights):
        return None
    steps = Steps(node, scope)
    seen = rows_of(steps, node, x, weights.shape[2:])
    factor = scope.new_constant(matrix_of(weights), "w", node)
    steps.nodes.append(factor)
    value = steps.add("matmul_integer", seen, factor.output)
    restored(steps, value if bias is None else steps.add("add", value, bias), node)
    return steps.done()
