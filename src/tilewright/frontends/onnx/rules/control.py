"""Control flow: bodies with explicit captures, and loop states of invariant type."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from tilewright.base.dtype import BOOL, I64
from tilewright.base.errors import UserError, UserTypeError
from tilewright.frontends.onnx.peel import Peel, can_peel
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.shape import slice_axis
from tilewright.graph import Builder, Graph, Value
from tilewright.graph.types import OptionalType, SequenceType, TensorType, Type, map_dims
from tilewright.sym import ONE, Expr, Var, size

SCALAR = TensorType(I64, ())
FLAG = TensorType(BOOL, ())


def _if(node: Context) -> Sequence[Value]:
    protos = (node.attr("then_branch"), node.attr("else_branch"))
    captured = node.importer.captures(protos, node.scope, node.builder)
    bodies = tuple(
        node.importer.subgraph(proto, (), captured, node.scope, node.builder) for proto in protos
    )
    if node.importer.problems:
        raise Skip  # already reported
    count = len(bodies[0].results)
    return node.builder.add_many(
        "if", node[0], *captured.values(), outputs=count, bodies=bodies, loc=node.loc
    )


def _loop(node: Context) -> tuple[Value, ...]:
    proto = node.attr("body")
    carried = [node[at] for at in range(2, len(node.inputs))]
    lead = [_scalar_type(info, of) for info, of in zip(proto.input, (SCALAR, FLAG), strict=False)]
    captured = node.importer.captures([proto], node.scope, node.builder)
    types = [value.type for value in carried]
    body = _steady(node, proto, lead, types, (), captured, 1)
    return node.builder.add_many(
        "loop",
        node.get(0),
        node.get(1),
        *carried,
        *captured.values(),
        outputs=len(body.results) - 1,
        bodies=(body,),
        loc=node.loc,
        carried=len(carried),
    )


def _scalar_type(info: onnx.ValueInfoProto, of: TensorType) -> TensorType:
    """Counters and conditions are scalars; some models declare them as tensors of one element."""
    dims = info.type.tensor_type.shape.dim
    return TensorType(of.dtype, of.shape if len(dims) != 1 else (ONE,))


def _steady(
    node: Context,
    proto: onnx.GraphProto,
    lead: Sequence[Type],
    states: Sequence[Type],
    elements: Sequence[Type],
    captured: dict[str, Value],
    results_before: int,
) -> Graph:
    """A body whose states have types that are invariant over iterations.

    State types start as those of the initial values; dimensions that an iteration changes become
    sizes of the body, until a fixed point.
    """
    own: set[Var] = set()
    types, tried = list(states), False
    while True:
        stored = set(node.builder.constants)
        try:
            body = node.importer.subgraph(
                proto, [*lead, *types, *elements], captured, node.scope, node.builder
            )
        except UserError:
            if tried:
                raise
            # The initial types may be too narrow for the body: generalize all dimensions.
            types, tried = [_loosened(of, own) for of in states], True
            continue
        if node.importer.problems:
            raise Skip  # already reported
        made = body.results[results_before : results_before + len(types)]
        wider = [_widened(a, b.type, own, node) for a, b in zip(types, made, strict=True)]
        if wider == types:
            return body
        types = wider
        for name in set(node.builder.constants) - stored:
            del node.builder.constants[name]


def _loosened(of: Type, own: set[Var]) -> Type:
    """A type with new sizes for all dimensions."""

    def change(dim: Expr) -> Expr:
        fresh = size("state")
        own.add(fresh)
        return fresh

    return map_dims(of, change)


def _widened(have: Type, made: Type, own: set[Var], node: Context) -> Type:
    """Generalize a state's type by what an iteration changed; the same type if it covers that."""
    if have == made:
        return have
    if isinstance(have, OptionalType):
        inner = made.element if isinstance(made, OptionalType) else made
        element = _widened(have.element, inner, own, node)
        return have if element == have.element else OptionalType(element)
    if isinstance(made, OptionalType):
        return OptionalType(_widened(have, made.element, own, node))
    if isinstance(have, SequenceType) and isinstance(made, SequenceType):
        element = _widened(have.element, made.element, own, node)
        return have if element == have.element else SequenceType(element)
    if (
        not isinstance(have, TensorType)
        or not isinstance(made, TensorType)
        or have.dtype is not made.dtype
    ):
        raise UserTypeError("TW1109", f"an iteration turns a state of {have} to {made}", node.loc)
    if have.shape is None:
        return have
    if made.shape is None or len(made.shape) != len(have.shape):
        if node.op_type == "Loop" and can_peel(node.node):
            raise Peel
        return TensorType(have.dtype, None)
    dims: list[Expr] = []
    for a, b in zip(have.shape, made.shape, strict=True):
        if a is b or a in own:
            dims.append(a)
        else:
            fresh = size("state")
            own.add(fresh)
            dims.append(fresh)
    return TensorType(have.dtype, tuple(dims))


