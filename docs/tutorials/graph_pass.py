"""Writing a graph pass.

A pass is a function from a model to a model. We write one that drops redundant negations, run it,
verify it, and put it into a pipeline.
"""

import numpy as np

from tilewright import graph
from tilewright.base.passes import PassContext, run_passes
from tilewright.graph.match import Any, Apply, Replacement, Scope, remade, rewrite_matches
from tilewright.graph.passes import CANONICAL
from tilewright.graph.verify import verify

# ## A model to work on
#
# Models print and parse. This one negates just before it takes the absolute value:

model = graph.parse("""
graph @main(%x: f32[n, 4], %y: f32[n, 4]) {
  %a = neg(%x)
  %b = abs(%a)
  %c = mul(%b, %y)
  return %c
}
""")
print(model)

# ## The pass
#
# `rewrite_matches` offers every node to a list of rules. A rule receives the node and a scope that
# gives access to its inputs. It returns a replacement value, replacement nodes, or `None`. Patterns
# are data: here, the absolute value of the negation of anything.

HIDDEN = Apply("abs", Apply("neg", Any("x")))


def hidden_negation(node: graph.Node, scope: Scope) -> Replacement:
    """abs(neg(x)) = abs(x)"""
    found = scope.match_node(HIDDEN, node)
    return None if found is None else (remade(node, "abs", found["x"]),)


def drop_negations(module: graph.Module, ctx: PassContext) -> graph.Module:
    """Before: %a = neg(%x); %b = abs(%a).   After: %b = abs(%x)."""
    return rewrite_matches(module, (hidden_negation,))


after = drop_negations(model, PassContext())
print(after)

# `%a` is no longer needed, but still there: dead code elimination is another pass. Each pass does one
# thing.

from tilewright.graph.passes import remove_dead_nodes

after = run_passes(model, (drop_negations, remove_dead_nodes))
verify(after)
print(after)

# ## Three guarantees
#
# **Pure.** The input model is unchanged: programs are never edited in place.

assert "neg" in str(model)

# **If nothing changes, the same object is returned**, not a copy. Pipelines rely on this to detect
# that they are done.

assert drop_negations(after, PassContext()) is after

# **The answer is preserved.** The interpreter is the reference:

rng = np.random.default_rng(0)
x, y = (rng.standard_normal((3, 4), dtype=np.float32) for _ in range(2))
np.testing.assert_array_equal(graph.interpret(model, x, y)[0], graph.interpret(after, x, y)[0])
print("same answer")

# ## In a pipeline
#
# A pipeline is a tuple. An observer sees every pass with the model before and after; this is what
# `tilewright opt --dump-after=all` and `tilewright bisect` do.


def observe(name: str, before: graph.Module, after: graph.Module) -> None:
    verify(after)
    print(f"{name}: {'changed' if after is not before else 'nothing to do'}")


run_passes(
    model, (*CANONICAL, drop_negations, remove_dead_nodes), PassContext(observers=(observe,))
)

# To ship it, put the pass into a file under `graph/passes`, its name into a tuple in
# `graph/passes/__init__.py`, and a text test into `tests/ir/graph`:
# [Add a graph pass](../howto/graph-pass.md).
