"""Softmax and normalizations along other axes than the last, and of very short rows, on a GPU."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import RULES, schedule
from tilewright.rules.gpu.separate_kernels import LATER, SEPARATE_KERNELS
from tilewright.rules.rule import Choice
from tilewright.tensor.passes import lower

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import assembled

TARGET = "cuda -arch=sm_90a"
TYPES = {"f32": np.float32, "f16": np.float16}


def softmax(shape, axis, dtype="f32", before=""):
    inner = f"%t = {before}(%x) %y = softmax(%t)" if before else "%y = softmax(%x)"
    sizes = ", ".join(map(str, shape))
    return graph.parse(
        f"graph @main(%x: {dtype}[{sizes}]) {{ {inner} {{axes = ({axis},)}} return %y }}"
    )


def scheduled(module, plan=None, target=TARGET):
    choices = None if plan is None else {"y": Choice("columns", plan)}
    made = schedule(lower_graph(module.main, "f"), target, choices=choices)
    assert [decision.rule for decision in made.decisions] == ["columns"]
    return made


def check(module, shape, dtype="f32", plan=None, sizes=(), more=()):
    """A plan against the graph's interpreter, as it was scheduled and as it was lowered."""
    rng = np.random.default_rng(0)
    given = [(3 * rng.standard_normal(each)).astype(TYPES[dtype]) for each in (shape, *more)]
    (want,) = graph.interpret(module, *given)
    fn = scheduled(module, plan).schedule.function
    limit = 1e-6 if dtype == "f32" else 1e-3
    for each in (fn, lower(fn, "gpu")):
        out = np.full(shape, np.nan, TYPES[dtype])
        tw.interpret(each, *given, out, *sizes)
        np.testing.assert_allclose(
            out.astype(np.float32), np.asarray(want).astype(np.float32), rtol=limit, atol=limit
        )
    return fn


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "plan"),
    [
        ((3, 64, 16), 1, "f32", "columns=2 vector=4 parts=64"),  # in registers
        ((3, 50, 16), 1, "f32", "columns=4 vector=4 parts=8"),  # parts of unequal length
        ((3, 50, 16), 1, "f32", "columns=16 vector=1 parts=2"),
        ((2, 50, 24), 1, "f16", "columns=2 vector=8 parts=32"),  # a tile ends with the axis
        ((2, 20, 45), 1, "f16", "columns=32 vector=1 parts=4"),
        ((2, 50, 7), 1, "f32", "columns=7 vector=1 parts=16"),
        ((1, 700, 4), 1, "f32", "columns=1 vector=4 parts=32"),
        ((2, 3, 4, 5), 1, "f32", "columns=256 vector=1 parts=1"),
        ((5, 9, 8), 1, "f32", "columns=256 vector=4 parts=1"),
        ((5, 7, 9), 2, "f32", "columns=256 vector=1 parts=1"),  # rows of a thread
        ((4, 50, 49), 2, "f32", "columns=8 vector=1 parts=32"),  # rows without vectors
    ],
)
@pytest.mark.sampled
def test_every_plan_computes_what_numpy_does(shape, axis, dtype, plan):
    check(softmax(shape, axis, dtype), shape, dtype, plan)


@pytest.mark.parametrize(
    ("sizes", "shape", "axis", "plan"),
    [
        (("B", "N", 8), (3, 45, 8), 1, None),
        ((2, 20, "N"), (2, 20, 45), 1, "columns=32 vector=1 parts=8"),
        (("B", 5, 9), (7, 5, 9), 2, "columns=256 vector=1 parts=1"),
    ],
)
def test_sizes_may_be_known_at_the_call_only(sizes, shape, axis, plan):
    given = [n for n, size in zip(shape, sizes, strict=True) if isinstance(size, str)]
    check(softmax(sizes, axis), shape, plan=plan, sizes=given)


def test_what_makes_the_elements_is_computed_with_them():
    fn = check(softmax((2, 64, 32), 1, before="tanh"), (2, 64, 32))
    assert len(re.findall("blockIdx.x", str(fn))) == 1


