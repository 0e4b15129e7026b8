"""Control flow, and assertions on sizes and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright import sym
from tilewright.base.dtype import BOOL, I64
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.graph import Graph, Value
from tilewright.graph.types import TensorType
from tilewright.sym import Expr


def _values(node: Context, given: Sequence[Any]) -> list[Value]:
    """Operands as tensors; sizes become scalars."""
    return [x if isinstance(x, Value) else node.value(x, I64) for x in given]


def _types(values: Sequence[Value]) -> list[TensorType]:
    return [value.tensor for value in values]


def _flag(node: Context, cond: Any) -> Value:
    """A condition as a boolean scalar."""
    if isinstance(cond, Value):
        return node.reshape(node.cast(cond, BOOL), ())
    if isinstance(cond, Expr):
        return _condition(node, cond)
    return node.value(cond, BOOL)


def body_of(node: Context, module: Any, types: Sequence[TensorType]) -> Graph:
    """The graph of a submodule."""
    return node.importer.body(module, types, node.builder)


def _cond(node: Context) -> list[Value]:
    pred, yes, no, operands = (node.args[str(at)] for at in range(4))
    values = _values(node, operands)
    bodies = tuple(body_of(node, module, _types(values)) for module in (yes, no))
    made = node.builder.add_many(
        "if",
        _flag(node, pred),
        *values,
        outputs=len(bodies[0].results),
        bodies=bodies,
        loc=node.loc,
    )
    return list(made)


def _while(node: Context) -> list[Value]:
    """The condition becomes part of the body: it is computed once before, then after each step."""
    return _repeated(node, stacked=False)


def _while_stacked(node: Context) -> list[Value]:
    """The states after every step, stacked along a new first axis."""
    made = _repeated(node, stacked=True)
    return made[len(made) // 2 :]


def _repeated(node: Context, *, stacked: bool) -> list[Value]:
    condition, body, carried, more = (node.args[str(at)] for at in range(4))
    states, fixed = _values(node, carried), _values(node, more)
    types = _types([*states, *fixed])
    test, step = (body_of(node, module, types) for module in (condition, body))
    whole = _stepped(test, step, len(states), stacked=stacked)
    first = inlined(node, test, [*states, *fixed])
    made = node.builder.add_many(
        "loop",
        None,
        node.reshape(first[0], ()),
        *states,
        *fixed,
        outputs=len(states) * (2 if stacked else 1),
        bodies=(whole,),
        loc=node.loc,
        carried=len(states),
    )
    return list(made)


def _stepped(test: Graph, step: Graph, count: int, *, stacked: bool = False) -> Graph:
    """graph(i, going, *states, *fixed) -> (going, *states): one step and the test after it; with
    `stacked`, also each step's states as scan outputs."""
    index, going = Value("i", TensorType(I64, ())), Value("going", TensorType(BOOL, ()))
    made = dict(zip(test.params, (*step.results, *step.params[count:]), strict=True))
    nodes, results = renamed(test, made)
    return Graph(
        "body",
        (index, going, *step.params),
        (*step.nodes, *nodes),
        (results[0], *step.results, *(step.results if stacked else ())),
    )


def renamed(graph: Graph, made: dict[Value, Value]) -> tuple[list[Any], list[Value]]:
    """The nodes of a graph, with other values for its parameters."""
    from_graph = dict(made)
    nodes = []
    for each in graph.nodes:
        inputs = tuple(None if v is None else from_graph.get(v, v) for v in each.inputs)
        nodes.append(
            type(each)(each.op, inputs, each.outputs, each.attributes, each.bodies, each.loc)
        )
    return nodes, [from_graph.get(value, value) for value in graph.results]


def inlined(node: Context, graph: Graph, values: Sequence[Value]) -> list[Value]:
    """Emit the nodes of a graph here; returns its results."""
    made = dict(zip(graph.params, values, strict=True))
    for each in graph.nodes:
        inputs = [None if v is None else made.get(v, v) for v in each.inputs]
        outputs = [Value(v.name, v.type) for v in each.outputs]
        node.builder.nodes.append(
            type(each)(
                each.op, tuple(inputs), tuple(outputs), each.attributes, each.bodies, each.loc
            )
        )
        made.update(zip(each.outputs, outputs, strict=True))
    return [made.get(value, value) for value in graph.results]


def _invoked(node: Context) -> list[Value]:
    """Inline a subgraph: its name only identifies calls of the same graph, and requests for
    quantization are hints."""
    module, *operands = (node.args[str(at)] for at in range(len(node.node.args)))
    values = _values(node, [each for each in operands if not isinstance(each, str)])
    return inlined(node, body_of(node, module, _types(values)), values)


def _element(of: Value) -> TensorType:
    shape = of.tensor.shape
    assert shape is not None
    return TensorType(of.tensor.dtype, shape[1:])


def _scan(node: Context) -> list[Value]:
    body, init, xs, more = (node.args[str(at)] for at in range(4))
    states, scanned, fixed = (_values(node, each) for each in (init, xs, more))
    types = [*_types(states), *(_element(x) for x in scanned), *_types(fixed)]
    return _scanned(node, body_of(node, body, types), states, scanned, fixed)