def _scan(node: Context) -> list[Value]:
    if node.opset < 9:
        return _batched_scan(node)
    return _plain_scan(
        node,
        list(node.inputs),
        node.attr("scan_input_axes"),
        node.attr("scan_input_directions"),
        node.attr("scan_output_axes"),
        node.attr("scan_output_directions"),
    )


def _plain_scan(
    node: Context,
    inputs: Sequence[Value | None],
    axes: Sequence[int] | None,
    directions: Sequence[int] | None,
    out_axes: Sequence[int] | None,
    out_directions: Sequence[int] | None,
) -> list[Value]:
    """Move scanned axes to the front, and reverse them for backward scans."""
    proto, count = node.attr("body"), node.attr("num_scan_inputs")
    given = [value for value in inputs if value is not None]
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    fronted = [
        _fronted(node, x, (axes or (0,) * count)[at], backward=bool(directions and directions[at]))
        for at, x in enumerate(scanned)
    ]
    elements = [TensorType(x.tensor.dtype, node.dims(x)[1:]) for x in fronted]
    captured = node.importer.captures([proto], node.scope, node.builder)
    body = _steady(node, proto, (), [x.type for x in states], elements, captured, 0)
    made = node.builder.add_many(
        "scan",
        *states,
        *fronted,
        *captured.values(),
        outputs=len(body.results),
        bodies=(body,),
        loc=node.loc,
        states=len(states),
        inputs=count,
    )
    out = list(made[: len(states)])
    for at, value in enumerate(made[len(states) :]):
        if out_directions and out_directions[at]:
            value = _reversed(node, value)
        rank = len(node.dims(value))
        axis = node.axis((out_axes or (0,) * (at + 1))[at], rank)
        perm = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
        out.append(value if axis == 0 else node.emit("transpose", value, perm=tuple(perm)))
    return out


def _fronted(node: Context, x: Value, axis: int, *, backward: bool) -> Value:
    rank = len(node.dims(x))
    axis = node.axis(axis, rank)
    if axis:
        perm = (axis, *(at for at in range(rank) if at != axis))
        x = node.emit("transpose", x, perm=perm)
    return _reversed(node, x) if backward else x


def _reversed(node: Context, x: Value) -> Value:
    return slice_axis(node, x, 0, -1, -(1 << 40), -1)


def _batched_scan(node: Context) -> list[Value]:
    """Opset 8: all inputs have a leading batch axis; a scan over the batch around the scan."""
    if node.has(0):
        raise Skip("Scan with sequence lengths")
    given = [node[at] for at in range(1, len(node.inputs))]
    builder, outer = Builder(outer=node.builder), node.builder
    captured = node.importer.captures([node.attr("body")], node.scope, outer)
    rows = [builder.param(x.name, TensorType(x.tensor.dtype, node.dims(x)[1:])) for x in given]
    inner = {name: builder.param(name, value.type) for name, value in captured.items()}
    scope = {**node.scope, **inner}
    within = Context(node.node, list(rows), builder, node.opset, node.loc, node.importer, scope)
    results = _plain_scan(within, rows, None, node.attr("directions"), None, None)
    body = builder.graph(*results, name="body")
    made = outer.add_many(
        "scan",
        *given,
        *captured.values(),
        outputs=len(results),
        bodies=(body,),
        loc=node.loc,
        states=0,
        inputs=len(given),
    )
    return list(made)


RULES: dict[str, Rule] = {"If": _if, "Loop": _loop, "Scan": _scan}
