"""Softmax and normalizations on a GPU by plans: interpreted, and what their code looks like."""

import re

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.tensor.passes import lower

TARGET = "cuda -arch=sm_90a"
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
BODIES = {
    "softmax": "%y = softmax(%x) {axes = (1,)}",
    "layer_norm": "%y = layer_norm(%x, %s, %b) {axis = 1}",
}


def model(name, rows, columns, dtype="f32"):
    row = f"{dtype}[{columns}]"
    text = f"graph @main(%x: {dtype}[{rows}, {columns}], %s: {row}, %b: {row}) {{ {BODIES[name]} "
    return graph.parse(f"{text} return %y }}")


def scheduled(module, plan=None):
    choices = None if plan is None else {"y": Choice("rows", plan)}
    made = schedule(lower_graph(module.main, "f"), TARGET, choices=choices)
    assert [decision.rule for decision in made.decisions] == ["rows"]
    return made


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(
    ("columns", "dtype", "plan"),
    [
        (512, "f32", "threads=64 vector=4"),
        (512, "f32", "threads=128 vector=1"),
        (1024, "bf16", "threads=32 vector=8"),
        (100, "f32", None),
        (384, "bf16", None),
    ],
)
def test_every_plan_computes_what_numpy_does(name, columns, dtype, plan):
    module = model(name, 3, columns, dtype)
    rng = np.random.default_rng(0)
    shapes = [(3, columns), (columns,), (columns,)]
    given = [rng.standard_normal(shape).astype(TYPES[dtype]) for shape in shapes]
    (want,) = graph.interpret(module, *given)
    fn = scheduled(module, plan).schedule.function
    limit = 1e-5 if dtype == "f32" else 2e-2
    for each in (fn, lower(fn, "gpu")):
        out = np.zeros((3, columns), TYPES[dtype])
        tw.interpret(each, *given, out)
        np.testing.assert_allclose(
            out.astype(np.float32), np.asarray(want).astype(np.float32), rtol=limit, atol=limit
        )


@pytest.mark.parametrize("name", BODIES)
def test_rows_are_read_by_sixteen_bytes_and_wait_rarely(name):
    made = scheduled(model(name, 8192, 8192))
    assert "vector=4" in made.decisions[0].plan
    ptx = tw.build(made.schedule.function, TARGET).ptx
    assert re.search(r"ld\.global\.nc\.v4", ptx)
    assert re.search(r"st\.global\.v4", ptx)
    assert len(re.findall(r"bar\.sync|barrier\.sync", ptx)) <= 6
    assert ".local" not in ptx


def test_the_tuner_may_search_rows():
    (offer,) = scheduled(model("softmax", 64, 4096)).offers
    assert offer.is_open
    columns = offer.space.columns()
    assert len(columns["threads"]) > 5
    assert (offer.cost(columns).cycles > 0).all()


def test_vectors_that_do_not_divide_a_row_are_no_plan():
    (offer,) = scheduled(model("softmax", 64, 100)).offers
    assert set(offer.space.columns()["vector"]) == {1}
