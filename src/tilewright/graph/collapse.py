"""Merge adjacent axes of a kernel, where all its operands allow it.

    matmul(x: [steps, batch, k], w: [k, n]) + b: [n]      is computed as
    matmul(x: [steps * batch, k], w: [k, n]) + b: [n]

    transpose(x: [n, c, h, w]) {perm = (0, 2, 3, 1)}      is computed as
    transpose(x: [n, c, h * w]) {perm = (0, 2, 1)}

    conv(x: [n, c, h, w], w: [m, c, 1, 1])                is computed as
    matmul(w: [m, c], x: [n, c, h * w])

    layer_norm(x: [n, h, w, c], s: [c]) {axis = 3}        is computed as
    layer_norm(x: [n * h * w, c], s: [c]) {axis = 1}

    transpose(conv(x, w), perm = (0, 2, 3, 1))            is computed as
    transpose(matmul(w, x: [n, c, h * w]), perm = (0, 2, 1))

    conv(x: [n, g * c, h, w], w: [g * m, c, 1, 1]) {groups = g}
                                                          is computed as
    matmul(w: [g, m, c], x: [n, g, c, h * w])

    transpose(conv(x, w), perm = (0, 2, 3, 1))            of groups is computed as
    transpose(matmul(w, x: [n, g, c, h * w]), perm = (0, 3, 1, 2))

No data moves: row-major tensors are identical in memory. Tiling is along the innermost axis; a
dynamic one may be short, such as the batch, even if the merged axis is long. Rows of an image
rarely are whole register tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from tilewright import sym
from tilewright.base.dtype import F32
from tilewright.base.target import CUDA
from tilewright.graph.build import make_node
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import CHANNELS_LAST, channels_first, channels_last
from tilewright.graph.types import TensorType
from tilewright.graph.visit import attribute_sizes
from tilewright.sym import Const, Expr

Shape = tuple[Expr, ...]
AXES = ("axis", "axes")  # attributes that refer to axes
PRODUCTS = ("matmul", "matmul_pieces")
NORMS = ("layer_norm", "rms_norm", "softmax", "log_softmax", "reduce_sum", "reduce_mean",
         "reduce_max", "reduce_min")  # fmt: skip


def collapse_axes(graph: Graph, kind: str) -> Graph:
    """The body of a kernel for a kind of target with merged axes, and those of groups apart; the
    same graph if not possible."""
    steps = [collapse_rows, _collapse_transpose, _collapse_positions, split_groups, _collapse_norms]
    if kind == CUDA:  # its convolutions fill a GPU with few images, and split sums
        steps.remove(_collapse_positions)
        if not _has_dynamic_transpose(graph):
            steps.remove(_collapse_transpose)
        if _has_transpose(graph):  # its GEMMs do not store transposed
            steps.remove(split_groups)
    for step in steps:
        made = step(graph)
        if made is not graph:
            return made
    return graph


def collapse_rows(graph: Graph) -> Graph:
    """Merge the axes of a matmul's rows."""
    product = next((node for node in graph.nodes if node.op in PRODUCTS), None)
    lead = None if product is None else _lead(product)
    if product is None or lead is None or _has_other_readers(graph, product):
        return graph
    if not all(_keeps_rows(node, product) for node in graph.nodes):
        return graph
    a, b = product.inputs
    before, last = _batch_axes(product), _row_axes(product)
    made = {
        value: value if value is b else _collapsed(value, lead, before, last if value is a else 1)
        for value in _values(graph)
    }
    return _with_values(graph, made)


def _values(graph: Graph) -> tuple[Value, ...]:
    return (*graph.params, *(out for node in graph.nodes for out in node.outputs))


def _with_values(graph: Graph, made: Mapping[Value, Value | None], **attributes: Any) -> Graph:
    """The graph with other values, and other attributes of its main node; the same graph if a value
    has no merged form."""
    known = {old: new for old, new in made.items() if new is not None}
    if len(known) < len(made):
        return graph
    nodes = [
        replace(
            node,
            inputs=tuple(None if value is None else known[value] for value in node.inputs),
            outputs=tuple(known[value] for value in node.outputs),
            attributes=tuple((name, attributes.get(name, old)) for name, old in node.attributes),
        )
        for node in graph.nodes
    ]
    return replace(
        graph,
        params=tuple(known[value] for value in graph.params),
        nodes=tuple(nodes),
        results=tuple(known[value] for value in graph.results),
    )


