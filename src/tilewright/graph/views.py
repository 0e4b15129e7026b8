"""Views: nodes that only reindex another tensor.

A GEMM-like operator (matmul, attention) may read a view in place, at an affine index in memory.
"""

from __future__ import annotations

import itertools

from tilewright import sym
from tilewright.base.multiprocessor import WINDOW_BYTES
from tilewright.base.target import Target
from tilewright.graph.ir import Node
from tilewright.graph.op import COMPLEX
from tilewright.graph.ops import OPS
from tilewright.sym import ONE, Const, Expr

Shape = tuple[Expr, ...]

WINDOW_TYPES = ("bf16", "f16", "f32", "i8", "u8")
ALIAS = "reshape"  # the operator that leaves memory unchanged


def is_view(node: Node) -> bool:
    """Whether each element is at an affine index of the first input."""
    if node.op in ("transpose", "expand"):
        return True
    if node.op == "slice":
        return all(step == 1 for step in node.get("steps", ()))
    x = node.inputs[0] if node.inputs else None
    if node.op != ALIAS or x is None:
        return False
    return splits(x.tensor.shape or (), node.output.tensor.shape or ())


def sliced_axes(node: Node) -> tuple[int, ...]:
    """The axes of a slice with constant bounds; by default the first ones."""
    axes = node.get("axes")
    return tuple(range(len(node["starts"])) if axes is None else axes)


def has_window_copies(target: Target | None) -> bool:
    """Whether the target copies windows of an image to tiles while reading."""
    return target is not None and target.has("wgmma")


def can_copy_windows(node: Node) -> bool:
    """Whether a node is im2col with pixels that are whole rows of tensor core tiles."""
    x = node.inputs[0] if node.op == "patches" else None
    shape = () if x is None else x.tensor.static_shape or ()
    if x is None or len(shape) != 4 or x.tensor.dtype.name not in WINDOW_TYPES:
        return False
    return shape[-1] * x.tensor.dtype.size_bytes % WINDOW_BYTES == 0


def keeps_window_pixels(node: Node) -> bool:
    """Whether a transpose of windows keeps whole rows of a tile together."""
    x = node.inputs[0]
    if x is None or node["perm"][-1] != len(node["perm"]) - 1:
        return False
    pixel = (x.tensor.static_shape or (1,))[-1]
    return pixel * x.tensor.dtype.size_bytes % WINDOW_BYTES == 0


def pads_windows(node: Node) -> bool:
    """Whether a node zero-pads channels-last images."""
    known = all(isinstance(pad, int) and pad >= 0 for pad in node["pads"])
    zeros = len(node.inputs) < 2 or node.inputs[1] is None
    around = tuple(node.get("axes") or ()) == (1, 2) and node.get("mode", "constant") == "constant"
    return known and zeros and around


def reads_views(node: Node) -> bool:
    """Whether a node is a GEMM-like operator that reads operands by rows, not by windows."""
    op = OPS.get(node.op)
    if op is None or op.pattern != COMPLEX:
        return False
    return not any(attr.name == "strides" for attr in op.attributes)


def scatters_rows(view: Node, product: Node) -> bool:
    """Whether rows of a matmul would be read along several axes, the innermost of them dynamic.

    A register tile takes rows along one axis, which may be short if dynamic, such as the batch.
    Contiguous rows form one axis.
    """
    if view.op != "transpose" or product.op != "matmul" or product.inputs[0] is not view.output:
        return False
    weights, shape = product.inputs[1], view.output.tensor.shape or ()
    if weights is None or len(weights.tensor.shape or ()) != 2:
        return False
    *lead, _ = view["perm"]
    in_order = all(b == a + 1 for a, b in itertools.pairwise(lead))
    return len(lead) > 1 and not in_order and not isinstance(shape[-2], Const)


def splits(before: Shape, after: Shape) -> bool:
    """Whether a reshape only splits axes, in order."""
    rest = list(after)
    for dim in before:
        product: Expr = ONE
        while rest and not (product is not ONE and sym.equal(product, dim)):
            if dim is ONE and rest[0] is not ONE:
                break
            product = sym.simplify(sym.mul(product, rest.pop(0)))
            if dim is ONE:
                break
        if not sym.equal(product, dim):
            return False
    return all(dim is ONE for dim in rest)
