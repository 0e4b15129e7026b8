"""Views that contractions read through instead of a stored copy."""

from __future__ import annotations

from tilewright.graph.fusion.state import Fusion
from tilewright.graph.ir import Node, Value
from tilewright.graph.op import COMPLEX
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.rates import extent
from tilewright.graph.views import (
    ALIAS,
    can_copy_windows,
    has_window_copies,
    is_view,
    keeps_window_pixels,
    pads_windows,
    reads_views,
    scatters_rows,
)


def read_in_place(fusion: Fusion) -> None:
    """Copy nodes that only rearrange operands into the contractions, which read through them."""
    found: set[int] = set()
    for at in reversed(range(len(fusion.nodes))):
        node = fusion.nodes[at]
        if not fusion.is_kernel[at]:
            continue
        if _is_padding(fusion, node):
            found.add(at)
        if not _is_view(fusion, node):
            continue
        users = fusion.users.get(node.output, [])
        if not users or node.output in fusion.results:
            continue
        reading = [
            user
            for user in users
            if fusion.is_kernel[user]
            and reads_views(fusion.nodes[user])
            and not scatters_rows(node, fusion.nodes[user])
        ]
        if all(user in found or user in reading for user in users):
            found.add(at)
    fusion.repeated |= found


def _is_view(fusion: Fusion, node: Node) -> bool:
    """Whether a node is a view that would cost a copy; a reshape in memory is free."""
    if has_window_copies(fusion.ctx.target) and _is_of_windows(fusion, node):
        return True
    if node.op == ALIAS:
        source = None if node.inputs[0] is None else fusion.at.get(node.inputs[0])
        if source is None or not is_view(fusion.nodes[source]):
            return False
    return is_view(node)


def _is_padding(fusion: Fusion, node: Node) -> bool:
    """Whether a node pads the image of a single integer convolution, and the image is a
    contraction's result: then a padded copy is slower than bounds checks for each line of a
    window."""
    if node.op != "pad" or node.get("mode", "constant") != "constant" or not fusion.is_cpu:
        return False
    x, users = node.inputs[0], [fusion.nodes[user] for user in fusion.users.get(node.output, ())]
    if len(users) != 1 or users[0].op != "conv_integer" or node.output in fusion.results:
        return False
    (conv,) = users
    if conv.get("layout") != CHANNELS_LAST or any(conv["pads"]) or conv.inputs[1] is None:
        return False
    if x is None or conv.inputs[0] is not node.output or not _is_of_product(fusion, x):
        return False
    lines = extent((conv.inputs[1].tensor.shape or ())[2])
    rates = fusion.rates
    moved_ns = rates.launch_ns + 2 * rates.byte_ns * rates.size_bytes(node.output)
    return moved_ns > rates.operation_ns * lines * rates.elements(conv.output)


def _is_of_product(fusion: Fusion, value: Value) -> bool:
    """Whether a value is a contraction's result after reshapes and elementwise operators with
    no other dependence."""
    at = fusion.at.get(value)
    while at is not None:
        node = fusion.nodes[at]
        op = OPS[node.op]
        if op.pattern == COMPLEX:
            return True
        if node.op != ALIAS and not op.is_map:
            return False
        first, *others = node.inputs
        made = [fusion.nodes[fusion.at[v]].op for v in others if v is not None and v in fusion.at]
        if any(each != "constant" for each in made):
            return False
        at = None if first is None else fusion.at.get(first)
    return False


def _is_of_windows(fusion: Fusion, node: Node) -> bool:
    """Whether a node is a step of im2col, which the copies into tiles of a GEMM compute on the
    fly."""
    if len(node.outputs) != 1:
        return False
    users = [fusion.nodes[user] for user in fusion.users.get(node.output, ())]
    if node.op == "pad":
        return pads_windows(node) and all(can_copy_windows(user) for user in users)
    if node.op == ALIAS:
        return _is_made_of_windows(fusion, node)
    if node.op == "transpose":
        return keeps_window_pixels(node) and _is_made_of_windows(fusion, node)
    return can_copy_windows(node) and all(user.op == ALIAS for user in users)


def _is_made_of_windows(fusion: Fusion, node: Node) -> bool:
    """Whether a node lays out windows in another order, those of each group of channels say."""
    while node.op in (ALIAS, "transpose"):
        source = None if node.inputs[0] is None else fusion.at.get(node.inputs[0])
        if source is None:
            return False
        node = fusion.nodes[source]
    return can_copy_windows(node)
