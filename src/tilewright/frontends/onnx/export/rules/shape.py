"""Shape operators, data movement, indexing, sorting."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtype import BOOL, I32, I64
from tilewright.frontends.onnx.export.emitter import Emitter, Rule, Unwritable, code_of
from tilewright.frontends.onnx.export.rules.elementwise import narrowed, of_input, wide_type
from tilewright.graph.ir import Node
from tilewright.graph.ops.indexing import neutral


def _dims(e: Emitter, node: Node) -> str:
    made, to = e.operand(node, 0), node.get("to", I64)
    return made if to is I64 else e.cast(made, to)


def _reshape(e: Emitter, node: Node) -> str:
    return str(e.emit("Reshape", e.inputs(node)[0], e.operand(node, 1), allowzero=_zero(node)))


def _zero(node: Node) -> int | None:
    """Zeros are dimensions here, not copies of the input's; ONNX forbids that with a -1."""
    items = node.get("shape")
    return None if isinstance(items, tuple) and -1 in items else 1


def _by_operand(op: str, at: int = 1) -> Rule:
    return lambda e, node: str(e.emit(op, e.inputs(node)[0], e.operand(node, at)))


def _concat(e: Emitter, node: Node) -> str:
    return str(e.emit("Concat", *e.inputs(node), axis=node["axis"]))


def _slice(e: Emitter, node: Node) -> str:
    operands = [e.operand(node, at) for at in range(1, 5)]
    if operands[3] and not operands[2]:
        rank = node.inputs[0].tensor.rank if node.inputs[0] is not None else None
        operands[2] = e.ints(*range(rank or 0))
    return str(e.emit("Slice", e.inputs(node)[0], *operands))


def _pad(e: Emitter, node: Node) -> str:
    of, mode = of_input(node), node.get("mode", "constant")
    value = e.inputs(node)[2] if len(node.inputs) > 2 else ""
    x = e.inputs(node)[0]
    if of in (BOOL,) or wide_type(of) is not of:
        x, value = e.cast(x, I32), e.cast(value, I32) if value else ""
    made = e.emit("Pad", x, *_amounts(e, node, value), mode=mode)
    return e.cast(made, of) if of is BOOL else narrowed(e, made, node)


def _amounts(e: Emitter, node: Node, value: str) -> tuple[str, ...]:
    """Amounts for all axes if known: with others ONNX Runtime moves transposes incorrectly."""
    axes, pads = node.get("axes"), node.get("pads")
    rank = None if node.inputs[0] is None else node.inputs[0].tensor.rank
    if not isinstance(axes, tuple) or not isinstance(pads, tuple) or rank is None:
        return (e.operand(node, 1), value, e.operand(node, 3))
    whole: list[Any] = [0] * (2 * rank)
    for at, axis in enumerate(axes):
        whole[axis % rank] = pads[at]
        whole[rank + axis % rank] = pads[len(axes) + at]
    return (e.items(tuple(whole)), value)


def _range(e: Emitter, node: Node) -> str:
    to = node["to"]
    parts = [e.operand(node, at) for at in range(3)]
    given = [node.inputs[at] if at < len(node.inputs) else None for at in range(3)]
    types = [I64 if value is None else value.tensor.dtype for value in given]
    kinds = {str(of) for of in types}
    work = to if str(to) in ("i32", "i64", "f32", "f64", "i16") else wide_type(to)
    if kinds != {str(work)}:
        parts = [e.cast(part, work) for part in parts]
    made = e.emit("Range", *parts)
    return made if work is to else e.cast(made, to)


def _axis(op: str) -> Rule:
    return lambda e, node: str(e.emit(op, *e.inputs(node), axis=node["axis"]))


