"""Control flow and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from onnx_random.pick import broadcast, declarable, new, partner, pick
from onnx_random.values import Scope, Val, code_of, fixed

STATE = ("float32", "float64", "int64", "int32")
DEEPEST = 2


def steps(scope: Scope, x: Val, count: int) -> Val:
    """Operators one after the other that keep shape and element type; the last result."""
    for _ in range(count):
        way = scope.rng.choice(["unary", "add", "scale", "where", "if"])
        if way == "unary" or (way == "if" and scope.depth >= DEEPEST):
            op = scope.rng.choice(
                ["Tanh", "Sigmoid", "Abs", "Neg"] if x.is_float else ["Neg", "Abs"]
            )
            exact = x.exact and op in ("Abs", "Neg")
            bound = x.bound if op in ("Abs", "Neg") else 1
            x = scope.add(op, [x], [scope.like(x, exact=exact, bound=bound)])
        elif way == "scale":
            factor = scope.constant(np.array(0.5 if x.is_float else 3), x.dtype)
            x = scope.add(
                "Mul", [x, factor], [scope.like(x, exact=not x.is_float, bound=3 * x.bound)]
            )
        elif way == "if":
            x = branch(scope, x)
        else:
            y = partner(scope, x, bound=100)
            if broadcast([x.shape, y.shape]) != x.shape:
                continue
            bound, exact = x.bound + y.bound, not x.is_float
            if way == "add":
                x = scope.add("Add", [x, y], [scope.like(x, exact=exact, bound=bound)])
            else:
                flag = pick(scope, ("bool",), 0, 0, suits=lambda v: v.shape == ())
                if flag.shape == ():
                    both = x.exact and y.exact
                    made = scope.like(x, exact=both, bound=max(x.bound, y.bound))
                    x = scope.add("Where", [flag, x, y], [made])
    return x


def copied(scope: Scope, x: Val) -> Val:
    """A body's result is a value of its own."""
    return scope.add("Identity", [x], [scope.like(x)])


def flag_of(scope: Scope) -> Val:
    """A condition that only the data tells."""
    flag = pick(scope, ("bool",), 0, 0, suits=lambda v: v.shape == ())
    return flag if flag.shape == () else new(scope, "bool", ())


def branch(scope: Scope, x: Val) -> Val:
    flag = flag_of(scope)
    bodies = []
    ends = []
    for name in ("then_branch", "else_branch"):
        body = scope.inner()
        end = copied(body, steps(body, x, scope.rng.randint(0, 2)))
        bodies.append((name, body.graph(body.fresh("g"), [end])))
        ends.append(end)
    made = scope.like(
        x,
        exact=all(end.exact for end in ends),
        bound=max(end.bound for end in ends),
        terms=max(end.terms for end in ends),
    )
    return scope.add("If", [flag], [made], **dict(bodies))


def if_(scope: Scope) -> None:
    branch(scope, pick(scope, STATE, bound=1e4))


def info(value: Val) -> Any:
    """A parameter of a body; a scalar is declared as one, other shapes are left open."""
    dims = [] if value.rank == 0 else None
    return helper.make_tensor_value_info(value.name, code_of(value.dtype), dims)


