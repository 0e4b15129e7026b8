"""Control flow: bodies are graphs whose parameters include all captured values.

    if(cond, *values) do { graph(*values) -> ..., graph(*values) -> ... }
    switch(index, *values) do { graph(*values) -> ..., ... }
    loop(trip, cond, *carried, *values) do { graph(i, cond, *carried, *values) ->
        (cond, *carried, *scanned) }
    scan(*states, *inputs, *values) do { graph(*states, *elements, *values) ->
        (*states, *scanned) }

    fused(*values) do { graph(*values) -> ... }

`fused` is not control flow: its body is one kernel.

A body's `scanned` results are stacked over the iterations along a new first axis. The sizes of the
enclosing graph are in scope in a body; its own sizes are not in scope outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.errors import UserTypeError
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.op import ANY, BOOLEAN, INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.rules import same_dim
from tilewright.graph.ops.sequences import joined
from tilewright.graph.types import TensorType, Type, renewed, sizes_of
from tilewright.sym import Expr, Var

Array = np.ndarray[Any, Any]
Run = Callable[[Graph, Sequence[Any]], tuple[Any, ...]]


def _outer_sizes(call: Call) -> dict[Var, None]:
    """The sizes in scope outside of the bodies."""
    found: dict[Var, None] = {}
    for of in call.types:
        if of is not None:
            found.update(sizes_of(of))
    return found


def _check_params(call: Call, body: Graph, count: int) -> None:
    if len(body.params) != count:
        raise call.error(
            "TW1312", f"a body of {call.op} takes {len(body.params)} values, it is given {count}"
        )


# ------------------------------------------------------------------------------------ branches

BRANCHES = ("if", "switch")  # one of several bodies is run


def _if_type(call: Call) -> list[Type]:
    if len(call.bodies) != 2:
        raise call.error("TW1312", "if needs two bodies with as many results")
    return _branches_type(call)


def _branches_type(call: Call) -> list[Type]:
    """The join of the result types of all bodies."""
    if len({len(body.results) for body in call.bodies}) != 1:
        raise call.error("TW1312", f"{call.op} needs bodies with as many results")
    for body in call.bodies:
        _check_params(call, body, len(call.types) - 1)
    outer = _outer_sizes(call)
    types: list[Type] = []
    for first, *others in zip(*(body.results for body in call.bodies), strict=True):
        covered = first.type
        for other in others:
            covered = joined(call, covered, other.type)
        types.append(renewed(covered, outer))
    return types


def branch_of(op: str, chooser: Array, count: int) -> int:
    """Run the selected body; for an index out of range, the last one."""
    if op == "if":
        return 0 if _truth(chooser) else 1
    index = int(np.ravel(chooser)[0])
    return index if 0 <= index < count else count - 1


def _branch(call: Call, run: Run, chooser: Array, *values: Any) -> tuple[Any, ...]:
    return run(call.bodies[branch_of(call.op, chooser, len(call.bodies))], values)


def _truth(cond: Array) -> bool:
    return bool(np.ravel(cond)[0])


# ------------------------------------------------------------------------------------ require


def _require_type(call: Call) -> list[Type]:
    of = call.types[1]
    assert of is not None
    return [of]


def _require(call: Call, cond: Array, value: Any) -> Any:
    if not _truth(cond):
        raise ValueError(call["message"])
    return value


# ------------------------------------------------------------------------------------ loop


def _loop_type(call: Call) -> list[Type]:
    (body,) = call.bodies
    carried = call["carried"]
    _check_params(call, body, len(call.types))
    results = body.results
    if len(results) < 1 + carried:
        raise call.error("TW1312", f"a loop that carries {carried} values gives {len(results)}")
    outer = _outer_sizes(call)
    types = []
    for at in range(carried):
        start = call.types[2 + at]
        assert start is not None
        covered = joined(call, body.params[2 + at].type, results[1 + at].type)
        types.append(renewed(joined(call, start, covered), outer))
    count = _loop_count(call, body)
    types += [_stacked(call, value, count, outer) for value in results[1 + carried :]]
    return types


def trip_of(node: Node) -> Expr | None:
    """An upper bound of a loop's trip count, if known from sizes; ONNX also permits a list of one
    number."""
    known = node.get("trip")
    return None if known is None else sym.as_expr(known[0] if isinstance(known, tuple) else known)


def _loop_count(call: Call, body: Graph) -> Expr:
    """The trip count of a loop: known if the loop condition does not change, else a new size."""
    trip, cond = call.value(0), call.value(1)
    starts = not call.has(1) or (cond is not None and sym.prove(sym.eq(cond[0], 1)))
    if trip is not None and starts and body.results[0] is body.params[1]:
        return sym.simplify(sym.maximum(trip[0], 0))
    return sym.size("iterations")


def _stacked(call: Call, value: Value, count: Expr, outer: dict[Var, None]) -> Type:
    of = renewed(value.type, outer)
    if not isinstance(of, TensorType):
        raise UserTypeError("TW1313", f"{call.op} stacks tensors, not {of}", call.loc)
    return TensorType(of.dtype, None if of.shape is None else (count, *of.shape))


def _loop(
    call: Call, run: Run, trip: Array | None, cond: Array | None, *values: Any
) -> tuple[Any, ...]:
    (body,) = call.bodies
    carried, fixed = values[: call["carried"]], values[call["carried"] :]
    limit = None if trip is None else int(np.ravel(trip)[0])
    going = cond is None or _truth(cond)
    rows: list[tuple[Any, ...]] = []
    count = 0
    while going and (limit is None or count < limit):
        shape = _static(body.params[0])
        step = np.full(shape, count, np.int64)
        flag = np.full(_static(body.params[1]), True)
        made = run(body, (step, flag, *carried, *fixed))
        going = _truth(made[0])
        carried = made[1 : 1 + len(carried)]
        rows.append(made[1 + len(carried) :])
        count += 1
    sizes = _input_sizes(call, (trip, cond, *values))
    return (*carried, *_stack(rows, body.results[1 + len(carried) :], sizes))


def _static(param: Value) -> tuple[int, ...]:
    return param.tensor.static_shape or ()


def _input_sizes(call: Call, values: Sequence[Any]) -> dict[Var, int]:
    """The sizes in the inputs' types, from their values."""
    found: dict[Var, int] = {}
    for of, value in zip(call.types, values, strict=True):
        if isinstance(of, TensorType) and value is not None:
            pairs = zip(of.shape or (), np.shape(value), strict=False)
            found.update((dim, extent) for dim, extent in pairs if isinstance(dim, Var))
    return found


