"""Steps that a graph repeats: a loop whose body is written as rules are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.base.dtype import BOOL, I64
from tilewright.frontends.torch.rules.base import Context
from tilewright.graph import Builder, Value
from tilewright.graph.types import TensorType

Values = Sequence[Value]
Step = Callable[[Context, Value, Values, Values], Values]  # (node, i, states, fixed) -> states


def repeated(
    node: Context, count: Value | int, states: Values, fixed: Values, step: Step
) -> Values:
    """States after `count` steps; `i` counts them from 0."""
    builder = Builder(outer=node.builder)
    index, going = (builder.param(name, TensorType(of, ())) for name, of in
                    (("i", I64), ("going", BOOL)))  # fmt: skip
    inner = [builder.param(f"state{at}", value.tensor) for at, value in enumerate(states)]
    others = [builder.param(f"fixed{at}", value.tensor) for at, value in enumerate(fixed)]
    made = step(replace(node, builder=builder), index, inner, others)
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