def _lead(product: Node) -> Shape | None:
    """The axes of a matmul's rows, if there are several and the innermost is dynamic."""
    a, b = product.inputs[0], product.inputs[1]
    if a is None or b is None or a is b:
        return None
    before = _batch_axes(product)
    if before < 0 or (before and product.op == "matmul"):
        return None
    lead = (a.tensor.shape or ())[before : -_row_axes(product)]
    return lead if len(lead) > 1 and not isinstance(lead[-1], Const) else None


def _row_axes(product: Node) -> int:
    """Trailing axes of a row of A: k, and pieces."""
    return 2 if product.op == "matmul_pieces" else 1


def _batch_axes(product: Node) -> int:
    """Number of batch axes of B."""
    b = product.inputs[1]
    return len(() if b is None else b.tensor.shape or ()) - _row_axes(product) - 1


def _keeps_rows(node: Node, product: Node | None = None) -> bool:
    """Whether a node computes every row from the same row of its operands, as a product does."""
    if node is product or node.op == "constant":
        return True
    is_map = OPS[node.op].is_map and not node.bodies
    names = {name for name, _ in node.attributes}
    return is_map and not names & set(AXES) and not attribute_sizes(node)


def _collapsed(value: Value, lead: Shape, before: int, last: int) -> Value | None:
    """A value with its row axes `lead` merged, after `before` batch axes and followed by `last`
    axes; unchanged for vectors and scalars, None if its shape differs."""
    of = value.type
    if not isinstance(of, TensorType) or of.shape is None:
        return None
    if len(of.shape) <= 1:
        return value
    stack, rows = of.shape[:before], of.shape[before : before + len(lead)]
    rest = of.shape[before + len(lead) :]
    if len(rest) != last or not all(sym.equal(a, b) for a, b in zip(rows, lead, strict=True)):
        return None
    total = sym.simplify(reduce(sym.mul, rows))
    return Value(value.name, replace(of, shape=(*stack, total, *rest)))


# ------------------------------------------------------------------------------------ transposes


def _collapse_transpose(graph: Graph) -> Graph:
    """Merge axes that stay adjacent in a transpose."""
    found = [node for node in graph.nodes if node.op == "transpose"]
    if len(found) != 1 or not all(_keeps_rows(node, found[0]) for node in graph.nodes):
        return graph
    (node,) = found
    x = node.inputs[0]
    shape = None if x is None else x.tensor.shape
    if shape is None or x is None:
        return graph
    groups = _neighbours([axis % len(shape) for axis in node["perm"]])
    if len(groups) == len(shape):
        return graph
    in_order = sorted(groups)
    before = _ancestors(graph, x)
    if not _is_separator(graph, node, before):
        return graph
    made = {
        value: _merged(value, shape, in_order)
        if value in before
        else _merged(value, node.output.tensor.shape or (), groups)
        for value in _values(graph)
    }
    return _with_values(graph, made, perm=tuple(in_order.index(group) for group in groups))


def _has_dynamic_transpose(graph: Graph) -> bool:
    """Whether a kernel transposes dynamic axes. On a GPU, tiles divide static ones."""
    shapes = [node.output.tensor.shape or () for node in graph.nodes if node.op == "transpose"]
    return any(not isinstance(dim, Const) for shape in shapes for dim in shape)