def _stack(
    rows: list[tuple[Any, ...]], results: Sequence[Value], sizes: dict[Var, int]
) -> list[Array]:
    """Stack the results of iterations; without iterations, shapes come from the body's types.

    Dimensions that are known only from an iteration are 0.
    """
    if rows:
        return [np.stack(column) for column in zip(*rows, strict=True)]
    out = []
    for value in results:
        of = value.tensor
        dims = [
            sym.evaluate(dim, sizes) if all(var in sizes for var in sym.free_vars(dim)) else 0
            for dim in of.shape or ()
        ]
        out.append(np.zeros((0, *dims), of.dtype.numpy))
    return out


# ------------------------------------------------------------------------------------ scan


def _scan_type(call: Call) -> list[Type]:
    (body,) = call.bodies
    states, inputs = call["states"], call["inputs"]
    _check_params(call, body, len(call.types))
    outer = _outer_sizes(call)
    types: list[Type] = []
    for at in range(states):
        start = call.types[at]
        assert start is not None
        covered = joined(call, body.params[at].type, body.results[at].type)
        types.append(renewed(joined(call, start, covered), outer))
    if not inputs:
        raise call.error("TW1312", "a scan needs something to scan")
    count = call.shape(states)[0]
    for at in range(states + 1, states + inputs):
        count = same_dim(call, count, call.shape(at)[0], "the lengths scanned")
    types += [_stacked(call, value, count, outer) for value in body.results[states:]]
    return types


def _scan(call: Call, run: Run, *values: Any) -> tuple[Any, ...]:
    (body,) = call.bodies
    states, inputs = call["states"], call["inputs"]
    carried = values[:states]
    scanned, fixed = values[states : states + inputs], values[states + inputs :]
    lengths = {len(column) for column in scanned}
    if len(lengths) > 1:
        raise ValueError(f"scan over different lengths: {sorted(lengths)}")
    rows = []
    for elements in zip(*scanned, strict=True):
        made = run(body, (*carried, *(np.asarray(element) for element in elements), *fixed))
        carried = made[:states]
        rows.append(made[states:])
    return (*carried, *_stack(rows, body.results[states:], _input_sizes(call, values)))


# ------------------------------------------------------------------------------------ fused


def _fused_type(call: Call) -> list[Type]:
    (body,) = call.bodies
    _check_params(call, body, len(call.types))
    return [value.type for value in body.results]


def _fused(call: Call, run: Run, *values: Any) -> tuple[Any, ...]:
    return run(call.bodies[0], values)


OPS = (
    Op(
        "fused",
        "The results of the body, computed by one kernel.",
        (Input("values", ANY, variadic=True),),
        _fused_type,
        _fused,
        OPAQUE,
    ),
    Op(
        "if",
        "The results of the first body if the condition holds, else of the second.",
        (Input("cond", BOOLEAN), Input("values", ANY, variadic=True)),
        _if_type,
        _branch,
        OPAQUE,
    ),
    Op(
        "switch",
        "The results of the body with this index, counted from 0; of the last one, if out of "
        "range.",
        (Input("index", INTEGER), Input("values", ANY, variadic=True)),
        _branches_type,
        _branch,
        OPAQUE,
    ),
    Op(
        "require",
        "The value, if the condition holds; otherwise running the model fails with the message. "
        "`within`, (size, least, most), tells that the condition is that of a range.",
        (Input("cond", BOOLEAN), Input("value", ANY)),
        _require_type,
        _require,
        OPAQUE,
        (Attr("message", str, required=True), Attr("within", tuple, ())),
        evaluate=lambda call: call.value(1),
    ),
    Op(
        "loop",
        "A body run up to `trip` times, while its condition holds; carried values are passed from "
        "one iteration to the next.",
        (
            Input("trip", INTEGER, optional=True, folds=True),
            Input("cond", BOOLEAN, optional=True),
            Input("values", ANY, variadic=True),
        ),
        _loop_type,
        _loop,
        OPAQUE,
        (Attr("carried", int, required=True),),
    ),
    Op(
        "scan",
        "A body run on every element along the first axis of the inputs.",
        (Input("values", ANY, variadic=True),),
        _scan_type,
        _scan,
        OPAQUE,
        (Attr("states", int, required=True), Attr("inputs", int, required=True)),
    ),
)