def loop(scope: Scope) -> None:
    if scope.depth >= DEEPEST:
        return
    state = pick(scope, STATE, 0, 3, bound=8)
    body = scope.inner()
    i = Val(body.fresh("i"), "int64", (), bound=8)
    going = Val(body.fresh("go"), "bool", ())
    held = body.like(state, bound=1e4)
    body.values += [i, going, held]
    after = copied(body, steps(body, held, scope.rng.randint(1, 2)))
    stops = scope.rng.random() < 0.3
    if stops:  # after a number of turns that an input tells
        limit = scope.input("int64", (), lambda rng, shape: rng.integers(0, 4, shape))
        still = body.add("Less", [i, limit], [Val(body.fresh(), "bool", ())])
    else:
        still = body.add("Identity", [going], [body.like(going)])
    results = [still, after]
    scanned = scope.rng.random() < 0.5
    if scanned:
        results.append(copied(body, after))
    graph = body.graph(body.fresh("g"), results, [info(v) for v in (i, going, held)])
    turns = scope.rng.randint(0, 4)
    trip: Val | str = scope.constant(np.int64(turns))
    counted = not stops and scope.rng.random() < 0.6
    if not counted and not stops:
        trip = scope.input("int64", (), lambda rng, shape: rng.integers(0, 4, shape))
    start: Val | str = "" if scope.rng.random() < 0.5 else scope.constant(np.bool_(True))
    exact = state.exact and (after.exact or turns == 0)
    outputs = [scope.like(state, exact=exact, bound=1e6, terms=8)]
    if scanned and counted and turns:
        stacked = scope.like(after, shape=(fixed(turns), *after.shape), bound=1e6, terms=8)
        scope.add("Loop", [trip, start, state], [*outputs, stacked], body=graph)
    elif scanned:
        last = scope.like(after, shape=(fixed(0), *after.shape))
        scope.add("Loop", [trip, start, state], [*outputs, last], body=graph)
        scope.values.remove(last)
        scope.ends.append(last)
    else:
        scope.add("Loop", [trip, start, state], outputs, body=graph)


def scan(scope: Scope) -> None:
    if scope.depth >= DEEPEST:
        return
    x = pick(scope, STATE, 1, 3, bound=8, least=1)
    element = x.shape[1:]
    if not all(declarable(scope, dim) for dim in element):
        return
    nasty, scope.nasty = scope.nasty, False
    start = new(scope, x.dtype, element)
    scope.nasty = nasty
    body = scope.inner()
    held = Val(body.fresh("s"), x.dtype, element, exact=False, bound=1e4)
    row = Val(body.fresh("e"), x.dtype, element, bound=x.bound, exact=x.exact)
    body.values += [held, row]
    total = body.add("Add", [held, row], [body.like(held)])
    after = copied(body, steps(body, total, scope.rng.randint(0, 1)))
    out = copied(body, steps(body, row, scope.rng.randint(0, 1)))
    graph = body.graph(body.fresh("g"), [after, out], [info(v) for v in (held, row)])
    exact = not x.is_float
    length = max(x.shape[0])
    outputs = [
        scope.like(start, exact=exact, bound=1e6, terms=length),
        scope.like(x, exact=exact or out.exact, bound=1e4, terms=2),
    ]
    keywords = {}
    if scope.rng.random() < 0.3:
        keywords = {"scan_input_directions": [1], "scan_output_directions": [1]}
    scope.add("Scan", [start, x], outputs, body=graph, num_scan_inputs=1, **keywords)


def sequence(scope: Scope) -> None:
    x = pick(scope, ("float32", "int64"), 1, 3, least=1)
    name = scope.fresh("seq")
    way = scope.rng.choice(["construct", "split"])
    if way == "construct":
        y = partner(scope, x)
        if y.shape != x.shape:
            y = x
        scope.nodes.append(helper.make_node("SequenceConstruct", [x.name, y.name], [name]))
        at = scope.constant(np.int64(scope.rng.randint(-2, 1)))
        made = scope.like(x, exact=x.exact and y.exact, bound=max(x.bound, y.bound))
        scope.add("SequenceAt", [name, at], [made])
        shape = (tuple(2 * n for n in x.shape[0]), *x.shape[1:])
        scope.add("ConcatFromSequence", [name], [scope.like(made, shape=shape)], axis=0)
        return
    scope.nodes.append(helper.make_node("SplitToSequence", [x.name], [name], axis=0))
    first = scope.constant(np.int64(0))
    row = scope.like(x, shape=(fixed(1), *x.shape[1:]))
    scope.add("SequenceAt", [name, first], [row])
    length = Val(scope.fresh(), "int64", (), bound=16)
    scope.add("SequenceLength", [name], [length])
    scope.add("ConcatFromSequence", [name], [scope.like(x)], axis=0)


GENERATORS: tuple[tuple[Callable[[Scope], None], float], ...] = (
    (if_, 2),
    (loop, 2),
    (scan, 1.5),
    (sequence, 1),
)
