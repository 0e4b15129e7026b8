"""Choices among more bodies than their index can tell; the rest is in tests/ir/graph."""

import numpy as np

from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph import interpret, parse
from tilewright.graph.passes.nest_switches import nest_switches


def test_bodies_that_no_index_reaches_are_left_out():
    """An i8 tells 128 bodies apart; whatever is negative takes the last."""
    bodies = "\n".join(
        f"graph(%v: i64[]) {{ %c = constant() {{data = i64[]({at})}} %a = add(%v, %c) return %a }}"
        for at in range(130)
    )
    program = parse(
        f"graph @main(%i: i8[], %x: i64[]) {{ %y = switch(%i, %x) do {{ {bodies} }} return %y }}"
    )
    nested = nest_switches(program, PassContext(target=Target.parse("cpu")))
    for at in (0, 5, 127, -1):
        given = np.array(at, np.int8), np.array(0)
        assert interpret(nested, *given)[0] == interpret(program, *given)[0]
