"""Naming what does not change in a loop, where parts of an expression are shared."""

from dataclasses import replace

from tilewright import sym, te
from tilewright.base.passes import PassContext
from tilewright.tensor.ir import For, Store
from tilewright.tensor.passes import lower
from tilewright.tensor.passes.hoist_invariants import hoist_invariants


def test_shared_parts_are_walked_once():
    """Each step reads the one before twice: 2 ** 60 ways lead to the first."""
    A = te.placeholder((64,), name="A")
    flat = lower(te.function([A, te.compute((64,), lambda i: A[i] * 2.0, name="B")]))
    loop = flat.body
    assert isinstance(loop, For)
    assert isinstance(loop.body, Store)
    value = loop.body.value
    for _ in range(60):
        value = sym.maximum(value + 1.0, value * 3.0)
    body = replace(loop, body=replace(loop.body, value=value))
    assert hoist_invariants(replace(flat, body=body), PassContext()).body == body