def _neighbours(perm: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups of axes, in the order of the result, that are adjacent and in the same order in both
    tensors. Rows along a merged axis are long: they fill tiles, and follow on in memory."""
    groups: list[tuple[int, ...]] = []
    for axis in perm:
        if groups and groups[-1][-1] + 1 == axis:
            groups[-1] = (*groups[-1], axis)
        else:
            groups.append((axis,))
    return groups


def _ancestors(graph: Graph, x: Value) -> set[Value]:
    """A value and its transitive inputs."""
    found = {x}
    for each in reversed(graph.nodes):
        if any(value in found for value in each.outputs):
            found.update(value for value in each.inputs if value is not None)
    return found


def _is_separator(graph: Graph, node: Node, before: set[Value]) -> bool:
    """Whether every other node has its non-scalar values entirely before or entirely after
    `node`."""
    others = [each for each in graph.nodes if each is not node]
    sides = [
        {value in before for value in (*each.inputs, *each.outputs) if value and value.tensor.shape}
        for each in others
    ]
    return all(len(side) <= 1 for side in sides)


def _merged(value: Value, shape: Shape, groups: Sequence[tuple[int, ...]]) -> Value | None:
    """A value with groups of axes merged, each of which it has whole or is broadcast along;
    unchanged if scalar."""
    of = value.type
    if not isinstance(of, TensorType) or of.shape is None:
        return None
    if not of.shape:
        return value
    if len(of.shape) != len(shape):
        return None
    sizes, at = [], 0
    for group in groups:
        taken, whole = (each[at : at + len(group)] for each in (of.shape, shape))
        is_whole = all(a is b for a, b in zip(taken, whole, strict=True))
        if not is_whole and any(dim is not sym.ONE for dim in taken):
            return None
        sizes.append(sym.simplify(reduce(sym.mul, taken)))
        at += len(group)
    return _with_shape(value, tuple(sizes))


# ------------------------------------------------------------------------------------ positions


def _collapse_positions(graph: Graph) -> Graph:
    """Merge the spatial axes of a channels-first image in a pointwise convolution. Its operands and
    result may be transposed from and to channels last in the same kernel."""
    found = [node for node in graph.nodes if node.op == "conv"]
    if len(found) != 1 or not all(_keeps_positions(node, found[0]) for node in graph.nodes):
        return graph
    (node,) = found
    x, w, *more = node.inputs
    shape, taps = (None if each is None else each.tensor.shape for each in (x, w))
    if shape is None or taps is None or not _is_pointwise(node, taps):
        return graph
    if node.get("groups", 1) > 1 or _has_other_readers(graph, node):
        return graph  # see `split_groups`
    places, last = shape[2:], _channels_last_values(graph, node)
    is_matmul = _is_rounded_once(node)
    if last is None or not places or (len(places) < 2 and not is_matmul):
        return graph
    given: dict[Value | None, Value | None] = {
        w: _with_shape(w, taps[:2] if is_matmul else (*taps[:2], sym.ONE))
    }
    for each in more:
        given[each] = _with_shape(each, (taps[0], sym.ONE)) if each and is_matmul else each
    made = {
        value: given[value] if value in given else _flattened(value, places, is_last=value in last)
        for value in _values(graph)
    }
    steps: dict[str, Any] = {"strides": (1,), "pads": (0, 0), "dilations": (1,)}
    merged = _with_values(graph, made, **steps, perm=channels_last(range(3)))
    return _with_matmul(merged) if is_matmul and merged is not graph else merged


def _is_rounded_once(node: Node) -> bool:
    """Whether a convolution's sum may be rounded before the bias is added."""
    w = node.inputs[1]
    return len(node.inputs) < 3 or (w is not None and w.tensor.dtype.bits >= F32.bits)


def _has_other_readers(graph: Graph, node: Node) -> bool:
    """Whether the weights of a product, or the bias of a convolution, are read in another place."""
    others = [value for each in graph.nodes if each is not node for value in each.inputs]
    others.append(node.inputs[0])
    return any(value is not None and value in others for value in node.inputs[1:])


def _keeps_positions(node: Node, conv: Node) -> bool:
    """Whether a node computes every pixel from the same pixel of its operands."""
    if node.op != "transpose":
        return _keeps_rows(node, conv)
    axes = range(len(conv.output.tensor.shape or ()))
    return tuple(node["perm"]) in (channels_last(axes), channels_first(axes))


def _channels_last_values(graph: Graph, conv: Node) -> set[Value] | None:
    """The values that are channels last, known by transposes between them and the operands of a
    convolution; None where a node reads both layouts."""
    is_last: dict[Value, bool] = {value: False for value in (conv.inputs[0], conv.output) if value}
    others = [node for node in graph.nodes if node.op not in ("constant", conv.op)]
    for node in (*others, *others[::-1]):  # forwards, then back to operands
        sides = {is_last[value] ^ turns for value, turns in _sides(node) if value in is_last}
        for value, turns in _sides(node) if sides else ():
            is_last[value] = (True in sides) ^ turns
    agreed = [
        {is_last.get(value, False) ^ turns for value, turns in _sides(node)} for node in others
    ]
    is_known = all(value in is_last for node in others for value, _ in _sides(node))
    if not is_known or any(len(sides) > 1 for sides in agreed):
        return None
    return {value for value, last in is_last.items() if last}


def _sides(node: Node) -> list[tuple[Value, bool]]:
    """The tensors of a node, and whether it transposes them."""
    values = [value for value in (*node.inputs, *node.outputs) if value and value.tensor.shape]
    return [(value, node.op == "transpose" and value is node.inputs[0]) for value in values]


def _is_pointwise(node: Node, taps: Shape) -> bool:
    """Whether a channels-first convolution is 1x1 with stride 1 and no padding."""
    if node.get("layout") == CHANNELS_LAST or node.get("winograd"):
        return False
    steps = (*node["strides"], *(1 + each for each in node["pads"]))
    return all(dim is sym.ONE for dim in taps[2:]) and set(steps) == {1}


def _flattened(
    value: Value, places: Shape, groups: int = 1, *, is_last: bool = False
) -> Value | None:
    """A value with its spatial axes merged, if they are the image's or all of extent 1, and its
    channels apart by group; unchanged if scalar, None otherwise."""
    of = value.type
    if not isinstance(of, TensorType) or of.shape is None:
        return None
    if not of.shape:
        return value
    shape, channels = (of.shape[:-1], of.shape[-1:]) if is_last else (of.shape, ())
    rest = max(0, len(shape) - len(places))
    lead, spatial = shape[:rest], shape[rest:]
    is_image = len(spatial) == len(places)
    is_image = is_image and all(a is b for a, b in zip(spatial, places, strict=True))
    is_one = all(dim is sym.ONE for dim in spatial)
    if not is_image and not (is_one and (is_last or len(spatial) == len(places))):
        return None
    if groups > 1 and is_last:
        channels = _by_group(channels[0], groups)
    elif groups > 1 and lead:
        lead = (*lead[:-1], *_by_group(lead[-1], groups))
    merged = (sym.simplify(reduce(sym.mul, spatial)),) if spatial else ()
    return _with_shape(value, (*lead, *merged, *channels))


def _by_group(channels: Expr, groups: int) -> Shape:
    """The axes of a group and of a channel in it; channels may be broadcast."""
    if channels is sym.ONE:
        return sym.ONE, sym.ONE
    return sym.const(groups), sym.simplify(sym.floordiv(channels, groups))


def _with_shape(value: Value | None, shape: Shape) -> Value:
    assert value is not None
    return Value(value.name, replace(value.tensor, shape=shape))


# ------------------------------------------------------------------------------------ norms


def _collapse_norms(graph: Graph) -> Graph:
    """Merge the axes of rows that are normalized or reduced each by itself."""
    along = {node: _axes_of_row(node) for node in graph.nodes if node.op in NORMS}
    if not along or len(set(along.values())) > 1 or None in along.values():
        return graph
    ((lead, last),) = {each for each in along.values() if each is not None}
    is_kept = all(n in along or _keeps_rows(n) or _extends_rows(n, lead, last) for n in graph.nodes)
    if len(lead) < 2 or not is_kept:
        return graph
    made = {value: _of_rows(value, lead, last) for value in _values(graph)}
    return _with_values(graph, made, axis=1, axes=tuple(range(1, 1 + last)))


def _axes_of_row(node: Node) -> tuple[Shape, int] | None:
    """The axes of the rows that a norm or a reduction treats alike, and the number of axes of
    a row, which are the last ones and stay."""
    shape = None if node.inputs[0] is None else node.inputs[0].tensor.shape
    if shape is None or len(node.outputs) > 1 or not node.get("keepdims", True):
        return None
    rank, first = len(shape), node.get("axis")
    given = node.get("axes") if first is None else range(first % rank, rank)
    axes = sorted(axis % rank for axis in given or ())
    return (shape[: axes[0]], len(axes)) if axes and axes == list(range(axes[0], rank)) else None


def _extends_rows(node: Node, lead: Shape, last: int) -> bool:
    """Whether a node concatenates rows, which are one axis, and so the axis that a norm has."""
    rank = len(lead) + last
    return node.op == "concat" and last == 1 and node["axis"] % rank == len(lead)


def _of_rows(value: Value, lead: Shape, last: int) -> Value | None:
    """A value with the axes of its rows merged; unchanged if all rows share it, None if it differs
    from row to row in another way."""
    of = value.type
    if not isinstance(of, TensorType) or of.shape is None:
        return None
    if len(of.shape) <= last:
        return value
    rows, row = of.shape[:-last], of.shape[-last:]
    if len(rows) != len(lead) or not all(map(sym.equal, rows, lead)):
        return None
    return _with_shape(value, (sym.simplify(reduce(sym.mul, rows)), *row))


# --------------------------------------------------------------------------------------- groups


def split_groups(graph: Graph) -> Graph:
    """Make a grouped pointwise convolution of a channels-first image a batch of GEMMs: the rows of
    a group are its channels, the columns are positions."""
    found = [node for node in graph.nodes if node.op == "conv"]
    if len(found) != 1 or not all(_keeps_positions(node, found[0]) for node in graph.nodes):
        return graph
    (node,) = found
    x, w, bias = (*node.inputs, None)[:3]
    if x is None or w is None or not _has_group_matrices(node, w):
        return graph
    places, groups = (x.tensor.shape or ())[2:], int(node["groups"])
    last = _channels_last_values(graph, node) if _has_transpose(graph) else set()
    if last is None or _has_other_readers(graph, node):
        return graph
    rows, inner = (w.tensor.shape or ())[:2]
    shapes = {w: (*_by_group(rows, groups), inner)}
    if bias is not None:
        shapes[bias] = (*_by_group(rows, groups), sym.ONE)
    made = {
        value: _with_shape(value, shapes[value])
        if value in shapes
        else _flattened(value, places, groups, is_last=value in last)
        for value in _values(graph)
    }
    split = _with_values(graph, made)
    return split if split is graph else _with_matmul(_with_group_transposes(split, graph, last))


def _has_transpose(graph: Graph) -> bool:
    return any(node.op == "transpose" for node in graph.nodes)


def _with_group_transposes(split: Graph, graph: Graph, last: set[Value]) -> Graph:
    """Transposes of channels that are apart by group, which were of whole ones in `graph`."""
    nodes = tuple(
        replace(
            node,
            attributes=(("perm", (0, 3, 1, 2) if old.output in last else (0, 2, 3, 1)),),
        )
        if node.op == "transpose"
        else node
        for node, old in zip(split.nodes, graph.nodes, strict=True)
    )
    return replace(split, nodes=nodes)


def _has_group_matrices(node: Node, w: Value) -> bool:
    """Whether each group of a convolution is a GEMM, whose result is rounded with the bias."""
    groups, taps = int(node.get("groups", 1)), w.tensor.shape or ()
    is_depthwise = sym.equal(taps[0], sym.const(groups))
    return groups > 1 and not is_depthwise and _is_rounded_once(node) and _is_pointwise(node, taps)


def _with_matmul(graph: Graph) -> Graph:
    """The graph with its convolution, of operands by group, as a matmul and the bias added."""
    made: list[Node] = []
    for node in graph.nodes:
        if node.op != "conv":
            made.append(node)
            continue
        x, w, *more = node.inputs
        given = {"to": node.get("to")} if node.get("to") else {}
        product = make_node("matmul", (w, x), given, node.loc, hints=(node.output.name,))
        if more and more[0] is not None:
            made.append(product)
            product = make_node("add", (product.output, more[0]), {}, node.loc)
        made.append(replace(product, outputs=node.outputs))
    return replace(graph, nodes=tuple(made))