def test_a_layer_norm_of_few_features_is_a_thread_s_own():
    module = graph.parse(
        "graph @main(%x: f32[40, 50, 12], %s: f32[12], %b: f32[12]) "
        "{ %y = layer_norm(%x, %s, %b) {axis = 2} return %y }"
    )
    plan = "columns=256 vector=1 parts=1"
    fn = check(module, (40, 50, 12), plan=plan, more=((12,), (12,)))
    assert "shared" not in str(fn)


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "access"),
    [
        ((8, 8, 3137, 8), 2, "f32", "v2.b32"),
        ((8, 4, 196, 196), 1, "f32", "v2.b32"),
        ((8, 64, 3136), 1, "f16", ("v2.b16", "b32")),
    ],
)
def test_columns_are_one_kernel_with_loads_and_stores_of_neighbours(shape, axis, dtype, access):
    made = scheduled(softmax(shape, axis, dtype))
    ptx = tw.build(made.schedule.function, TARGET).ptx
    assert ptx.count(".entry") == 1
    kinds = set(re.findall(r"^\s+(?:@\S+ )?((?:ld|st)\.global\S*)", ptx, re.M))
    assert kinds
    assert all(kind.endswith(access) for kind in kinds)
    assert ".local" not in ptx


@pytest.mark.parametrize("columns", [9, 49, 197])
def test_many_rows_of_odd_lengths_share_blocks(columns):
    """A block of one warp for each row would wait for blocks to be dispatched."""
    shape = (8, 196, 54, columns)
    plan = dict(part.split("=") for part in scheduled(softmax(shape, 3)).decisions[0].plan.split())
    assert int(plan["columns"]) > 1 or columns == 197


def test_rows_between_products_share_blocks_too():
    """Softmax rows of an attention over 49 keys; the product that follows pads them by itself."""
    shape = "f32[128, 6, 49, 32]"
    net = graph.parse(
        f"graph @main(%q: {shape}, %k: {shape}, %v: {shape}) "
        "{ %y = attention(%q, %k, %v) {scale = 0.125} return %y }"
    )
    (kernel,) = tw.compile(net, target="cuda").program.kernels.values()
    assert [each.rule for each in kernel.decisions] == ["sgemm", "gemm", "columns"]
    assert re.search(r"alloc %\w+_weights: f32\[128, 6, 49, 49\]\n", kernel.text)
    assert re.search(r"alloc %\w+_weights_pad: f32\[[^\n]* in shared", kernel.text)


def test_rivals_are_priced_by_the_entries_that_follow():
    entries = RULES["cuda"]
    own = next(at for at, entry in enumerate(entries) if SEPARATE_KERNELS in entry)
    assert [entry for entry in entries[own + 1 :] if entry in LATER] == [*LATER]


@pytest.mark.parametrize(("shape", "axis"), [((8, 8, 3137, 8), 2), ((4, 50_257), 1), ((8, 64), 1)])
def test_one_kernel_is_priced_against_one_for_each_sum(shape, axis):
    fn = lower_graph(softmax(shape, axis).main, "f")
    apart = [rule.name for entry in RULES["cuda"] for rule in entry]
    apart = [name for name in apart if name not in ("rows", "columns")]
    chosen, alone = schedule(fn, TARGET), schedule(fn, TARGET, only=apart)
    taken, other = (sum(each.predicted_ns for each in made.decisions) for made in (chosen, alone))
    assert taken <= 1.05 * other
    if "rows" not in {each.rule for each in chosen.decisions} and len(chosen.decisions) > 1:
        assert "kernels of their own" in " ".join(each.reason for each in chosen.refusals)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((8, 8, 3137, 8), 2, "f32"),
        ((8, 196, 6, 9, 9), 4, "f16"),
        ((8, 196, 196, 4), 2, "f32"),
        ((8, 12, 197, 197), 3, "f16"),
    ],
)
@pytest.mark.sampled
def test_the_assembler_spills_nothing(shape, axis, dtype, arch):
    target = f"cuda -arch={arch}"
    fn = scheduled(softmax(shape, axis, dtype), target=target).schedule.function
    told = assembled(tw.build(fn, target).ptx, arch)
    assert "0 bytes spill stores, 0 bytes spill loads" in told
    assert not re.search("[1-9][0-9]* bytes (stack frame|spill)", told)