def _scanned(
    node: Context,
    body: Graph,
    states: Sequence[Value],
    scanned: Sequence[Value],
    fixed: Sequence[Value],
) -> list[Value]:
    made = node.builder.add_many(
        "scan",
        *states,
        *scanned,
        *fixed,
        outputs=len(body.results),
        bodies=(body,),
        loc=node.loc,
        states=len(states),
        inputs=len(scanned),
    )
    return list(made)


def _map(node: Context) -> list[Value]:
    """A scan without states."""
    body, xs, more = (node.args[str(at)] for at in range(3))
    scanned, fixed = _values(node, xs), _values(node, more)
    types = [*(_element(x) for x in scanned), *_types(fixed)]
    return _scanned(node, body_of(node, body, types), (), scanned, fixed)


# ------------------------------------------------------------------------------------ numbers


def _item(node: Context) -> Value | Expr:
    """The number in a tensor of one element. A data-dependent size is defined as the extent of a
    range up to it."""
    x, meta = node["self"], node.node.meta.get("val")
    scalar = node.reshape(x, ())
    if not isinstance(meta, (torch.SymInt, torch.SymBool)):
        return scalar
    counted = node.emit("range", node.constant(0), node.cast(scalar, I64), node.constant(1), to=I64)
    (extent,) = node.shape(counted)
    if isinstance(meta, torch.SymBool):  # whether a computed number is 1
        (symbol,) = meta.node.expr.free_symbols
        node.importer.define(symbol, extent)
        return scalar
    node.importer.define(meta.node.expr, extent)
    node.importer.numbers[extent] = node.cast(scalar, I64)
    return extent


def _size(read: Callable[[Context, Any], Any]) -> Rule:
    """An entry of a tensor's shape or strides, as PyTorch traced it."""

    def rule(node: Context) -> Any:
        found = read(node, node.raw["self"])
        return found if isinstance(found, bool) else node.importer.sizes.expr(found)

    return rule


def _offset(node: Context) -> Expr:
    """The storage offset of a tensor. One at a data-dependent offset is a tensor of its own
    here."""
    found = node.raw["self"].storage_offset()
    if isinstance(found, torch.SymInt) and not node.importer.sizes.knows(found):
        node.importer.define(found.node.expr, sym.ZERO)
    return node.importer.sizes.expr(found)


def _chosen(node: Context) -> Value:
    """One of two numbers, by a condition."""
    cond, yes, no = (node.args[str(at)] for at in range(3))
    return node.emit("where", _flag(node, cond), *_values(node, (yes, no)))


def _assert(message: str) -> Rule:
    def rule(node: Context) -> tuple[()]:
        given = list(node.args.values())
        cond = given[0]
        if isinstance(cond, Expr):
            if sym.prove(cond, sym.EMPTY):
                return ()
            cond = _condition(node, cond)
        if isinstance(cond, Value):
            text = given[1] if len(given) > 1 and isinstance(given[1], str) else message
            flag = node.cast(cond, BOOL)
            dims = node.shape(flag)
            node.importer.check(node.reshape(flag, ()) if dims else flag, text, node)
        return ()

    return rule


def _condition(node: Context, cond: Expr) -> Value:
    """Whether a condition on sizes holds."""
    return node.cast(node.number(sym.select(cond, 1, 0)), BOOL)


def _nothing(node: Context) -> tuple[()]:
    """An assertion on sizes that PyTorch has checked at trace time."""
    return ()


_KNOWN = (
    *("sym_constrain_range", "sym_constrain_range_for_size", "_assert_tensor_metadata"),
    *("_functional_sym_constrain_range",),
)

RULES: dict[str, Rule] = {
    "cond": _cond,
    "while_loop": _while,
    "while_loop_stack_output": _while_stacked,
    "invoke_quant_packed": _invoked,
    "invoke_quant": _invoked,
    "invoke_subgraph": _invoked,
    "torch._higher_order_ops._invoke_quant.InvokeQuant": _nothing,
    "scan": _scan,
    "map_impl": _map,
    "aten._local_scalar_dense": _item,  # type: ignore[dict-item]
    "aten.item": _item,  # type: ignore[dict-item]
    "aten.sym_size.int": _size(lambda node, x: x.shape[node.args["dim"]]),
    "aten.sym_stride.int": _size(lambda node, x: x.stride(node.args["dim"])),
    "aten.sym_storage_offset": _offset,  # type: ignore[dict-item]
    "torch.sym_ite": _chosen,
    "aten.sym_numel": _size(lambda node, x: x.numel()),
    "aten.sym_is_contiguous": _size(lambda node, x: x.is_contiguous()),
    "aten._assert_scalar": _assert("an assertion does not hold"),
    "aten._assert_async": _assert("an assertion does not hold"),
    "aten._assert_async.msg": _assert("an assertion does not hold"),
    **{f"aten.{name}": _nothing for name in _KNOWN},
}
