"""Emit control flow with bodies written like rules: loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TypeVar

from tilewright.base.dtype import BOOL, I64
from tilewright.frontends.common.emit import Emitter
from tilewright.graph import Builder, Graph, Value
from tilewright.graph.types import TensorType

Values = Sequence[Value]
Node = TypeVar("Node", bound=Emitter)


def inside(node: Node, builder: Builder) -> Node:
    """The node of a rule while it emits a body."""
    other = copy(node)
    other.builder = builder
    return other


def repeated(
    node: Node,
    count: Value | int,
    states: Values,
    fixed: Values,
    step: Callable[[Node, Value, Values, Values], Values],
) -> Values:
    """The states after `count` steps (node, i, states, fixed) -> states; `i` counts from 0."""
    builder = Builder(outer=node.builder)
    index, going = (builder.param(name, TensorType(of, ())) for name, of in
                    (("i", I64), ("going", BOOL)))  # fmt: skip
    inner = [builder.param(f"state{at}", value.tensor) for at, value in enumerate(states)]
    others = [builder.param(f"fixed{at}", value.tensor) for at, value in enumerate(fixed)]
    made = step(inside(node, builder), index, inner, others)
    body = builder.graph(going, *made, name="body")
    trip = node.constant(count) if isinstance(count, int) else count
    return node.builder.add_many(
        "loop",
        trip,
        None,
        *states,
        *fixed,
        outputs=len(states),
        bodies=(body,),
        loc=node.loc,
        carried=len(states),
    )


def only_if(
    node: Node,
    cond: Value,
    states: Values,
    fixed: Values,
    step: Callable[[Node, Values, Values], Values],
) -> Values:
    """The result of (node, states, fixed) -> states if cond holds; else the states."""
    count = len(states)

    def run(inner: Node, values: Values) -> Values:
        return step(inner, values[:count], values[count:])

    return either(node, cond, [*states, *fixed], run, lambda _, values: values[:count])


def either(
    node: Node,
    cond: Value,
    given: Values,
    then: Callable[[Node, Values], Values],
    other: Callable[[Node, Values], Values],
) -> Values:
    """The result of (node, given) -> values: of `then` if cond holds, else of `other`."""
    known = [x for x in given if node.builder.can_restate(x)]  # passes see constants in bodies
    passed = [x for x in dict.fromkeys(given) if x not in known]

    def body(name: str, run: Callable[[Node, Values], Values]) -> Graph:
        builder = Builder(outer=node.builder)
        params = [builder.param(f"p{at}", value.tensor) for at, value in enumerate(passed)]
        mine = dict(zip(passed, params, strict=True))
        values = [builder.restate(x) if x in known else mine[x] for x in given]
        return builder.graph(*run(inside(node, builder), values), name=name)

    bodies = (body("then", then), body("else", other))
    count = len(bodies[0].results)
    return node.builder.add_many("if", cond, *passed, outputs=count, bodies=bodies, loc=node.loc)