def _scatter(op: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        names, of = e.inputs(node), of_input(node)
        reduction = node.get("reduction", "none")
        if reduction != "none" and wide_type(of) is not of:
            names = [e.cast(names[0], I32), names[1], e.cast(names[2], I32)]
        if node.inputs[1] is not None and str(node.inputs[1].tensor.dtype) not in ("i64", "i32"):
            names[1] = e.cast(names[1], I64)
        made = e.emit(op, *names, axis=node.get("axis"), reduction=reduction)
        return narrowed(e, made, node) if reduction != "none" else str(made)

    return rule


def _segment_reduce(e: Emitter, node: Node) -> str:
    """Scatter rows; those of other segments go to an extra row, which is removed."""
    of, reduction = of_input(node), node.get("reduction", "add")
    if str(of) not in ("f32", "f64", "i32", "i64"):
        raise Unwritable
    x, segments, *_ = e.inputs(node)
    segments, count = e.cast(segments, I64), e.cast(e.operand(node, 2), I64)
    out = e.emit("Or", e.emit("Less", segments, e.scalar(0, I64)),
                 e.emit("GreaterOrEqual", segments, count))  # fmt: skip
    where = e.emit("Unsqueeze", e.emit("Where", out, count, segments), e.ints(-1))
    rows = e.emit("Reshape", e.emit("Add", count, e.scalar(1, I64)), e.ints(1))
    dims = e.emit("Concat", rows, e.emit("Shape", x, start=1), axis=0)
    begun = e.emit("Expand", e.scalar(neutral(reduction, of), of), dims)
    made = e.emit("ScatterND", begun, where, x, reduction=reduction)
    ends = e.emit("Reshape", count, e.ints(1))
    return str(e.emit("Slice", made, e.ints(0), ends, e.ints(0)))


def _gather_slices(e: Emitter, node: Node) -> str:
    """By positions in the flattened tensor."""
    x, starts = e.inputs(node)
    dims = node.inputs[0].tensor.shape if node.inputs[0] is not None else None
    assert dims is not None
    sizes, axes = node["sizes"], [axis % len(dims) for axis in node["axes"]]
    collapsed = [axis % len(dims) for axis in node.get("collapsed", ())]
    kept = [axis for axis in range(len(dims)) if axis not in collapsed]
    starts, zero = e.cast(starts, I64), e.scalar(0, I64)
    place, below = zero, e.scalar(1, I64)
    for axis in reversed(range(len(dims))):
        dim, size, at = e.size(dims[axis]), e.size(sizes[axis]), zero
        if axis in axes:
            start = e.emit("Gather", starts, e.scalar(axes.index(axis), I64), axis=-1)
            inside = e.emit("Max", e.emit("Min", start, e.emit("Sub", dim, size)), zero)
            at = e.emit("Unsqueeze", inside, e.ints(*range(-len(kept), 0))) if kept else inside
        if axis in kept:
            steps = e.emit("Range", zero, size, e.scalar(1, I64))
            behind = len(kept) - 1 - kept.index(axis)
            if behind:
                steps = e.emit("Unsqueeze", steps, e.ints(*range(-behind, 0)))
            at = e.emit("Add", at, steps)
        place = e.emit("Add", place, e.emit("Mul", at, below))
        below = e.emit("Mul", below, dim)
    return str(e.emit("Gather", e.emit("Reshape", x, e.ints(-1)), place, axis=0))


def _indexed(op: str) -> Rule:
    """Convert indices to a type that ONNX supports."""

    def rule(e: Emitter, node: Node) -> str:
        names = e.inputs(node)
        if str(of_input(node, 1)) not in ("i64", "i32") or op == "GatherND":
            names[1] = e.cast(names[1], I64)
        batch = node.get("batch_dims") if op == "GatherND" else None
        return str(e.emit(op, *names, axis=node.get("axis"), batch_dims=batch))

    return rule


def _unique(e: Emitter, node: Node) -> list[str]:
    made = e.emit(
        "Unique",
        *e.inputs(node),
        outputs=len(node.outputs),
        axis=node.get("axis"),
        sorted=int(node.get("sorted", True)),
    )
    return [made] if isinstance(made, str) else list(made)


def _top_k(e: Emitter, node: Node) -> list[str]:
    k = e.emit("Reshape", e.operand(node, 1), e.ints(1))
    x, of = e.inputs(node)[0], of_input(node)
    if wide_type(of) is not of:
        x = e.cast(x, wide_type(of))
    values, places = e.emit(
        "TopK", x, k, outputs=2, axis=node["axis"], largest=int(node.get("largest", True)), sorted=1
    )
    return [narrowed(e, values, node), places][: len(node.outputs)]


def _reduce(op: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        x, of = e.inputs(node)[0], of_input(node)
        axes, keep = e.operand(node, 1), int(node.get("keepdims", True))
        work = I32 if of is BOOL else wide_type(of)
        if work is not of:
            x = e.cast(x, work)
        noop = 1 if node.get("axes") == () else None
        made = e.emit(op, x, axes, keepdims=keep, noop_with_empty_axes=noop)
        to = node.outputs[0].tensor.dtype
        return made if work is to else e.cast(made, to)

    return rule


def _arg(op: str) -> Rule:
    def rule(e: Emitter, node: Node) -> str:
        x, of = e.inputs(node)[0], of_input(node)
        if wide_type(of) is not of:
            x = e.cast(x, wide_type(of))
        return str(
            e.emit(
                op,
                x,
                axis=node["axis"],
                keepdims=int(node.get("keepdims", True)),
                select_last_index=int(node.get("last", False)),
            )
        )

    return rule


def _cumulative(op: str) -> Rule:
    return lambda e, node: _running(e, node, op)


def _running(e: Emitter, node: Node, op: str) -> str:
    flags: dict[str, Any] = {name: int(node.get(name, False)) for name in ("exclusive", "reverse")}
    x, of = e.inputs(node)[0], of_input(node)
    if wide_type(of) is not of:
        x = e.cast(x, wide_type(of))
    return narrowed(e, e.emit(op, x, e.operand(node, 1), **flags), node)


def _suppression(e: Emitter, node: Node) -> str:
    names = [*e.inputs(node), "", "", ""][:5]
    names = [
        e.emit("Reshape", name, e.ints(1)) if at > 1 and name else name
        for at, name in enumerate(names)
    ]
    if names[2] and of_input(node, 2) is not I64:
        names[2] = e.cast(names[2], I64)
    if not names[2]:
        names[2] = e.ints(0)
    return str(e.emit("NonMaxSuppression", *names, center_point_box=int(node.get("center", False))))


def _suppress_boxes(e: Emitter, node: Node) -> list[str]:
    """Scatter the rows of all classes, at the number of preceding rows of the class."""
    kept, classes = (value.tensor.shape for value in node.outputs)
    rows = _suppression(e, node)
    at = e.emit("Slice", rows, e.ints(0), e.ints(2), e.ints(1))
    box = e.emit("Squeeze", e.emit("Slice", rows, e.ints(2), e.ints(3), e.ints(1)), e.ints(1))
    one, total = e.ints(1), e.emit("Shape", box)
    counts = e.emit(
        "ScatterND",
        e.emit("Expand", e.ints(0), e.items(classes)),
        at,
        e.emit("Expand", one, total),
        reduction="add",
    )
    flat = e.emit("Reshape", counts, e.ints(-1))
    before = e.emit("CumSum", flat, e.scalar(0, I64), exclusive=1)
    first = e.emit("GatherND", e.emit("Reshape", before, e.items(classes), allowzero=1), at)
    each = e.emit("CumSum", e.emit("Expand", one, total), e.scalar(0, I64), exclusive=1)
    place = e.emit("Unsqueeze", e.emit("Sub", each, first), e.ints(1))
    zeros = e.emit("Expand", e.ints(0), e.items(kept))
    return [e.emit("ScatterND", zeros, e.emit("Concat", at, place, axis=1), box), counts]


def _list_boxes(e: Emitter, node: Node) -> str:
    """The positions of kept boxes, with the numbers in the last column."""
    kept, counts = e.inputs(node)
    ones = e.emit("Expand", e.ints(1), e.emit("Shape", kept))
    place = e.emit("CumSum", ones, e.scalar(-1, I64), exclusive=1)
    stays = e.emit("Less", place, e.emit("Unsqueeze", counts, e.ints(-1)))
    at = e.emit("Transpose", e.emit("NonZero", stays), perm=[1, 0])
    box = e.emit("Unsqueeze", e.emit("GatherND", kept, at), e.ints(1))
    classes = e.emit("Slice", at, e.ints(0), e.ints(2), e.ints(1))
    return str(e.emit("Concat", classes, box, axis=1))


def _interleave(e: Emitter, node: Node) -> str:
    """Interleave tensors along axes: stack, move the factors after their axes, flatten."""
    axes, factors = node["axes"], node["factors"]
    first = node.inputs[0]
    if first is None or first.tensor.shape is None:
        raise Unwritable("a tensor of unknown rank")
    rank = len(first.tensor.shape)
    parts = [e.emit("Unsqueeze", name, e.ints(0)) for name in e.inputs(node)]
    stacked = e.emit("Concat", *parts, axis=0)
    dims = list(first.tensor.shape)
    split = e.emit("Reshape", stacked, e.items((*factors, *dims)), allowzero=1)
    count, perm, shape = len(factors), [], []
    for axis in range(rank):
        perm.append(count + axis)
        if axis in axes:
            perm.append(axes.index(axis))
    moved = e.emit("Transpose", split, perm=perm)
    for axis in range(rank):
        factor = factors[axes.index(axis)] if axis in axes else 1
        shape.append(dims[axis] * factor)
    whole = e.emit("Reshape", moved, e.items(tuple(shape)), allowzero=1)
    wanted = node.outputs[0].tensor.shape
    assert wanted is not None
    ends = e.items(tuple(wanted))
    return str(e.emit("Slice", whole, e.ints(*[0] * rank), ends, e.ints(*range(rank))))


def _mel(e: Emitter, node: Node) -> str:
    parts = [e.operand(node, at) for at in range(5)]
    return str(e.emit("MelWeightMatrix", *parts, output_datatype=code_of(node["to"])))


RULES: dict[str, Rule] = {
    "shape": lambda e, node: str(e.emit("Shape", *e.inputs(node))),
    "dims": _dims,
    "reshape": _reshape,
    "expand": _by_operand("Expand"),
    "tile": _by_operand("Tile"),
    "transpose": lambda e, node: str(e.emit("Transpose", *e.inputs(node), perm=node["perm"])),
    "concat": _concat,
    "slice": _slice,
    "pad": _pad,
    "range": _range,
    "interleave": _interleave,
    "gather": _indexed("Gather"),
    "gather_elements": _indexed("GatherElements"),
    "gather_nd": _indexed("GatherND"),
    "scatter_elements": _scatter("ScatterElements"),
    "scatter_nd": _scatter("ScatterND"),
    "segment_reduce": _segment_reduce,
    "gather_slices": _gather_slices,
    "nonzero": lambda e, node: str(e.emit("NonZero", *e.inputs(node))),
    "unique": _unique,
    "top_k": _top_k,
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_prod": _reduce("ReduceProd"),
    "reduce_mean": _reduce("ReduceMean"),
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "arg_max": _arg("ArgMax"),
    "arg_min": _arg("ArgMin"),
    "cumsum": _cumulative("CumSum"),
    "cumprod": _cumulative("CumProd"),
    "non_max_suppression": _suppression,
    "suppress_boxes": _suppress_boxes,
    "list_boxes": _list_boxes,
    "mel_weights": _mel,
}
COMPOSITES = ("interleave", "suppress_boxes", "list_boxes")
